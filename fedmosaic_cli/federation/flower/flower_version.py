"""Whether Flower is installed, in the version whose commands we know: they change between minors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedmosaic_cli.errors import RequestError

MINOR = "1.41"
INSTALL = "pip install 'fedmosaic[flower]'"


def flower_version() -> str | None:
    """The version of Flower that is installed, if any is."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        return None


def check_flower(where: str = "--engine flower") -> str:
    """The version of Flower; refuses to go on without one that we know."""
    found = flower_version()
    if found is None:
        raise RequestError(f"flwr is not installed ({where}): {INSTALL}")
    if found.split(".")[:2] != MINOR.split("."):
        raise RequestError(f"flwr {found} is installed, and {MINOR} is needed ({where}): {INSTALL}")
    return found
