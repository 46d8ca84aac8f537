"""Families: settings that agree in everything but one property of the public set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import flat
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.comparison import LOCAL, Setting, differing_keys
from fedmosaic_cli.report.plots.plot_style import is_strong
from fedmosaic_cli.storage.files import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import Key

FEWEST = 2
# PFLlib's rule for it counts the examples that the public set leaves over, so it may follow from the size.
FOLLOWS_FROM_SIZE = "min_size"


@dataclass(frozen=True)
class Family:
    """Settings by the one value in which they differ, in its order. `label` tells families apart."""

    label: str
    members: dict[Any, Setting]

    @property
    def same_clients(self) -> bool:
        """Whether clients hold the same in all members: U comes from examples that are set aside."""
        return all(setting.terms["data"].get("public_from") for setting in self.members.values())

    @cached_property
    def methods(self) -> dict[Key, dict[Any, pd.DataFrame]]:
        """The runs of Local and of all that share labels of the public set, FedMosaic's variants first of all, by that
        value."""
        import pandas as pd

        # Taken together, so that runs with other hyper-parameters are told apart across members as well.
        runs = pd.concat([member.runs.assign(member=number) for number, member in enumerate(self.members.values())])
        values = list(self.members)
        return {
            key: {values[int(str(number))]: same for number, same in group.groupby("member")}
            for key, group in Setting("", "", runs.reset_index(drop=True)).methods.items()
            if is_strong(key) or key == LOCAL or METHODS[key[0]].shares_labels
        }


def families(settings: Sequence[Setting], varied: str) -> tuple[list[Family], list[str]]:
    """All families of at least two that differ in `data.<varied>`, and why a setting that would fit is not in one.

    Only settings with runs of FedMosaic count. Shards that are dealt anew for each seed and shards that all seeds share
    do not mix: what varies between seeds is not the same.
    """
    groups: dict[bytes, list[Setting]] = {}
    for setting in settings:
        if any(map(is_strong, setting.methods)) and varied in setting.terms["data"]:
            groups.setdefault(to_json(common_terms(setting, varied)), []).append(setting)
    found, remarks = [], []
    for group in groups.values():
        members: dict[Any, Setting] = {}
        # Where two have the same value, the one with more seeds stays, else the first.
        for setting in sorted(group, key=lambda setting: -len(setting.seeds)):
            value = setting.terms["data"][varied]
            kept = members.setdefault(value, setting)
            if kept is not setting:
                remarks.append(f"{setting.label} is not in it, because {kept.label} has the same {varied}")
        if len(members) >= FEWEST:
            found.append(members)
    return labelled(found, varied), remarks


def common_terms(setting: Setting, varied: str) -> dict[str, Any]:
    """What the members of a family share."""
    terms = setting.terms
    follows = varied == "public_size" and terms["data"].get("protocol") == "pfllib"
    free = {varied, FOLLOWS_FROM_SIZE} if follows else {varied}
    data = {key: value for key, value in terms["data"].items() if key not in free}
    return {**terms, "data": data, "dealt anew": len(set(setting.runs.digest)) > 1}


def labelled(found: list[dict[Any, Setting]], varied: str) -> list[Family]:
    """Families with their values in order (balanced, None, comes last) and a label each."""
    common = [flat(common_terms(next(iter(members.values())), varied)) for members in found]
    differing = [key for key in differing_keys(common) if key not in ("dataset", "scheme", "dealt anew")]
    listed = []
    bases = [base_of(members, terms) for members, terms in zip(found, common, strict=True)]
    for number, (members, terms) in enumerate(zip(found, common, strict=True)):
        base = bases[number]
        words = [f"{key.rpartition('.')[2]}={terms.get(key)}" for key in differing] if bases.count(base) > 1 else []
        ordered = sorted(members, key=lambda value: (value is None, value or 0))
        listed.append(Family(", ".join([base, *words]), {value: members[value] for value in ordered}))
    return sorted(listed, key=lambda family: family.label)


def base_of(members: dict[Any, Setting], terms: dict[str, Any]) -> str:
    """What the members are called, or the preset that all of them were made from, or else their data."""
    for names in ({setting.name for setting in members.values()}, {setting.preset for setting in members.values()}):
        if len(names) == 1 and names != {""}:
            return names.pop()
    return f"{terms['dataset']}, {terms['scheme']}"
