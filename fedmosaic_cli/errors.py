"""Everything that can go wrong on purpose, each kind with the exit code it ends in.

A message says what is wrong with which value, where, and how to mend it, in one line.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class FedMosaicError(Exception):
    """A failed run: the request was fine, the work was not."""

    exit_code: ClassVar[int] = 1


class DivergenceError(FedMosaicError):
    """A client's numbers are none any more: to go on would be to go on with noise."""

    def __init__(self, client: int, round_number: int, quantity: str) -> None:
        super().__init__(f"client {client} diverged in round {round_number}, {quantity} is not finite (training)")
        self.client = client
        self.round = round_number
        self.quantity = quantity


class RunFailedError(FedMosaicError):
    """A run that came to no result; other runs are not concerned."""


class RequestError(FedMosaicError):
    """The request cannot be carried out as it stands: arguments, configuration, data or shards."""

    exit_code = 2


class RunStateError(FedMosaicError):
    """The run directory is in no state to go on from."""

    exit_code = 3


class ResourceError(FedMosaicError):
    """The machine refused: no room, no permission."""

    exit_code = 4


def unknown_name_error(kind: str, name: str, known: Iterable[str], location: str, hint: str = "") -> RequestError:
    """The error for a name that nothing answers to, with the nearest one that something does."""
    options = sorted(known)
    near = get_close_matches(name, options, n=1)
    others = f"there is {', '.join(options)}" if options else "there is none to set here"
    advice = f"did you mean '{near[0]}'?" if near else others
    return RequestError(f"unknown {kind} '{name}' ({location}): {advice}{'; ' + hint if hint else ''}")
