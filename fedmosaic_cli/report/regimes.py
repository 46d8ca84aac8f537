"""Maps of regimes: comparison groups by data per client, heterogeneity and size of the public set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.data.data_settings import SCHEME_PARAMETERS
from fedmosaic_cli.data.datasets import DATASETS
from fedmosaic_cli.methods.registry import method_info
from fedmosaic_cli.report.comparison import (
    CENTRALIZED_KEY,
    LOCAL_KEY,
    ORACLE_KEY,
    differing_keys,
    method_title,
    paper_sort_key,
    shares_labels,
    short_assignments,
)
from fedmosaic_cli.report.formats.text_formats import records_to_csv
from fedmosaic_cli.storage.files import to_json_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

MIN_EXAMPLE_COUNTS = 2
"""Values of `data.examples_per_client` that a map has at least."""
# Label skew from strong to weak, then feature shift.
SCHEME_ORDER = ("pathological", "dirichlet", "iid", "domain", "hybrid", "natural")
# Data settings in which the cells of a map may differ.
VARIED_DATA_KEYS = {
    *(name for names in SCHEME_PARAMETERS.values() for name in names),
    *("domains", "examples_per_client", "public_size"),
}
# More examples may need more steps.
VARIED_TRAIN_KEYS = {"local_steps"}
MIN_NAMED_GAIN = 0.005
"""The gain from which a map recommends a method instead of Local."""
LOCAL_LABEL = "Local"
CSV_FIELDS = (
    *("map", "setting", "public_size", "examples_per_client", "scheme", "alpha", "classes_per_client", "domains"),
    *("method", "shares_labels", "accuracy", "local_accuracy", "gain", "gain_std", "seeds", "best"),
)


class Heterogeneity(NamedTuple):
    """How the data of the clients differs, in the order of the rows of a map. Unused values are 0."""

    rank: int
    alpha: float
    classes_per_client: int
    num_domains: int

    @property
    def scheme(self) -> str:
        return SCHEME_ORDER[self.rank]

    @property
    def label(self) -> str:
        """The label of a row, in up to two lines."""
        classes = f"{self.classes_per_client} class{'es' * (self.classes_per_client != 1)}"
        return {
            "pathological": f"{classes}\nper client",
            "dirichlet": f"Dirichlet\n\N{GREEK SMALL LETTER ALPHA} = {self.alpha:g}",
            "iid": "i.i.d.",
            "domain": f"feature shift\n{self.num_domains} domains",
            "hybrid": f"{self.num_domains} domains,\n{classes}",
            "natural": "natural",
        }[self.scheme]


class Regime(NamedTuple):
    """The coordinates of a cell."""

    public_size: int
    heterogeneity: Heterogeneity
    num_examples: int


@dataclass(frozen=True)
class MethodGain:
    """The gain of a method over Local on the seeds and shards that both have. `std` is None for one seed."""

    mean: float
    std: float | None
    seeds: tuple[int, ...]
    accuracy: float
    local_accuracy: float


@dataclass(frozen=True)
class RegimeCell:
    """The gains of all methods in one regime. Local is one of them, with gain 0."""

    group: ComparisonGroup
    gains: dict[MethodKey, MethodGain]

    @cached_property
    def best_key(self) -> MethodKey:
        """The best method that a federation can use; Local if no other one gains at least half a point."""
        best = self.best_of(key for key in self.gains if key not in (LOCAL_KEY, ORACLE_KEY, CENTRALIZED_KEY))
        return LOCAL_KEY if best is None or self.gains[best].mean < MIN_NAMED_GAIN else best

    @cached_property
    def label_sharing_gain(self) -> float | None:
        """The gain of the best method that shares labels only; None without such a run."""
        best = self.best_of(filter(shares_labels, self.gains))
        return None if best is None else self.gains[best].mean

    def gain_of(self, method: str) -> float | None:
        """The gain of a method, of its best row if it has several; None without a run."""
        best = self.best_of(key for key in self.gains if key[0] == method)
        return None if best is None else self.gains[best].mean

    def best_of(self, keys: Iterable[MethodKey]) -> MethodKey | None:
        """The best of some methods: of those with the most seeds, because seeds are not equally easy."""
        num_seeds = {key: len(self.gains[key].seeds) for key in keys}
        candidates = [key for key, count in num_seeds.items() if count == max(num_seeds.values())]
        return max(candidates, key=lambda key: self.gains[key].mean, default=None)


@dataclass(frozen=True)
class RegimeMap:
    """Cells that differ only in their coordinates (and in the local steps per round), with a unique label."""

    label: str
    cells: dict[Regime, RegimeCell]

    @property
    def public_sizes(self) -> list[int]:
        return sorted({regime.public_size for regime in self.cells})

    @property
    def heterogeneities(self) -> list[Heterogeneity]:
        return sorted({regime.heterogeneity for regime in self.cells})

    @property
    def example_counts(self) -> list[int]:
        return sorted({regime.num_examples for regime in self.cells})

    @property
    def methods(self) -> list[MethodKey]:
        """The methods of all cells, in the order of table rows."""
        return sorted({key for cell in self.cells.values() for key in cell.gains}, key=paper_sort_key)

    def short_title(self, key: MethodKey) -> str:
        """The name of a method, with the detail of its row only if the map has several rows of the method."""
        if key == LOCAL_KEY:
            return LOCAL_LABEL
        has_one_row = sum(other[0] == key[0] for other in self.methods) == 1
        return method_info(key[0]).title if has_one_row else method_title(key)


def find_regime_maps(groups: Sequence[ComparisonGroup]) -> tuple[list[RegimeMap], list[str]]:
    """Find all maps with at least two numbers of examples per client.

    Only groups with an exact number of examples per client, runs of Local and runs of another method count.

    Returns:
        The maps, and notes on groups that were left out.
    """
    cells_by_conditions: dict[bytes, dict[Regime, RegimeCell]] = {}
    conditions_by_key: dict[bytes, dict[str, Any]] = {}
    notes = []
    # Of two groups with the same coordinates, the one with more seeds is kept.
    for group in sorted(groups, key=lambda group: -len(group.seeds)):
        regime, gains = find_regime(group), method_gains(group)
        if regime is None or not gains:
            continue
        conditions = shared_conditions(group)
        key = to_json_bytes(conditions)
        conditions_by_key[key] = conditions
        kept = cells_by_conditions.setdefault(key, {}).setdefault(regime, RegimeCell(group, gains))
        if kept.group is not group:
            notes.append(f"{group.label} is left out, because {kept.group.label} is the same regime")
    found = {
        key: cells
        for key, cells in cells_by_conditions.items()
        if len({regime.num_examples for regime in cells}) >= MIN_EXAMPLE_COUNTS
    }
    labels = map_labels([conditions_by_key[key] for key in found])
    maps = [
        RegimeMap(label, {regime: cells[regime] for regime in sorted(cells)})
        for label, cells in zip(labels, found.values(), strict=True)
    ]
    return sorted(maps, key=lambda regime_map: regime_map.label), notes


def find_regime(group: ComparisonGroup) -> Regime | None:
    """The coordinates of a group, from its recorded data settings; None if the clients differ in size."""
    data = group.conditions["data"]
    num_examples, public_size = data.get("examples_per_client"), data.get("public_size")
    if num_examples is None or public_size is None or group.scheme not in SCHEME_ORDER:
        return None
    used = SCHEME_PARAMETERS[group.scheme]
    heterogeneity = Heterogeneity(
        SCHEME_ORDER.index(group.scheme),
        float(data.get("alpha") or 0) if "alpha" in used else 0.0,
        int(data.get("classes_per_client") or 0) if "classes_per_client" in used else 0,
        len(data.get("domains") or ()) if "clients_per_domain" in used else 0,
    )
    return Regime(int(public_size), heterogeneity, int(num_examples))


def method_gains(group: ComparisonGroup) -> dict[MethodKey, MethodGain]:
    """The gain of each method over Local, Local included; {} without Local or without another method."""
    local = group.runs_by_method.get(LOCAL_KEY)
    if local is None:
        return {}
    local_accuracies = accuracy_by_shards(local)
    gains = {}
    for key, runs in group.runs_by_method.items():
        pairs = {
            seed: (accuracy, local_accuracies[seed, digest])
            for (seed, digest), accuracy in accuracy_by_shards(runs).items()
            if (seed, digest) in local_accuracies
        }
        if pairs:
            differences = [accuracy - local_accuracy for accuracy, local_accuracy in pairs.values()]
            gains[key] = MethodGain(
                mean=fmean(differences),
                std=stdev(differences) if len(differences) > 1 else None,
                seeds=tuple(pairs),
                accuracy=fmean(accuracy for accuracy, _ in pairs.values()),
                local_accuracy=fmean(local_accuracy for _, local_accuracy in pairs.values()),
            )
    return gains if len(gains) > 1 else {}


def accuracy_by_shards(runs: pd.DataFrame) -> dict[tuple[int, str], float]:
    """The accuracy of each run by seed and digest of the shards."""
    keys = zip(map(int, runs.seed), map(str, runs.digest), strict=True)
    return dict(zip(keys, map(float, runs.accuracy), strict=True))


def shared_conditions(group: ComparisonGroup) -> dict[str, Any]:
    """The conditions that all cells of a map share."""
    conditions = {key: value for key, value in group.conditions.items() if key != "scheme"}
    data, train = conditions["data"], conditions["train"]
    return {
        **conditions,
        "dataset": base_dataset(group.dataset),
        "data": {key: value for key, value in data.items() if key not in VARIED_DATA_KEYS},
        "train": {key: value for key, value in train.items() if key not in VARIED_TRAIN_KEYS},
        "num_clients": num_clients(data),
    }


def base_dataset(name: str) -> str:
    """The data set of which this one is the variant with domains, or the data set itself."""
    return next((base for base, source in DATASETS.items() if source.domains_variant == name), name)


def num_clients(data: dict[str, Any]) -> int | None:
    """The number of clients of recorded data settings; None if they do not contain it."""
    per_domain, domains = data.get("clients_per_domain"), data.get("domains") or ()
    if per_domain is None:
        return data.get("clients")
    return sum(per_domain) if isinstance(per_domain, list) else per_domain * len(domains)


def map_labels(conditions: Sequence[dict[str, Any]]) -> list[str]:
    """The data set of each map, and the conditions that differ if there are several maps."""
    flat = list(map(flatten_keys, conditions))
    differing = [key for key in differing_keys(flat) if key != "dataset"]
    return [", ".join([values["dataset"], *short_assignments(values, differing)]) for values in flat]


def regime_maps_to_csv(maps: Sequence[RegimeMap]) -> str:
    """One line per cell and method; accuracies and gains are fractions."""
    records = [
        {
            "map": regime_map.label,
            "setting": cell.group.label,
            "public_size": regime.public_size,
            "examples_per_client": regime.num_examples,
            "scheme": regime.heterogeneity.scheme,
            "alpha": regime.heterogeneity.alpha or "",
            "classes_per_client": regime.heterogeneity.classes_per_client or "",
            "domains": regime.heterogeneity.num_domains or "",
            "method": method_title(key),
            "shares_labels": shares_labels(key),
            "accuracy": gain.accuracy,
            "local_accuracy": gain.local_accuracy,
            "gain": gain.mean,
            "gain_std": "" if gain.std is None else gain.std,
            "seeds": " ".join(map(str, gain.seeds)),
            "best": key == cell.best_key,
        }
        for regime_map in maps
        for regime, cell in regime_map.cells.items()
        for key, gain in cell.gains.items()
    ]
    return records_to_csv(CSV_FIELDS, records)
