"""Comparison groups: the runs that can be compared with each other, by method."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.rerun_args import parse_option_values
from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.registry import METHODS, known_methods, method_info, method_schema
from fedmosaic_cli.report.noise_notes import noise_label_parts
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pandas as pd

MAX_LABEL_DIFFERENCES = 2
"""With more differences between groups of one name, labels contain a digest instead of the differences."""

MethodKey = tuple[str, str]
"""A method name and the detail that distinguishes several rows of the method."""
LOCAL_KEY: MethodKey = ("local", "")
CENTRALIZED_KEY: MethodKey = ("centralized", "")
ORACLE_KEY: MethodKey = ("oracle", "")
FREQUENCY_KEY: MethodKey = ("fedmosaic", "frequency")
ENTROPY_KEY: MethodKey = ("fedmosaic", "entropy")
PAPER_TITLES = {FREQUENCY_KEY: "FedMosaic-W", ENTROPY_KEY: "FedMosaic-U"}
"""The paper's names of variants: W weighs votes by class frequency, U by the entropy of predictions (uncertainty)."""


class TitledMethodKey(tuple[str, str]):
    """A method key with a display name, which `method_title` returns. It equals the plain key in dictionaries."""

    title: str

    def __new__(cls, key: MethodKey, title: str) -> TitledMethodKey:
        titled = super().__new__(cls, key)
        titled.title = title
        return titled


@dataclass(frozen=True)
class SelectedRows:
    """The rows of a group that a report shows; see `report.selection`.

    Attributes:
        order: The rows of all groups of the report in their order, with display names; also rows without runs.
        is_requested: Whether the rows were requested by name. Then they are shown without runs, too.
        runs_by_method: The runs of the group's rows, in this order.
        baselines: The runs of Local and Centralized, also if the report does not show them.
        all_paths: The runs of the group, also if the report does not show them.
    """

    order: tuple[TitledMethodKey, ...]
    is_requested: bool
    runs_by_method: Mapping[MethodKey, pd.DataFrame]
    baselines: Mapping[MethodKey, pd.DataFrame]
    all_paths: frozenset[Path]


