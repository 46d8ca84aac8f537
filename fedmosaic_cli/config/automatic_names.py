"""Names of experiments and tags of methods, from the values that differ from the preset or the shards."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.client_overrides import ClientOverrides
from fedmosaic_cli.config.key_names import display_key, display_value, stored_key
from fedmosaic_cli.config.layers import CONFIG_SECTIONS, ConfigLayers
from fedmosaic_cli.config.run_config import RESUME_SAFE_KEYS
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_settings import PrivacySettings
from fedmosaic_cli.methods.registry import method_schema, simplified_method
from fedmosaic_cli.models.default_model import default_model
from fedmosaic_cli.storage.files import sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs

MAX_NAME_CHARS = 60
DIGEST_CHARS = 6
UNPREFIXED_SECTIONS = ("data", "model", "train")
"""Sections whose keys are unique without the name of the section."""
SECTION_KEYS = {"name", "kind"}
"""Keys that stand for their section: `model.name` becomes `model`."""


def automatic_experiment_name(
    base_name: str,
    base: ConfigLayers,
    layers: ConfigLayers,
    data_dirs: DataDirs,
    swept_keys: Collection[str] = (),
) -> str:
    """Return the base name, followed by the values that differ from the base and affect results of all methods.

    The number of rounds is part of the name only if it is swept, because more rounds continue the same run.

    Args:
        base_name: Name of the preset or the shards.
        base: The layers of the preset and the shards alone.
        layers: The base layers and all later ones.
        data_dirs: Where data sets are; default data settings may depend on them.
        swept_keys: Keys that are part of the name even if they have the value of the base.
    """
    groups = [name for name in layers.values if name.startswith("clients.")]
    parts: list[str] = []
    for section in ("data", "model", "train", *groups, "attack", "defence"):
        changed = changed_values(section, base, layers, data_dirs, swept_keys)
        parts += name_parts(section, changed)
    return join_name(base_name, parts)


def automatic_tag(config: RunConfig, base: ConfigLayers, layers: ConfigLayers, swept_keys: Collection[str] = ()) -> str:
    """Return the hyper-parameters of the method and the privacy noise that differ from the base, or ""."""
    name = config.method.info.name
    try:
        default = simplified_method(base.section(f"methods.{name}", method_schema(name)))
    except RequestError:  # the base alone is incomplete
        default = type(config.method)()
    swept = {stored_key(key).rpartition(".")[2] for key in swept_keys if key.startswith(f"methods.{name}.")}
    parts = [hyperparameter_tag(config.method, default, swept)]
    if config.method.info.shares_labels and config.privacy.is_enabled:
        parts += name_parts("privacy", changed_values("privacy", base, layers, None, swept_keys))
    elif config.method.info.shares_labels and base.section("privacy", PrivacySettings).is_enabled:
        parts.append("privacy-off")
    return join_name("", filter(None, parts))


def hyperparameter_tag(method: Any, default: Any, always: Collection[str] = ()) -> str:
    """Return the hyper-parameters that differ from the default and do not show in the method's variant, or "".

    Args:
        method: The method of a run.
        default: The method with the values of the base.
        always: Hyper-parameters that are part of the tag even if they have the default value.
    """
    values, own_defaults, defaults = (asdict(each) for each in (method, type(method)(), default))
    defaults = own_defaults | defaults  # a hyper-parameter may select a class with further fields
    parts = []
    for name, value in values.items():
        is_in_variant = replace(method, **{name: defaults[name]}).variant != method.variant
        if (value != defaults[name] or name in always) and not is_in_variant:
            key = display_key(f"methods.{method.info.name}.{name}")
            parts.append(f"{name_of_key(key)}-{name_of_value(display_value(key, value))}")
    return "-".join(parts)


def changed_values(
    section: str, base: ConfigLayers, layers: ConfigLayers, data_dirs: DataDirs | None, swept_keys: Collection[str]
) -> dict[str, Any]:
    """Return the values of a section without which its content would differ, by key."""
    held, before = layers.values.get(section, {}), base.values.get(section, {})
    changed = {
        key: value
        for key, value in held.items()
        if (key not in before or value != before[key]) and f"{section}.{key}" not in RESUME_SAFE_KEYS
    }
    swept = {
        stored_key(key).removeprefix(f"{section}.").partition(".")[0]
        for key in swept_keys
        if key.startswith(f"{section}.")
    }
    content = section_content(section, layers, data_dirs)
    for key in sorted(changed.keys() - swept):
        others = {name: value for name, value in changed.items() if name != key}
        try:
            if section_content(section, with_values(base, section, others), data_dirs) == content:
                changed = others
        except RequestError:  # the section is invalid without the value
            continue
    return changed | {key: held[key] for key in swept if key in held}


def with_values(base: ConfigLayers, section: str, values: dict[str, Any]) -> ConfigLayers:
    """Return a copy of the base with further values in one section."""
    values_of_base = {section: dict(base.values.get(section, {}))}
    layers = ConfigLayers(values_of_base, dict(base.origins), image_shape=base.image_shape)
    group, _, name = section.partition(".")
    layers.add("--set", {group: {name: values} if name else values}, is_stored=True)
    return layers


def section_content(section: str, layers: ConfigLayers, data_dirs: DataDirs | None) -> dict[str, Any]:
    """Return the validated values of a section that affect the result."""
    settings = layers.section(section, CONFIG_SECTIONS.get(section, ClientOverrides))
    if section == "model" and layers.image_shape is not None and not layers.names_model():
        settings = default_model(layers.image_shape)
    if isinstance(settings, DataSettings) and data_dirs is not None:
        settings = resolve_data_settings(settings, data_dirs)
    content: dict[str, Any] = settings.model_dump(mode="json")
    return {key: value for key, value in content.items() if f"{section}.{key}" not in RESUME_SAFE_KEYS}


def name_parts(section: str, values: dict[str, Any]) -> list[str]:
    """Return the values of a section as parts of a name, with the section's name once unless keys suffice."""
    if not values:
        return []
    group = section.partition(".")[0]
    is_prefixed = group not in UNPREFIXED_SECTIONS
    # The kind comes first: `attack-flip-clients-0-1`.
    keys = sorted(values, key=lambda key: key not in SECTION_KEYS)
    parts = [section.replace(".", "-")] if is_prefixed else []
    for key in keys:
        stored = f"{section}.{key}"
        word = name_of_key(display_key(stored))
        if key in SECTION_KEYS:
            word = "" if is_prefixed else group
        parts.append("-".join(filter(None, (word, name_of_value(display_value(stored, values[key]))))))
    return parts


def name_of_key(key: str) -> str:
    return key.rpartition(".")[2].replace("_", "-")


def name_of_value(value: Any) -> str:
    """Return a value in characters that are safe in directories, shells and tables."""
    if isinstance(value, dict):
        return "-".join(f"{name_of_key(key)}-{name_of_value(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "-".join(map(name_of_value, value)) or "empty"
    if isinstance(value, bool) or value is None:
        return json.dumps(value).replace("null", "none")
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".") or "empty"


def join_name(base: str, parts: Iterable[str]) -> str:
    """Join the parts of a name; a name that is too long ends in a digest instead."""
    words = list(parts)
    name = "-".join(filter(None, (base, *words)))
    if not words or len(name) <= MAX_NAME_CHARS:
        return name
    digest = sha256(name.encode())[:DIGEST_CHARS]
    return f"{name[: MAX_NAME_CHARS - DIGEST_CHARS - 1].rstrip('-._')}-{digest}"
