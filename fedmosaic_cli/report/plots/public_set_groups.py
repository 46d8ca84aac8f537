"""Public set groups: comparison groups that differ only in one property of the public set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.methods.registry import method_info
from fedmosaic_cli.report.comparison import (
    LOCAL_KEY,
    ComparisonGroup,
    differing_keys,
    has_client_trust,
    short_assignments,
)
from fedmosaic_cli.storage.files import to_json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.comparison import MethodKey

MIN_GROUP_MEMBERS = 2
# The rule of PFLlib derives it from the examples outside the public set, so it may depend on the size.
SIZE_DEPENDENT_KEY = "min_size"
PARTITION_PER_SEED = "one partition per seed"


@dataclass(frozen=True)
class PublicSetGroup:
    """Comparison groups by the value in which they differ, in ascending order, with a unique label."""

    label: str
    groups_by_value: dict[Any, ComparisonGroup]

    @property
    def has_same_clients(self) -> bool:
        """Whether the data of the clients is the same for all values, because U has its own pool of examples."""
        return all(group.conditions["data"].get("public_from") for group in self.groups_by_value.values())

    @cached_property
    def runs_by_method(self) -> dict[MethodKey, dict[Any, pd.DataFrame]]:
        """The runs of Local and of all methods that share labels, by value."""
        import pandas as pd

        # One group of all runs, so that rows with different hyper-parameters are distinguished across values.
        frames = [group.runs.assign(member=number) for number, group in enumerate(self.groups_by_value.values())]
        combined = ComparisonGroup("", "", pd.concat(frames).reset_index(drop=True))
        values = list(self.groups_by_value)
        # An equal key of a member may carry the display name of the row.
        named = {key: key for group in self.groups_by_value.values() for key in group.runs_by_method}
        return {
            named.get(key, key): {
                values[int(str(number))]: member_runs for number, member_runs in runs.groupby("member")
            }
            for key, runs in combined.runs_by_method.items()
            if has_client_trust(key) or key == LOCAL_KEY or method_info(key[0]).shares_labels
        }


def find_public_set_groups(
    comparison_groups: Sequence[ComparisonGroup], varied_key: str
) -> tuple[list[PublicSetGroup], list[str]]:
    """Find all public set groups of at least two values of `data.<varied_key>`.

    Only comparison groups with runs of FedMosaic count. Groups with one partition per seed and groups with one
    partition for all seeds are not combined, because seeds vary different things.

    Returns:
        The public set groups, and notes on comparison groups that were left out.
    """
    groups_by_conditions: dict[bytes, list[ComparisonGroup]] = {}
    for group in comparison_groups:
        if any(map(has_client_trust, group.runs_by_method)) and varied_key in group.conditions["data"]:
            conditions = to_json_bytes(shared_conditions(group, varied_key))
            groups_by_conditions.setdefault(conditions, []).append(group)
    candidates, notes = [], []
    for groups in groups_by_conditions.values():
        members: dict[Any, ComparisonGroup] = {}
        # Of two groups with the same value, the one with more seeds is kept.
        for group in sorted(groups, key=lambda group: -len(group.seeds)):
            kept = members.setdefault(group.conditions["data"][varied_key], group)
            if kept is not group:
                notes.append(f"{group.label} is left out, because {kept.label} has the same {varied_key}")
        if len(members) >= MIN_GROUP_MEMBERS:
            candidates.append(members)
    return label_public_set_groups(candidates, varied_key), notes


def shared_conditions(group: ComparisonGroup, varied_key: str) -> dict[str, Any]:
    """The conditions that all members of a public set group share."""
    data = group.conditions["data"]
    depends_on_size = varied_key == "public_size" and data.get("protocol") == "pfllib"
    excluded = {varied_key, SIZE_DEPENDENT_KEY} if depends_on_size else {varied_key}
    shared = {key: value for key, value in data.items() if key not in excluded}
    return {**group.conditions, "data": shared, PARTITION_PER_SEED: len(set(group.runs.digest)) > 1}


def label_public_set_groups(candidates: list[dict[Any, ComparisonGroup]], varied_key: str) -> list[PublicSetGroup]:
    """Public set groups with values in ascending order (None, balanced, is last) and unique labels."""
    shared = [flatten_keys(shared_conditions(next(iter(members.values())), varied_key)) for members in candidates]
    differing = [key for key in differing_keys(shared) if key not in ("dataset", "scheme", PARTITION_PER_SEED)]
    bases = [base_label(members, conditions) for members, conditions in zip(candidates, shared, strict=True)]
    labelled = []
    for base, members, conditions in zip(bases, candidates, shared, strict=True):
        details = short_assignments(conditions, differing) if bases.count(base) > 1 else []
        ordered = sorted(members, key=lambda value: (value is None, value or 0))
        labelled.append(PublicSetGroup(", ".join([base, *details]), {value: members[value] for value in ordered}))
    return sorted(labelled, key=lambda public_set_group: public_set_group.label)


def base_label(groups_by_value: dict[Any, ComparisonGroup], conditions: dict[str, Any]) -> str:
    """The common name of the members, their common preset, or else their dataset and scheme."""
    groups = groups_by_value.values()
    for names in ({group.name for group in groups}, {group.preset for group in groups}):
        if len(names) == 1 and names != {""}:
            return names.pop()
    return f"{conditions['dataset']}, {conditions['scheme']}"
