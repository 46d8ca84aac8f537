"""Finding finished runs and putting their numbers side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.files import sha256, to_json
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.records.runs import CONFIG, SUMMARY, RunFiles
from fedmosaic_cli.report.verdict import Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

COLUMNS = ["setting", "protocol", "method", "variant", "hyperparameters", "seed", "accuracy", "caveats", "path"]
# What one should know of a run before comparing it with others.
CAVEATS = {
    "†": "with a run that went on under other conditions than it began (--allow-nonidentical)",
    "‡": "with a run in which clients that diverged were left out of rounds (--on-nan skip)",
}


Key = tuple[str, str]
BASELINES: list[Key] = [("local", ""), ("centralized", "")]


@dataclass(frozen=True)
class Skipped:
    """A run that is not in the tables, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Cell:
    """A method in a setting: mean and standard deviation over seeds, as fractions."""

    mean: float
    std: float | None
    seeds: tuple[int, ...]
    verdict: Verdict
    best: bool
    caveats: str = ""


@dataclass(frozen=True)
class Row:
    """A method, with a cell a column; None where it was not run."""

    title: str
    family: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """Methods by settings, in the order of the paper."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str

    def verdicts(self) -> list[Verdict]:
        """The verdicts that occur, in the order of their definition."""
        seen = {cell.verdict for row in self.rows for cell in row.cells if cell}
        return [verdict for verdict in Verdict if verdict in seen]

    def seeds(self, column: int) -> tuple[int, ...]:
        """All seeds that any method of a column was run with."""
        return tuple(sorted({seed for row in self.rows if (cell := row.cells[column]) for seed in cell.seeds}))


def collect(runs_dir: Path) -> tuple[pd.DataFrame, list[Skipped]]:
    """One line a finished run below `runs_dir`, and the runs that are left out."""
    import pandas as pd

    if not runs_dir.is_dir():
        raise RequestError(f"no runs here ({runs_dir}): make some with 'fedmosaic train --preset quickstart'")
    lines, skipped = [], []
    for folder in sorted({path.parent for name in (CONFIG, SUMMARY) for path in runs_dir.rglob(name)}):
        files = RunFiles(folder)
        try:
            if not files.finished():
                raise RequestError(f"not finished, {SUMMARY} is missing")
            lines.append({**line_of(files.summary()), "path": files.path})
        except RequestError as error:
            skipped.append(Skipped(files.path, str(error)))
        except (KeyError, TypeError, ValueError) as error:
            skipped.append(Skipped(files.path, f"{SUMMARY} is damaged: {type(error).__name__} {error}"))
    frame = pd.DataFrame(lines, columns=COLUMNS)
    again = frame.duplicated([name for name in COLUMNS if name not in ("accuracy", "caveats", "path")])
    skipped += [
        Skipped(path, "a run of the same configuration and seed is in the table already") for path in frame.path[again]
    ]
    return frame[~again], skipped


def line_of(summary: dict[str, Any]) -> dict[str, Any]:
    """What the tables need of a run. Runs of one protocol differ in method and seed only, so they may be compared."""
    same = ("dataset", "scheme", "rounds", "model", "train", "clients", "evaluation_clients")
    content = {"clients": {}, **summary, "evaluation_clients": summary["evaluation"]["clients"]}
    protocol = [summary["shards"]["parameters"], *(content[name] for name in same)]
    line: dict[str, Any] = {
        "setting": str(summary["preset"]),
        "protocol": sha256(to_json(protocol))[:6],
        "method": str(summary["method"]),
        "variant": str(summary["variant"]),
        "hyperparameters": json.dumps(dict(summary["hyperparameters"]), sort_keys=True),
        "seed": int(summary["seed"]),
        "accuracy": float(summary["accuracy"]["client_mean"]),
        "caveats": "†" * bool(summary.get("nonidentical")) + "‡" * bool(summary.get("left_out")),
    }
    if not 0 <= line["accuracy"] <= 1:
        raise ValueError(f"accuracy {line['accuracy']} is no fraction")
    if line["method"] not in METHODS:
        raise ValueError(f"unknown method '{line['method']}'")
    return line


def tabulate(frame: pd.DataFrame) -> Table:
    """The comparison table of all runs: a row a method, a column a setting."""
    columns = sorted({(line.setting, line.protocol) for line in frame.itertuples()})
    settings = [setting for setting, _ in columns]
    labels = tuple(
        str(setting) if settings.count(setting) == 1 else f"{setting} [{protocol}]" for setting, protocol in columns
    )
    by_column = [
        cells_of(frame[(frame.setting == setting) & (frame.protocol == protocol)]) for setting, protocol in columns
    ]
    order = list(METHODS)
    keys = sorted({key for cells in by_column for key in cells}, key=lambda key: (order.index(key[0]), *key))
    rows = tuple(
        Row(title_of(*key), METHODS[key[0]].family, tuple(cells.get(key) for cells in by_column)) for key in keys
    )
    return Table(labels, rows, caption_of(frame))


def cells_of(runs: pd.DataFrame) -> dict[Key, Cell]:
    """The cells of one column, by method and what tells its rows apart."""
    groups: dict[Key, pd.DataFrame] = {}
    for (method, variant), same_variant in runs.groupby(["method", "variant"]):
        differing = differing_keys(same_variant.hyperparameters.unique().tolist())
        for hyperparameters, group in same_variant.groupby("hyperparameters"):
            chosen = json.loads(str(hyperparameters))
            details = [f"{name}={chosen.get(name)}" for name in differing]
            kind = str(variant).removeprefix(str(method)).lstrip("-")
            groups[str(method), ", ".join(filter(None, [kind, *details]))] = group.sort_values("seed")
    means = {key: float(group.accuracy.mean()) for key, group in groups.items()}
    baselines = [groups[key].set_index("seed").accuracy for key in BASELINES if key in groups]
    return {
        key: Cell(
            mean=means[key],
            std=float(group.accuracy.std()) if len(group) > 1 else None,
            seeds=tuple(int(seed) for seed in group.seed),
            verdict=Verdict.BASELINE if key in BASELINES else verdict_of(group, baselines),
            best=means[key] == max(means.values()),
            caveats="".join(mark for mark in CAVEATS if group.caveats.str.contains(mark).any()),
        )
        for key, group in groups.items()
    }


def verdict_of(runs: pd.DataFrame, baselines: list[pd.Series[float]]) -> Verdict:
    """A method against both baselines, on the seeds that all three were run with."""
    accuracy = runs.set_index("seed").accuracy
    seeds = set(accuracy.index).intersection(*(baseline.index for baseline in baselines))
    if len(baselines) < len(BASELINES) or not seeds:
        return Verdict.UNKNOWN
    common = sorted(seeds)
    local, centralized = (float(baseline[common].mean()) for baseline in baselines)
    return judge(float(accuracy[common].mean()), local, centralized)


def differing_keys(choices: list[str]) -> list[str]:
    """The hyper-parameters in which runs of one method differ."""
    parsed = [json.loads(choice) for choice in choices]
    names = sorted({name for choice in parsed for name in choice})
    return [name for name in names if len({json.dumps(choice.get(name)) for choice in parsed}) > 1]


def title_of(method: str, detail: str) -> str:
    """The paper's spelling, with what tells several rows of one method apart."""
    return f"{METHODS[method].title} ({detail})" if detail else METHODS[method].title


def caption_of(frame: pd.DataFrame) -> str:
    seeds = [str(seed) for seed in sorted(set(frame.seed))]
    over = f"mean (sample standard deviation) over seeds {', '.join(seeds)}" if len(seeds) > 1 else f"seed {seeds[0]}"
    what = "Test accuracy (%): mean over clients, each on its own test part, personal model of the last round"
    caveats = [f" {mark} {words}." for mark, words in CAVEATS.items() if frame.caveats.str.contains(mark).any()]
    return f"{what}; {over}.{''.join(caveats)}"
