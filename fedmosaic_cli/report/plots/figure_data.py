"""What figures need of a setting's logs. Every log is read once, and only means are kept of most of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import SkippedRun
from fedmosaic_cli.report.plots.plot_style import is_highlighted_method
from fedmosaic_cli.report.round_logs import load_round_curves
from fedmosaic_cli.storage.runs import ROUNDS_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]


MAX_PLAUSIBLE_VALUE = 1e50
"""No loss and no number of bits is so large; with such numbers, sums and axes may become infinite."""
FRACTION_METRICS = ("accuracy", "agreement", "vote_agreement", "pseudo_label_accuracy")


class FigureUnavailableError(Exception):
    """There is nothing to draw; the text says what is missing."""


@dataclass(frozen=True)
class RunCurves:
    """A run, round by round: means over its clients, and the bits that all of them have sent and received so far.

    NaN where a round has no such value; no bits where raw data moved.
    """

    accuracy: Vector
    cumulative_bits: Vector | None
    agreement: Vector
    pseudo_label_accuracy: Vector


@dataclass(frozen=True)
class ClientCurves:
    """A run of FedMosaic client by client, each as [rounds, clients]. In the first `alone` rounds nobody was sent a
    consensus."""

    seed: int
    digest: str
    trust: Matrix
    loss_private: Matrix
    loss_public: Matrix
    num_rounds_before_consensus: int


@dataclass(frozen=True)
class FigureData:
    """The courses of each method's runs, a close-up of the first run of each variant of FedMosaic, and the runs whose
    logs are of no use."""

    curves_by_method: dict[MethodKey, list[RunCurves]] = field(default_factory=dict)
    client_curves_by_method: dict[MethodKey, ClientCurves] = field(default_factory=dict)
    skipped: list[SkippedRun] = field(default_factory=list)


@dataclass(frozen=True)
class SeedBand:
    """Mean, least and largest value over seeds."""

    mean: Vector
    low: Vector
    high: Vector


def read_figure_data(group: ComparisonGroup) -> FigureData:
    """All logs of a setting."""
    evidence = FigureData()
    for key, runs in group.runs_by_method.items():
        for path, seed, digest in zip(runs.path, runs.seed, runs.digest, strict=True):
            try:
                curves = read_complete_curves(path, group.conditions["rounds"])
            except RequestError as error:
                evidence.skipped.append(SkippedRun(path, str(error)))
            except OSError as error:
                evidence.skipped.append(SkippedRun(path, f"cannot be read: {error.strerror}"))
            else:
                evidence.curves_by_method.setdefault(key, []).append(run_curves(curves))
                if is_highlighted_method(key) and key not in evidence.client_curves_by_method:
                    evidence.client_curves_by_method[key] = client_curves(int(seed), str(digest), curves)
    return evidence


def read_complete_curves(path: Path, num_rounds: int) -> dict[str, Matrix]:
    """The curves of a run, if they go to its end and could be true: shares are between 0 and 1, accuracies are always
    there, and nothing is absurdly large."""
    curves = load_round_curves(path)
    accuracy = curves.get("accuracy", np.full((1, 1), np.nan))
    shares = [curves[name] for name in FRACTION_METRICS if name in curves]
    possible = not any(np.any((table < 0) | (table > 1)) for table in shares) and not np.isnan(accuracy).any()
    if (
        len(accuracy) != num_rounds
        or not possible
        or any(np.any(abs(table) > MAX_PLAUSIBLE_VALUE) for table in curves.values())
    ):
        raise RequestError(f"the log is damaged ({path / ROUNDS_FILE}): mend the run with --resume")
    return curves


def run_curves(curves: dict[str, Matrix]) -> RunCurves:
    nothing = np.full_like(curves["accuracy"], np.nan)
    sent = curves.get("bits_up", nothing) + curves.get("bits_down", nothing)
    return RunCurves(
        accuracy=nan_mean(curves["accuracy"], axis=1),
        cumulative_bits=None if np.isnan(sent).all() else np.nansum(sent, axis=1).cumsum(),
        # Of votes where they are logged, as they are for every method; else as a client found it before it trained.
        agreement=nan_mean(curves.get("vote_agreement", curves.get("agreement", nothing)), axis=1),
        pseudo_label_accuracy=nan_mean(curves.get("pseudo_label_accuracy", nothing), axis=1),
    )


def client_curves(seed: int, digest: str, curves: dict[str, Matrix]) -> ClientCurves:
    nothing = np.full_like(curves["accuracy"], np.nan)
    received = np.nansum(curves.get("bits_down", nothing), axis=1) > 0
    return ClientCurves(
        seed=seed,
        digest=digest,
        trust=curves.get("lambda", nothing),
        loss_private=curves.get("loss_private", nothing),
        loss_public=curves.get("loss_public", nothing),
        num_rounds_before_consensus=int(received.argmax()) if received.any() else len(received),
    )


def nan_mean(table: Matrix, axis: int) -> Vector:
    """The mean of what is there; NaN where nothing is."""
    mean: Vector = np.ma.masked_invalid(table).mean(axis=axis).filled(np.nan)
    return mean


def band_over_seeds(curves: Sequence[Vector]) -> SeedBand:
    """The band of curves of equal length; NaN where no seed has a value."""
    known = np.ma.masked_invalid(np.stack(curves))
    return SeedBand(*(values.filled(np.nan) for values in (known.mean(axis=0), known.min(axis=0), known.max(axis=0))))


def seed_band_note(curves_by_method: dict[MethodKey, list[RunCurves]]) -> str:
    """What lines and bands are, for the remark below a figure."""
    counts = sorted({len(runs) for runs in curves_by_method.values()})
    if counts == [1]:
        return "One seed."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Lines: mean over {seeds} seeds; bands: lowest to highest seed."
