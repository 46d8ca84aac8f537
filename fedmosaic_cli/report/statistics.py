"""What may be concluded: paired tests over clients, and ranks over settings.

There is no test over seeds. Three seeds are too few for any, and a p-value over them would only look like evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.baseline_colors import ACCURACY_DECIMALS
from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, method_title
from fedmosaic_cli.storage.files import to_json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

SIGNIFICANCE_LEVEL = 0.05
# With fewer clients that differ at all, no outcome could be significant at 5 %.
MIN_PAIRS = 6
MIN_RANKED_GROUPS = 2
MIN_RANKED_METHODS = 3
ClientKey = tuple[str, int]


@dataclass(frozen=True)
class MethodComparison:
    """A method against local training, client by client.

    `p_value` is Wilcoxon's, two-sided, after Holm's correction for the methods of the setting; None where too few
    clients differ. `effect` is the rank-biserial correlation of the pairs, from -1 (everybody hurt) to 1.
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
    """Average ranks over settings, 1 being best.

    Methods whose ranks differ by less than `critical_difference` cannot be told apart (Nemenyi, 5 %); `p_value` is
    Friedman's, for all of them being alike.
    """

    settings: tuple[str, ...]
    ranks: dict[str, float]
    critical_difference: float
    p_value: float


@cache  # a setting is compared for the statistics and for the page
def compare_methods_with_local(group: ComparisonGroup) -> tuple[MethodComparison, ...]:
    """Every method of a setting against Local on the same shards and seeds; nothing where Local was not run."""
    if LOCAL_KEY not in group.runs_by_method:
        return ()
    local = group.runs_by_method[LOCAL_KEY]
    gains = {key: client_gains(runs, local) for key, runs in group.runs_by_method.items() if key != LOCAL_KEY}
    gains = {key: found for key, found in gains.items() if found}
    tests = {key: wilcoxon_signed_rank(list(found.values())) for key, found in gains.items()}
    corrected = holm_correction({key: p for key, (_, p) in tests.items() if p is not None})
    return tuple(
        MethodComparison(
            setting=group.label,
            method=method_title(key),
            helped=sum(gain > 0 for gain in found.values()),
            unharmed=sum(gain == 0 for gain in found.values()),
            hurt=sum(gain < 0 for gain in found.values()),
            mean_gain=fmean(found.values()),
            median_gain=median(found.values()),
            effect=tests[key][0],
            p_value=corrected.get(key),
        )
        for key, found in gains.items()
    )


def client_gains(runs: pd.DataFrame, local_runs: pd.DataFrame) -> dict[ClientKey, float]:
    """How much more right each client is than by itself.

    A client is who holds certain data: where seeds share shards, its runs are averaged, where each seed deals anew,
    its clients are others.
    """
    alone = {(seed, digest): marks for seed, digest, marks in per_client_accuracies(local_runs)}
    found: dict[ClientKey, list[float]] = {}
    for seed, digest, marks in per_client_accuracies(runs):
        own = alone.get((seed, digest))
        if marks is None or own is None or len(marks) != len(own):
            continue
        for client, (mark, before) in enumerate(zip(marks, own, strict=True)):
            # Shards without a digest may be anybody's: then a seed is a partition.
            found.setdefault((digest or str(seed), client), []).append(mark - before)
    return {client: round(fmean(gains), ACCURACY_DECIMALS) for client, gains in found.items()}


def per_client_accuracies(runs: pd.DataFrame) -> list[tuple[int, str, tuple[float, ...] | None]]:
    return list(zip(runs.seed, runs.digest, runs.per_client, strict=True))


def wilcoxon_signed_rank(gains: Sequence[float]) -> tuple[float | None, float | None]:
    """Effect size and p-value of Wilcoxon's signed-rank test; clients without a difference say nothing in it."""
    from scipy.stats import rankdata, wilcoxon

    moved = [gain for gain in gains if gain]
    if not moved:
        return None, None
    ranks = rankdata([abs(gain) for gain in moved])
    favour = sum(rank for rank, gain in zip(ranks, moved, strict=True) if gain > 0)
    effect = float(2 * favour / ranks.sum() - 1)
    return effect, float(wilcoxon(moved).pvalue) if len(moved) >= MIN_PAIRS else None


def holm_correction(p_values: dict[Any, float]) -> dict[Any, float]:
    """Holm's correction: the k-th smallest of n is multiplied by n - k + 1, and none falls below one before it."""
    corrected: dict[Any, float] = {}
    floor = 0.0
    for number, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        floor = max(floor, min(1.0, p_values[key] * (len(p_values) - number)))
        corrected[key] = floor
    return corrected


