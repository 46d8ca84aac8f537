"""What Flower runs at a site for every message: it hands the bytes to the site's own process, and its answer back.

Where that process is comes from the SuperNode's own settings, never from a message. Training does not happen here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedmosaic_cli.federation.flower.flower_errors import NO_SITE_PROCESS, SITE_PROCESS_ENDED
from fedmosaic_cli.federation.flower.flower_messages import from_record_dict, to_record_dict
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, connect_socket

if TYPE_CHECKING:
    from flwr.app import Context

app = ClientApp()


def forward_to_site(message: Message, context: Context) -> Message:
    """The site's answer to what the message says."""
    return Message(
        to_record_dict(site_response(Path(str(context.node_config["room"])), from_record_dict(message.content))),
        reply_to=message,
    )


def report_name(message: Message, context: Context) -> Message:
    """The name that the site gives itself: asked for in rehearsals without keys alone."""
    return Message(to_record_dict(str(context.node_config["name"]).encode()), reply_to=message)


def site_response(runtime_dir: Path, request: bytes) -> bytes:
    """What the process that listens in this room says to a letter."""
    try:
        site = connect_socket(runtime_dir)
    except DISCONNECT_ERRORS as error:
        raise ConnectionError(NO_SITE_PROCESS) from error
    with site:
        try:
            site.send_bytes(request)
            return site.recv_bytes()
        except DISCONNECT_ERRORS as error:
            raise ConnectionError(SITE_PROCESS_ENDED) from error


app.query()(forward_to_site)
app.query("name")(report_name)
