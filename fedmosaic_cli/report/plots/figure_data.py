"""Data behind the figures of a comparison group: means per round, curves per client, and shard manifests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import SkippedRun
from fedmosaic_cli.report.comparison import has_client_trust, method_title
from fedmosaic_cli.report.round_logs import load_round_curves
from fedmosaic_cli.storage.runs import ROUNDS_FILE
from fedmosaic_cli.storage.shard_manifest import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

    Vector = NDArray[np.float64]
    Matrix = NDArray[np.float64]


MAX_PLAUSIBLE_VALUE = 1e50
"""Larger losses or bit counts are damage; sums and axis limits of them may overflow."""
FRACTION_METRICS = ("accuracy", "agreement", "vote_agreement", "pseudo_label_accuracy")


class FigureUnavailableError(Exception):
    """The data for a figure is missing; the message says which."""


@dataclass(frozen=True)
class RunCurves:
    """Means over the clients of a run per round, and the bits that all clients have exchanged so far.

    A value is NaN in rounds that do not log it. `cumulative_bits` is None if the run moves raw data.
    """

    accuracy: Vector
    cumulative_bits: Vector | None
    agreement: Vector
    pseudo_label_accuracy: Vector


@dataclass(frozen=True)
class ClientCurves:
    """Curves of the clients of a FedMosaic run, each of shape [rounds, clients]."""

    seed: int
    digest: str
    trust: Matrix
    loss_private: Matrix
    loss_public: Matrix
    num_rounds_before_consensus: int


@dataclass(frozen=True)
class FigureData:
    """Curves of all runs, client curves of the first run of each FedMosaic variant, and runs with unusable logs."""

    curves_by_method: dict[MethodKey, list[RunCurves]] = field(default_factory=dict)
    client_curves_by_method: dict[MethodKey, ClientCurves] = field(default_factory=dict)
    skipped: list[SkippedRun] = field(default_factory=list)


@dataclass(frozen=True)
class SeedBand:
    """Mean and standard deviation over seeds; the deviation is NaN if there are fewer than two."""

    mean: Vector
    std: Vector


def read_figure_data(group: ComparisonGroup) -> FigureData:
    """Read the logs of all runs of a group; runs with unusable logs are listed in `skipped`."""
    data = FigureData()
    for key, runs in group.runs_by_method.items():
        for path, seed, digest in zip(runs.path, runs.seed, runs.digest, strict=True):
            try:
                curves = read_complete_curves(path, group.conditions["rounds"])
            except RequestError as error:
                data.skipped.append(SkippedRun(path, str(error)))
            except OSError as error:
                data.skipped.append(SkippedRun(path, f"cannot be read: {error.strerror}"))
            else:
                data.curves_by_method.setdefault(key, []).append(run_curves(curves))
                if has_client_trust(key) and key not in data.client_curves_by_method:
                    data.client_curves_by_method[key] = client_curves(int(seed), str(digest), curves)
    return data


def read_complete_curves(path: Path, num_rounds: int) -> dict[str, Matrix]:
    """The curves of a run, after a check that all rounds are present and all values are plausible.

    A round that was not evaluated has no accuracy of any client.
    """
    curves = load_round_curves(path)
    accuracy = curves.get("accuracy", np.full((1, 1), np.nan))
    fractions = [curves[name] for name in FRACTION_METRICS if name in curves]
    if (
        len(accuracy) != num_rounds
        or np.isnan(accuracy[-1]).any()
        or np.any(np.isnan(accuracy).any(axis=1) != np.isnan(accuracy).all(axis=1))
        or any(np.any((matrix < 0) | (matrix > 1)) for matrix in fractions)
        or any(np.any(abs(matrix) > MAX_PLAUSIBLE_VALUE) for matrix in curves.values())
    ):
        raise RequestError(f"the log is damaged ({path / ROUNDS_FILE}): repeat its command to repair the run")
    return curves


def run_curves(curves: dict[str, Matrix]) -> RunCurves:
    missing = np.full_like(curves["accuracy"], np.nan)
    bits = curves.get("bits_up", missing) + curves.get("bits_down", missing)
    return RunCurves(
        accuracy=nan_mean(curves["accuracy"], axis=1),
        cumulative_bits=None if np.isnan(bits).all() else np.nansum(bits, axis=1).cumsum(),
        # All methods that log votes log their agreement; other runs log the agreement before local training.
        agreement=nan_mean(curves.get("vote_agreement", curves.get("agreement", missing)), axis=1),
        pseudo_label_accuracy=nan_mean(curves.get("pseudo_label_accuracy", missing), axis=1),
    )


def client_curves(seed: int, digest: str, curves: dict[str, Matrix]) -> ClientCurves:
    missing = np.full_like(curves["accuracy"], np.nan)
    received = np.nansum(curves.get("bits_down", missing), axis=1) > 0
    return ClientCurves(
        seed=seed,
        digest=digest,
        trust=curves.get("lambda", missing),
        loss_private=curves.get("loss_private", missing),
        loss_public=curves.get("loss_public", missing),
        num_rounds_before_consensus=int(received.argmax()) if received.any() else len(received),
    )


def nan_mean(matrix: Matrix, axis: int) -> Vector:
    """The mean of the finite values; NaN where there are none."""
    mean: Vector = np.ma.masked_invalid(matrix).mean(axis=axis).filled(np.nan)
    return mean


def in_rounds_of_all(curves: Sequence[Vector]) -> list[Vector]:
    """The curves without rounds in which one of them has no value. The mean over other seeds would not compare."""
    is_known = np.isfinite(np.stack(curves)).all(axis=0)
    return [np.where(is_known, curve, np.nan) for curve in curves]


def band_over_seeds(curves: Sequence[Vector]) -> SeedBand:
    """The band of curves of equal length; NaN where no seed has a value."""
    known = np.ma.masked_invalid(np.stack(curves))
    mean: Vector = known.mean(axis=0).filled(np.nan)
    if len(curves) < 2:
        return SeedBand(mean, np.full_like(mean, np.nan))
    return SeedBand(mean, known.std(axis=0, ddof=1).filled(np.nan))


def group_equal_bands(bands: Mapping[MethodKey, SeedBand]) -> dict[MethodKey, list[MethodKey]]:
    """The rows with equal means and deviations, by the first of them: they are drawn as one line."""
    groups: dict[MethodKey, list[MethodKey]] = {}
    for key, band in bands.items():
        equal = (
            first
            for first in groups
            if np.array_equal(bands[first].mean, band.mean, equal_nan=True)
            and np.array_equal(bands[first].std, band.std, equal_nan=True)
        )
        groups.setdefault(next(equal, key), []).append(key)
    return groups


def equal_titles(keys: Sequence[MethodKey]) -> str:
    """The name of a line that several rows share: `FedBN = FedProx`."""
    return " = ".join(map(method_title, keys))


def joined_titles(keys: Sequence[MethodKey]) -> str:
    """Titles as an enumeration: `A, B and C`."""
    *others, last = map(method_title, keys)
    return f"{', '.join(others)} and {last}" if others else last


def seeds_note(bands: Iterable[SeedBand], num_seeds: Collection[int], has_bands: bool) -> str:
    """The sentence on means and deviations over seeds."""
    counts = sorted(set(num_seeds))
    if counts == [1]:
        return "One seed."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    if has_bands:
        return f"Mean over {seeds} seeds; bands: one standard deviation over seeds."
    largest = max(float(np.nanmax(band.std[-1:], initial=0)) for band in bands)
    return (
        f"Mean over {seeds} seeds; the standard deviation over seeds is at most {100 * largest:.1f} points "
        "in the last round."
    )


def valid_manifest(group: ComparisonGroup, digest: str) -> ShardManifest | None:
    """The manifest of the shards with this digest, or None if it is missing or inconsistent."""
    try:
        manifest = ShardManifest.model_validate(group.manifests_by_digest.get(digest))
    except ValidationError:
        return None
    splits = [split for client in manifest.clients for split in (client.train, client.test, client.val) if split]
    lengths = {
        len(counts)
        for counts in (manifest.public.class_counts, *(split.class_counts for split in splits))
        if counts is not None
    }
    return manifest if manifest.clients and lengths == {len(manifest.class_names)} else None


def first_valid_manifest(group: ComparisonGroup) -> ShardManifest:
    """The manifest of the lowest seed that has a valid one."""
    for digest in dict.fromkeys(group.runs.sort_values("seed", kind="stable").digest):
        manifest = valid_manifest(group, digest)
        if manifest is not None:
            return manifest
    raise FigureUnavailableError("no run contains a shard manifest; repeat the runs, older versions did not save it")
