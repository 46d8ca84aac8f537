"""How long a round of each method takes relative to one of Local, for estimates of remaining time."""

from __future__ import annotations

from typing import NamedTuple


class RelativeCost(NamedTuple):
    """CPU time of a run relative to Local, in stacked execution and one by one.

    Stacked: an mlp on 8x8 images, 30 rounds. One by one: a cnn on 32x32 images, 12 rounds.
    """

    stacked: float
    threads: float


# Medians of 3 repetitions, printed by `python benchmarks/relative_costs.py --repetitions 3`.
RELATIVE_COSTS = {
    "local": RelativeCost(stacked=1.0, threads=1.0),
    "centralized": RelativeCost(stacked=2.6, threads=0.9),
    "fedavg": RelativeCost(stacked=1.1, threads=1.0),
    "fedprox": RelativeCost(stacked=1.2, threads=1.1),
    "fedct": RelativeCost(stacked=1.7, threads=1.8),
    "fedbn": RelativeCost(stacked=1.1, threads=1.0),
    "perfedavg": RelativeCost(stacked=2.1, threads=2.2),
    "ditto": RelativeCost(stacked=2.0, threads=2.0),
    "pfedme": RelativeCost(stacked=3.0, threads=4.4),
    "apfl": RelativeCost(stacked=2.2, threads=2.1),
    "fedphp": RelativeCost(stacked=1.5, threads=1.5),
    "perfedckt": RelativeCost(stacked=2.7, threads=1.9),
    "fedmosaic": RelativeCost(stacked=1.7, threads=2.0),
    "gated": RelativeCost(stacked=3.4, threads=3.3),
    "fedavgft": RelativeCost(stacked=1.4, threads=1.4),
    "scaffold": RelativeCost(stacked=1.4, threads=1.3),
    "feddf": RelativeCost(stacked=4.9, threads=11.0),
    "fedper": RelativeCost(stacked=1.1, threads=1.0),
    "fedrep": RelativeCost(stacked=1.3, threads=1.3),
    "lgfedavg": RelativeCost(stacked=1.1, threads=1.0),
    "fedproto": RelativeCost(stacked=2.2, threads=1.3),
    "fedfomo": RelativeCost(stacked=2.1, threads=1.7),
    "pfedhn": RelativeCost(stacked=2.7, threads=10.2),
    "dpsgd": RelativeCost(stacked=1.2, threads=1.1),
    "student": RelativeCost(stacked=6.8, threads=17.2),
    "oracle": RelativeCost(stacked=4.1, threads=10.4),
}
SINGLE_EXCHANGE_METHODS = frozenset({"student", "oracle"})
"""Methods with one exchange, after the last round. It has a fixed number of steps: longer runs cost less per round."""
DEFAULT_COST = RelativeCost(stacked=2.0, threads=2.0)
"""The cost of methods without a measurement, such as plug-ins: two models per round, as many personalised methods."""


def relative_cost(method: str, execution: str) -> float:
    """Return the cost of a round of a method in multiples of Local's.

    Args:
        method: Name of the method.
        execution: How the clients are executed; `stacked and threads` counts as threads.
    """
    cost = RELATIVE_COSTS.get(method, DEFAULT_COST)
    return cost.stacked if execution == "stacked" else cost.threads
