"""The program that connects a site to the SuperLink: a node of Flower that never receives an app.

Flower's own SuperNode downloads the app of every run and executes it. This program uses only the part of Flower that
exchanges messages. It requests no apps, starts no processes and opens no port. It passes the payload of each message to
the site's process through a socket and returns the response.

`python -m fedmosaic_cli.federation.flower.node_program NAME SUPERLINK [CA_CERTIFICATE PRIVATE_KEY]`
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from fedmosaic_cli.federation.flower.flower_messages import (
    CLIENT_APP_RAISED_EXCEPTION,
    NAME_QUERY,
    NO_SITE_PROCESS,
    SITE_PROCESS_ENDED,
    from_record_dict,
    to_record_dict,
)
from fedmosaic_cli.federation.flower.flower_processes import RUNTIME_DIR_VARIABLE
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, connect_socket, receive_bytes
from fedmosaic_cli.federation.flower.site_node import CONNECTED_TEXT
from fedmosaic_cli.federation.protocol import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.proto.message_pb2 import ObjectTree

ACTIVE_POLL_SECONDS, IDLE_POLL_SECONDS, ACTIVE_SECONDS = 0.25, 3.0, 60.0
"""Seconds between two requests for messages: for a time after a message, and otherwise."""
MAX_MEMORY_BYTES = 8 * MAX_MESSAGE_BYTES + (1 << 30)
"""Limit of this process. A message is copied while it is decoded."""
logger = logging.getLogger("fedmosaic.node")


class SiteForwarder:
    """Answers messages with the responses of the site's process.

    Args:
        name: The name of this site's node.
        runtime_dir: The directory with the socket of the site's process.
    """

    def __init__(self, name: str, runtime_dir: Path) -> None:
        self._name = name
        self._runtime_dir = runtime_dir

    def reply(self, message: Message) -> Message:
        """Return the reply to a message. A message without a payload gets an error."""
        if message.metadata.message_type == NAME_QUERY:
            return Message(to_record_dict(self._name.encode()), reply_to=message)
        try:
            payload = from_record_dict(message.content)
        except (KeyError, TypeError, ValueError):
            return error_reply(message, "the message has no payload")
        try:
            return Message(to_record_dict(self._forward_to_site(payload)), reply_to=message)
        except ConnectionError as error:
            return error_reply(message, str(error))

    def _forward_to_site(self, payload: bytes) -> bytes:
        try:
            site = connect_socket(self._runtime_dir)
        except DISCONNECT_ERRORS:
            raise ConnectionError(NO_SITE_PROCESS) from None
        with site:
            try:
                site.send_bytes(payload)
                return receive_bytes(site)
            except DISCONNECT_ERRORS:
                raise ConnectionError(SITE_PROCESS_ENDED) from None


def error_reply(message: Message, reason: str) -> Message:
    return Message(Error(code=CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)


def exchange_message(connection: tuple[Any, ...], forwarder: SiteForwarder) -> bool:
    """Receive and answer one message. Return whether there was one."""
    _, receive, send, _, _, pull_object, push_object, confirm_received = connection
    received = receive()
    if received is None:
        return False
    header, tree = received
    run_id = header.metadata.run_id
    message = pull_message(tree, partial(pull_object, run_id), partial(confirm_received, run_id))
    reply = forwarder.reply(message)
    # Flower identifies a reply by its object id, and the metadata of a message have no setter for it.
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = get_all_nested_objects(reply)
    # Flower asks for the duration of the app, which this site does not report.
    needed, session_id = send(reply, get_object_tree(reply), 0.0)
    push_objects(objects, partial(push_object, run_id, session_id), object_ids_to_push=needed)
    return True


def pull_message(
    tree: ObjectTree, pull_object: Callable[[str], bytes], confirm_received: Callable[[str], None]
) -> Message:
    """Return the message of an object tree. Raise `MemoryError` if it is too large."""
    num_bytes = 0

    def pull_limited(object_id: str) -> bytes:
        nonlocal num_bytes
        content = pull_object(object_id)
        num_bytes += len(content)
        if num_bytes > MAX_MESSAGE_BYTES:
            raise MemoryError(f"a message has more than {MAX_MESSAGE_BYTES} bytes")
        return content

    message = pull_and_inflate_object_from_tree(tree, pull_limited, confirm_received, return_type=Message)
    # The id is not transmitted with the message. A reply refers to it.
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message


def run_node(name: str, superlink: str, root: Path | None, key: Path | None, runtime_dir: Path) -> None:
    """Answer messages until a signal arrives or the connection fails."""
    keys = None if key is None else load_key_pair(key)
    root_certificate = None if root is None else root.read_bytes()
    forwarder, last_message_at = SiteForwarder(name, runtime_dir), time.monotonic()
    with http_request_response(superlink, root is None, root_certificate, keys) as connection:
        logger.info("%s %s", CONNECTED_TEXT, connection[0])
        while True:
            has_message = False
            try:
                has_message = exchange_message(connection, forwarder)
            except RunNotRunningException:
                logger.info("ignored a message of an ended run")
            except httpx.HTTPError:
                raise  # the SuperLink is lost: this program ends, and `SiteNode` restarts it
            except Exception as error:
                logger.info("a message was not answered, %s: %s", type(error).__name__, error)
            if has_message:
                last_message_at = time.monotonic()
                continue
            is_active = time.monotonic() - last_message_at < ACTIVE_SECONDS
            time.sleep(ACTIVE_POLL_SECONDS if is_active else IDLE_POLL_SECONDS)


def load_key_pair(path: Path) -> tuple[Any, Any]:
    """Return the private and the public key of this site."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private_key = load_ssh_private_key(path.read_bytes(), None)
    return private_key, private_key.public_key()


def main(name: str, superlink: str, root: str = "", key: str = "") -> None:
    """Run the node. A signal ends it, and it signs off at the SuperLink."""

    def stop(signal_number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second signal ends it at once
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)  # Flower sends it if the SuperLink does not accept the key any more
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    runtime_dir = Path(os.environ[RUNTIME_DIR_VARIABLE])
    run_node(name, superlink, Path(root) if root else None, Path(key) if key else None, runtime_dir)


if __name__ == "__main__":
    main(*sys.argv[1:])
