"""Exceptions that a command reports in one line, each with its exit code.

Messages have the form `what is wrong (where): what to do`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class FedMosaicError(Exception):
    """Base class; on its own, a run that failed although the request was valid."""

    exit_code: ClassVar[int] = 1


class DivergenceError(FedMosaicError):
    """Raised when a client's loss or weights become NaN or infinite."""

    def __init__(self, client: int, round_number: int, quantity: str) -> None:
        super().__init__(f"client {client} diverged in round {round_number}, {quantity} is not finite (training)")
        self.client = client
        self.round = round_number
        self.quantity = quantity


class RunFailedError(FedMosaicError):
    """Raised when one run fails; the other runs of the command continue."""


class RequestError(FedMosaicError):
    """Raised for invalid arguments, configuration, data or shards."""

    exit_code = 2


class RunStateError(FedMosaicError):
    """Raised when a run directory cannot be used or resumed in its current state."""

    exit_code = 3


class ResourceError(FedMosaicError):
    """Raised when the machine refuses: no disk space, memory, permission or network."""

    exit_code = 4


def install_command(extra: str) -> str:
    """Return the command that installs an extra of the package, which is not on PyPI."""
    return f"python -m pip install -e '.[{extra}]' in a checkout of fedmosaic"


def unknown_name_error(kind: str, name: str, known: Iterable[str], location: str, hint: str = "") -> RequestError:
    """Return the error for an unknown name, with a variant of it or the closest known name as a suggestion."""
    options = sorted(known)
    variants = [option for option in options if option.startswith(f"{name}-")]
    near = variants or get_close_matches(name, options, n=1)
    others = f"there is {', '.join(options)}" if options else "there is none to set here"
    advice = f"did you mean '{near[0]}'?" if near else others
    return RequestError(f"unknown {kind} '{name}' ({location}): {advice}{'; ' + hint if hint else ''}")
