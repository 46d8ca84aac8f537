"""The side of a site: a SuperNode that is kept running, and letters that are answered one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.federation.flower.flower_processes import Child, end_all
from fedmosaic_cli.federation.flower.flower_version import check_flower
from fedmosaic_cli.federation.flower.ipc import GONE, Door
from fedmosaic_cli.federation.flower.node_names import node_name
from fedmosaic_cli.federation.flower.runtime_dir import Room
from fedmosaic_cli.federation.flower.superlink import free_port
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType
    from typing import Self

PAUSES_SECONDS = (5.0, 10.0, 15.0)
"""How long to wait before a SuperNode is started again: after the first end, the second, and all others."""
REFUSED = 305
"""Flower's code for a node that was not let in: its key is not known, or its last life is not over yet."""
CONNECTED = "SuperNode ID:"
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Event:
    """What happened to the connection."""

    what: Literal["started", "connected", "refused", "ended", "unheard"]
    detail: str = ""


class Node:
    """Keeps a SuperNode running, however often it ends, and answers what comes.

    `root` vouches for the SuperLink and `key` is the private key of this site; without both everybody is believed, in
    rehearsals on one machine. `answer` is called by `serve`, in its thread; `tell` is called from another one.
    """

    def __init__(
        self,
        client: int,
        superlink: str,
        answer: Callable[[bytes], bytes],
        *,
        root: Path | None = None,
        key: Path | None = None,
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        check_flower()
        self._client = client
        self._superlink = superlink
        self._answer = answer
        self._root, self._key = root, key
        self._tell = tell
        self._closing = Flag()
        self._connected = Flag()
        self._child: Child | None = None
        self._room = Room()
        files.make_directories(self._room.path / "flwr")
        self._door = Door(self._room.path)
        self._thread = Thread(target=self._keep_running, name="supernode", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def serve(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Answer letters one after another until `stop` says so. What `answer` raises ends this, and its letter is
        asked for again later."""
        while not stop():
            guest = self._door.next(LOOK_SECONDS)
            if guest is None:
                continue
            with guest:
                self._attend(guest)

    def _attend(self, guest: Connection[bytes, bytes]) -> None:
        """Answer one letter."""
        asked_by = self._child
        try:
            letter = guest.recv_bytes()
        except GONE:
            return
        answer = self._answer(letter)
        try:
            guest.send_bytes(answer)
        except GONE:
            self._tell(Event("unheard", "whoever asked did not wait for the answer"))
            if asked_by is not None and asked_by is self._child:
                # It would take a minute to notice that its app is gone, and take no other letter before.
                asked_by.process.terminate()

    def close(self) -> None:
        """End the SuperNode and all that it started; nothing is left."""
        self._closing.set()
        while self._thread.is_alive():  # one more may just have been started
            end_all(self._room.path)
            self._thread.join(timeout=LOOK_SECONDS)
        self._door.close()
        self._room.close()

    def _keep_running(self) -> None:
        """Start a SuperNode whenever none runs. It hears of our death in time to take its leave from the SuperLink."""
        failures = 0
        while not self._closing.is_set():
            self._connected.clear()
            end_all(self._room.path)
            child = self._child = Child(self._command(), self._room.path, takes_leave=True, hear=self._hear)
            self._tell(Event("started"))
            child.process.wait()
            if self._closing.is_set():
                break
            words = child.last_words()
            self._tell(Event("refused" if child.exit_code() == REFUSED else "ended", words))
            failures = 0 if self._connected.is_set() else failures + 1
            self._closing.wait(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])
        end_all(self._room.path)

    def _hear(self, line: str) -> None:
        if CONNECTED in line:
            self._connected.set()
            self._tell(Event("connected"))

    def _command(self) -> list[str]:
        own = f'room="{self._room.path}" name="{node_name(self._client)}"'
        port = str(free_port())
        command = ["flower-supernode", "--superlink", self._superlink, "--host", "127.0.0.1", "--port", port]
        command += ["--node-config", own]
        if self._root is None or self._key is None:
            return [*command, "--insecure"]
        papers = {"--root-certificates": self._root, "--auth-supernode-private-key": self._key}
        return [*command, *(part for option, path in papers.items() for part in (option, str(path.absolute())))]
