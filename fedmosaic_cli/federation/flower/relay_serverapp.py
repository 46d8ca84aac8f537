"""The coordinator's ServerApp, which runs beside the SuperLink: a relay between a socket and Flower's nodes.

The coordinator sends `request` (id, node name, timeout) or `list_nodes`. The relay sends `reply`, `error` or `online`,
and ends when the socket is closed. A node has the name that the coordinator gave to its key. Its name in Flower is not
used: every process that reaches the SuperLink's port can register a node under any name.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Message
from flwr.serverapp import ServerApp

from fedmosaic_cli.federation.flower.flower_messages import (
    INVALID_REPLY,
    NAME_QUERY,
    NODE_UNAVAILABLE,
    REQUEST_QUERY,
    from_record_dict,
    to_record_dict,
)
from fedmosaic_cli.federation.flower.flower_processes import RUNTIME_DIR_VARIABLE
from fedmosaic_cli.federation.flower.ipc import (
    DISCONNECT_ERRORS,
    connect_socket,
    decode_frame,
    encode_frame,
    receive_bytes,
)
from fedmosaic_cli.federation.flower.superlink import RELAY_CONFIG_FILE
from fedmosaic_cli.federation.protocol import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flwr.app import Context
    from flwr.serverapp import Grid

app = ServerApp()
REPLY_POLL_SECONDS, NAME_QUERY_SECONDS = 0.3, 60.0


def main(grid: Grid, context: Context) -> None:
    """Relay until the coordinator disconnects."""
    runtime_dir = Path(os.environ[RUNTIME_DIR_VARIABLE])
    config = json.loads((runtime_dir / RELAY_CONFIG_FILE).read_bytes())
    names = {node_key(key): name for name, key in config["keys"].items()}
    with connect_socket(runtime_dir) as coordinator, suppress(BrokenPipeError):
        Relay(grid, coordinator, names, trusts_claimed_names=config["trusts_claimed_names"]).run()


app.main()(main)  # not as a decorator, which has no type if Flower is not installed


def node_key(public_key: str) -> bytes:
    """Return a public key as Flower stores it for a node."""
    key = load_ssh_public_key(public_key.encode())
    pem: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


@dataclass(frozen=True)
class OnlineNode:
    """A reachable node. A node that came online again has lost the requests that were sent before."""

    name: str
    node_id: int
    online_since: str


@dataclass
class Relay:
    """Pending messages, each with the request id by which the coordinator knows it.

    Attributes:
        names: The name of the node with each public key.
        trusts_claimed_names: Whether a node has the name that it claims. Only on one machine without keys.
    """

    grid: Grid
    coordinator: Connection[bytes, bytes]
    names: dict[bytes, str] = field(default_factory=dict)
    trusts_claimed_names: bool = False
    _frames: Queue[bytes | None] = field(default_factory=Queue)
    _pending: dict[str, tuple[int, OnlineNode]] = field(default_factory=dict)
    _claimed_names: dict[int, str] = field(default_factory=dict)
    _name_queries: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Execute the coordinator's commands until it disconnects."""
        Thread(target=self._read_frames, name="frame-reader", daemon=True).start()
        while True:
            try:
                frame = self._frames.get(timeout=REPLY_POLL_SECONDS)
            except Empty:
                self._collect_replies()
                continue
            if frame is None:
                return
            header, payload = decode_frame(frame)
            if "request" in header:
                timeout_seconds = float(header["timeout_seconds"])
                self._forward_request(int(header["request"]), str(header["name"]), timeout_seconds, payload)
            else:
                self._report_online()

    def _read_frames(self) -> None:
        """Read frames as they arrive: otherwise both sides could block while they send."""
        with suppress(*DISCONNECT_ERRORS):
            while True:
                self._frames.put(receive_bytes(self.coordinator))
        self._frames.put(None)

    def _send_frame(self, payload: bytes = b"", **header: Any) -> None:
        self.coordinator.send_bytes(encode_frame(header, payload))

    def _online_nodes(self) -> dict[str, OnlineNode]:
        """Return the nodes that are online now, by name."""
        online = list(self.grid.get_nodes())
        if self.trusts_claimed_names:
            self._query_names([node.node_id for node in online])
            names = {node.node_id: self._claimed_names.get(node.node_id, "") for node in online}
        else:
            names = {node.node_id: self.names.get(bytes(node.public_key), "") for node in online}
        nodes = [OnlineNode(names[node.node_id], node.node_id, node.last_activated_at) for node in online]
        return {node.name: node for node in nodes if node.name}

    def _report_online(self) -> None:
        """Send the names of the online nodes, and an error for each request that a restarted node has lost."""
        online = self._online_nodes()
        for message_id, (request_id, node) in list(self._pending.items()):
            if online.get(node.name, node).online_since != node.online_since:
                del self._pending[message_id]
                self._send_frame(error=request_id, code=NODE_UNAVAILABLE, reason="the node was restarted")
        self._send_frame(online=sorted(online))

    def _forward_request(self, request_id: int, name: str, timeout_seconds: float, payload: bytes) -> None:
        node = self._online_nodes().get(name)
        message_id = self._push_message(node.node_id, REQUEST_QUERY, payload, timeout_seconds) if node else ""
        if node and message_id:
            self._pending[message_id] = request_id, node
        else:
            self._send_frame(error=request_id, code=NODE_UNAVAILABLE, reason="the node is not online")

    def _push_message(self, node_id: int, kind: str, payload: bytes, ttl_seconds: float) -> str:
        """Send a message. Return its id, or "" if Flower did not accept it."""
        message = Message(to_record_dict(payload), dst_node_id=node_id, message_type=kind, ttl=ttl_seconds)
        return next(iter(self.grid.push_messages([message])), "")

    def _collect_replies(self) -> None:
        """Forward the replies that have arrived."""
        if not self._pending and not self._name_queries:
            return
        for reply in self.grid.pull_messages([*self._pending, *self._name_queries]):
            message_id = reply.metadata.reply_to_message_id
            if message_id in self._name_queries:
                self._record_name(self._name_queries.pop(message_id), reply)
            elif message_id in self._pending:
                request_id, node = self._pending.pop(message_id)
                self._forward_reply(request_id, node, reply)

    def _forward_reply(self, request_id: int, node: OnlineNode, reply: Message) -> None:
        """Send one node's reply to the coordinator. An invalid one must not affect the other nodes."""
        if reply.has_error():
            self._send_frame(error=request_id, code=reply.error.code, reason=str(reply.error.reason))
            return
        try:
            payload = from_record_dict(reply.content)
        except (KeyError, TypeError):
            self._send_frame(error=request_id, code=INVALID_REPLY, reason="the node replied without bytes")
            return
        if len(payload) > MAX_MESSAGE_BYTES:  # the coordinator would take it for a broken relay
            self._send_frame(error=request_id, code=INVALID_REPLY, reason="the reply is too large")
            return
        self._send_frame(payload, reply=request_id, name=node.name)

    def _query_names(self, node_ids: list[int]) -> None:
        for node_id in node_ids:
            if node_id not in self._claimed_names and node_id not in self._name_queries.values():
                message_id = self._push_message(node_id, NAME_QUERY, b"", NAME_QUERY_SECONDS)
                if message_id:
                    self._name_queries[message_id] = node_id

    def _record_name(self, node_id: int, reply: Message) -> None:
        if not reply.has_error():
            with suppress(KeyError, TypeError, UnicodeDecodeError):
                self._claimed_names[node_id] = from_record_dict(reply.content).decode()
