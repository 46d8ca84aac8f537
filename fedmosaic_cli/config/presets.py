"""Presets: named configurations, shipped with the package or read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.errors import RequestError, unknown_name_error

DURATIONS = ("seconds", "minutes", "hours", "GPU")
"""`GPU`: too long for a CPU."""
PACKAGE_DIR = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Preset:
    """A preset.

    Attributes:
        layers: Pairs (origin, content): those of the preset that it extends, then its own.
        duration: Order of magnitude of one run on two CPU cores, one of `DURATIONS`; "" if unknown.
    """

    name: str
    path: Path
    description: str
    layers: tuple[tuple[str, dict[str, Any]], ...]
    duration: str = ""

    def value(self, section: str, key: str) -> Any:
        """Return a value that the preset sets, None if it leaves the default."""
        for _, content in reversed(self.layers):
            values = content.get(section)
            if isinstance(values, dict) and key in values:
                return values[key]
        return None


def presets_directory() -> Path:
    """Return the directory of the shipped presets, inside an installed package or at the top of a checkout."""
    inside, checkout = PACKAGE_DIR / "presets", PACKAGE_DIR.parent
    if not inside.is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / "presets"
    return inside


def preset_names() -> list[str]:
    """Return the names of all shipped presets."""
    return sorted(path.stem for path in presets_directory().glob("*.yaml"))


def preset_path(name: str) -> Path:
    """Return the file of a shipped preset; a name that ends in .yaml or .yml is a path."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in preset_names():
        raise unknown_name_error("preset", name, preset_names(), "--preset", "'fedmosaic presets list' shows all")
    return presets_directory() / f"{name}.yaml"


def load_preset(name: str) -> Preset:
    """Read a preset and the one that it extends."""
    path = preset_path(name)
    content = read_yaml(path)
    description, duration, parent = (content.pop(key, "") for key in ("description", "duration", "extends"))
    layers: tuple[tuple[str, dict[str, Any]], ...] = ((f"preset {path.stem}", content),)
    if parent not in ("", None):
        base = read_yaml(base_preset_path(str(parent), path))
        if "extends" in base:
            raise RequestError(
                f"preset '{parent}' extends another preset ({path}): only one level of `extends` is allowed"
            )
        for key in ("description", "duration"):
            base.pop(key, None)
        layers = ((f"preset {parent}", base), *layers)
    return Preset(path.stem, path, str(description), layers, str(duration))


def base_preset_path(name: str, path: Path) -> Path:
    """Return the file that a preset extends: a shipped preset, or a file in the same directory."""
    if not name.endswith((".yaml", ".yml")):
        return preset_path(name)
    if Path(name).name != name:
        raise RequestError(f"'{name}' is not in the directory of the preset that extends it ({path}): move it there")
    return path.parent / name
