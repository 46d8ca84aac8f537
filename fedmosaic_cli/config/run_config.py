"""The configuration of one run: resolved, checked, and stored with its results."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fedmosaic_cli.config.client_overrides import (
    ClientOverrides,
    Incompatibility,
    expand_client_ranges,
    find_incompatibility,
)
from fedmosaic_cli.config.key_names import display_key
from fedmosaic_cli.config.label_sharing_checks import check_label_sharing
from fedmosaic_cli.config.layers import CONFIG_SECTIONS, ConfigLayers, field_names, require_known_method
from fedmosaic_cli.config.validation_errors import build_validated, reject_unknown_keys
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.resolve_settings import find_image_shape, resolve_data_settings
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_settings import AttackSettings, DefenceSettings, PrivacySettings
from fedmosaic_cli.labels.privacy.noise import (
    PrivacyNoise,
    is_protectable,
    num_exchange_rounds,
    require_planned_budget,
    resolve_noise,
)
from fedmosaic_cli.labels.sharing import SharesLabels
from fedmosaic_cli.methods.registry import METHODS, method_schema, recorded_hyperparameters, simplified_method
from fedmosaic_cli.models.default_model import default_model
from fedmosaic_cli.models.model_settings import MODEL_KEYS, ModelSettings
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.plugin_sources import used_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.schema import ConfigSection

S = TypeVar("S", ModelSettings, TrainSettings)
REQUIRED_SECTIONS = ("data", "model", "train")
# Why a method that shares no labels does not support a section.
MESSAGE_SECTION_REASONS = {
    "privacy": "noise is configured for them (privacy)",
    "attack": "an attack on them is configured (attack)",
    "defence": "a defence for them is configured (defence)",
}
# Keys that may differ when a run is resumed. None of them affects earlier rounds; the execution mode affects the last
# bits of a result, so env.json records the one in use and `runner.resume_checks` compares it.
RESUME_SAFE_KEYS = {
    "train.rounds",
    "train.workers",
    "train.cuda_streams",
    "train.cuda_graphs",
    "train.images",
    "train.checkpoint_every",
    "train.eval_every",
    "train.client_state",
    "train.execution",
    "train.on_nan",
    "privacy.max_epsilon",
}
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RunConfig:
    """Everything that determines the result of a run.

    Attributes:
        experiment_name: The column of reports; `setting` in config.yaml.
        client_models: Models of clients that override `model`.
        client_train_settings: Training settings of clients that override `train`.
    """

    experiment_name: str
    seed: int
    data: DataSettings
    model: ModelSettings
    train: TrainSettings
    method: Method
    partition_seed: int
    client_overrides: dict[str, ClientOverrides] = field(default_factory=dict)
    client_models: dict[int, ModelSettings] = field(default_factory=dict)
    client_train_settings: dict[int, TrainSettings] = field(default_factory=dict)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    defence: DefenceSettings = field(default_factory=DefenceSettings)

    def model_settings_for(self, client: int) -> ModelSettings:
        """Return the model of a client; a centralized method has one model only."""
        return self.model if self.method.needs.pooled_data else self.client_models.get(client, self.model)

    def network_settings_for(self, client: int) -> ModelSettings:
        """Return the network of a client. For a scikit-learn client it is that of the run, or else the default."""
        return next(
            (model for model in (self.model_settings_for(client), self.model) if model.is_network), ModelSettings()
        )

    def train_settings_for(self, client: int) -> TrainSettings:
        return self.train if self.method.needs.pooled_data else self.client_train_settings.get(client, self.train)

    @cached_property
    def client_groups(self) -> dict[tuple[ModelSettings, TrainSettings], list[int]]:
        """Clients grouped by equal model and training settings."""
        groups: dict[tuple[ModelSettings, TrainSettings], list[int]] = {}
        for client in range(1 if self.method.needs.pooled_data else self.data.clients or 1):
            groups.setdefault((self.model_settings_for(client), self.train_settings_for(client)), []).append(client)
        return groups

    def group_size(self, client: int) -> int:
        return len(self.client_groups[self.model_settings_for(client), self.train_settings_for(client)])

    def incompatibility(self) -> Incompatibility | None:
        """Return why the method does not support this configuration, or None."""
        if self.method.needs.public_set and not self.data.public_size:
            return Incompatibility("needs a public set", "data.public_size is 0", "set data.public_size")
        if self.method.needs.validation and not self.data.val_fraction:
            return Incompatibility("needs validation data", "data.val_fraction is 0", "use --set data.val_fraction=0.2")
        if self.method.needs.plain_sgd and any(
            train.optimizer != "sgd" or train.momentum for _, train in self.client_groups
        ):
            optimizer = f"train.optimizer is {self.train.optimizer}, train.momentum {self.train.momentum:g}"
            return Incompatibility("needs plain SGD", optimizer, "use --set train.optimizer=sgd --set train.momentum=0")
        has_batch_norm = any(model.has_batch_norm for model, _ in self.client_groups)
        if self.method.needs.averaged_statistics and has_batch_norm and self.train.bn_buffers != "average":
            return Incompatibility(
                "needs averaged running statistics",
                f"train.bn_buffers is {self.train.bn_buffers}",
                "use --set train.bn_buffers=average",
            )
        models = {clients[0]: model for (model, _), clients in self.client_groups.items()}
        return find_incompatibility(self.method, models, self.client_models.keys()) or self.message_incompatibility()

    def message_incompatibility(self) -> Incompatibility | None:
        """Return why noise, attack or defence do not apply, or None. Baselines send nothing and are always allowed."""
        unused = sorted(self.defence.model_dump(exclude_defaults=True).keys() - {"min_clients"})
        if unused and isinstance(self.method, SharesLabels) and not self.method.uses_defence:
            remedy = f"leave it out, or use --set methods.{self.method.info.name}.robust=true"
            return Incompatibility(
                "does not count votes by the configured defence", f"defence.{unused[0]} is set", remedy
            )
        rule = getattr(self.method, "expertise", None)
        if self.privacy.is_enabled and self.method.info.shares_labels and not is_protectable(self.privacy, rule):
            return Incompatibility(
                f"weights votes by {rule}, which has no bound that holds for every client, so noise cannot protect it",
                f"privacy.expertise is {self.privacy.expertise}",
                "use --set privacy.expertise=none, or the expertise frequency or entropy",
            )
        reasons = [MESSAGE_SECTION_REASONS[name] for name, _ in self.message_sections()]
        if self.method.info.shares_labels or self.method.info.family == "baseline" or not reasons:
            return None
        return Incompatibility(
            "shares no labels of the public set", reasons[0], "use fedmosaic, fedct, local or centralized"
        )

    @property
    def num_exchanges(self) -> int:
        """The number of rounds in which clients upload labels."""
        warmup = self.method.num_warmup_rounds(self.train.rounds) if isinstance(self.method, SharesLabels) else 0
        return num_exchange_rounds(self.train.rounds, warmup)

    @cached_property
    def noise(self) -> PrivacyNoise | None:
        """The privacy noise of uploads, or None. Raises RequestError if the settings do not fit the run."""
        if not self.method.info.shares_labels or not self.data.public_size:
            return None
        return resolve_noise(
            self.privacy,
            self.data.public_size,
            self.num_exchanges,
            getattr(self.method, "expertise", None),
            getattr(self.method, "claims_privacy", True),
        )

    def planned_epsilon(self, num_classes: int | None = None) -> float | None:
        """Return the total epsilon of a client that takes part in all exchanges; None without noise."""
        if self.noise is None:
            return None
        return self.noise.planned_epsilon(self.num_exchanges, self.data.public_size or 0, num_classes)

    def check_privacy_budget(self, num_classes: int | None = None) -> None:
        """Raise RequestError if the run would spend more than its privacy budget."""
        if self.noise is not None and self.noise.max_epsilon is not None:
            require_planned_budget(self.noise, self.planned_epsilon(num_classes) or 0.0)

    def message_sections(self) -> list[tuple[str, ConfigSection]]:
        """Return the sections about label uploads that differ from their defaults."""
        sections = (("privacy", self.privacy), ("attack", self.attack), ("defence", self.defence))
        return [(name, section) for name, section in sections if section != type(section)()]

    def hyperparameters(self) -> dict[str, Any]:
        """Return the hyper-parameters of the method that have an effect."""
        return recorded_hyperparameters(self.method)

    def plugins(self) -> dict[str, dict[str, str]]:
        """Return the sources of the plug-ins that the run uses, by kind and name; {} if all is built in."""
        models = dict.fromkeys(model.name for model, _ in self.client_groups)
        return used_plugins(self.method.info.name, models, self.data.dataset)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of config.yaml."""
        return {
            "setting": self.experiment_name,
            "seed": self.seed,
            "partition_seed": self.partition_seed,
            "method": self.method.info.name,
            "data": self.data.to_config(),
            "model": self.model.model_dump(mode="json"),
            "train": self.train.to_record(),
            **{
                name: section.model_dump(mode="json", exclude_defaults=True)
                for name, section in self.message_sections()
            },
            "clients": {
                t: section.model_dump(mode="json", exclude_unset=True) for t, section in self.client_overrides.items()
            },
            "methods": {self.method.info.name: self.hyperparameters()},
        }

    def flat_values(self) -> dict[str, Any]:
        """Return the content of config.yaml with dotted keys, and the data and training options that it omits."""
        sections = {"data": self.data.model_dump(mode="json"), "train": self.train.model_dump(mode="json")}
        return flatten_keys({**self.to_dict(), **sections})


