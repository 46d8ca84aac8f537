"""Settings: the runs that may be compared with each other, method by method."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.rerun_args import parse_option_values
from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.registry import METHODS, method_schema
from fedmosaic_cli.report.noise_notes import noise_label_parts
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

MAX_LABEL_DIFFERENCES = 2
"""So many differences between two settings of one name are spelled out beside it."""

MethodKey = tuple[str, str]
"""A method and what tells several rows of it apart."""
LOCAL_KEY: MethodKey = ("local", "")
CENTRALIZED_KEY: MethodKey = ("centralized", "")


@dataclass(frozen=True, eq=False)
class ComparisonGroup:
    """Runs of one preset (or one partition) and one protocol. `label` is unlike those of all others.

    Hyper-parameters that are to be `spelled` out stand beside a method's name even where they are the preset's.
    """

    name: str
    label: str
    runs: pd.DataFrame
    shown_hyperparameters: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The label as a part of a file's name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-.") or "setting"

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """What all of its runs have in common."""
        terms: dict[str, Any] = self.runs.terms.iloc[0]
        return terms

    @cached_property
    def preset(self) -> str:
        """The preset of ours that its runs were made from, whatever they are called; "" where nobody knows."""
        if self.name in preset_names() or not self.name:
            return self.name
        try:
            told = parse_option_values(RunDirectory(self.runs.path.iloc[0]).read_environment().get("arguments"))
        except (RequestError, OSError):
            return ""
        return told["--preset"] if told.get("--preset") in preset_names() else ""

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
        """All seeds that any of its methods was run with."""
        return tuple(sorted(map(int, set(self.runs.seed))))

    @cached_property
    def runs_by_method(self) -> dict[MethodKey, pd.DataFrame]:
        """The runs of each method, a line a seed, in the order of the paper's rows."""
        groups: dict[MethodKey, pd.DataFrame] = {}
        for (method, variant), same in self.runs.groupby(["method", "variant"]):
            kind = str(variant).removeprefix(str(method)).lstrip("-")
            usual = default_hyperparameters(self.preset, str(method))
            if usual is not None and method == "fedmosaic":  # other names say it all
                usual = {name: value for name, value in usual.items() if name not in self.shown_hyperparameters}
            details = hyperparameter_labels(usual, kind, [str(text) for text in same.hyperparameters.unique()])
            noises = [str(noise) for noise in same.noise.unique()]
            for (text, _), group in same.groupby(["hyperparameters", "noise"]):
                words = [kind, *details[str(text)], *noise_label_parts(group, noises)]
                name = ", ".join(filter(None, words))
                if (method, name) in groups:  # noise that looks the same in so few digits
                    name += f", noise {group.noise.iloc[0]}"
                groups[str(method), name] = group.sort_values("seed")
        return {key: groups[key] for key in sorted(groups, key=paper_sort_key)}

    @cached_property
    def manifests_by_digest(self) -> dict[str, dict[str, Any]]:
        """Who holds what, by the digest of the shards, as far as the runs kept it: an entry for each digest."""
        found = {}
        for digest, runs in self.runs.groupby("digest"):
            for path in runs.path:
                try:
                    manifest = RunDirectory(path).read_shard_manifest()
                except (RequestError, OSError):
                    continue
                clients = manifest.get("clients")
                told = isinstance(clients, list) and all(isinstance(client, dict) for client in clients)
                if manifest.get("digest") == digest and told:
                    found[str(digest)] = manifest
                    break
        return found

    def client_domains(self, digest: str) -> list[str]:
        """The domain of each client, "" where it has none; nothing where nobody knows."""
        clients = self.manifests_by_digest.get(digest, {}).get("clients", [])
        return [str(client.get("domain") or "") for client in clients]

    def runs_in_domain(self, domain: str) -> pd.DataFrame:
        """The same runs, each with the mean over the clients of one domain as its accuracy. Where a run does not tell
        of single clients, or has none of the domain, it is left out."""
        kept, means = [], []
        for number, digest, marks in zip(self.runs.index, self.runs.digest, self.runs.per_client, strict=True):
            domains = self.client_domains(digest)
            mine = [mark for mark, where in zip(marks or (), domains, strict=False) if where == domain]
            if mine and len(marks) == len(domains):
                kept.append(number)
                means.append(fmean(mine))
        return self.runs.loc[kept].assign(accuracy=means)


