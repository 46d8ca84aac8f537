"""A coordinator that does nothing: `python -m tests.flower.coordinator FOLDER`. It says where it is, and waits."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from fedmosaic_cli.federation.flower.flower_transport import FlowerCarrier
from fedmosaic_cli.federation.flower.keys import make_authority, make_node_key
from fedmosaic_cli.federation.flower.superlink import Place

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    papers = make_authority(folder / "papers", ["127.0.0.1"])
    carrier = FlowerCarrier({0: make_node_key(folder / "site-0")}, Place(papers=papers))
    sys.stdout.write(json.dumps({"address": carrier.address, "room": str(carrier._room.path)}) + "\n")
    sys.stdout.flush()
    time.sleep(600)
