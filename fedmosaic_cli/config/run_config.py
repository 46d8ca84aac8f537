"""The configuration of one run: resolved, checked, and stored beside its results."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fedmosaic_cli.config.client_overrides import ClientSettings, Misfit, misfit, spread
from fedmosaic_cli.config.label_sharing_checks import check_messages
from fedmosaic_cli.config.layers import SECTIONS, Layers, check_method, field_names
from fedmosaic_cli.config.validation_errors import check_keys, checked
from fedmosaic_cli.config.yaml_files import read
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.resolve_settings import resolve
from fedmosaic_cli.engine.train_settings import AttackSettings, DefenceSettings, PrivacySettings, TrainSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.noise import Noise, check_planned, exchanges, resolve_noise
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.models.model_settings import READS, ModelSettings

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.schema import Section

S = TypeVar("S", ModelSettings, TrainSettings)
REQUIRED = ("data", "model", "train")
# What a section of messages asks for, as the reason why a method without such messages is not played.
MESSAGES = {
    "privacy": "noise is asked for in them (privacy)",
    "attack": "they are what is attacked (attack)",
    "defence": "they are what is defended (defence)",
}
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class RunConfig:
    """All that decides the outcome of a run. `setting` names the column of the report that it belongs to."""

    setting: str
    seed: int
    data: DataSettings
    model: ModelSettings
    train: TrainSettings
    method: Method
    partition_seed: int
    clients: dict[str, ClientSettings] = field(default_factory=dict)
    models: dict[int, ModelSettings] = field(default_factory=dict)
    """The models of clients that have one of their own."""
    trainings: dict[int, TrainSettings] = field(default_factory=dict)
    """The same of how they train."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    defence: DefenceSettings = field(default_factory=DefenceSettings)

    def model_of(self, client: int) -> ModelSettings:
        """What a client learns with; where all data is pooled, there are no clients to differ."""
        return self.model if self.method.pooled else self.models.get(client, self.model)

    def train_of(self, client: int) -> TrainSettings:
        return self.train if self.method.pooled else self.trainings.get(client, self.train)

    @cached_property
    def kinds(self) -> dict[tuple[ModelSettings, TrainSettings], list[int]]:
        """The clients that learn with the same model in the same way: there may be very many of few kinds."""
        kinds: dict[tuple[ModelSettings, TrainSettings], list[int]] = {}
        for client in range(1 if self.method.pooled else self.data.clients or 1):
            kinds.setdefault((self.model_of(client), self.train_of(client)), []).append(client)
        return kinds

    def how_many_like(self, client: int) -> int:
        """How many clients learn with the same model in the same way."""
        return len(self.kinds[self.model_of(client), self.train_of(client)])

    def misfit(self) -> Misfit | None:
        """Why the method cannot be played here; None where it can."""
        if self.method.needs_public and not self.data.public_size:
            return Misfit("needs a public set", "there is none (data.public_size)", "partition with one")
        models = {clients[0]: model for (model, _), clients in self.kinds.items()}
        return misfit(self.method, models, self.models.keys()) or self.no_such_messages()

    def no_such_messages(self) -> Misfit | None:
        """Why noise, attacks and defences make no sense here. The baselines send nothing, and stay to compare with."""
        about = [MESSAGES[name] for name, _ in self.about_messages()]
        if self.method.shares_labels or self.method.family == "baseline" or not about:
            return None
        return Misfit("shares no labels of the public set", about[0], "use fedmosaic, fedct, local or centralized")

    @property
    def exchanges(self) -> int:
        """In how many rounds clients tell labels."""
        return exchanges(self.train.rounds, self.method.alone(self.train.rounds))

    @cached_property
    def noise(self) -> Noise | None:
        """The noise in what clients tell; None where there is none. Refused if the settings do not suit the run."""
        if not self.method.shares_labels or not self.data.public_size:
            return None
        return resolve_noise(
            self.privacy, self.data.public_size, self.exchanges, getattr(self.method, "expertise", None)
        )

    def check_privacy(self) -> None:
        """Refuse noise that cannot be, or a run that would spend more than it may."""
        if self.noise is not None:
            check_planned(self.noise, self.noise.planned_total(self.exchanges, self.data.public_size or 0))

    def about_messages(self) -> list[tuple[str, Section]]:
        """The sections about messages that say anything; most runs say nothing of them."""
        sections = (("privacy", self.privacy), ("attack", self.attack), ("defence", self.defence))
        return [(name, section) for name, section in sections if section != type(section)()]

    def hyperparameters(self) -> dict[str, Any]:
        """Those that the method reads."""
        values = asdict(self.method)  # type: ignore[call-overload]
        return {name: value for name, value in values.items() if name not in self.method.idle(values)}

    def to_dict(self) -> dict[str, Any]:
        """As it is written to config.yaml."""
        return {
            "setting": self.setting,
            "seed": self.seed,
            "partition_seed": self.partition_seed,
            "method": self.method.name,
            "data": self.data.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
            **{name: section.model_dump(mode="json", exclude_defaults=True) for name, section in self.about_messages()},
            "clients": {t: section.model_dump(mode="json", exclude_unset=True) for t, section in self.clients.items()},
            "methods": {self.method.name: self.hyperparameters()},
        }