def rank_methods(groups: Sequence[ComparisonGroup]) -> MethodRanking | None:
    """The ranks of methods over settings, as many of both as were run together; None where there is too little to rank.

    In each setting means are taken over the seeds that all ranked methods have. Centralized is left out: it has
    everybody's data, so it is nobody's competitor.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    chosen, methods = largest_complete_block(distinct_groups(groups))
    means = [mean_accuracies(setting, methods) for setting in chosen]
    if not means:
        return None
    ranks = [rankdata([-mean for mean in row]) for row in means]
    average = {method_title(key): fmean(row[number] for row in ranks) for number, key in enumerate(methods)}
    count = len(methods)
    width = (
        studentized_range.ppf(1 - SIGNIFICANCE_LEVEL, count, inf)
        / sqrt(2)
        * sqrt(count * (count + 1) / (6 * len(chosen)))
    )
    alike = all(len(set(row)) == 1 for row in means)
    p_value = 1.0 if alike else float(friedmanchisquare(*zip(*means, strict=True)).pvalue)
    return MethodRanking(tuple(setting.label for setting in chosen), average, float(width), p_value)


def distinct_groups(groups: Sequence[ComparisonGroup]) -> list[ComparisonGroup]:
    """Of settings that differ in the public set alone, or that share a name, those with the most methods.

    The others tell nearly the same once more, and a test would take that for more evidence.
    """
    families: dict[bytes, dict[bytes, list[ComparisonGroup]]] = {}
    for setting in largest_group_per_name(groups):
        data: dict[str, Any] = setting.conditions["data"]
        public = {name: value for name, value in data.items() if name.startswith("public_")}
        rest = {name: value for name, value in data.items() if name not in public}
        members = families.setdefault(to_json_bytes({**setting.conditions, "data": rest}), {})
        members.setdefault(to_json_bytes(public), []).append(setting)
    return [
        setting
        for members in families.values()
        for setting in max(members.values(), key=lambda same: max(len(each.runs_by_method) for each in same))
    ]


def largest_group_per_name(groups: Sequence[ComparisonGroup]) -> list[ComparisonGroup]:
    """Of the settings of one name the one with the most methods, of equals the first."""
    by_name: dict[str, list[ComparisonGroup]] = {}
    for setting in groups:
        by_name.setdefault(setting.name, []).append(setting)
    return [max(same, key=lambda setting: len(setting.runs_by_method)) for same in by_name.values()]


def largest_complete_block(groups: Sequence[ComparisonGroup]) -> tuple[list[ComparisonGroup], list[MethodKey]]:
    """Settings and the methods that were run in all of them with common seeds, such that there are most cells.

    Nothing where there are fewer than two settings or three methods.
    """
    best: tuple[list[ComparisonGroup], list[MethodKey]] = [], []
    order = sorted(groups, key=lambda setting: -len(setting.runs_by_method))
    for number in range(MIN_RANKED_GROUPS, len(order) + 1):
        block = [setting for setting in groups if setting in order[:number]]
        methods = common_methods(block)
        if len(methods) >= MIN_RANKED_METHODS and len(methods) * number > len(best[0]) * len(best[1]):
            best = block, methods
    return best


def common_methods(groups: Sequence[ComparisonGroup]) -> list[MethodKey]:
    """The methods that have a row in every setting, in the order of the paper; nothing where they share no seed."""
    shared = set.intersection(*(set(setting.runs_by_method) for setting in groups)) - {CENTRALIZED_KEY}
    methods = [key for key in groups[0].runs_by_method if key in shared]
    return methods if all(common_seeds(setting, methods) for setting in groups) else []


def common_seeds(group: ComparisonGroup, methods: Sequence[MethodKey]) -> set[int]:
    """The seeds that all of these methods were run with."""
    return set.intersection(*(set(group.runs_by_method[key].seed) for key in methods)) if methods else set()


def mean_accuracies(group: ComparisonGroup, methods: Sequence[MethodKey]) -> list[float]:
    """The mean accuracy of each method over the seeds that all of them have."""
    seeds = common_seeds(group, methods)
    runs = [group.runs_by_method[key] for key in methods]
    return [round(float(each.accuracy[each.seed.isin(seeds)].mean()), ACCURACY_DECIMALS) for each in runs]
