"""The options that make more runs under the conditions of one that is there: other methods, other seeds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.resume_changes import FREE_TO_CHANGE
from fedmosaic_cli.config.run_config import flat, resolve_run
from fedmosaic_cli.config.yaml_files import read
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place

# Noise is the business of the methods that have any, like their hyper-parameters.
SECTIONS = ("data", "model", "train", "attack", "defence", "clients")
ROUND_LENGTHS = ("train.local_epochs", "train.local_steps")
# Where data lies and what computes is in no configuration: whoever said it will have to say it again.
PASSED_ON = ("--data-dir", "--device")
# The same goes for where the clients are; those of a rehearsal are here.
OF_SITES = ("--engine", "--superlink", "--federation")
RUNS_DIR = "FEDMOSAIC_RUNS"


def conditions_of(config: RunConfig, environment: Mapping[str, Any], place: Place) -> list[str]:
    """The options under which a run was made, but for its method and seed, as one would type them here.

    What it was made from (a preset, shards, a file) as `environment` tells, and every value that is another one.
    """
    told = values_told(environment.get("arguments"))
    layers, words = Layers(), list[str]()
    for name in {"--preset", "--config"} & told.keys():
        told[name] = there(told[name], environment)
    preset = preset_of(config, told)
    if preset is not None:
        words += ["--preset", preset]
        if preset not in preset_names() and not Path(preset).is_file():
            return words  # whatever else is said, it has to be put back first
        layers.add_all(load_preset(preset).layers)
    if preset is None or "--shards" in told or config.partition_seed != config.seed:
        shards = shards_of(told.get("--shards"), config.setting, environment)
        layers.add(shards, {"data": config.data.model_dump(mode="json")})
        words += ["--shards", shards]
    file = Path(told.get("--config", ""))
    if file.is_file():
        layers.add(str(file), read(file))
        words += ["--config", str(file)]
    words += ["--name", config.setting] if called(words) != config.setting else []
    plain = resolve_run(config.setting, layers, "local", config.seed, place, config.partition_seed)
    passed_on = PASSED_ON if "--local-sites" in told else (*PASSED_ON, *OF_SITES)
    kept = [word for name in passed_on if name in told for word in (name, told[name])]
    return [*words, *changes(plain, config), *kept]


def called(words: list[str]) -> str:
    """What runs of these options are called: after the shards, if there are any, else after the preset."""
    told = values_told(words)
    if "--shards" in told:
        return Path(told["--shards"]).resolve().name
    return Path(told["--preset"]).name.removesuffix(".yaml").removesuffix(".yml")


def values_told(arguments: object) -> dict[str, str]:
    """The values of the options that a command was given; of one that was given twice, the last."""
    words = [str(word) for word in arguments] if isinstance(arguments, list) else []
    told = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, joined, value = word.partition("=")
        if name.startswith("--"):
            told[name] = value if joined else following
    return told


def there(name: str, environment: Mapping[str, Any]) -> str:
    """A file as one would type it here, if it is where it was then; else as it was typed."""
    place = Path(str(environment.get("directory", ""))) / name
    return nearby(place) if not Path(name).is_file() and place.is_file() else name


def preset_of(config: RunConfig, told: Mapping[str, str]) -> str | None:
    """The preset that a run was made from."""
    if "--preset" in told:
        return told["--preset"]
    # Without a word about it, runs on shards of their own may just be called so.
    return config.setting if config.setting in preset_names() and config.partition_seed == config.seed else None


def shards_of(told: str | None, setting: str, environment: Mapping[str, Any]) -> str:
    """Where the shards of a run are: here, if they came along with it (their digest tells), else where they were."""
    place = Path(str(environment.get("shards", "")))
    called = place.name or setting
    for name in filter(None, (told, called, f"shards/{called}")):
        with suppress(RequestError, OSError, ValueError, AttributeError):
            if read_json(Path(name) / "manifest.json").get("digest") == environment.get("shards_digest"):
                return name
    return nearby(place) if place.name else setting


def default_runs_dir() -> Path:
    """Where runs are written if nobody says otherwise."""
    return Path(os.environ.get(RUNS_DIR) or "runs")


def nearby(path: Path) -> str:
    """A path as one would type it here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def changes(plain: RunConfig, wanted: RunConfig) -> list[str]:
    """The options that make the first configuration the second, but for the method."""
    before, after = decisive(plain), decisive(wanted)
    words: list[str] = []
    for key, value in after.items():
        if key == "train.rounds":
            words += ["--rounds", str(value)] if before.get(key) != value else []
        elif before.get(key) != value and key not in FREE_TO_CHANGE:
            words += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def decisive(config: RunConfig) -> dict[str, Any]:
    """The values that decide about a run. Of the two lengths of a round, one has no effect."""
    content = config.to_dict()
    values = flat({section: content.get(section, {}) for section in SECTIONS})
    idle = ROUND_LENGTHS[values["train.local_steps"] is None]
    return {key: value for key, value in values.items() if key != idle}
