"""What Flower runs beside the SuperLink: a relay between the coordinator's socket and Flower's nodes.

The coordinator says `ask` (with a number, a name and a time) or `who`; the relay says `reply`, `error` or `here`. It
ends when the socket does. Who somebody is, is the name under which his key was registered.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from flwr.app import Message
from flwr.serverapp import ServerApp

from fedmosaic_cli.federation.flower.flower_errors import NONSENSE, OFFLINE
from fedmosaic_cli.federation.flower.flower_messages import unwrap, wrap
from fedmosaic_cli.federation.flower.ipc import GONE, connect, pack, unpack
from fedmosaic_cli.federation.flower.supervised import MARK

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flwr.app import Context
    from flwr.serverapp import Grid

app = ServerApp()
PAUSE_SECONDS, NAME_SECONDS = 0.3, 60.0
CLAIMS = "names-as-claimed"
"""The setting of a rehearsal without keys: there, a node is who it says it is."""


def main(grid: Grid, context: Context) -> None:
    """Relay until the coordinator is gone."""
    with connect(Path(os.environ[MARK])) as coordinator, suppress(BrokenPipeError):
        Relay(grid, coordinator, claims=bool(context.run_config[CLAIMS])).run()


app.main()(main)


@dataclass(frozen=True)
class Node:
    """Somebody who can be reached, and since when: whoever went and came back has forgotten what he was asked."""

    name: str
    id: int
    since: str


@dataclass
class Relay:
    """The messages under way, each with the number under which the coordinator knows it."""

    grid: Grid
    coordinator: Connection[bytes, bytes]
    claims: bool = False
    _letters: Queue[bytes | None] = field(default_factory=Queue)
    _open: dict[str, tuple[int, Node]] = field(default_factory=dict)
    _claimed: dict[int, str] = field(default_factory=dict)
    _claiming: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Do what the coordinator says until it is gone."""
        Thread(target=self._read, name="reader", daemon=True).start()
        while True:
            try:
                letter = self._letters.get(timeout=PAUSE_SECONDS)
            except Empty:
                self._collect()
                continue
            if letter is None:
                return
            header, payload = unpack(letter)
            if "ask" in header:
                self._ask(int(header["ask"]), str(header["name"]), float(header["seconds"]), payload)
            else:
                self._tell_who_is_here()

    def _read(self) -> None:
        """Take in all that is said at once: else both sides could wait until the other one listens."""
        with suppress(*GONE):
            while True:
                self._letters.put(self.coordinator.recv_bytes())
        self._letters.put(None)

    def _tell(self, payload: bytes = b"", **header: Any) -> None:
        self.coordinator.send_bytes(pack(header, payload))

    def _here(self) -> dict[str, Node]:
        """Who is online now, by name."""
        online = list(self.grid.get_nodes())
        if self.claims:
            self._ask_for_names([node.node_id for node in online])
        nodes = [Node(self._name(node), node.node_id, node.last_activated_at) for node in online]
        return {node.name: node for node in nodes if node.name}

    def _name(self, node: Any) -> str:
        return self._claimed.get(node.node_id, "") if self.claims else str(node.name)

    def _tell_who_is_here(self) -> None:
        """Name those who are here; whoever was away in between has lost what he was asked."""
        here = self._here()
        for message, (ask, node) in list(self._open.items()):
            if here.get(node.name, node).since != node.since:
                del self._open[message]
                self._tell(error=ask, code=OFFLINE, reason="the node was started anew")
        self._tell(here=sorted(here))

    def _ask(self, ask: int, name: str, seconds: float, payload: bytes) -> None:
        node = self._here().get(name)
        message = self._push(node.id, "query", payload, seconds) if node else ""
        if node and message:
            self._open[message] = ask, node
        else:
            self._tell(error=ask, code=OFFLINE, reason="the node is not online")

    def _push(self, node: int, kind: str, payload: bytes, seconds: float) -> str:
        """Send a message; the name under which its answer can be asked for, nothing if Flower did not take it."""
        message = Message(wrap(payload), dst_node_id=node, message_type=kind, ttl=seconds)
        return next(iter(self.grid.push_messages([message])), "")

    def _collect(self) -> None:
        """Hand on what has been answered."""
        if not self._open and not self._claiming:
            return
        for reply in self.grid.pull_messages([*self._open, *self._claiming]):
            message = reply.metadata.reply_to_message_id
            if message in self._claiming:
                self._note_name(self._claiming.pop(message), reply)
            elif message in self._open:
                ask, node = self._open.pop(message)
                self._hand_on(ask, node, reply)

    def _hand_on(self, ask: int, node: Node, reply: Message) -> None:
        """Tell the coordinator what a node answered; whatever that is, the others' answers are still to come."""
        if reply.has_error():
            self._tell(error=ask, code=reply.error.code, reason=str(reply.error.reason))
            return
        try:
            said = unwrap(reply.content)
        except (KeyError, TypeError):
            self._tell(error=ask, code=NONSENSE, reason="the node answered without bytes")
            return
        self._tell(said, reply=ask, name=node.name)

    def _ask_for_names(self, nodes: list[int]) -> None:
        for node in nodes:
            if node not in self._claimed and node not in self._claiming.values():
                message = self._push(node, "query.name", b"", NAME_SECONDS)
                if message:
                    self._claiming[message] = node

    def _note_name(self, node: int, reply: Message) -> None:
        if not reply.has_error():
            with suppress(KeyError, TypeError, UnicodeDecodeError):
                self._claimed[node] = unwrap(reply.content).decode()
