"""The options that make more runs under the conditions of one that is there: other methods, other seeds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.key_names import display_assignment
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.resume_changes import RESUME_SAFE_KEYS
from fedmosaic_cli.config.run_config import flatten_keys, resolve_run_config
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs

# Noise is the business of the methods that have any, like their hyper-parameters.
RERUN_SECTIONS = ("data", "model", "train", "attack", "defence", "clients")
ROUND_LENGTH_KEYS = ("train.local_epochs", "train.local_steps")
# Where data lies and what computes is in no configuration: whoever said it will have to say it again.
MACHINE_OPTIONS = ("--data-dir", "--device")
# The same goes for where the clients are; those of a rehearsal are here.
FEDERATION_OPTIONS = ("--engine", "--superlink", "--federation")
SIMULATE_SITES_OPTIONS = {"--simulate-sites", "--local-sites"}
RUNS_DIR_VARIABLE = "FEDMOSAIC_RUNS"


def cli_args_for(config: RunConfig, environment: Mapping[str, Any], data_dirs: DataDirs) -> list[str]:
    """The options under which a run was made, but for its method and seed, as one would type them here.

    What it was made from (a preset, shards, a file) as `environment` tells, and every value that is another one.
    """
    told = parse_option_values(environment.get("arguments"))
    layers, words = ConfigLayers(), list[str]()
    for name in {"--preset", "--config"} & told.keys():
        told[name] = resolve_recorded_path(told[name], environment)
    preset = preset_for_run(config, told)
    if preset is not None:
        words += ["--preset", preset]
        if preset not in preset_names() and not Path(preset).is_file():
            return words  # whatever else is said, it has to be put back first
        layers.add_all(load_preset(preset).layers)
    if preset is None or "--shards" in told or config.partition_seed != config.seed:
        shards = shards_path_for_run(told.get("--shards"), config.experiment_name, environment)
        layers.add(shards, {"data": config.data.model_dump(mode="json")}, is_stored=True)
        words += ["--shards", shards]
    file = Path(told.get("--config", ""))
    if file.is_file():
        layers.add(str(file), read_yaml(file))
        words += ["--config", str(file)]
    words += ["--name", config.experiment_name] if experiment_name_from_args(words) != config.experiment_name else []
    plain = resolve_run_config(config.experiment_name, layers, "local", config.seed, data_dirs, config.partition_seed)
    passed_on = MACHINE_OPTIONS if SIMULATE_SITES_OPTIONS & told.keys() else (*MACHINE_OPTIONS, *FEDERATION_OPTIONS)
    kept = [word for name in passed_on if name in told for word in (name, told[name])]
    return [*words, *override_args(plain, config), *kept]


def experiment_name_from_args(args: list[str]) -> str:
    """What runs of these options are called: after the shards, if there are any, else after the preset."""
    told = parse_option_values(args)
    if "--shards" in told:
        return Path(told["--shards"]).resolve().name
    return Path(told["--preset"]).name.removesuffix(".yaml").removesuffix(".yml")


def parse_option_values(args: object) -> dict[str, str]:
    """The values of the options that a command was given; of one that was given twice, the last."""
    words = [str(word) for word in args] if isinstance(args, list) else []
    told = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, joined, value = word.partition("=")
        if name.startswith("--"):
            told[name] = value if joined else following
    return told


def resolve_recorded_path(name: str, environment: Mapping[str, Any]) -> str:
    """A file as one would type it here, if it is where it was then; else as it was typed."""
    place = Path(str(environment.get("directory", ""))) / name
    return relative_to_cwd(place) if not Path(name).is_file() and place.is_file() else name


def preset_for_run(config: RunConfig, option_values: Mapping[str, str]) -> str | None:
    """The preset that a run was made from."""
    if "--preset" in option_values:
        return option_values["--preset"]
    # Without a word about it, runs on shards of their own may just be called so.
    return (
        config.experiment_name
        if config.experiment_name in preset_names() and config.partition_seed == config.seed
        else None
    )


def shards_path_for_run(shards_option: str | None, experiment_name: str, environment: Mapping[str, Any]) -> str:
    """Where the shards of a run are: here, if they came along with it (their digest tells), else where they were."""
    place = Path(str(environment.get("shards", "")))
    called = place.name or experiment_name
    for name in filter(None, (shards_option, called, f"shards/{called}")):
        with suppress(RequestError, OSError, ValueError, AttributeError):
            if read_json(Path(name) / "manifest.json").get("digest") == environment.get("shards_digest"):
                return name
    return relative_to_cwd(place) if place.name else experiment_name


def default_runs_dir() -> Path:
    """Where runs are written if nobody says otherwise."""
    return Path(os.environ.get(RUNS_DIR_VARIABLE) or "runs")


def relative_to_cwd(path: Path) -> str:
    """A path as one would type it here."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def override_args(base: RunConfig, target: RunConfig) -> list[str]:
    """The options that make the first configuration the second, but for the method."""
    before, after = result_relevant_values(base), result_relevant_values(target)
    words: list[str] = []
    for key, value in after.items():
        if key == "train.rounds":
            words += ["--rounds", str(value)] if before.get(key) != value else []
        elif before.get(key) != value and key not in RESUME_SAFE_KEYS:
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--set", display_assignment(f"{key}={text}")]
    return words


def result_relevant_values(config: RunConfig) -> dict[str, Any]:
    """The values that decide about a run. Of the two lengths of a round, one has no effect."""
    content = config.to_dict()
    values = flatten_keys({section: content.get(section, {}) for section in RERUN_SECTIONS})
    idle = ROUND_LENGTH_KEYS[values["train.local_steps"] is None]
    return {key: value for key, value in values.items() if key != idle}
