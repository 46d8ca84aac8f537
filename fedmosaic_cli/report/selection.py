"""Which settings and methods a report shows, in which order and under which names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.config.presets import preset_names
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.errors import RequestError, unknown_name_error
from fedmosaic_cli.methods.registry import METHODS, known_methods
from fedmosaic_cli.report.comparison import (
    CENTRALIZED_KEY,
    ENTROPY_KEY,
    FREQUENCY_KEY,
    LOCAL_KEY,
    ORACLE_KEY,
    SelectedRows,
    TitledMethodKey,
    method_title,
    paper_sort_key,
    split_detail,
)
from fedmosaic_cli.report.selection_order import SelectionOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

MAX_NAME_CHARS = 200
METHODS_OPTION, SETTINGS_OPTION, NAMES_OPTION = "--methods", "--settings", "--names"


@dataclass(frozen=True)
class ReportSelection:
    """The settings and methods of a report. The default shows everything under its own name.

    Attributes:
        methods: Names of methods such as `ditto`, of variants such as `fedmosaic-entropy`, or titles of rows such as
            `FedProx (mu=5)`; empty for all. A method without runs is accepted if it is registered.
        settings: Names of settings, or labels of columns such as `quickstart [rounds=5]`; empty for all.
        names: Display names by setting, column label, method, variant or row title.
        order: `given`: the order of `methods` and `settings`, and the table's where these are empty. `table`: the
            order of the paper's rows, and settings by name. `accuracy`: baselines first, then methods by mean accuracy
            over settings, those with runs in all settings first.

    Example:
        >>> groups = ReportSelection(methods=("local", "ditto"), names={"ditto": "Ditto (ours)"}).apply(groups)
    """

    methods: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    order: SelectionOrder = SelectionOrder.given

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out, renamed or reordered."""
        return self == ReportSelection()

    def apply(self, groups: Sequence[ComparisonGroup]) -> list[ComparisonGroup]:
        """Return the selected groups with the selected rows, in order, and with their display names.

        Everything that uses a group sees only the selected rows: `runs` and `runs_by_method` contain no others, and
        `label` is a display name. The keys of `runs_by_method` carry their display names: `method_title(key)` returns
        them. `baseline_runs` keeps the runs of Local and Centralized, to which methods are compared even if the report
        does not show them.

        Raises:
            RequestError: A name is unknown or ambiguous, or no run is left.
        """
        if self.is_everything:
            return list(groups)
        self._require_known_names(groups)
        chosen = self._select_groups(groups)
        keys = tuple(TitledMethodKey(key, self._title(key)) for key in self._select_rows(chosen))
        labels = [self._label(group) for group in chosen]
        require_unique(labels, "settings")
        require_unique([key.title for key in keys], "methods")
        selected = [
            select_rows(replace(group, label=label), keys, bool(self.methods))
            for group, label in zip(chosen, labels, strict=True)
        ]
        selected = [group for group in selected if not group.runs.empty]
        if not selected:
            raise RequestError(f"no runs of these methods in these settings ({METHODS_OPTION}): choose others")
        return selected

    def _select_groups(self, groups: Sequence[ComparisonGroup]) -> list[ComparisonGroup]:
        if not self.settings:
            return list(groups)
        chosen: dict[str, ComparisonGroup] = {}
        for text in self.settings:
            found = [group for group in groups if text in self._setting_names(group)]
            if not found:
                known = {name for group in groups for name in self._setting_names(group)}
                raise unknown_name_error("setting", text, known, SETTINGS_OPTION)
            chosen |= {group.label: group for group in found}
        return [group for group in groups if group in chosen.values()] if self._is_sorted else list(chosen.values())

    def _select_rows(self, groups: Sequence[ComparisonGroup]) -> tuple[MethodKey, ...]:
        present = {key for group in groups for key in group.runs_by_method}
        keys = sorted(present | unmeasured_keys(), key=paper_sort_key)
        if self.methods:
            keys = self._requested_rows(keys, present)
        if self._is_sorted:
            keys.sort(key=paper_sort_key)
        if self.order is SelectionOrder.accuracy:
            keys.sort(key=accuracy_sort_key(groups))
        return tuple(keys)

    def _requested_rows(self, keys: Sequence[MethodKey], present: set[MethodKey]) -> list[MethodKey]:
        requested: list[MethodKey] = []
        for text in self.methods:
            found = [key for key in keys if text.casefold() in map(str.casefold, self._row_names(key))]
            if not found:
                raise unknown_name_error("method", text, self._known_methods(present), METHODS_OPTION)
            # Rows without runs are shown only if there are none with runs.
            requested += [key for key in found if key in present] or found
        return list(dict.fromkeys(requested))

    @property
    def _is_sorted(self) -> bool:
        return self.order is not SelectionOrder.given

    def _require_known_names(self, groups: Sequence[ComparisonGroup]) -> None:
        present = {key for group in groups for key in group.runs_by_method}
        known_settings = {name for group in groups for name in (group.name, group.full_name)}
        known_rows = {name for key in present | unmeasured_keys() for name in row_names(key)}
        for name in self.names:
            if name in known_settings & known_rows:
                raise RequestError(f"'{name}' is a setting and a method ({NAMES_OPTION}): write the title of the row")
            if name not in known_settings | known_rows | set(preset_names()):
                raise unknown_name_error("setting or method", name, known_settings | known_rows, NAMES_OPTION)

    def _known_methods(self, present: set[MethodKey]) -> set[str]:
        return {*known_methods(), *(name for key in present for name in self._row_names(key))}

    def _setting_names(self, group: ComparisonGroup) -> tuple[str, ...]:
        return group.name, group.full_name, self._label(group)

    def _row_names(self, key: MethodKey) -> tuple[str, ...]:
        return *row_names(key), self._title(key)

    def _label(self, group: ComparisonGroup) -> str:
        if group.full_name in self.names:
            return self.names[group.full_name]
        return self.names[group.name] + group.suffix if group.name in self.names else group.label

    def _title(self, key: MethodKey) -> str:
        """Return the display name of a row: the name of the row, or of its variant or method with the other details."""
        variant, details = split_detail(key)
        if method_title(key) in self.names:
            return self.names[method_title(key)]
        if variant_name(key) in self.names:
            title = self.names[variant_name(key)]
        elif key[0] in self.names:
            paper_title, plain_title = method_title((key[0], variant)), method_title((key[0], ""))
            title = self.names[key[0]] + paper_title.removeprefix(plain_title)
        else:
            return method_title(key)
        return f"{title} ({details})" if details else title


