"""Flower's ClientApp at a site: it forwards each message to the site's process and returns the response.

The socket's path comes from the SuperNode's own configuration, never from a message. Training happens in the site's
process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedmosaic_cli.federation.flower.flower_messages import (
    NO_SITE_PROCESS,
    SITE_PROCESS_ENDED,
    from_record_dict,
    to_record_dict,
)
from fedmosaic_cli.federation.flower.ipc import DISCONNECT_ERRORS, connect_socket

if TYPE_CHECKING:
    from flwr.app import Context

app = ClientApp()


def forward_to_site(message: Message, context: Context) -> Message:
    """Return the response of the site's process to a request."""
    try:
        site = connect_socket(Path(str(context.node_config["room"])))
    except DISCONNECT_ERRORS as error:
        raise ConnectionError(NO_SITE_PROCESS) from error
    with site:
        try:
            site.send_bytes(from_record_dict(message.content))
            response = site.recv_bytes()
        except DISCONNECT_ERRORS as error:
            raise ConnectionError(SITE_PROCESS_ENDED) from error
    return Message(to_record_dict(response), reply_to=message)


def report_name(message: Message, context: Context) -> Message:
    """Return the name that the site claims. Only asked for on one machine without keys."""
    return Message(to_record_dict(str(context.node_config["name"]).encode()), reply_to=message)


# Not as decorators: these have no types if Flower is not installed.
app.query()(forward_to_site)
app.query("name")(report_name)
