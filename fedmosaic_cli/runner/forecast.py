"""Forecast what the method `student` brings to each client, from the exchange of labels of a run.

The forecast follows from the votes, the clients' class counts and the accuracy of each client's own model on held-out
training examples; a failed hold-out test of the votes sets it to 0. Does not import torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files as package_files
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from fedmosaic_cli.cotraining.forecast import (
    NO_GAIN,
    ExpectedGain,
    ForecastModel,
    ResidualRange,
    forecast_features,
    vote_evidence,
)
from fedmosaic_cli.cotraining.vote_shares import MIN_Z, ConfidenceVotes
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import finite_metric
from fedmosaic_cli.methods.student import VOTES_KEY
from fedmosaic_cli.runner.baseline_lookup import (
    MissingLocalBaseline,
    RecordedRun,
    compare_accuracies,
    find_local_baseline,
    load_recorded_run,
)
from fedmosaic_cli.schema import Fraction, Record
from fedmosaic_cli.storage.checkpoints import KEY_SEPARATOR, read_newest_checkpoint
from fedmosaic_cli.storage.runs import ROUNDS_FILE, SHARDS_FILE
from fedmosaic_cli.storage.shard_manifest import ShardManifest

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from fedmosaic_cli.cotraining.forecast import Advice, VoteEvidence

    IntArray = NDArray[np.int64]

MODEL_FILE = "forecast_model.json"
MAKE_VOTES = "name a run of 'student', made by 'fedmosaic baseline student'"
FORECAST_GATE = "safe"
"""The gate of the runs that the model was fitted on."""
GUARDS = ("check_agreement", "check_shares")


class ForecastQuality(Record):
    """How well a model predicts settings that had no influence on it. Errors are fractions of accuracy.

    Attributes:
        settings: Number of settings, each with its seeds.
        clients: Number of clients in all of them.
        r_squared: Explained fraction of the variance between clients.
        rank_correlation: Spearman's correlation over clients.
        mean_error: Mean absolute error over clients.
        interval_coverage: Fraction of clients whose gain is in the interval.
        useful: Fraction of clients that gain more than 0.5 points.
        decision_accuracy: Fraction of clients for which the forecast says correctly whether they do.

    The attributes with the prefix `mean_` are the same for the mean gains of runs.
    """

    settings: Annotated[int, Field(ge=1)]
    clients: Annotated[int, Field(ge=1)]
    r_squared: float
    rank_correlation: float
    mean_error: Annotated[float, Field(ge=0)]
    interval_coverage: Fraction
    useful: Fraction
    decision_accuracy: Fraction
    mean_r_squared: float
    mean_rank_correlation: float
    mean_mean_error: Annotated[float, Field(ge=0)]
    mean_interval_coverage: Fraction
    mean_useful: Fraction
    mean_decision_accuracy: Fraction


class ForecastModelFile(Record):
    """The content of the model file, which benchmarks/forecast.py writes.

    Attributes:
        study: The runs that the model was fitted on.
        interval: Nominal coverage of the intervals.
        least_fraction, constant, coefficients, residuals, mean_residuals: Fields of `ForecastModel`; the last limit of
            residuals is null.
        quality: Quality by what was held out together: a setting, all settings with one heterogeneity, or all with
            one number of examples per client.
    """

    study: str
    interval: Fraction
    least_fraction: Fraction
    constant: float
    coefficients: dict[str, float]
    residuals: Annotated[list[tuple[float | None, float, float]], Field(min_length=1)]
    mean_residuals: Annotated[list[tuple[float | None, float, float]], Field(min_length=1)]
    quality: dict[str, ForecastQuality]

    def to_model(self) -> ForecastModel:
        residuals, mean_residuals = (
            tuple(ResidualRange(np.inf if below is None else below, low, high) for below, low, high in ranges)
            for ranges in (self.residuals, self.mean_residuals)
        )
        return ForecastModel(self.least_fraction, self.constant, self.coefficients, residuals, mean_residuals)


@dataclass(frozen=True)
class ClientForecast:
    """What collaboration is expected to bring to one client. Accuracies, gains and shares are fractions.

    Attributes:
        client: Number of the client.
        examples: Its training examples.
        coverage: Fraction of the public set for which its votes count.
        agreement: Agreement with the votes of the others beyond chance.
        reliability: Reliability of the other clients' votes for its classes.
        weakest_class: The one of its classes for which the votes of the others are least reliable.
        own_accuracy: Accuracy of its own model on held-out training examples; None if it was not tested.
        expected_gain: Expected gain in accuracy over its own model.
        low: Lower limit of the interval of the gain.
        high: Upper limit.
        advice: What to do.
        reason: Why the client keeps its own model; "" if a guard does not decide.
        gain: The gain in test accuracy over Local, if the forecast is checked.
    """

    client: int
    examples: int
    coverage: float
    agreement: float
    reliability: float
    weakest_class: str
    own_accuracy: float | None
    expected_gain: float
    low: float
    high: float
    advice: Advice
    reason: str = ""
    gain: float | None = None


@dataclass(frozen=True)
class RunForecast:
    """What collaboration is expected to bring to the clients of a run.

    Attributes:
        path: The directory of the run.
        clients: One entry per client that has voted.
        public_size: Number of public examples.
        mean: Expected mean gain over these clients, with its interval.
        class_reliability: How far the votes for each class agree with the others; None without votes.
        gate: The gate of the run. The forecast is for `safe`.
        without_votes: Clients that have not voted.
        disabled_guards: Guards that the run does not have. The forecast is for the default guards.
    """

    path: Path
    clients: tuple[ClientForecast, ...]
    public_size: int
    mean: ExpectedGain
    class_reliability: dict[str, float | None]
    gate: str = FORECAST_GATE
    without_votes: tuple[int, ...] = ()
    disabled_guards: tuple[str, ...] = ()

    @property
    def is_checked(self) -> bool:
        """Whether the clients have a gain in test accuracy to compare with."""
        return all(client.gain is not None for client in self.clients)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per client, with the columns of `ClientForecast`."""
        import pandas as pd

        return pd.DataFrame([asdict(client) for client in self.clients])

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as JSON values."""
        clients = [asdict(client) for client in self.clients]
        if not self.is_checked:
            for client in clients:
                del client["gain"]
        return {
            "run": str(self.path),
            "public_size": self.public_size,
            "mean": self.mean._asdict(),
            "class_reliability": self.class_reliability,
            "gate": self.gate,
            "without_votes": list(self.without_votes),
            "disabled_guards": list(self.disabled_guards),
            "clients": clients,
        }


@dataclass(frozen=True)
class Exchange:
    """The exchange of labels of a finished run.

    Attributes:
        run: The run.
        manifest: The manifest of its shards.
        class_counts: Training examples per class by client.
        evidence: What the votes say for each client that has voted.
        rows: The log of the last round by client.
    """

    run: RecordedRun
    manifest: ShardManifest
    class_counts: dict[int, IntArray]
    evidence: dict[int, VoteEvidence]
    rows: dict[int, dict[str, Any]]

    def own_accuracy(self, client: int) -> float | None:
        """The accuracy of the client's own model on held-out training examples; None if it was not tested."""
        return finite_metric(self.rows[client], "gate_accuracy_local")

    def guard(self, client: int) -> str:
        """Why the client keeps its own model before a student is trained; "" if it does not."""
        guard = self.evidence[client].guard
        holdout_z = finite_metric(self.rows[client], "holdout_z")
        if not guard and holdout_z is not None and holdout_z < MIN_Z:
            guard = "the votes cannot be predicted"
        # Without a gate there are no folds.
        num_folds = self.run.summary["hyperparameters"].get("gate_folds", 0)
        if not guard and self.class_counts[client].sum() < 2 * num_folds:
            guard = "too few examples for the gate"
        return guard


