"""Paired tests over clients and ranks over groups.

There is no test over seeds: three seeds are too few, and a p-value over them would only look like evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, groups_by_name, method_title
from fedmosaic_cli.report.comparison_table import ACCURACY_DECIMALS
from fedmosaic_cli.storage.files import to_json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

SIGNIFICANCE_LEVEL = 0.05
MIN_PAIRS = 6  # with fewer differing clients no outcome is significant at 5 %
MIN_RANKED_GROUPS = 2
MIN_RANKED_METHODS = 3
ClientKey = tuple[str, int]


@dataclass(frozen=True)
class MethodComparison:
    """A method compared with local training, client by client.

    `p_value` is that of Wilcoxon's two-sided test after Holm's correction over the methods of the group, None if too
    few clients differ. `effect` is the rank-biserial correlation from -1 (all clients hurt) to 1.
    """

    setting: str
    method: str
    helped: int
    unharmed: int
    hurt: int
    mean_gain: float
    median_gain: float
    effect: float | None
    p_value: float | None

    @property
    def num_clients(self) -> int:
        return self.helped + self.unharmed + self.hurt


@dataclass(frozen=True)
class MethodRanking:
    """Average ranks over groups, 1 is best.

    Methods whose ranks differ by less than `critical_difference` are not distinguishable (Nemenyi, 5 %). `p_value` is
    that of Friedman's test.
    """

    settings: tuple[str, ...]
    ranks: dict[str, float]
    critical_difference: float
    p_value: float


@cache  # used by the statistics and by the page
def compare_methods_with_local(group: ComparisonGroup) -> tuple[MethodComparison, ...]:
    """Compare each method with Local on the same shards and seeds; () without runs of Local."""
    if LOCAL_KEY not in group.baseline_runs:
        return ()
    local = group.baseline_runs[LOCAL_KEY]
    by_method = {key: client_gains(runs, local) for key, runs in group.runs_by_method.items() if key != LOCAL_KEY}
    gains = {key: list(by_client.values()) for key, by_client in by_method.items() if by_client}
    tests = {key: wilcoxon_signed_rank(values) for key, values in gains.items()}
    corrected = holm_correction({key: p for key, (_, p) in tests.items() if p is not None})
    return tuple(
        MethodComparison(
            setting=group.label,
            method=method_title(key),
            **outcome_counts(values),
            mean_gain=fmean(values),
            median_gain=median(values),
            effect=tests[key][0],
            p_value=corrected.get(key),
        )
        for key, values in gains.items()
    )


def outcome_counts(gains: Sequence[float]) -> dict[str, int]:
    """Count the helped, unharmed and hurt clients."""
    signs = [(gain > 0) - (gain < 0) for gain in gains]
    return {"helped": signs.count(1), "unharmed": signs.count(0), "hurt": signs.count(-1)}


def client_gains(runs: pd.DataFrame, local_runs: pd.DataFrame) -> dict[ClientKey, float]:
    """Return the difference in accuracy to local training for each client.

    A client is identified by its data: the gains of seeds that share shards are averaged, other seeds have other
    clients.
    """
    local = dict(zip(zip(local_runs.seed, local_runs.digest, strict=True), local_runs.per_client, strict=True))
    gains: dict[ClientKey, list[float]] = {}
    for seed, digest, accuracies in zip(runs.seed, runs.digest, runs.per_client, strict=True):
        local_accuracies = local.get((seed, digest))
        if accuracies is None or local_accuracies is None or len(accuracies) != len(local_accuracies):
            continue
        for client, (accuracy, local_accuracy) in enumerate(zip(accuracies, local_accuracies, strict=True)):
            # Without a digest, each seed counts as a partition.
            gains.setdefault((digest or str(seed), client), []).append(accuracy - local_accuracy)
    return {client: round(fmean(values), ACCURACY_DECIMALS) for client, values in gains.items()}


def wilcoxon_signed_rank(gains: Sequence[float]) -> tuple[float | None, float | None]:
    """Return effect size and p-value of Wilcoxon's signed-rank test. Gains of 0 are ignored."""
    from scipy.stats import rankdata, wilcoxon

    nonzero = [gain for gain in gains if gain]
    if not nonzero:
        return None, None
    ranks = rankdata([abs(gain) for gain in nonzero])
    positive_sum = sum(rank for rank, gain in zip(ranks, nonzero, strict=True) if gain > 0)
    effect = float(2 * positive_sum / ranks.sum() - 1)
    return effect, float(wilcoxon(nonzero).pvalue) if len(nonzero) >= MIN_PAIRS else None