def comparison_groups(runs_frame: pd.DataFrame) -> list[ComparisonGroup]:
    """The settings of all runs, by name; those of one name are told apart by what differs."""
    found = []
    for name, runs in runs_frame.groupby("setting"):
        protocols = {str(protocol): same for protocol, same in runs.groupby("protocol")}
        terms = {protocol: flatten_keys(same.terms.iloc[0]) for protocol, same in protocols.items()}
        differing = differing_keys(list(terms.values()))
        for protocol, same in protocols.items():
            words = ", ".join(f"{key.rpartition('.')[2]}={terms[protocol].get(key)}" for key in differing)
            told_apart = words if len(differing) <= MAX_LABEL_DIFFERENCES else protocol
            found.append(ComparisonGroup(str(name), f"{name} [{told_apart}]" if differing else str(name), same))
    found.sort(key=lambda setting: natural_sort_key(setting.label))
    labels = [setting.label for setting in found]
    return [
        setting
        if labels.count(setting.label) == 1
        else ComparisonGroup(setting.name, f"{setting.name} [{setting.runs.protocol.iloc[0]}]", setting.runs)
        for setting in found
    ]


def hyperparameter_labels(
    defaults: dict[str, Any] | None, variant_suffix: str, hyperparameters: Sequence[str]
) -> dict[str, list[str]]:
    """What is to be said beside a method's name, and its `kind`, of each of these hyper-parameters, which are JSON.

    Of the `usual` ones nothing, of others what differs from them. Where nobody can know what is usual, what tells them
    apart.
    """
    chosen = {text: json.loads(text) for text in hyperparameters}
    if defaults is not None:
        odd = {
            text: [n for n in one if one[n] not in (defaults.get(n), variant_suffix)] for text, one in chosen.items()
        }
        details = {text: format_hyperparameters(chosen[text], names) for text, names in odd.items()}
        if len(set(map(tuple, details.values()))) == len(chosen):
            return details
    return {text: format_hyperparameters(one, differing_keys(list(chosen.values()))) for text, one in chosen.items()}


def format_hyperparameters(hyperparameters: dict[str, Any], names: Sequence[str]) -> list[str]:
    values = [(name, hyperparameters.get(name)) for name in names]
    return [f"{name}={value:.10g}" if isinstance(value, float) else f"{name}={value}" for name, value in values]


@cache
def default_hyperparameters(preset: str, method: str) -> dict[str, Any] | None:
    """What a method has under a preset if nobody says otherwise; None where it is no preset of ours."""
    if preset not in preset_names():
        return None
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    return asdict(layers.section(f"methods.{method}", method_schema(method)))  # type: ignore[call-overload, no-any-return]


def natural_sort_key(text: str) -> list[tuple[int, int, str]]:
    """A key by which u-30 comes before u-100."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isdecimal() and len(part) < 16 else (1, 0, part) for part in parts]


def group_difference_notes(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Why settings of one name are not one: a sentence a name."""
    by_name: dict[str, list[ComparisonGroup]] = {}
    for setting in groups:
        by_name.setdefault(setting.name, []).append(setting)
    sentences = []
    for name, same in by_name.items():
        differing = differing_keys([flatten_keys(setting.conditions) for setting in same])
        words = [f"{key} is {format_group_values(key, same)}" for key in differing]
        if words:
            sentences.append(f"Runs of {name} are not in one column, because they differ: {'; '.join(words)}.")
    return sentences


def format_group_values(key: str, groups: Sequence[ComparisonGroup]) -> str:
    """What each of the settings has under a dotted key."""
    return ", ".join(f"{flatten_keys(s.conditions).get(key)} in {s.label.removeprefix(s.name).strip()}" for s in groups)


def differing_keys(choices: list[dict[str, Any]]) -> list[str]:
    """The keys under which these do not all have the same."""
    names = sorted({name for choice in choices for name in choice})
    return [name for name in names if len({json.dumps(choice.get(name)) for choice in choices}) > 1]


def shares_labels(key: MethodKey) -> bool:
    """Whether clients co-train: they tell labels of the public set, and a consensus comes back."""
    return METHODS[key[0]].shares_labels


def has_client_trust(key: MethodKey) -> bool:
    """Whether each client has a lambda of its own: FedMosaic, and what is made of it."""
    return issubclass(METHODS[key[0]], FedMosaic)


def paper_sort_key(key: MethodKey) -> tuple[int, str]:
    """Where a row stands: methods as in the paper, variants of one by name."""
    return list(METHODS).index(key[0]), key[1]


def method_title(key: MethodKey) -> str:
    """The paper's spelling, with what tells several rows of one method apart."""
    method, detail = key
    return f"{METHODS[method].title} ({detail})" if detail else METHODS[method].title
