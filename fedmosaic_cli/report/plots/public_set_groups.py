"""Families: settings that agree in everything but one property of the public set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.comparison import LOCAL_KEY, ComparisonGroup, differing_keys
from fedmosaic_cli.report.plots.plot_style import is_highlighted_method
from fedmosaic_cli.storage.files import to_json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import MethodKey

MIN_GROUP_MEMBERS = 2
# PFLlib's rule for it counts the examples that the public set leaves over, so it may follow from the size.
SIZE_DEPENDENT_KEY = "min_size"


@dataclass(frozen=True)
class PublicSetGroup:
    """Settings by the one value in which they differ, in its order. `label` tells families apart."""

    label: str
    groups_by_value: dict[Any, ComparisonGroup]

    @property
    def has_same_clients(self) -> bool:
        """Whether clients hold the same in all members: U comes from examples that are set aside."""
        return all(setting.conditions["data"].get("public_from") for setting in self.groups_by_value.values())

    @cached_property
    def runs_by_method(self) -> dict[MethodKey, dict[Any, pd.DataFrame]]:
        """The runs of Local and of all that share labels of the public set, FedMosaic's variants first of all, by that
        value."""
        import pandas as pd

        # Taken together, so that runs with other hyper-parameters are told apart across members as well.
        runs = pd.concat(
            [member.runs.assign(member=number) for number, member in enumerate(self.groups_by_value.values())]
        )
        values = list(self.groups_by_value)
        return {
            key: {values[int(str(number))]: same for number, same in group.groupby("member")}
            for key, group in ComparisonGroup("", "", runs.reset_index(drop=True)).runs_by_method.items()
            if is_highlighted_method(key) or key == LOCAL_KEY or METHODS[key[0]].shares_labels
        }


def find_public_set_groups(
    comparison_groups: Sequence[ComparisonGroup], varied_key: str
) -> tuple[list[PublicSetGroup], list[str]]:
    """All families of at least two that differ in `data.<varied>`, and why a setting that would fit is not in one.

    Only settings with runs of FedMosaic count. Shards that are dealt anew for each seed and shards that all seeds share
    do not mix: what varies between seeds is not the same.
    """
    groups: dict[bytes, list[ComparisonGroup]] = {}
    for setting in comparison_groups:
        if any(map(is_highlighted_method, setting.runs_by_method)) and varied_key in setting.conditions["data"]:
            groups.setdefault(to_json_bytes(shared_conditions(setting, varied_key)), []).append(setting)
    found, remarks = [], []
    for group in groups.values():
        members: dict[Any, ComparisonGroup] = {}
        # Where two have the same value, the one with more seeds stays, else the first.
        for setting in sorted(group, key=lambda setting: -len(setting.seeds)):
            value = setting.conditions["data"][varied_key]
            kept = members.setdefault(value, setting)
            if kept is not setting:
                remarks.append(f"{setting.label} is not in it, because {kept.label} has the same {varied_key}")
        if len(members) >= MIN_GROUP_MEMBERS:
            found.append(members)
    return label_public_set_groups(found, varied_key), remarks


def shared_conditions(group: ComparisonGroup, varied_key: str) -> dict[str, Any]:
    """What the members of a family share."""
    terms = group.conditions
    follows = varied_key == "public_size" and terms["data"].get("protocol") == "pfllib"
    free = {varied_key, SIZE_DEPENDENT_KEY} if follows else {varied_key}
    data = {key: value for key, value in terms["data"].items() if key not in free}
    return {**terms, "data": data, "dealt anew": len(set(group.runs.digest)) > 1}


def label_public_set_groups(candidates: list[dict[Any, ComparisonGroup]], varied_key: str) -> list[PublicSetGroup]:
    """Families with their values in order (balanced, None, comes last) and a label each."""
    common = [flatten_keys(shared_conditions(next(iter(members.values())), varied_key)) for members in candidates]
    differing = [key for key in differing_keys(common) if key not in ("dataset", "scheme", "dealt anew")]
    listed = []
    bases = [base_label(members, terms) for members, terms in zip(candidates, common, strict=True)]
    for number, (members, terms) in enumerate(zip(candidates, common, strict=True)):
        base = bases[number]
        words = [f"{key.rpartition('.')[2]}={terms.get(key)}" for key in differing] if bases.count(base) > 1 else []
        ordered = sorted(members, key=lambda value: (value is None, value or 0))
        listed.append(PublicSetGroup(", ".join([base, *words]), {value: members[value] for value in ordered}))
    return sorted(listed, key=lambda family: family.label)


def base_label(groups_by_value: dict[Any, ComparisonGroup], conditions: dict[str, Any]) -> str:
    """What the members are called, or the preset that all of them were made from, or else their data."""
    for names in (
        {setting.name for setting in groups_by_value.values()},
        {setting.preset for setting in groups_by_value.values()},
    ):
        if len(names) == 1 and names != {""}:
            return names.pop()
    return f"{conditions['dataset']}, {conditions['scheme']}"
