"""What a site says of itself while it runs, and writes down for `fedmosaic site status`."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.errors import ResourceError

if TYPE_CHECKING:
    from fedmosaic_cli.federation.flower.supernode import ConnectionEvent
    from fedmosaic_cli.federation.site import HandledRequest
    from fedmosaic_cli.federation.site_dir import SiteFiles


class SiteLog:
    """Says and writes down how a site is doing: a line an event, and the last of them in its status.

    Two threads tell it things: who keeps the connection, and who answers letters.
    """

    def __init__(self, files: SiteFiles, quiet: bool) -> None:
        self._files = files
        self._quiet = quiet
        self._status: dict[str, Any] = {}
        self._lock = Lock()

    def print_line(self, text: str) -> None:
        if not self._quiet:
            print_stderr(text)

    def on_connection_event(self, event: ConnectionEvent) -> None:
        """Something happened to the connection."""
        words = f"{event.kind}{f', {event.detail}' if event.detail else ''}"
        if event.kind != "unheard":
            self._update_status(connection=words, since=utc_timestamp())
        self.print_line(f"connection: {words}")

    def on_request(self, request: HandledRequest) -> None:
        """Something was asked and answered."""
        what = f"{request.kind}{'' if request.round is None else f' {request.round}'} of {request.run_id or 'no run'}"
        problem = f"  not done: {request.error}" if request.error else ""
        line = f"{what}  {request.duration_seconds:.2f} s  {request.response_bytes} bytes{problem}"
        self._update_status(last=f"{utc_timestamp()} {line}")
        self.print_line(line)

    def on_stop(self) -> None:
        self._update_status(connection="stopped", since=utc_timestamp())

    def _update_status(self, **values: str) -> None:
        """Write down the last of it; on a full disk that has to wait, and the coordinator is answered all the same."""
        with self._lock:
            self._status |= values
            with suppress(OSError, ResourceError):
                self._files.save_status(self._status)


def utc_timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
