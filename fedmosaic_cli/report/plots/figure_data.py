"""What figures need of a setting's logs. Every log is read once, and only means are kept of most of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import Skipped
from fedmosaic_cli.report.plots.plot_style import is_strong
from fedmosaic_cli.report.round_logs import curves_of
from fedmosaic_cli.storage.runs import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import Key, Setting

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]


ABSURD = 1e50
"""No loss and no number of bits is so large; with such numbers, sums and axes may become infinite."""
SHARES = ("accuracy", "agreement", "vote_agreement", "pseudo_label_accuracy")


class NoFigureError(Exception):
    """There is nothing to draw; the text says what is missing."""


@dataclass(frozen=True)
class Course:
    """A run, round by round: means over its clients, and the bits that all of them have sent and received so far.

    NaN where a round has no such value; no bits where raw data moved.
    """

    accuracy: Vector
    bits: Vector | None
    agreement: Vector
    right_labels: Vector


@dataclass(frozen=True)
class CloseUp:
    """A run of FedMosaic client by client, each as [rounds, clients]. In the first `alone` rounds nobody was sent a
    consensus."""

    seed: int
    digest: str
    trust: Matrix
    loss_private: Matrix
    loss_public: Matrix
    alone: int


@dataclass(frozen=True)
class Evidence:
    """The courses of each method's runs, a close-up of the first run of each variant of FedMosaic, and the runs whose
    logs are of no use."""

    courses: dict[Key, list[Course]] = field(default_factory=dict)
    close_ups: dict[Key, CloseUp] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True)
class Band:
    """Mean, least and largest value over seeds."""

    mean: Vector
    low: Vector
    high: Vector


def read(setting: Setting) -> Evidence:
    """All logs of a setting."""
    evidence = Evidence()
    for key, runs in setting.methods.items():
        for path, seed, digest in zip(runs.path, runs.seed, runs.digest, strict=True):
            try:
                curves = whole_curves(path, setting.terms["rounds"])
            except RequestError as error:
                evidence.skipped.append(Skipped(path, str(error)))
            except OSError as error:
                evidence.skipped.append(Skipped(path, f"cannot be read: {error.strerror}"))
            else:
                evidence.courses.setdefault(key, []).append(course_of(curves))
                if is_strong(key) and key not in evidence.close_ups:
                    evidence.close_ups[key] = close_up(int(seed), str(digest), curves)
    return evidence


def whole_curves(path: Path, rounds: int) -> dict[str, Matrix]:
    """The curves of a run, if they go to its end and could be true: shares are between 0 and 1, accuracies are always
    there, and nothing is absurdly large."""
    curves = curves_of(path)
    accuracy = curves.get("accuracy", np.full((1, 1), np.nan))
    shares = [curves[name] for name in SHARES if name in curves]
    possible = not any(np.any((table < 0) | (table > 1)) for table in shares) and not np.isnan(accuracy).any()
    if len(accuracy) != rounds or not possible or any(np.any(abs(table) > ABSURD) for table in curves.values()):
        raise RequestError(f"the log is damaged ({path / ROUNDS}): mend the run with --resume")
    return curves


def course_of(curves: dict[str, Matrix]) -> Course:
    nothing = np.full_like(curves["accuracy"], np.nan)
    sent = curves.get("bits_up", nothing) + curves.get("bits_down", nothing)
    return Course(
        accuracy=mean_over(curves["accuracy"], axis=1),
        bits=None if np.isnan(sent).all() else np.nansum(sent, axis=1).cumsum(),
        # Of votes where they are logged, as they are for every method; else as a client found it before it trained.
        agreement=mean_over(curves.get("vote_agreement", curves.get("agreement", nothing)), axis=1),
        right_labels=mean_over(curves.get("pseudo_label_accuracy", nothing), axis=1),
    )


def close_up(seed: int, digest: str, curves: dict[str, Matrix]) -> CloseUp:
    nothing = np.full_like(curves["accuracy"], np.nan)
    received = np.nansum(curves.get("bits_down", nothing), axis=1) > 0
    return CloseUp(
        seed=seed,
        digest=digest,
        trust=curves.get("lambda", nothing),
        loss_private=curves.get("loss_private", nothing),
        loss_public=curves.get("loss_public", nothing),
        alone=int(received.argmax()) if received.any() else len(received),
    )


def mean_over(table: Matrix, axis: int) -> Vector:
    """The mean of what is there; NaN where nothing is."""
    mean: Vector = np.ma.masked_invalid(table).mean(axis=axis).filled(np.nan)
    return mean


def over_seeds(curves: Sequence[Vector]) -> Band:
    """The band of curves of equal length; NaN where no seed has a value."""
    known = np.ma.masked_invalid(np.stack(curves))
    return Band(*(values.filled(np.nan) for values in (known.mean(axis=0), known.min(axis=0), known.max(axis=0))))


def over_how_many(courses: dict[Key, list[Course]]) -> str:
    """What lines and bands are, for the remark below a figure."""
    counts = sorted({len(runs) for runs in courses.values()})
    if counts == [1]:
        return "One seed."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Lines: mean over {seeds} seeds; bands: lowest to highest seed."
