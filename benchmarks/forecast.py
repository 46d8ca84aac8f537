"""Fit the model of `fedmosaic forecast`, and check it on held-out runs: the tables of docs/trust.md.

fedmosaic reproduce regimes --seeds 10,11,12 --methods student   # the runs of the fit: Local and Student
python benchmarks/forecast.py fit runs                           # writes fedmosaic_cli/runner/forecast_model.json
python benchmarks/forecast.py check runs/quickstart              # any directory with runs of student and local

A fit takes a minute for 120 runs. It prints the quality on held-out settings: all runs with the same number of examples
and the same heterogeneity are held out together, because settings with 500 and 2,000 public examples have the same
clients; then all runs of one heterogeneity, and all of one number of examples. The limits of an interval are quantiles
of errors on other held-out settings.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from fedmosaic_cli.cotraining.forecast import (
    MIN_USEFUL_GAIN,
    NO_GAIN,
    ExpectedGain,
    ForecastModel,
    ResidualRange,
    forecast_features,
)
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.runner.forecast import (
    MODEL_FILE,
    ForecastModelFile,
    ForecastQuality,
    gains_over_local_run,
    load_forecast_model,
    read_exchange,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL_PATH = Path(__file__).parents[1] / "fedmosaic_cli" / "runner" / MODEL_FILE
FEATURES = ("reliability", "inverse_root_examples")
OTHER_FEATURES = ("coverage", "agreement", "log10_public")
PENALTY = 0.01
LOWEST_SHARE = 0.1
"""Share of clients from which the lower limit of phi is computed."""
INTERVAL = 0.9
CLIENT_LIMITS, MEAN_LIMITS = (0.02, 0.05), (0.02,)
"""Expected gains at which the interval changes, for clients and for means."""
SETTING_PATTERN = re.compile(r"regimes-n(\d+)-(.+)-u\d+")
HELD_OUT = {"setting": ["examples", "heterogeneity"], "heterogeneity": ["heterogeneity"], "examples": ["examples"]}


def collect_rows(folders: Sequence[str]) -> pd.DataFrame:
    """One row per client of all runs of student below the folders; a run needs that of Local next to it."""
    rows: list[dict[str, Any]] = []
    runs = {"/".join(path.parts[-3:]): path for folder in folders for path in Path(folder).glob("**/student/seed-*")}
    for name, path in sorted(runs.items()):
        try:
            exchange = read_exchange(path)
            gains = gains_over_local_run(exchange)
        except FedMosaicError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        rows += [
            {
                "run": name,
                "setting": path.parents[1].name,
                "seed": path.name,
                **forecast_features(evidence, exchange.class_counts[client]),
                "own_accuracy": exchange.own_accuracy(client),
                "is_guarded": bool(exchange.guard(client)),
                "gain": gains[client],
            }
            for client, evidence in exchange.evidence.items()
        ]
    if not rows:
        sys.exit("no finished runs of student with a run of Local next to them")
    return pd.DataFrame(rows).astype({"own_accuracy": float})


def fit(rows: pd.DataFrame, names: Sequence[str] = FEATURES) -> ForecastModel:
    """Fit gain = (1 - a) phi by least squares, with a penalty on the standardised coefficients of phi."""
    used = rows[~rows.is_guarded]
    features = used[list(names)].to_numpy()
    center, scale = features.mean(axis=0), features.std(axis=0) + 1e-12
    headroom = 1 - used.own_accuracy.to_numpy()
    design = headroom[:, None] * np.column_stack([np.ones(len(used)), (features - center) / scale])
    penalty = PENALTY * (headroom**2).sum() * np.diag([0.0, *[1.0] * len(names)])
    constant, *slopes = np.linalg.solve(design.T @ design + penalty, design.T @ used.gain.to_numpy())
    coefficients = np.array(slopes) / scale
    named = dict(zip(names, map(float, coefficients), strict=True))
    constant = float(constant - coefficients @ center)
    # The gain of the clients with the lowest values of the linear function.
    order = np.argsort(features @ coefficients, kind="stable")[: round(LOWEST_SHARE * len(used))]
    least = max(used.gain.to_numpy()[order].sum() / max(headroom[order].sum(), 1e-12), 0.0)
    unknown = (ResidualRange(inf, 0.0, 0.0),)
    return ForecastModel(float(least), constant, named, unknown, unknown)


def predict(model: ForecastModel, rows: pd.DataFrame) -> list[ExpectedGain]:
    """The expected gain of each client."""
    records = rows.to_dict("records")
    return [NO_GAIN if row["is_guarded"] else model.expected_gain(row, row["own_accuracy"]) for row in records]


def predict_means(model: ForecastModel, rows: pd.DataFrame, gains: Sequence[ExpectedGain]) -> pd.DataFrame:
    """Expected and observed mean gain of each run."""
    frame = rows.assign(index=range(len(rows)))
    return pd.DataFrame(
        [
            {
                **model.expected_mean([gains[i] for i in run["index"]])._asdict(),
                "gain": run.gain.mean(),
                **run.iloc[0][["setting", *(key for key in ("examples", "heterogeneity") if key in run)]],
            }
            for _, run in frame.groupby("run")
        ]
    )


def residual_ranges(expected: pd.Series, observed: pd.Series, limits: Sequence[float]) -> tuple[ResidualRange, ...]:
    """Quantiles of the errors between two limits of the expected gain, with the correction of split conformal sets."""
    ranges = []
    for low, high in pairwise([-inf, *limits, inf]):
        errors = np.sort((observed - expected)[(expected >= low) & (expected < high)])
        num_outside = max(int((len(errors) + 1) * (1 - INTERVAL) / 2), 1)
        ranges.append(ResidualRange(high, float(errors[num_outside - 1]), float(errors[-num_outside])))
    return tuple(ranges)


def with_intervals(model: ForecastModel, clients: pd.DataFrame, means: pd.DataFrame) -> ForecastModel:
    """The model with intervals from held-out predictions."""
    return replace(
        model,
        residuals=residual_ranges(clients["mean"], clients.gain, CLIENT_LIMITS),
        mean_residuals=residual_ranges(means["mean"], means.gain, MEAN_LIMITS),
    )


def held_out_predictions(rows: pd.DataFrame, keys: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Predictions for clients and run means by models that are fitted without runs with the same keys."""
    parts, mean_parts, models = [], [], {}
    for key, held_out in rows.groupby(keys):
        models[key] = fit(rows.drop(held_out.index))
        gains = predict(models[key], held_out)
        parts.append(held_out.assign(mean=[gain.mean for gain in gains]))
        mean_parts.append(predict_means(models[key], held_out, gains))
    clients, means = pd.concat(parts), pd.concat(mean_parts, ignore_index=True)
    # The intervals of a held-out group come from the errors of the other groups.
    for key, held_out in rows.groupby(keys):
        model = with_intervals(models[key], clients.drop(held_out.index), means[~means.setting.isin(held_out.setting)])
        gains = predict(model, held_out)
        clients.loc[held_out.index, ["low", "high"]] = [gain[1:] for gain in gains]
        own = means.setting.isin(held_out.setting)
        means.loc[own, ["low", "high"]] = predict_means(model, held_out, gains)[["low", "high"]].to_numpy()
    return clients, means


