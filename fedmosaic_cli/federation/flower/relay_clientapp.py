"""What Flower runs at a site for every message: it hands the bytes to the site's own process, and its answer back.

Where that process is comes from the SuperNode's own settings, never from a message. Training does not happen here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedmosaic_cli.federation.flower.flower_errors import NO_SITE, SITE_ENDED
from fedmosaic_cli.federation.flower.flower_messages import unwrap, wrap
from fedmosaic_cli.federation.flower.ipc import GONE, connect

if TYPE_CHECKING:
    from flwr.app import Context

app = ClientApp()


def hand_over(message: Message, context: Context) -> Message:
    """The site's answer to what the message says."""
    return Message(wrap(answer(Path(str(context.node_config["room"])), unwrap(message.content))), reply_to=message)


def introduce(message: Message, context: Context) -> Message:
    """The name that the site gives itself: asked for in rehearsals without keys alone."""
    return Message(wrap(str(context.node_config["name"]).encode()), reply_to=message)


def answer(room: Path, letter: bytes) -> bytes:
    """What the process that listens in this room says to a letter."""
    try:
        site = connect(room)
    except GONE as error:
        raise ConnectionError(NO_SITE) from error
    with site:
        try:
            site.send_bytes(letter)
            return site.recv_bytes()
        except GONE as error:
            raise ConnectionError(SITE_ENDED) from error


app.query()(hand_over)
app.query("name")(introduce)
