"""Did collaboration help? A run against Local training on the same shards, client by client."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What a summary may tell that one should know before believing a comparison.
CAVEAT_MESSAGES = {
    "nonidentical": "went on under other conditions than it began",
    "left_out": "left clients that diverged out of rounds",
    "lost": "lost sites in some rounds",
}
# Accuracies are quotients of whole numbers: times the number of examples they are whole again, but for rounding.
COUNT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class GainsOverLocal:
    """How many clients are better off than alone, equally well, and worse; gains are differences of accuracies.

    The largest gain and the largest loss are at least 0: 0 where nobody gained, or lost.
    """

    helped: int
    unharmed: int
    hurt: int
    mean_gain: float
    largest_gain: float
    largest_loss: float
    gains: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """All but the gains, which stand with the clients."""
        return {name: value for name, value in asdict(self).items() if name != "gains"}


def gains_over_local(
    accuracies: Sequence[float], local_accuracies: Sequence[float], num_examples: Sequence[int]
) -> GainsOverLocal:
    """The accuracies of all clients beside those of their Local models on the same `sizes` examples each.

    What decides is the number of right answers: two quotients that should be equal may differ in their last bit.
    Raises ValueError where these are no accuracies on so many examples.
    """
    if not len(accuracies) == len(local_accuracies) == len(num_examples) or not num_examples:
        raise ValueError(f"{len(accuracies)} accuracies, {len(local_accuracies)} of Local, {len(num_examples)} sizes")
    pairs = zip(correct_counts(accuracies, num_examples), correct_counts(local_accuracies, num_examples), strict=True)
    more = [ours - alone for ours, alone in pairs]
    gains = tuple(difference / size for difference, size in zip(more, num_examples, strict=True))
    return GainsOverLocal(
        helped=sum(difference > 0 for difference in more),
        unharmed=more.count(0),
        hurt=sum(difference < 0 for difference in more),
        mean_gain=fmean(gains),
        largest_gain=max(0.0, *gains),
        largest_loss=max(0.0, *(-gain for gain in gains)),
        gains=gains,
    )


def correct_counts(accuracies: Sequence[float], num_examples: Sequence[int]) -> list[int]:
    """How many answers were right. Raises ValueError for what is no share of so many answers."""
    numbers = [round(accuracy * size) for accuracy, size in zip(accuracies, num_examples, strict=True)]
    for number, accuracy, size in zip(numbers, accuracies, num_examples, strict=True):
        if not 0 <= number <= size or abs(accuracy * size - number) > COUNT_TOLERANCE:
            raise ValueError(f"{accuracy} is no accuracy on {size} examples")
    return numbers


def local_run_mismatch(run: Mapping[str, Any], local: Mapping[str, Any]) -> str | None:
    """Why the summary `local` is not that of the run's own Local run; None where it is.

    Nothing may differ but the method: the same shards, seed, rounds, model and training settings.
    """
    if local["method"] != "local":
        return f"it is a run of '{local['method']}', not of Local"
    if run["shards"]["digest"] != local["shards"].get("digest"):
        return "it was made on other shards"
    for key in ("seed", "rounds"):
        if run[key] != local[key]:
            return f"it was made with {key} {local[key]}, not {run[key]}"
    for section in ("model", "train", "clients"):
        ours, theirs = run.get(section) or {}, local.get(section) or {}
        for key in sorted({*ours, *theirs}):
            if ours.get(key) != theirs.get(key):
                return f"it was made with {section}.{key} {theirs.get(key)}, not {ours.get(key)}"
    return None


def comparison_caveats(run: Mapping[str, Any], local: Mapping[str, Any]) -> list[str]:
    """What one should know of either summary before believing the comparison."""
    both = {"the run": run, "the Local run": local}
    return [f"{who} {what}" for who, one in both.items() for key, what in CAVEAT_MESSAGES.items() if one.get(key)]