def holm_correction(p_values: dict[Any, float]) -> dict[Any, float]:
    """Apply Holm's correction: the k-th smallest of n is multiplied by n - k + 1, monotonically."""
    corrected: dict[Any, float] = {}
    floor = 0.0
    for number, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        floor = max(floor, min(1.0, p_values[key] * (len(p_values) - number)))
        corrected[key] = floor
    return corrected


def rank_methods(groups: Sequence[ComparisonGroup]) -> MethodRanking | None:
    """Rank methods over the largest block of groups and methods with common seeds; None if it is too small.

    The means of a group are over the seeds that all ranked methods have. Centralized is not ranked, because it trains
    on the data of all clients.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    ranked_groups, methods = largest_complete_block(distinct_groups(groups))
    if not ranked_groups:
        return None
    means = []
    for group in ranked_groups:
        seeds, runs = common_seeds(group, methods), [group.runs_by_method[key] for key in methods]
        means.append([round(float(r.accuracy[r.seed.isin(seeds)].mean()), ACCURACY_DECIMALS) for r in runs])
    ranks = [rankdata([-mean for mean in row]) for row in means]
    average = {method_title(key): fmean(row[number] for row in ranks) for number, key in enumerate(methods)}
    count = len(methods)
    quantile = studentized_range.ppf(1 - SIGNIFICANCE_LEVEL, count, inf)
    critical_difference = quantile / sqrt(2) * sqrt(count * (count + 1) / (6 * len(ranked_groups)))
    all_tied = all(len(set(row)) == 1 for row in means)
    p_value = 1.0 if all_tied else float(friedmanchisquare(*zip(*means, strict=True)).pvalue)
    return MethodRanking(tuple(group.label for group in ranked_groups), average, float(critical_difference), p_value)


def distinct_groups(groups: Sequence[ComparisonGroup]) -> list[ComparisonGroup]:
    """Of groups that share a name or differ only in the public set, keep those with the most methods.

    The others contain nearly the same evidence, and a test would count it twice.
    """
    families: dict[bytes, dict[bytes, list[ComparisonGroup]]] = {}
    for same_name in groups_by_name(groups).values():
        group = max(same_name, key=lambda group: len(group.runs_by_method))
        data: dict[str, Any] = group.conditions["data"]
        public = {name: value for name, value in data.items() if name.startswith("public_")}
        private = {name: value for name, value in data.items() if name not in public}
        by_public_set = families.setdefault(to_json_bytes({**group.conditions, "data": private}), {})
        by_public_set.setdefault(to_json_bytes(public), []).append(group)
    return [
        group
        for by_public_set in families.values()
        for group in max(by_public_set.values(), key=lambda same: max(len(each.runs_by_method) for each in same))
    ]


def largest_complete_block(groups: Sequence[ComparisonGroup]) -> tuple[list[ComparisonGroup], list[MethodKey]]:
    """Return the groups and the methods with runs in all of them that make the most cells; empty if too few."""
    best: tuple[list[ComparisonGroup], list[MethodKey]] = [], []
    by_size = sorted(groups, key=lambda group: -len(group.runs_by_method))
    for number in range(MIN_RANKED_GROUPS, len(by_size) + 1):
        block = [group for group in groups if group in by_size[:number]]
        shared = set.intersection(*(set(group.runs_by_method) for group in block)) - {CENTRALIZED_KEY}
        methods = [key for key in block[0].runs_by_method if key in shared]
        if (
            len(methods) >= MIN_RANKED_METHODS
            and len(methods) * number > len(best[0]) * len(best[1])
            and all(common_seeds(group, methods) for group in block)
        ):
            best = block, methods
    return best


def common_seeds(group: ComparisonGroup, methods: Sequence[MethodKey]) -> set[int]:
    return set.intersection(*(set(group.runs_by_method[key].seed) for key in methods))