@dataclass(frozen=True, eq=False)
class ComparisonGroup:
    """The runs of one preset (or partition) and one protocol: rows of the DataFrame of `collect_runs`.

    `label` is the unique display name. `suffix` tells groups of one name apart. `shown_hyperparameters` of FedMosaic
    are shown even if they have the preset's value. `selected` limits the rows; `runs` then contains no others.
    """

    name: str
    label: str
    runs: pd.DataFrame
    shown_hyperparameters: tuple[str, ...] = ()
    suffix: str = ""
    selected: SelectedRows | None = None

    @property
    def full_name(self) -> str:
        """The name and the suffix: the label if no display name is chosen."""
        return self.name + self.suffix

    @property
    def slug(self) -> str:
        """The label as part of a file name."""
        return file_name_part(self.label)

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """The settings that all runs share."""
        conditions: dict[str, Any] = self.runs.conditions.iloc[0]
        return conditions

    @cached_property
    def preset(self) -> str:
        """The built-in preset of the runs, even if the group has another name; "" if unknown."""
        if self.name in preset_names() or not self.name:
            return self.name
        try:
            options = parse_option_values(RunDirectory(self.runs.path.iloc[0]).read_environment().get("arguments"))
        except (RequestError, OSError):
            return ""
        return options["--preset"] if options.get("--preset") in preset_names() else ""

    @property
    def dataset(self) -> str:
        return str(self.conditions["dataset"])

    @property
    def scheme(self) -> str:
        return str(self.conditions["scheme"])

    @property
    def model(self) -> str:
        return str(self.conditions["model"].get("name", ""))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all methods."""
        return tuple(sorted(map(int, set(self.runs.seed))))

    @cached_property
    def runs_by_method(self) -> dict[MethodKey, pd.DataFrame]:
        """The runs of each row sorted by seed: in the selected order, or in that of the paper's rows."""
        if self.selected:
            return dict(self.selected.runs_by_method)
        by_key: dict[MethodKey, pd.DataFrame] = {}
        for (method, variant), variant_runs in self.runs.groupby(["method", "variant"]):
            suffix = str(variant).removeprefix(str(method)).lstrip("-")
            defaults = default_hyperparameters(self.preset, str(method))
            if defaults is not None and method == "fedmosaic":
                defaults = {name: value for name, value in defaults.items() if name not in self.shown_hyperparameters}
            details = hyperparameter_labels(
                defaults, suffix, [str(text) for text in variant_runs.hyperparameters.unique()]
            )
            noise_keys = [str(noise) for noise in variant_runs.noise.unique()]
            for (text, _), runs in variant_runs.groupby(["hyperparameters", "noise"]):
                parts = [suffix, *details[str(text)], *noise_label_parts(runs, noise_keys)]
                detail = ", ".join(filter(None, parts))
                if (method, detail) in by_key:  # the noise differs only in digits that are not shown
                    detail += f", noise {runs.noise.iloc[0]}"
                by_key[str(method), detail] = runs.sort_values("seed")
        return {key: by_key[key] for key in sorted(by_key, key=paper_sort_key)}

    @property
    def baseline_runs(self) -> dict[MethodKey, pd.DataFrame]:
        """The runs of Local and Centralized, also if they are not selected."""
        if self.selected:
            return dict(self.selected.baselines)
        return {key: runs for key, runs in self.runs_by_method.items() if key in (LOCAL_KEY, CENTRALIZED_KEY)}

    @cached_property
    def manifests_by_digest(self) -> dict[str, dict[str, Any]]:
        """The first valid shard manifest of each digest."""
        manifests = {}
        for digest, runs in self.runs.groupby("digest"):
            for path in runs.path:
                try:
                    manifest = RunDirectory(path).read_shard_manifest()
                except (RequestError, OSError):
                    continue
                clients = manifest.get("clients")
                is_valid = isinstance(clients, list) and all(isinstance(client, dict) for client in clients)
                if manifest.get("digest") == digest and is_valid:
                    manifests[str(digest)] = manifest
                    break
        return manifests

    def client_domains(self, digest: str) -> list[str]:
        """Return the domain of each client, "" for no domain; [] without a manifest."""
        clients = self.manifests_by_digest.get(digest, {}).get("clients", [])
        return [str(client.get("domain") or "") for client in clients]

    @property
    def all_paths(self) -> frozenset[Path]:
        """The directories of all runs, also of those that are not selected."""
        return self.selected.all_paths if self.selected else frozenset(self.runs.path)

    def runs_in_domain(self, runs: pd.DataFrame, domain: str) -> pd.DataFrame:
        """Return the runs with clients in a domain, with the mean accuracy over these clients."""
        means: dict[Any, float] = {}
        for index, digest, accuracies in zip(runs.index, runs.digest, runs.per_client, strict=True):
            domains = self.client_domains(digest)
            if domain in domains and len(accuracies or ()) == len(domains):
                means[index] = fmean(value for value, other in zip(accuracies, domains, strict=True) if other == domain)
        return runs.loc[list(means)].assign(accuracy=list(means.values()))


def comparison_groups(frame: pd.DataFrame) -> list[ComparisonGroup]:
    """Group runs by name and protocol. Labels of groups with the same name contain the conditions that differ."""
    groups = []
    for name, runs in frame.groupby("group"):
        by_protocol = {str(protocol): same for protocol, same in runs.groupby("protocol")}
        conditions = {protocol: flatten_keys(same.conditions.iloc[0]) for protocol, same in by_protocol.items()}
        differing = differing_keys(list(conditions.values()))
        for protocol, same in by_protocol.items():
            values = ", ".join(short_assignments(conditions[protocol], differing))
            suffix = values if len(differing) <= MAX_LABEL_DIFFERENCES else protocol
            suffix = f" [{suffix}]" if differing else ""
            groups.append(ComparisonGroup(str(name), f"{name}{suffix}", same, suffix=suffix))
    groups.sort(key=lambda group: natural_sort_key(group.label))
    labels = [group.label for group in groups]
    return [
        group if labels.count(group.label) == 1 else with_suffix(group, f" [{group.runs.protocol.iloc[0]}]")
        for group in groups
    ]


def with_suffix(group: ComparisonGroup, suffix: str) -> ComparisonGroup:
    return replace(group, label=group.name + suffix, suffix=suffix)


