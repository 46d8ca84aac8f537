"""Presets: named configurations, shipped with the package or lying anywhere as a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.errors import RequestError, unknown_name_error

PACKAGE_DIR = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Preset:
    """`layers` are the preset it extends, if any, and then its own: (origin, content)."""

    name: str
    path: Path
    description: str
    layers: tuple[tuple[str, dict[str, Any]], ...]


def presets_directory() -> Path:
    """The shipped presets: inside an installed package, or at the top of a checkout."""
    inside, checkout = PACKAGE_DIR / "presets", PACKAGE_DIR.parent
    if not inside.is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / "presets"
    return inside


def preset_names() -> list[str]:
    """All shipped presets."""
    return sorted(path.stem for path in presets_directory().glob("*.yaml"))


def preset_path(name: str) -> Path:
    """The file of a shipped preset, or the file that `name` is a path of."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in preset_names():
        raise unknown_name_error("preset", name, preset_names(), "--preset", "'fedmosaic presets list' shows all")
    return presets_directory() / f"{name}.yaml"


def load_preset(name: str) -> Preset:
    """The preset, with the one that it extends."""
    path = preset_path(name)
    content = read_yaml(path)
    description, parent = content.pop("description", ""), content.pop("extends", None)
    layers: tuple[tuple[str, dict[str, Any]], ...] = ((f"preset {path.stem}", content),)
    if parent is not None:
        base = read_yaml(base_preset_path(str(parent), path))
        if "extends" in base:
            raise RequestError(f"preset '{parent}' extends another one ({path}): a preset may extend one that does not")
        base.pop("description", None)
        layers = ((f"preset {parent}", base), *layers)
    return Preset(path.stem, path, str(description), layers)


def base_preset_path(name: str, path: Path) -> Path:
    """The file of the preset that another one extends: a shipped one, or one that lies beside it."""
    if not name.endswith((".yaml", ".yml")):
        return preset_path(name)
    if Path(name).name != name:
        raise RequestError(f"'{name}' does not lie beside the preset that extends it ({path}): put it there")
    return path.parent / name