def r_squared(frame: pd.DataFrame) -> float:
    return 1 - ((frame.gain - frame["mean"]) ** 2).mean() / frame.gain.var(ddof=0)


def quality(clients: pd.DataFrame, means: pd.DataFrame) -> ForecastQuality:
    """The quality of predictions."""
    measures = {}
    for prefix, frame in {"": clients, "mean_": means}.items():
        measures |= {
            f"{prefix}r_squared": r_squared(frame),
            f"{prefix}rank_correlation": float(spearmanr(frame.gain, frame["mean"])[0]),
            f"{prefix}mean_error": float((frame.gain - frame["mean"]).abs().mean()),
            f"{prefix}interval_coverage": float(frame.gain.between(frame.low, frame.high).mean()),
            f"{prefix}useful": float((frame.gain > MIN_USEFUL_GAIN).mean()),
            f"{prefix}decision_accuracy": float(
                ((frame.gain > MIN_USEFUL_GAIN) == (frame["mean"] >= MIN_USEFUL_GAIN)).mean()
            ),
        }
    return ForecastQuality(settings=int(clients.setting.nunique()), clients=len(clients), **measures)


def print_quality(by_title: dict[str, ForecastQuality]) -> None:
    """Print one row for clients and one for means of runs."""
    print("| held out | of | R2 | rank correlation | mean error | interval covers | useful gains | decision correct |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for title, each in by_title.items():
        values = each.model_dump()
        for label, prefix in (("clients", ""), ("means", "mean_")):
            numbers = {name: values[prefix + name] for name in ("r_squared", "rank_correlation", "mean_error")}
            shares = [values[prefix + name] for name in ("interval_coverage", "useful", "decision_accuracy")]
            print(
                f"| {title} | {label} | {numbers['r_squared']:.2f} | {numbers['rank_correlation']:.2f} | "
                f"{100 * numbers['mean_error']:.2f} | {' | '.join(f'{100 * share:.0f} %' for share in shares)} |"
            )


def fit_study(folders: Sequence[str]) -> None:
    """Fit the model on the study of regimes and write it."""
    rows = collect_rows(folders)
    matches = [SETTING_PATTERN.fullmatch(setting) for setting in rows.setting]
    rows = rows.assign(
        examples=[match and int(match[1]) for match in matches], heterogeneity=[match and match[2] for match in matches]
    )
    rows = rows[rows.examples.notna()].reset_index(drop=True)
    predictions = {name: held_out_predictions(rows, keys) for name, keys in HELD_OUT.items()}
    model = with_intervals(fit(rows), *predictions["setting"])
    seeds = sorted(int(seed.removeprefix("seed-")) for seed in rows.seed.unique())
    content = ForecastModelFile(
        study=f"'fedmosaic reproduce regimes --seeds {','.join(map(str, seeds))}'",
        interval=INTERVAL,
        least_fraction=model.least_fraction,
        constant=model.constant,
        coefficients=dict(model.coefficients),
        residuals=to_lists(model.residuals),
        mean_residuals=to_lists(model.mean_residuals),
        quality={name: quality(*found) for name, found in predictions.items()},
    )
    MODEL_PATH.write_text(json.dumps(rounded(content.model_dump()), indent=2) + "\n", encoding="utf-8")
    print(f"{rows.setting.nunique()} settings, {rows.run.nunique()} runs, {len(rows)} clients, seeds {seeds}\n")
    terms = [f"{model.constant:.3f}", *(f"{value:+.3f} {name}" for name, value in model.coefficients.items())]
    print(f"phi = {' '.join(terms)}, at least {model.least_fraction:.3f}\n")
    print_quality(content.quality)
    print_features(rows)


def print_features(rows: pd.DataFrame) -> None:
    """Print what other features would change: R2 over clients, by what is held out."""
    print(f"\n| features of phi | {' | '.join(HELD_OUT)} |\n|---|{'---:|' * len(HELD_OUT)}")
    choices = [FEATURES, *((name,) for name in FEATURES), *((*FEATURES, name) for name in OTHER_FEATURES)]
    for names in choices:
        cells = []
        for keys in HELD_OUT.values():
            parts = [
                held_out.assign(mean=[gain.mean for gain in predict(fit(rows.drop(held_out.index), names), held_out)])
                for _, held_out in rows.groupby(keys)
            ]
            cells.append(f"{r_squared(pd.concat(parts)):.2f}")
        print(f"| {', '.join(names)} | {' | '.join(cells)} |")


def to_lists(ranges: Sequence[ResidualRange]) -> list[tuple[float | None, float, float]]:
    """Ranges for a JSON file, which has no infinity."""
    return [(None if each.below == inf else each.below, each.low, each.high) for each in ranges]


def rounded(content: Any) -> Any:
    """Round all numbers, so that the file can be read."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value) for value in content]
    return round(content, 5) if isinstance(content, float) else content


def check(folders: Sequence[str]) -> None:
    """Compare the forecasts of the shipped model with the outcome of other runs, by setting and in total."""
    rows = collect_rows(folders)
    model = load_forecast_model().to_model()
    gains = predict(model, rows)
    clients, means = rows.assign(**pd.DataFrame(gains)), predict_means(model, rows, gains)
    print("| setting | runs | clients | expected mean gain | test gain | clients in their interval |")
    print("|---|---:|---:|---:|---:|---:|")
    for setting, part in clients.groupby("setting", sort=False):
        inside = part.gain.between(part.low, part.high).sum()
        print(
            f"| {setting} | {part.run.nunique()} | {len(part)} | {100 * part['mean'].mean():+.1f} | "
            f"{100 * part.gain.mean():+.1f} | {inside} |"
        )
    print()
    print_quality({"other runs": quality(clients, means)})


if __name__ == "__main__":
    parts = {"fit": fit_study, "check": check}
    if len(sys.argv) < 3 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    parts[sys.argv[1]](sys.argv[2:])