def select_rows(group: ComparisonGroup, keys: tuple[TitledMethodKey, ...], is_requested: bool) -> ComparisonGroup:
    """Return the group with some of its rows, in the given order."""
    rows: dict[MethodKey, pd.DataFrame] = {
        key: group.runs_by_method[key] for key in keys if key in group.runs_by_method
    }
    indices = sorted(index for runs in rows.values() for index in runs.index)
    selected = SelectedRows(keys, is_requested, rows, group.baseline_runs, group.all_paths)
    return replace(group, runs=group.runs.loc[indices], selected=selected)


def accuracy_sort_key(groups: Sequence[ComparisonGroup]) -> Callable[[MethodKey], tuple[int, int, float]]:
    """Return a sort key: baselines, methods by the number of settings and by mean accuracy, the oracle."""
    means = [{key: float(runs.accuracy.mean()) for key, runs in group.runs_by_method.items()} for group in groups]

    def sort_key(key: MethodKey) -> tuple[int, int, float]:
        values = [by_method[key] for by_method in means if key in by_method]
        position = 0 if key in (CENTRALIZED_KEY, LOCAL_KEY) else 2 if key == ORACLE_KEY else 1
        return (position, 0, 0.0) if position != 1 else (position, -len(values), -fmean(values) if values else 0.0)

    return sort_key


def unmeasured_keys() -> set[MethodKey]:
    """Return the rows that can be requested without runs."""
    plain = {(name, "") for name in METHODS if name != FREQUENCY_KEY[0]}
    return plain | {FREQUENCY_KEY, ENTROPY_KEY}


def row_names(key: MethodKey) -> tuple[str, ...]:
    """Return the names of a row: the method, the variant and the titles of both."""
    variant, _ = split_detail(key)
    plain = (key[0], variant) if variant else (key[0], "")
    return key[0], variant_name(key), method_title((key[0], "")), method_title(plain), method_title(key)


def variant_name(key: MethodKey) -> str:
    """Return the variant as in directories of runs, such as `fedmosaic-entropy`."""
    variant, _ = split_detail(key)
    return f"{key[0]}-{variant}" if variant else key[0]


def require_unique(names: Sequence[str], kind: str) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise RequestError(f"two {kind} are called '{repeated}' ({NAMES_OPTION}): give them different names")


def parse_selection(text: str, option: str) -> tuple[str, ...]:
    """Parse names separated by commas. A comma inside brackets belongs to the name.

    Raises:
        RequestError: A name is empty.
    """
    parts = tuple(part.strip() for part in re.split(r",(?![^(\[]*[)\]])", text))
    if not all(parts):
        raise RequestError(f"cannot read '{text}' ({option}): write names separated by commas, e.g. ditto,fedmosaic")
    return parts


def read_display_names(path: Path) -> dict[str, str]:
    """Read a YAML file that maps settings, methods and variants to display names.

    Raises:
        RequestError: The file is unreadable, or a display name is not one line of text.
    """
    content = read_yaml(path)
    for key, name in content.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
            raise RequestError(
                f"the name of '{key}' is not one line of text ({path}): write {key}: \"My name\", "
                f"up to {MAX_NAME_CHARS} characters"
            )
    return {key: name.strip() for key, name in content.items()}