def file_name_part(label: str) -> str:
    """Return the label of a group as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-.") or "setting"


def hyperparameter_labels(
    defaults: dict[str, Any] | None, variant_suffix: str, hyperparameters: Sequence[str]
) -> dict[str, list[str]]:
    """Return the values to show beside a method's name for each set of hyper-parameters, given as JSON.

    These are the values other than the defaults and the variant suffix. If the defaults are unknown, or the result does
    not distinguish the rows, these are the values that differ between the rows.
    """

    def format_values(row: dict[str, Any], names: Sequence[str]) -> list[str]:
        pairs = [(name, row.get(name)) for name in names]
        return [f"{name}={value:.10g}" if isinstance(value, float) else f"{name}={value}" for name, value in pairs]

    values = {text: json.loads(text) for text in hyperparameters}
    if defaults is not None:
        labels = {
            text: format_values(row, [name for name in row if row[name] not in (defaults.get(name), variant_suffix)])
            for text, row in values.items()
        }
        if len(set(map(tuple, labels.values()))) == len(values):
            return labels
    differing = differing_keys(list(values.values()))
    return {text: format_values(row, differing) for text, row in values.items()}


@cache
def preset_layers(preset: str) -> ConfigLayers | None:
    """Return the configuration layers of a built-in preset; None for other names."""
    if preset not in preset_names():
        return None
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    return layers


@cache
def default_hyperparameters(preset: str, method: str) -> dict[str, Any] | None:
    """Return the hyper-parameters of a built-in method under a built-in preset; None for others."""
    layers = preset_layers(preset)
    if layers is None or method not in METHODS:
        return None
    return asdict(layers.section(f"methods.{method}", method_schema(method)))  # type: ignore[call-overload, no-any-return]


def natural_sort_key(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts u-30 before u-100."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isdecimal() and len(part) < 16 else (1, 0, part) for part in parts]


def groups_by_name(groups: Sequence[ComparisonGroup]) -> dict[str, list[ComparisonGroup]]:
    by_name: dict[str, list[ComparisonGroup]] = {}
    for group in groups:
        by_name.setdefault(group.name, []).append(group)
    return by_name


def group_difference_notes(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Return one sentence per name that several groups share: the conditions that differ."""
    sentences = []
    for name, same_name in groups_by_name(groups).items():
        conditions = {
            group.suffix.strip() if group.label == group.full_name else group.label: flatten_keys(group.conditions)
            for group in same_name
        }
        differences = [
            f"{key} is {', '.join(f'{values.get(key)} in {label}' for label, values in conditions.items())}"
            for key in differing_keys(list(conditions.values()))
        ]
        if differences:
            sentences.append(f"Runs of {name} are not in one column, because they differ: {'; '.join(differences)}.")
    return sentences


def differing_keys(mappings: list[dict[str, Any]]) -> list[str]:
    """Return the keys under which the mappings have different values."""
    names = sorted({name for mapping in mappings for name in mapping})
    return [name for name in names if len({json.dumps(mapping.get(name)) for mapping in mappings}) > 1]


def short_assignments(mapping: dict[str, Any], keys: Sequence[str]) -> list[str]:
    """Return `name=value` for each dotted key; the name is its last part."""
    return [f"{key.rpartition('.')[2]}={mapping.get(key)}" for key in keys]


def shares_labels(key: MethodKey) -> bool:
    """Return whether the clients of a method share labels of the public set."""
    return method_info(key[0]).shares_labels


def has_client_trust(key: MethodKey) -> bool:
    """Return whether each client has its own lambda: FedMosaic and its subclasses."""
    return key[0] in METHODS and issubclass(METHODS[key[0]], FedMosaic)


def paper_sort_key(key: MethodKey) -> tuple[int, str, str]:
    """Return a sort key: methods in the paper's order, variants of a method by name, FedMosaic-W before -U."""
    variant, rest = split_detail(key)
    return known_methods().index(key[0]), "" if variant == FREQUENCY_KEY[1] else variant, rest


def split_detail(key: MethodKey) -> tuple[str, str]:
    """Return the variant of a row, such as the expertise of FedMosaic, and the other details."""
    method, detail = key
    if method != FREQUENCY_KEY[0]:
        return "", detail
    variant, _, rest = detail.partition(", ")
    return variant, rest


def method_title(key: MethodKey) -> str:
    """Return the display name of the row, by default the method's name in the paper's spelling and the row's detail."""
    if isinstance(key, TitledMethodKey):
        return key.title
    method, detail = key
    variant, rest = split_detail(key)
    if (method, variant) in PAPER_TITLES:
        title, detail = PAPER_TITLES[method, variant], rest
    else:
        title = method_info(method).title
    return f"{title} ({detail})" if detail else title
