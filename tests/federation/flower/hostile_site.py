"""A site whose key is registered and that does not play by the rules: what it answers in each round is spoilt."""

from __future__ import annotations

import sys
from pathlib import Path

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.flower.supernode import SuperNode
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.runner.build import find_devices
from tests.federation.test_hostile import OPINIONS

LIES = {2: "wrong round", 3: "wrong public set", 4: "no number", 5: "oversized"}


def spoilt(letter: bytes, answer: bytes) -> bytes:
    head = protocol.decode_protocol_message(letter).header
    lie = LIES.get(head.get("round", 0), "") if head["kind"] == "turn" else ""
    if lie == "oversized":
        return answer + bytes(1 << 21)
    return (
        protocol.encode_protocol_message(OPINIONS[lie][0](protocol.decode_protocol_message(answer))) if lie else answer
    )


def main(shard: str, folder: str, superlink: str, root: str) -> None:
    held = load_site_shard(Path(shard))
    site = Site(held, Path(folder), find_devices("cpu")[0], DataDirs(Path(folder)), SitePolicy("models"))
    key = Path(folder) / node_name(held.client_id)
    with SuperNode(
        held.client_id, superlink, lambda x: spoilt(x, site.handle_request(x)), root=Path(root), key=key
    ) as node:
        node.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