def resolve_run_config(
    experiment_name: str,
    layers: ConfigLayers,
    method: str,
    seed: int,
    data_dirs: DataDirs,
    partition_seed: int | None = None,
) -> RunConfig:
    """Build and check the configuration of one method and seed.

    Args:
        partition_seed: Seed of existing shards; by default `seed`.

    Raises:
        RequestError: A value is invalid or has no effect.
    """
    require_known_method(method, "METHOD")
    require_safe_name(experiment_name)
    data = resolve_data_settings(layers.section("data", DataSettings), data_dirs)
    model, train = resolve_model(layers, data, data_dirs), layers.section("train", TrainSettings)
    clients = {text: layers.section(f"clients.{text}", ClientOverrides) for text in layers.section_names("clients")}
    models = {t: override_section(model, section.model, f"clients.{t}.model", layers) for t, section in clients.items()}
    trainings = {
        t: override_section(train, section.train_overrides(), f"clients.{t}", layers) for t, section in clients.items()
    }
    reject_unused_model_settings(model, models, clients, layers)
    privacy = layers.section("privacy", PrivacySettings)
    config = RunConfig(
        experiment_name=experiment_name,
        seed=seed,
        data=data,
        model=model,
        train=train,
        method=simplified_method(layers.section(f"methods.{method}", method_schema(method))),
        partition_seed=seed if partition_seed is None else partition_seed,
        client_overrides=clients,
        client_models=expand_client_ranges(models, data.clients or 1),
        client_train_settings=expand_client_ranges(trainings, data.clients or 1),
        # Baselines send nothing, so their runs do not depend on noise.
        privacy=PrivacySettings() if METHODS[method].info.family == "baseline" else privacy,
        attack=layers.section("attack", AttackSettings),
        defence=layers.section("defence", DefenceSettings),
    )
    if train.clients_per_round is not None and train.clients_per_round > (data.clients or 1):
        raise RequestError(
            f"train.clients_per_round is {train.clients_per_round} ({layers.origin('train.clients_per_round')}): "
            f"it must be at most {data.clients}, the number of clients"
        )
    if train.batch_size == 1 and any(m.has_batch_norm and m.name not in MODELS for m in (model, *models.values())):
        raise RequestError(
            f"train.batch_size is 1 ({layers.origin('train.batch_size')}): batch normalisation needs at least 2"
        )
    reject_unused_hyperparameters(config, layers)
    check_label_sharing(config, layers)
    return config


