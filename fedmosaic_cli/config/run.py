"""The configuration of one run: resolved, checked, and stored beside its results."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import SECTIONS, Layers, check_method
from fedmosaic_cli.config.yaml_files import read
from fedmosaic_cli.data.resolve import resolve
from fedmosaic_cli.data.settings import DataSettings
from fedmosaic_cli.engine.settings import TrainSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.models.settings import ModelSettings

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.place import Place
    from fedmosaic_cli.engine.method import Method

# What may differ between a run and its continuation: none of it changes what was played before.
FREE_TO_CHANGE = {"train.rounds", "train.workers", "train.checkpoint_every"}


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
            "methods": {self.method.name: asdict(self.method)},  # type: ignore[call-overload]
        }


def resolve_run(
    setting: str, layers: Layers, method: str, seed: int, place: Place, partition_seed: int | None = None
) -> RunConfig:
    """The run of one method with one seed under `layers`."""
    check_method(method, "METHOD")
    config = RunConfig(
        setting=setting,
        seed=seed,
        data=resolve(layers.section("data", DataSettings), place),
        model=layers.section("model", ModelSettings),
        train=layers.section("train", TrainSettings),
        method=layers.section(f"methods.{method}", METHODS[method]),
        partition_seed=seed if partition_seed is None else partition_seed,
    )
    if config.method.needs_public and not config.data.public_size:
        raise RequestError(f"{config.method.title} needs a public set (data.public_size): partition with one")
    return config


def stored_run(path: Path, place: Place) -> RunConfig:
    """The configuration of a run that was made before."""
    content = read(path)
    try:
        layers = Layers()
        layers.add(str(path), {name: content[name] for name in (*SECTIONS, "methods")})
        names = (content["setting"], content["method"], content["seed"], content["partition_seed"])
    except KeyError as error:
        raise RequestError(
            f"no {error.args[0]!r} in the configuration ({path}): this is not a run of fedmosaic"
        ) from None
    setting, method, seed, partition_seed = names
    return resolve_run(setting, layers, method, seed, place, partition_seed)


def first_difference(old: RunConfig, new: RunConfig) -> str | None:
    """What a continuation would change, in words; None where it may go on."""
    before, after = flat(old.to_dict()), flat(new.to_dict())
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key) and key not in FREE_TO_CHANGE:
            return f"{key} was {before.get(key)!r} and is now {after.get(key)!r}"
    if new.train.rounds < old.train.rounds:
        return f"train.rounds was {old.train.rounds} and is now {new.train.rounds}, which is fewer"
    return None


def flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return result


def fingerprint(settings: DataSettings) -> str:
    """Eight characters that stand for how the data is dealt."""
    return hashlib.sha256(json.dumps(settings.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:8]
