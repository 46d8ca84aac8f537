"""Recover the command-line options of an existing run, to repeat it with other methods or seeds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.automatic_names import automatic_experiment_name, automatic_tag
from fedmosaic_cli.config.key_names import display_assignment
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.config.run_config import RESUME_SAFE_KEYS, resolve_run_config
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.data.resolve_settings import known_image_shape
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.plugin_sources import SOURCES
from fedmosaic_cli.storage.files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.plugin_sources import PluginKind

# Without privacy: noise belongs to the methods that share labels, as their hyper-parameters do.
RERUN_SECTIONS = ("data", "model", "train", "attack", "defence", "clients")
ROUND_LENGTH_KEYS = ("train.local_epochs", "train.local_steps")
# Recorded on the command line only, not in the configuration.
MACHINE_OPTIONS = ("--data-dir", "--device")
PLUGIN_OPTIONS = ("--model", "--dataset", "--plugin")
PLUGIN_KEYS: dict[str, PluginKind] = {"model.name": "models", "data.dataset": "datasets"}
FEDERATION_OPTIONS = ("--engine", "--superlink", "--federation")
SIMULATE_SITES_OPTIONS = {"--simulate-sites", "--local-sites"}
RUNS_DIR_VARIABLE = "FEDMOSAIC_RUNS"


def cli_args_for(config: RunConfig, environment: Mapping[str, Any], data_dirs: DataDirs) -> list[str]:
    """Return the options of a run except method and seed, with paths relative to the current directory.

    Args:
        config: The configuration of the run.
        environment: Its env.json, which names preset, shards and configuration file.

    Returns:
        These sources, and `--set` for every value that differs from them.
    """
    recorded = parse_option_values(environment.get("arguments"))
    layers, words = ConfigLayers(), list[str]()
    for name in {"--preset", "--config"} & recorded.keys():
        recorded[name] = resolve_recorded_path(recorded[name], environment)
    preset = preset_for_run(config, recorded)
    if preset is not None:
        words += ["--preset", preset]
        if preset not in preset_names() and not Path(preset).is_file():
            return words  # without the file of the preset, differences from it are unknown
        layers.add_all(load_preset(preset).layers)
    if preset is None or "--shards" in recorded or config.partition_seed != config.seed:
        shards = shards_path_for_run(recorded.get("--shards"), config.experiment_name, environment)
        layers.add(shards, {"data": config.data.model_dump(mode="json")}, is_stored=True)
        words += ["--shards", shards]
    base = deepcopy(layers)
    file = Path(recorded.get("--config", ""))
    if file.is_file():
        layers.add(str(file), read_yaml(file))
        words += ["--config", str(file)]
    if not layers.names_model() and known_image_shape(config.data) is None:
        # The default depends on files that need not be here, so the command names the model.
        layers.add("run", {"model": {"name": config.model.name}}, is_stored=True)
        words += [] if ("models", config.model.name) in SOURCES else ["--set", f"model.name={config.model.name}"]
    plain = resolve_run_config(config.experiment_name, layers, "local", config.seed, data_dirs, config.partition_seed)
    overrides = override_values(plain, config)
    for key, value in overrides.items():
        layers.add("--set", nested_value(key, value), is_stored=True)
    automatic = automatic_experiment_name(experiment_name_from_args(words), base, layers, data_dirs)
    words += ["--name", config.experiment_name] if automatic != config.experiment_name else []
    references = tuple(name for name in PLUGIN_OPTIONS if name == "--plugin" or ":" in recorded.get(name, ""))
    passed_on = (*references, *MACHINE_OPTIONS)
    passed_on += () if SIMULATE_SITES_OPTIONS & recorded.keys() else FEDERATION_OPTIONS
    kept = [word for name in passed_on if name in recorded for word in (name, recorded[name])]
    return [*words, *override_args(overrides), *kept]


def automatic_tag_for(config: RunConfig, args: list[str]) -> str:
    """Return the tag that a run gets by default with the preset in a command line."""
    base, preset = ConfigLayers(), parse_option_values(args).get("--preset")
    if preset is not None:
        base.add_all(load_preset(preset).layers)
    layers = deepcopy(base)
    noise = config.privacy.model_dump(mode="json", exclude_defaults=True)
    layers.add("--set", {"privacy": noise}, is_stored=True)
    return automatic_tag(config, base, layers)


def experiment_name_from_args(args: list[str]) -> str:
    """Return the name of the shards in a command line, else of the preset."""
    values = parse_option_values(args)
    if "--shards" in values:
        return Path(values["--shards"]).resolve().name
    return Path(values["--preset"]).name.removesuffix(".yaml").removesuffix(".yml")


def parse_option_values(args: object) -> dict[str, str]:
    """Return the values of the options in a command line; the last one of repeated options."""
    words = [str(word) for word in args] if isinstance(args, list) else []
    values = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, joined, value = word.partition("=")
        if name.startswith("--"):
            values[name] = value if joined else following
    return values


def resolve_recorded_path(name: str, environment: Mapping[str, Any]) -> str:
    """Return the path to a recorded file from the current directory, or the recorded path if the file is gone."""
    path = Path(str(environment.get("directory", ""))) / name
    return relative_to_cwd(path) if not Path(name).is_file() and path.is_file() else name


def preset_for_run(config: RunConfig, option_values: Mapping[str, str]) -> str | None:
    """Return the preset of a run, or None."""
    if "--preset" in option_values:
        return option_values["--preset"]
    # A run on given shards may have the name of a preset by chance.
    return (
        config.experiment_name
        if config.experiment_name in preset_names() and config.partition_seed == config.seed
        else None
    )


def shards_path_for_run(shards_option: str | None, experiment_name: str, environment: Mapping[str, Any]) -> str:
    """Return the path to shards with the recorded digest near the current directory, else the recorded path."""
    recorded = Path(str(environment.get("shards", "")))
    name_on_disk = recorded.name or experiment_name
    for name in filter(None, (shards_option, name_on_disk, f"shards/{name_on_disk}")):
        with suppress(RequestError, OSError, ValueError, AttributeError):
            if read_json(Path(name) / "manifest.json").get("digest") == environment.get("shards_digest"):
                return name
    return relative_to_cwd(recorded) if recorded.name else experiment_name


def default_runs_dir() -> Path:
    """Return the default directory of runs."""
    return Path(os.environ.get(RUNS_DIR_VARIABLE) or "runs")


def relative_to_cwd(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def override_values(base: RunConfig, target: RunConfig) -> dict[str, Any]:
    """Return the values that change the first configuration to the second, except those of the method."""
    before, after = result_relevant_values(base), result_relevant_values(target)
    return {
        key: value
        for key, value in after.items()
        if before.get(key) != value and (key == "train.rounds" or key not in RESUME_SAFE_KEYS)
    }


def override_args(overrides: Mapping[str, Any]) -> list[str]:
    """Return the options that set these values."""
    words: list[str] = []
    for key, value in overrides.items():
        if key == "train.rounds":
            words += ["--rounds", str(value)]
        elif key in PLUGIN_KEYS and (PLUGIN_KEYS[key], value) in SOURCES:
            continue  # an option such as --model names it
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--set", display_assignment(f"{key}={text}")]
    return words


def nested_value(key: str, value: Any) -> dict[str, Any]:
    """Return the mapping that contains one value under a dotted key."""
    content: Any = value
    for name in reversed(key.split(".")):
        content = {name: content}
    result: dict[str, Any] = content
    return result


def result_relevant_values(config: RunConfig) -> dict[str, Any]:
    """Return the values that affect the result. Only one of the two lengths of a round does."""
    values = config.flat_values()
    idle = ROUND_LENGTH_KEYS[values["train.local_steps"] is None]
    return {key: value for key, value in values.items() if key.partition(".")[0] in RERUN_SECTIONS and key != idle}