def resolve_run(
    setting: str, layers: Layers, method: str, seed: int, place: Place, partition_seed: int | None = None
) -> RunConfig:
    """The run of one method with one seed under `layers`."""
    check_method(method, "METHOD")
    check_name(setting)
    data = resolve(layers.section("data", DataSettings), place)
    model, train = layers.section("model", ModelSettings), layers.section("train", TrainSettings)
    clients = {text: layers.section(f"clients.{text}", ClientSettings) for text in layers.named("clients")}
    models = {t: own_section(model, section.model, f"clients.{t}.model", layers) for t, section in clients.items()}
    trainings = {t: own_section(train, section.training(), f"clients.{t}", layers) for t, section in clients.items()}
    check_effects(model, models, clients, layers)
    privacy = layers.section("privacy", PrivacySettings)
    config = RunConfig(
        setting=setting,
        seed=seed,
        data=data,
        model=model,
        train=train,
        method=layers.section(f"methods.{method}", METHODS[method]),
        partition_seed=seed if partition_seed is None else partition_seed,
        clients=clients,
        models=spread(models, data.clients or 1),
        trainings=spread(trainings, data.clients or 1),
        # Whoever sends nothing has nothing to hide: such a run is the same with and without noise for the others.
        privacy=PrivacySettings() if METHODS[method].family == "baseline" else privacy,
        attack=layers.section("attack", AttackSettings),
        defence=layers.section("defence", DefenceSettings),
    )
    if train.clients_per_round is not None and train.clients_per_round > (data.clients or 1):
        raise RequestError(
            f"train.clients_per_round is {train.clients_per_round} ({layers.origin('train.clients_per_round')}): "
            f"it must be at most {data.clients}, the number of clients"
        )
    if train.batch_size == 1 and any(m.has_batch_norm for m in (model, *models.values())):
        raise RequestError(
            f"train.batch_size is 1 ({layers.origin('train.batch_size')}): batch normalisation needs at least 2"
        )
    check_hyperparameters(config, layers)
    check_messages(config, layers)
    return config


def check_name(setting: str, where: str = "preset or shards") -> None:
    """Refuse to name directories after anything that a shell, a table or another system may stumble over."""
    if not NAME.fullmatch(setting):
        raise RequestError(
            f"runs cannot be named after '{setting}' ({where}): rename it; letters, digits, '.', '_' and '-', "
            "at most 64 of them, and no dot at the start"
        )


def own_section(section: S, changes: dict[str, Any], where: str, layers: Layers) -> S:
    """A section as clients with `changes`, written below `where`, have it."""
    kind = type(section)
    origins = {f"{where}.{key}": layers.origin(f"{where}.{key}") for key in changes}
    check_keys(changes, field_names(kind), where)
    return checked(kind, {**section.model_dump(), **changes}, field_names(kind), where, origins)


def check_hyperparameters(config: RunConfig, layers: Layers) -> None:
    """Refuse what was set for the method and would not be read."""
    name = config.method.name
    for key in sorted(set(field_names(type(config.method))) - config.hyperparameters().keys()):
        if layers.origin(f"methods.{name}.{key}") == "--set":
            raise RequestError(
                f"methods.{name}.{key} has no effect on {config.method.title} as it is set up (--set): leave it out, "
                "or choose a rule that reads it (docs/trust.md)"
            )


def check_effects(
    model: ModelSettings, models: dict[str, ModelSettings], clients: dict[str, ClientSettings], layers: Layers
) -> None:
    """Refuse what was set for a model that does not read it. Presets and files may be written for several models."""
    for text, section in clients.items():
        own = models[text]
        idle = {f"model.{key}" for key in section.model if key != "name" and key not in READS[own.name]}
        idle |= set() if own.is_network else set(section.training())
        if idle:
            key = f"clients.{text}.{min(idle)}"
            raise RequestError(
                f"{key} has no effect on a {own.name} ({layers.origin(key)}): "
                f"leave it out, or write clients.{text}.model={own.name} to have nothing else of the model said"
            )
    read = {"name"}.union(*(READS[each.name] for each in (model, *models.values())))
    for key in layers.values.get("model", {}).keys() - read:
        if layers.origin(f"model.{key}") == "--set":
            raise RequestError(f"model.{key} has no effect on a {model.name} (--set): leave it out")


def stored_run(path: Path, place: Place) -> RunConfig:
    """The configuration of a run that was made before, from its file."""
    return recorded_run(read(path), str(path), place)


def recorded_run(content: dict[str, Any], where: str, place: Place) -> RunConfig:
    """The configuration of a run that was made before."""
    try:
        layers = Layers()
        layers.add(where, {name: content[name] for name in (*REQUIRED, "methods")})
        layers.add(where, {name: content.get(name, {}) for name in (*SECTIONS, "clients") if name not in REQUIRED})
        names = (content["setting"], content["method"], content["seed"], content["partition_seed"])
    except KeyError as error:
        raise RequestError(
            f"no {error.args[0]!r} in the configuration ({where}): this is not a run of fedmosaic"
        ) from None
    setting, method, seed, partition_seed = names
    if not isinstance(setting, str) or type(seed) is not int or type(partition_seed) is not int:
        raise RequestError(f"names and seeds are not right ({where}): this is not a run of fedmosaic")
    return resolve_run(setting, layers, str(method), seed, place, partition_seed)


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return result


def fingerprint(settings: DataSettings) -> str:
    """Eight characters that stand for how the data is dealt."""
    return hashlib.sha256(json.dumps(settings.recorded(), sort_keys=True).encode()).hexdigest()[:8]
