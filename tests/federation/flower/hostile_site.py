"""A site with a registered key that sends an invalid response in some rounds."""

from __future__ import annotations

import sys
from pathlib import Path

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.flower.site_node import SiteNode
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.protocol import Request, Response
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.runner.build import find_devices
from tests.federation.test_hostile import CHANGED_UPLOADS

CHANGES = {2: "wrong round", 3: "wrong public set", 4: "NaN", 5: "oversized"}


def change_response(request: bytes, response: bytes) -> bytes:
    header = Request.decode(request).header
    change = CHANGES.get(header.get("round", 0), "") if header["kind"] == protocol.LOCAL_ROUND else ""
    if change == "oversized":
        return response + bytes(1 << 21)
    return CHANGED_UPLOADS[change][0](Response.decode(response)).encode() if change else response


def main(shard: str, folder: str, superlink: str, root: str) -> None:
    site_shard = load_site_shard(Path(shard))
    site = Site(site_shard, Path(folder), find_devices("cpu")[0], DataDirs(Path(folder)), SitePolicy("models"))
    key = Path(folder) / node_name(site_shard.client_id)

    def handle_request(request: bytes) -> bytes:
        return change_response(request, site.handle_request(request))

    with SiteNode(site_shard.client_id, superlink, handle_request, root=Path(root), key=key) as node:
        node.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
