"""What may be concluded: paired tests over clients, and ranks over settings.

There is no test over seeds. Three seeds are too few for any, and a p-value over them would only look like evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.baseline_colors import DIGITS
from fedmosaic_cli.report.comparison import CENTRALIZED, LOCAL, title_of
from fedmosaic_cli.storage.files import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import Key, Setting

LEVEL = 0.05
# With fewer clients that differ at all, no outcome could be significant at 5 %.
FEWEST_PAIRS = 6
FEWEST_SETTINGS = 2
FEWEST_METHODS = 3
Client = tuple[str, int]


@dataclass(frozen=True)
class Comparison:
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
    def clients(self) -> int:
        return self.helped + self.unharmed + self.hurt


@dataclass(frozen=True)
class Ranking:
    """Average ranks over settings, 1 being best.

    Methods whose ranks differ by less than `critical_difference` cannot be told apart (Nemenyi, 5 %); `p_value` is
    Friedman's, for all of them being alike.
    """

    settings: tuple[str, ...]
    ranks: dict[str, float]
    critical_difference: float
    p_value: float


@cache  # a setting is compared for the statistics and for the page
def compare_with_local(setting: Setting) -> tuple[Comparison, ...]:
    """Every method of a setting against Local on the same shards and seeds; nothing where Local was not run."""
    if LOCAL not in setting.methods:
        return ()
    local = setting.methods[LOCAL]
    gains = {key: gains_of(runs, local) for key, runs in setting.methods.items() if key != LOCAL}
    gains = {key: found for key, found in gains.items() if found}
    tests = {key: signed_ranks(list(found.values())) for key, found in gains.items()}
    corrected = holm({key: p for key, (_, p) in tests.items() if p is not None})
    return tuple(
        Comparison(
            setting=setting.label,
            method=title_of(key),
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


def gains_of(runs: pd.DataFrame, local: pd.DataFrame) -> dict[Client, float]:
    """How much more right each client is than by itself.

    A client is who holds certain data: where seeds share shards, its runs are averaged, where each seed deals anew,
    its clients are others.
    """
    alone = {(seed, digest): marks for seed, digest, marks in columns_of(local)}
    found: dict[Client, list[float]] = {}
    for seed, digest, marks in columns_of(runs):
        own = alone.get((seed, digest))
        if marks is None or own is None or len(marks) != len(own):
            continue
        for client, (mark, before) in enumerate(zip(marks, own, strict=True)):
            # Shards without a digest may be anybody's: then a seed is a partition.
            found.setdefault((digest or str(seed), client), []).append(mark - before)
    return {client: round(fmean(gains), DIGITS) for client, gains in found.items()}


def columns_of(runs: pd.DataFrame) -> list[tuple[int, str, tuple[float, ...] | None]]:
    return list(zip(runs.seed, runs.digest, runs.per_client, strict=True))


def signed_ranks(gains: Sequence[float]) -> tuple[float | None, float | None]:
    """Effect size and p-value of Wilcoxon's signed-rank test; clients without a difference say nothing in it."""
    from scipy.stats import rankdata, wilcoxon

    moved = [gain for gain in gains if gain]
    if not moved:
        return None, None
    ranks = rankdata([abs(gain) for gain in moved])
    favour = sum(rank for rank, gain in zip(ranks, moved, strict=True) if gain > 0)
    effect = float(2 * favour / ranks.sum() - 1)
    return effect, float(wilcoxon(moved).pvalue) if len(moved) >= FEWEST_PAIRS else None


def holm(p_values: dict[Any, float]) -> dict[Any, float]:
    """Holm's correction: the k-th smallest of n is multiplied by n - k + 1, and none falls below one before it."""
    corrected: dict[Any, float] = {}
    floor = 0.0
    for number, key in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        floor = max(floor, min(1.0, p_values[key] * (len(p_values) - number)))
        corrected[key] = floor
    return corrected


def rank(settings: Sequence[Setting]) -> Ranking | None:
    """The ranks of methods over settings, as many of both as were run together; None where there is too little to rank.

    In each setting means are taken over the seeds that all ranked methods have. Centralized is left out: it has
    everybody's data, so it is nobody's competitor.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    chosen, methods = largest_block(unlike(settings))
    means = [means_of(setting, methods) for setting in chosen]
    if not means:
        return None
    ranks = [rankdata([-mean for mean in row]) for row in means]
    average = {title_of(key): fmean(row[number] for row in ranks) for number, key in enumerate(methods)}
    count = len(methods)
    width = studentized_range.ppf(1 - LEVEL, count, inf) / sqrt(2) * sqrt(count * (count + 1) / (6 * len(chosen)))
    alike = all(len(set(row)) == 1 for row in means)
    p_value = 1.0 if alike else float(friedmanchisquare(*zip(*means, strict=True)).pvalue)
    return Ranking(tuple(setting.label for setting in chosen), average, float(width), p_value)


def unlike(settings: Sequence[Setting]) -> list[Setting]:
    """Of settings that differ in the public set alone, or that share a name, those with the most methods.

    The others tell nearly the same once more, and a test would take that for more evidence.
    """
    families: dict[bytes, dict[bytes, list[Setting]]] = {}
    for setting in one_of_each_name(settings):
        data: dict[str, Any] = setting.terms["data"]
        public = {name: value for name, value in data.items() if name.startswith("public_")}
        rest = {name: value for name, value in data.items() if name not in public}
        members = families.setdefault(to_json({**setting.terms, "data": rest}), {})
        members.setdefault(to_json(public), []).append(setting)
    return [
        setting
        for members in families.values()
        for setting in max(members.values(), key=lambda same: max(len(each.methods) for each in same))
    ]


def one_of_each_name(settings: Sequence[Setting]) -> list[Setting]:
    """Of the settings of one name the one with the most methods, of equals the first."""
    by_name: dict[str, list[Setting]] = {}
    for setting in settings:
        by_name.setdefault(setting.name, []).append(setting)
    return [max(same, key=lambda setting: len(setting.methods)) for same in by_name.values()]


def largest_block(settings: Sequence[Setting]) -> tuple[list[Setting], list[Key]]:
    """Settings and the methods that were run in all of them with common seeds, such that there are most cells.

    Nothing where there are fewer than two settings or three methods.
    """
    best: tuple[list[Setting], list[Key]] = [], []
    order = sorted(settings, key=lambda setting: -len(setting.methods))
    for number in range(FEWEST_SETTINGS, len(order) + 1):
        block = [setting for setting in settings if setting in order[:number]]
        methods = common_methods(block)
        if len(methods) >= FEWEST_METHODS and len(methods) * number > len(best[0]) * len(best[1]):
            best = block, methods
    return best


def common_methods(settings: Sequence[Setting]) -> list[Key]:
    """The methods that have a row in every setting, in the order of the paper; nothing where they share no seed."""
    shared = set.intersection(*(set(setting.methods) for setting in settings)) - {CENTRALIZED}
    methods = [key for key in settings[0].methods if key in shared]
    return methods if all(common_seeds(setting, methods) for setting in settings) else []


def common_seeds(setting: Setting, methods: Sequence[Key]) -> set[int]:
    """The seeds that all of these methods were run with."""
    return set.intersection(*(set(setting.methods[key].seed) for key in methods)) if methods else set()


def means_of(setting: Setting, methods: Sequence[Key]) -> list[float]:
    """The mean accuracy of each method over the seeds that all of them have."""
    seeds = common_seeds(setting, methods)
    runs = [setting.methods[key] for key in methods]
    return [round(float(each.accuracy[each.seed.isin(seeds)].mean()), DIGITS) for each in runs]
