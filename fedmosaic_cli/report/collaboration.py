"""Compare a run with Local training on the same shards, client by client."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Summary keys that limit how far a comparison can be trusted. The messages are part of evaluation.json.
CAVEAT_MESSAGES = {
    "nonidentical": "went on under other conditions than it began",
    "left_out": "left clients that diverged out of rounds",
    "lost": "lost sites in some rounds",
}
# An accuracy times the number of examples is an integer up to rounding.
COUNT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class GainsOverLocal:
    """The numbers of helped, unharmed and hurt clients, and their gains in accuracy.

    The largest gain and the largest loss are at least 0.
    """

    helped: int
    unharmed: int
    hurt: int
    mean_gain: float
    largest_gain: float
    largest_loss: float
    gains: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the gains, which are stored with the clients."""
        return {name: value for name, value in asdict(self).items() if name != "gains"}


def gains_over_local(
    accuracies: Sequence[float], local_accuracies: Sequence[float], num_examples: Sequence[int]
) -> GainsOverLocal:
    """Compare the accuracies of clients with those of their Local models on the same examples.

    Clients are compared by the number of correct predictions, because equal fractions may differ in their last bit.

    Raises:
        ValueError: The lengths differ, or a value is not an accuracy on the given number of examples.
    """
    if not len(accuracies) == len(local_accuracies) == len(num_examples) or not num_examples:
        raise ValueError(f"{len(accuracies)} accuracies, {len(local_accuracies)} of Local, {len(num_examples)} sizes")
    counts, local_counts = correct_counts(accuracies, num_examples), correct_counts(local_accuracies, num_examples)
    differences = [count - local_count for count, local_count in zip(counts, local_counts, strict=True)]
    gains = tuple(difference / size for difference, size in zip(differences, num_examples, strict=True))
    return GainsOverLocal(
        helped=sum(difference > 0 for difference in differences),
        unharmed=differences.count(0),
        hurt=sum(difference < 0 for difference in differences),
        mean_gain=fmean(gains),
        largest_gain=max(0.0, *gains),
        largest_loss=max(0.0, *(-gain for gain in gains)),
        gains=gains,
    )


def correct_counts(accuracies: Sequence[float], num_examples: Sequence[int]) -> list[int]:
    """Return the numbers of correct predictions. Raise ValueError for values that are not accuracies."""
    counts = []
    for accuracy, size in zip(accuracies, num_examples, strict=True):
        counts.append(round(accuracy * size))
        if not 0 <= counts[-1] <= size or abs(accuracy * size - counts[-1]) > COUNT_TOLERANCE:
            raise ValueError(f"{accuracy} is not an accuracy on {size} examples")
    return counts


def local_run_mismatch(run: Mapping[str, Any], local: Mapping[str, Any]) -> str | None:
    """Return why the summary `local` is not of the Local run that matches `run`; None if it is.

    Only the method may differ: shards, seed, rounds, model, training and client settings must be equal.
    """
    if local["method"] != "local":
        return f"it is a run of '{local['method']}', not of Local"
    if run["shards"]["digest"] != local["shards"].get("digest"):
        return "it was made on other shards"
    for key in ("seed", "rounds"):
        if run[key] != local[key]:
            return f"it was made with {key} {local[key]}, not {run[key]}"
    for section in ("model", "train", "clients"):
        expected, actual = run.get(section) or {}, local.get(section) or {}
        for key in sorted({*expected, *actual}):
            if expected.get(key) != actual.get(key):
                return f"it was made with {section}.{key} {actual.get(key)}, not {expected.get(key)}"
    return None


def comparison_caveats(run: Mapping[str, Any], local: Mapping[str, Any]) -> list[str]:
    """Return what limits the comparison of the two summaries."""
    both = {"the run": run, "the Local run": local}
    return [
        f"{name} {message}" for name, one in both.items() for key, message in CAVEAT_MESSAGES.items() if one.get(key)
    ]
