"""What a site says of itself while it runs, and writes down for `fedmosaic site status`."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import remark
from fedmosaic_cli.errors import ResourceError

if TYPE_CHECKING:
    from fedmosaic_cli.federation.flower.supernode import Event
    from fedmosaic_cli.federation.site import Answered
    from fedmosaic_cli.federation.site_dir import SiteFiles


class Diary:
    """Says and writes down how a site is doing: a line an event, and the last of them in its status.

    Two threads tell it things: who keeps the connection, and who answers letters.
    """

    def __init__(self, files: SiteFiles, quiet: bool) -> None:
        self._files = files
        self._quiet = quiet
        self._status: dict[str, Any] = {}
        self._one_at_a_time = Lock()

    def say(self, text: str) -> None:
        if not self._quiet:
            remark(text)

    def connection(self, event: Event) -> None:
        """Something happened to the connection."""
        words = f"{event.what}{f', {event.detail}' if event.detail else ''}"
        if event.what != "unheard":
            self._note(connection=words, since=now())
        self.say(f"connection: {words}")

    def answered(self, answer: Answered) -> None:
        """Something was asked and answered."""
        what = f"{answer.asked}{'' if answer.round is None else f' {answer.round}'} of {answer.run or 'no run'}"
        problem = f"  not done: {answer.problem}" if answer.problem else ""
        line = f"{what}  {answer.seconds:.2f} s  {answer.bytes_out} bytes{problem}"
        self._note(last=f"{now()} {line}")
        self.say(line)

    def ended(self) -> None:
        self._note(connection="stopped", since=now())

    def _note(self, **values: str) -> None:
        """Write down the last of it; on a full disk that has to wait, and the coordinator is answered all the same."""
        with self._one_at_a_time:
            self._status |= values
            with suppress(OSError, ResourceError):
                self._files.save_status(self._status)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