@lru_cache
def load_forecast_model() -> ForecastModelFile:
    """Load the model that is part of the package."""
    text = (package_files("fedmosaic_cli.runner") / MODEL_FILE).read_text(encoding="utf-8")
    return ForecastModelFile.model_validate_json(text)


def forecast_run(path: Path, check: bool = False) -> RunForecast:
    """Forecast what collaboration brings to each client of a finished run of `student`.

    Args:
        path: The directory of the run.
        check: Also read the gains in test accuracy over the Local run next to it.

    Raises:
        RequestError: The run is not finished, has no votes or did not test its clients, or there is no Local run.
    """
    exchange = read_exchange(path)
    gains = gains_over_local_run(exchange) if check else {}
    model = load_forecast_model().to_model()
    expected = {client: expected_client_gain(exchange, client, model) for client in exchange.evidence}
    hyperparameters = exchange.run.summary["hyperparameters"]
    return RunForecast(
        path=path,
        clients=tuple(client_forecast(exchange, client, gain, gains.get(client)) for client, gain in expected.items()),
        public_size=next(iter(exchange.evidence.values())).public_size,
        mean=model.expected_mean(list(expected.values())),
        class_reliability=mean_reliability(exchange),
        gate=hyperparameters.get("gate", ""),
        without_votes=tuple(client for client in exchange.class_counts if client not in exchange.evidence),
        disabled_guards=tuple(name for name in GUARDS if hyperparameters.get(name) is False),
    )