def resolve_model(layers: ConfigLayers, data: DataSettings, data_dirs: DataDirs) -> ModelSettings:
    """Return the model of the layers or, if they name none, the default for the size of the images."""
    if layers.names_model():
        return layers.section("model", ModelSettings)
    return default_model(layers.image_shape or find_image_shape(data, data_dirs))


def may_have_batch_norm(model: dict[str, Any]) -> bool:
    """Return whether a network has batch normalisation, from its recorded settings; True for plug-in networks."""
    settings = ModelSettings.model_construct(**model)
    return settings.name not in MODEL_KEYS or settings.has_batch_norm


def require_safe_name(name: str, where: str = "preset or shards") -> None:
    """Refuse names that are unsafe in directories, shells or tables."""
    if not NAME_PATTERN.fullmatch(name):
        raise RequestError(
            f"'{name}' is not a valid name for runs ({where}): use at most 64 letters, digits, '.', '_' and '-', "
            "without a dot or a dash at the start"
        )


def override_section(section: S, overrides: dict[str, Any], where: str, layers: ConfigLayers) -> S:
    """Return a section with the overrides of some clients, which are in the section `where`."""
    kind = type(section)
    origins = {f"{where}.{key}": layers.origin(f"{where}.{key}") for key in overrides}
    reject_unknown_keys(overrides, field_names(kind), where)
    return build_validated(kind, {**section.model_dump(), **overrides}, field_names(kind), where, origins)


