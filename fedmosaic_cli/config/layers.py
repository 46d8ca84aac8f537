"""Configuration layers: later layers override earlier ones key by key, and every value keeps its origin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fedmosaic_cli.config.client_overrides import ClientOverrides
from fedmosaic_cli.config.key_names import stored_key, to_stored_keys
from fedmosaic_cli.config.validation_errors import build_validated, reject_unknown_keys
from fedmosaic_cli.config.yaml_files import MAX_YAML_DEPTH, parse_yaml
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import RequestError, unknown_name_error
from fedmosaic_cli.labels.label_settings import AttackSettings, DefenceSettings, PrivacySettings
from fedmosaic_cli.methods.registry import METHODS, method_schema
from fedmosaic_cli.models.model_settings import ModelSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONFIG_SECTIONS = {
    "data": DataSettings,
    "model": ModelSettings,
    "train": TrainSettings,
    "privacy": PrivacySettings,
    "attack": AttackSettings,
    "defence": DefenceSettings,
}
SECTION_GROUPS = ("methods", "clients")
PRESET_KEYS = {"description", "extends"}
"""Keys of the file of a preset that are not sections."""
# Keys that exclude each other: setting one in a later layer removes the others.
EXCLUSIVE_KEYS = {
    "train": {"local_epochs": {"local_steps"}, "local_steps": {"local_epochs"}},
    "privacy": {"epsilon": {"label_epsilon", "noise_multiplier"}, "label_epsilon": {"epsilon", "label_share"}},
}
MAX_SUGGESTIONS = 3
CLI_ORIGINS = {"--set", "flag"}
T = TypeVar("T")


@dataclass
class ConfigLayers:
    """Configuration values from several sources; later layers override earlier ones key by key.

    Attributes:
        values: The values of each section (`data`, `methods.fedct`, `clients.0-4`), under stored keys.
        origins: The layer that set each key.
        notices: Old spellings that were used.
        image_shape: Shape of the images [channels, height, width], if shards tell it.
    """

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    image_shape: tuple[int, int, int] | None = None

    def add(self, origin: str, content: dict[str, Any], *, is_stored: bool = False) -> None:
        """Add a layer.

        Args:
            origin: Names the layer in messages.
            content: Sections with their values.
            is_stored: The content comes from a file that fedmosaic wrote: old keys are expected and cause no notice.
        """
        preset_keys = PRESET_KEYS if origin.startswith("preset ") else ()
        for key in PRESET_KEYS & content.keys() if origin.startswith("file ") else ():
            raise RequestError(f"'{key}' is for presets ({origin}): leave it out, or use the file with --preset")
        reject_unknown_keys(content, [*CONFIG_SECTIONS, *SECTION_GROUPS, *preset_keys], "")
        for section, values in content.items():
            if section not in SECTION_GROUPS:
                self._merge_section(origin, section, values, is_stored)
                continue
            for name, inner in require_mapping(values, section, origin).items():
                if section == "methods":
                    require_known_method(str(name), f"methods.{name}")
                self._merge_section(origin, f"{section}.{name}", inner, is_stored)

    def origin(self, key: str) -> str:
        """Return the layer that set a key or the mapping that contains it."""
        while key:
            if key in self.origins:
                return self.origins[key]
            key = key.rpartition(".")[0]
        return "default"

    def names_model(self) -> bool:
        """Whether a layer names a model or sets one of its options."""
        return bool(self.values.get("model"))

    def section_names(self, group: str) -> list[str]:
        """Return the names of the sections in a group, e.g. the ranges of `clients`."""
        return [section.partition(".")[2] for section in self.values if section.startswith(f"{group}.")]

    def add_all(self, layers: Iterable[tuple[str, dict[str, Any]]]) -> None:
        for origin, content in layers:
            self.add(origin, content)

    def section(self, name: str, section_type: Callable[..., T]) -> T:
        """Validate and return a section such as `data` or `methods.fedct`."""
        return build_validated(section_type, self.values.get(name, {}), field_names(section_type), name, self.origins)

    def add_assignment(self, assignment: str) -> None:
        """Add a layer of one `section.key=value`."""
        path, equals, text = assignment.partition("=")
        *sections, key = path.strip().split(".")
        if not equals or not 0 < len(sections) < MAX_YAML_DEPTH or not all((*sections, key)):
            raise RequestError(f"cannot read '{assignment}' (--set): {assignment_advice(path.strip(), text)}")
        content: dict[str, Any] = {key: parse_yaml(text, f"--set {path}")}
        for name in reversed(sections):
            content = {name: content}
        self.add("--set", content)

    def _merge_section(self, origin: str, section: str, values: Any, is_stored: bool) -> None:
        group, _, name = section.partition(".")
        known: object = CONFIG_SECTIONS.get(section) or (method_schema(name) if group == "methods" else ClientOverrides)
        if not is_stored:
            values, notices = to_stored_keys(section, require_mapping(values, section, origin), field_names(known))
            self.notices += [notice for notice in notices if notice not in self.notices]
        reject_unknown_keys(require_mapping(values, section, origin), field_names(known), section)
        if group == "clients" and isinstance(values.get("model"), str):
            values = {**values, "model": {"name": values["model"]}}
            self.values.get(section, {}).pop("model", None)  # a name alone resets all options of the model
        for key in self._replaced_keys(origin, section, values):
            del self.values[section][key]
            del self.origins[f"{section}.{key}"]
        held = self.values.setdefault(section, {})
        for key, value in values.items():
            if isinstance(value, dict) and isinstance(held.get(key), dict):
                # A nested mapping, e.g. the `model` of a client, is merged key by key.
                held[key] = {**held[key], **value}
                self.origins.update({f"{section}.{key}.{inner}": origin for inner in value})
            else:
                held[key] = value
                self._drop_origins(f"{section}.{key}.")
                self.origins[f"{section}.{key}"] = origin

    def _replaced_keys(self, origin: str, section: str, values: dict[str, Any]) -> list[str]:
        """Return the keys of a section that new `values` remove without setting them."""
        other = set().union(*(EXCLUSIVE_KEYS.get(section, {}).get(key, set()) for key in values)) - values.keys()
        if section == "privacy":
            held = self.values.get(section, {})
            # `labels: off` turns all noise off, also that of a preset.
            other |= held.keys() - values.keys() if values.get("labels") == "off" else set()
            # Two excluding options on the command line are ambiguous: both stay, and validation refuses them.
            other = {key for key in other if not {origin, self.origins.get(f"{section}.{key}")} <= CLI_ORIGINS}
        return [key for key in self.values.get(section, {}) if key in other]

    def _drop_origins(self, prefix: str) -> None:
        for key in [key for key in self.origins if key.startswith(prefix)]:
            del self.origins[key]


def assignment_advice(key: str, value: str) -> str:
    """Return how to write an assignment whose key lacks its section."""
    sections = [
        name for name, kind in CONFIG_SECTIONS.items() if stored_key(f"{name}.{key}") in section_keys(name, kind)
    ]
    groups = sections or [f"methods.{name}" for name in METHODS if key in field_names(method_schema(name))]
    if not groups:
        return "write section.key=value, e.g. train.rounds=20"
    examples = [f"{group}.{key}={value or 'VALUE'}" for group in groups[:MAX_SUGGESTIONS]]
    return f"write {' or '.join(examples)}"


def section_keys(name: str, section_type: object) -> list[str]:
    return [f"{name}.{key}" for key in field_names(section_type)]


def field_names(section_type: object) -> list[str]:
    """Return the keys of a section or of a method."""
    return list(getattr(section_type, "model_fields", None) or getattr(section_type, "__pydantic_fields__", {}))


def require_mapping(values: Any, section: str, origin: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise RequestError(f"section '{section}' is {values!r}, not a mapping ({origin}): indent its keys below it")
    return values


def require_known_method(name: str, where: str) -> None:
    if name not in METHODS:
        hint = "'fedmosaic baseline --list' shows all; name your own with --method FILE.py:NAME"
        raise unknown_name_error("method", name, METHODS, where, hint)
