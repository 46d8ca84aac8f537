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

from fedmosaic_cli.federation.flower.flower_errors import INVALID_REPLY, NODE_UNAVAILABLE
from fedmosaic_cli.federation.flower.flower_messages import from_record_dict, to_record_dict
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, connect_socket, decode_frame, encode_frame
from fedmosaic_cli.federation.flower.supervised import MARKER_VARIABLE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flwr.app import Context
    from flwr.serverapp import Grid

app = ServerApp()
REPLY_POLL_SECONDS, NAME_QUERY_SECONDS = 0.3, 60.0
CLAIMED_NAMES_KEY = "names-as-claimed"
"""The setting of a rehearsal without keys: there, a node is who it says it is."""


def main(grid: Grid, context: Context) -> None:
    """Relay until the coordinator is gone."""
    with connect_socket(Path(os.environ[MARKER_VARIABLE])) as coordinator, suppress(BrokenPipeError):
        Relay(grid, coordinator, uses_claimed_names=bool(context.run_config[CLAIMED_NAMES_KEY])).run()


app.main()(main)


@dataclass(frozen=True)
class OnlineNode:
    """Somebody who can be reached, and since when: whoever went and came back has forgotten what he was asked."""

    name: str
    node_id: int
    online_since: str


@dataclass
class Relay:
    """The messages under way, each with the number under which the coordinator knows it."""

    grid: Grid
    coordinator: Connection[bytes, bytes]
    uses_claimed_names: bool = False
    _frames: Queue[bytes | None] = field(default_factory=Queue)
    _pending: dict[str, tuple[int, OnlineNode]] = field(default_factory=dict)
    _claimed_names: dict[int, str] = field(default_factory=dict)
    _name_queries: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Do what the coordinator says until it is gone."""
        Thread(target=self._read_frames, name="reader", daemon=True).start()
        while True:
            try:
                letter = self._frames.get(timeout=REPLY_POLL_SECONDS)
            except Empty:
                self._collect_replies()
                continue
            if letter is None:
                return
            header, payload = decode_frame(letter)
            if "ask" in header:
                self._forward_request(int(header["ask"]), str(header["name"]), float(header["seconds"]), payload)
            else:
                self._report_online()

    def _read_frames(self) -> None:
        """Take in all that is said at once: else both sides could wait until the other one listens."""
        with suppress(*DISCONNECT_ERRORS):
            while True:
                self._frames.put(self.coordinator.recv_bytes())
        self._frames.put(None)

    def _send_frame(self, payload: bytes = b"", **header: Any) -> None:
        self.coordinator.send_bytes(encode_frame(header, payload))

    def _online_nodes(self) -> dict[str, OnlineNode]:
        """Who is online now, by name."""
        online = list(self.grid.get_nodes())
        if self.uses_claimed_names:
            self._query_names([node.node_id for node in online])
        nodes = [OnlineNode(self._node_name(node), node.node_id, node.last_activated_at) for node in online]
        return {node.name: node for node in nodes if node.name}

    def _node_name(self, node: Any) -> str:
        return self._claimed_names.get(node.node_id, "") if self.uses_claimed_names else str(node.name)

    def _report_online(self) -> None:
        """Name those who are here; whoever was away in between has lost what he was asked."""
        here = self._online_nodes()
        for message, (ask, node) in list(self._pending.items()):
            if here.get(node.name, node).online_since != node.online_since:
                del self._pending[message]
                self._send_frame(error=ask, code=NODE_UNAVAILABLE, reason="the node was started anew")
        self._send_frame(here=sorted(here))

    def _forward_request(self, request_id: int, name: str, timeout_seconds: float, payload: bytes) -> None:
        node = self._online_nodes().get(name)
        message = self._push_message(node.node_id, "query", payload, timeout_seconds) if node else ""
        if node and message:
            self._pending[message] = request_id, node
        else:
            self._send_frame(error=request_id, code=NODE_UNAVAILABLE, reason="the node is not online")

    def _push_message(self, node_id: int, kind: str, payload: bytes, ttl_seconds: float) -> str:
        """Send a message; the name under which its answer can be asked for, nothing if Flower did not take it."""
        message = Message(to_record_dict(payload), dst_node_id=node_id, message_type=kind, ttl=ttl_seconds)
        return next(iter(self.grid.push_messages([message])), "")

    def _collect_replies(self) -> None:
        """Hand on what has been answered."""
        if not self._pending and not self._name_queries:
            return
        for reply in self.grid.pull_messages([*self._pending, *self._name_queries]):
            message = reply.metadata.reply_to_message_id
            if message in self._name_queries:
                self._record_name(self._name_queries.pop(message), reply)
            elif message in self._pending:
                ask, node = self._pending.pop(message)
                self._forward_reply(ask, node, reply)

    def _forward_reply(self, request_id: int, node: OnlineNode, reply: Message) -> None:
        """Tell the coordinator what a node answered; whatever that is, the others' answers are still to come."""
        if reply.has_error():
            self._send_frame(error=request_id, code=reply.error.code, reason=str(reply.error.reason))
            return
        try:
            said = from_record_dict(reply.content)
        except (KeyError, TypeError):
            self._send_frame(error=request_id, code=INVALID_REPLY, reason="the node answered without bytes")
            return
        self._send_frame(said, reply=request_id, name=node.name)

    def _query_names(self, node_ids: list[int]) -> None:
        for node in node_ids:
            if node not in self._claimed_names and node not in self._name_queries.values():
                message = self._push_message(node, "query.name", b"", NAME_QUERY_SECONDS)
                if message:
                    self._name_queries[message] = node

    def _record_name(self, node_id: int, reply: Message) -> None:
        if not reply.has_error():
            with suppress(KeyError, TypeError, UnicodeDecodeError):
                self._claimed_names[node_id] = from_record_dict(reply.content).decode()