def reject_unused_hyperparameters(config: RunConfig, layers: ConfigLayers) -> None:
    """Refuse hyper-parameters from `--set` that have no effect."""
    name = config.method.info.name
    for key in sorted(set(field_names(method_schema(name))) - config.hyperparameters().keys()):
        if layers.origin(f"methods.{name}.{key}") == "--set":
            raise RequestError(
                f"{display_key(f'methods.{name}.{key}')} has no effect on {config.method.info.title} with these values "
                "(--set): leave it out, or choose a rule that reads it (docs/trust.md)"
            )


def reject_unused_model_settings(
    model: ModelSettings,
    models: dict[str, ModelSettings],
    client_overrides: dict[str, ClientOverrides],
    layers: ConfigLayers,
) -> None:
    """Refuse options of a model that have no effect. Presets and files may set options of several models."""
    for text, section in client_overrides.items():
        own = models[text]
        unused = {f"model.{key}" for key in section.model if key != "name" and key not in own.used_keys}
        unused |= set() if own.is_network else set(section.train_overrides())
        if unused:
            key = f"clients.{text}.{min(unused)}"
            raise RequestError(
                f"{key} has no effect on a {own.name} ({layers.origin(key)}): "
                f"leave it out, or write clients.{text}.model={own.name} to reset the other options"
            )
    read = {"name"}.union(*(each.used_keys for each in (model, *models.values())))
    for key in layers.values.get("model", {}).keys() - read:
        if layers.origin(f"model.{key}") == "--set":
            raise RequestError(f"model.{key} has no effect on a {model.name} (--set): leave it out")


def load_run_config(path: Path, data_dirs: DataDirs) -> RunConfig:
    """Read the configuration of an existing run from its config.yaml."""
    return run_config_from_dict(read_yaml(path), str(path), data_dirs)


def run_config_from_dict(content: dict[str, Any], where: str, data_dirs: DataDirs) -> RunConfig:
    """Build the configuration of an existing run from the content of its config.yaml."""
    try:
        layers = ConfigLayers()
        sections = {name: content[name] for name in (*REQUIRED_SECTIONS, "methods")}
        sections |= {name: content.get(name, {}) for name in (*CONFIG_SECTIONS, "clients") if name not in sections}
        layers.add(where, sections, is_stored=True)
        names = (content["setting"], content["method"], content["seed"], content["partition_seed"])
    except KeyError as error:
        raise RequestError(f"no {error.args[0]!r} in the configuration ({where}): is this a fedmosaic run?") from None
    setting, method, seed, partition_seed = names
    if not isinstance(setting, str) or type(seed) is not int or type(partition_seed) is not int:
        raise RequestError(
            f"`setting` must be a string and `seed`, `partition_seed` integers ({where}): is this a fedmosaic run?"
        )
    return resolve_run_config(setting, layers, str(method), seed, data_dirs, partition_seed)


def flatten_keys(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        result |= flatten_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return result


def data_fingerprint(settings: DataSettings) -> str:
    """Return eight characters that identify the data settings."""
    return hashlib.sha256(json.dumps(settings.to_record(), sort_keys=True).encode()).hexdigest()[:8]
