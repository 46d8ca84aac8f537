"""Whether Flower is installed, in the version whose commands we know: they change between minors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedmosaic_cli.errors import RequestError

SUPPORTED_VERSION = "1.41"
INSTALL_COMMAND = "pip install 'fedmosaic[flower]'"


def installed_flower_version() -> str | None:
    """The version of Flower that is installed, if any is."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        return None


def require_flower(required_by: str = "--engine flower") -> str:
    """The version of Flower; refuses to go on without one that we know."""
    found = installed_flower_version()
    if found is None:
        raise RequestError(f"flwr is not installed ({required_by}): {INSTALL_COMMAND}")
    if found.split(".")[:2] != SUPPORTED_VERSION.split("."):
        raise RequestError(
            f"flwr {found} is installed, and {SUPPORTED_VERSION} is needed ({required_by}): {INSTALL_COMMAND}"
        )
    return found
