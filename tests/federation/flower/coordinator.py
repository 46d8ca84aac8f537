"""A coordinator that does nothing: `python -m tests.federation.flower.coordinator FOLDER`. It says where it is, and waits."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    papers = create_certificate_authority(folder / "papers", ["127.0.0.1"])
    carrier = FlowerTransport({0: create_node_key(folder / "site-0")}, SuperLinkAddress(credentials=papers))
    sys.stdout.write(json.dumps({"address": carrier.address, "room": str(carrier._runtime_dir.path)}) + "\n")
    sys.stdout.flush()
    time.sleep(600)