def expected_client_gain(exchange: Exchange, client: int, model: ForecastModel) -> ExpectedGain:
    """Return the expected gain of a client; raise RequestError if the run has not tested the client's own model."""
    if exchange.guard(client):
        return NO_GAIN
    accuracy = exchange.own_accuracy(client)
    if accuracy is None:
        gate = exchange.run.summary["hyperparameters"].get("gate")
        raise RequestError(
            f"the accuracy of the clients' own models is unknown with the gate '{gate}' ({exchange.run.files.path}): "
            f"make the run with --set methods.student.gate={FORECAST_GATE}"
        )
    return model.expected_gain(forecast_features(exchange.evidence[client], exchange.class_counts[client]), accuracy)


def client_forecast(exchange: Exchange, client: int, expected: ExpectedGain, gain: float | None) -> ClientForecast:
    """Return the forecast of a client with the evidence for it."""
    evidence, counts = exchange.evidence[client], exchange.class_counts[client]
    own_reliability = np.where(counts > 0, np.nan_to_num(evidence.class_reliability), np.inf)
    return ClientForecast(
        client=client,
        examples=int(counts.sum()),
        coverage=evidence.coverage,
        agreement=evidence.agreement,
        reliability=evidence.reliability,
        weakest_class=exchange.manifest.class_names[int(own_reliability.argmin())],
        own_accuracy=exchange.own_accuracy(client),
        expected_gain=expected.mean,
        low=expected.low,
        high=expected.high,
        advice=expected.advice,
        reason=exchange.guard(client),
        gain=gain,
    )


def mean_reliability(exchange: Exchange) -> dict[str, float | None]:
    """Return the reliability of votes by class name: the mean over clients of that of the other clients."""
    table = np.array([evidence.class_reliability for evidence in exchange.evidence.values()])
    return {
        name: None if np.isnan(column).all() else float(np.nanmean(column))
        for name, column in zip(exchange.manifest.class_names, table.T, strict=True)
    }


def gains_over_local_run(exchange: Exchange) -> dict[int, float]:
    """Return the gain in test accuracy over the Local run by client; raise RequestError without a Local run."""
    run = exchange.run
    local = find_local_baseline(run, [], None, "test", DataDirs())
    if not isinstance(local, MissingLocalBaseline):
        sizes = [client.test.size for client in exchange.manifest.clients]
        comparison = compare_accuracies(local, run.summary["accuracy"]["per_client"], local.accuracies or [], sizes)
        if not isinstance(comparison, MissingLocalBaseline):
            return dict(enumerate(comparison.gains))
        local = comparison
    raise RequestError(str(local))


def read_exchange(path: Path) -> Exchange:
    """Read the exchange of labels of a finished run; raise RequestError if it has none."""
    run = load_recorded_run(path)
    run.files.verify_files(ROUNDS_FILE)
    last = run.summary["rounds"]
    try:
        manifest = ShardManifest.model_validate(run.files.read_shard_manifest())
        rows = {row["client"]: row for row in run.files.read_rounds() if row["round"] == last}
    except (ValidationError, KeyError, TypeError):
        raise RequestError(
            f"the log or {SHARDS_FILE} is damaged ({path}): repeat its command to repair the run"
        ) from None
    class_counts = {client.id: np.array(client.train.class_counts) for client in manifest.clients}
    votes = read_votes(run)
    if not votes.keys() <= class_counts.keys() & rows.keys():
        raise RequestError(f"the votes are not those of the clients in {SHARDS_FILE} ({path}): {MAKE_VOTES}")
    return Exchange(run, manifest, class_counts, vote_evidence(votes, class_counts), rows)


def read_votes(run: RecordedRun) -> dict[int, ConfidenceVotes]:
    """Read the votes from the server state of the last checkpoint; raise RequestError if there are none."""
    path = run.files.path
    checkpoint, _ = read_newest_checkpoint(run.files.checkpoints_dir)
    if checkpoint is None:
        raise RequestError(f"the run has no checkpoint, which keeps the votes ({path}): {MAKE_VOTES}")
    prefix = KEY_SEPARATOR.join(("server", VOTES_KEY, ""))
    parts: dict[int, dict[str, Any]] = {}
    for name in checkpoint.arrays:
        if name.startswith(prefix):
            client, _, part = name.removeprefix(prefix).partition(KEY_SEPARATOR)
            parts.setdefault(int(client), {})[part] = checkpoint.arrays[name]
    if not parts:
        method = run.summary["method"]
        problem = "a run of an earlier version" if method == "student" else f"a run of '{method}'"
        if (run.summary.get("exchange") or {}).get("failed"):
            problem = "a run with too few valid uploads"
        raise RequestError(f"{problem} has no stored votes ({path}): {MAKE_VOTES}")
    if run.summary.get("privacy"):
        raise RequestError(f"the votes of this run are randomised ({path}): {MAKE_VOTES} without --dp")
    return {client: ConfidenceVotes(part["labels"], part["confidence"]) for client, part in sorted(parts.items())}
