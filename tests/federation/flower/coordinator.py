"""An idle coordinator: `python -m tests.federation.flower.coordinator FOLDER` prints its address and waits."""

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
    credentials = create_certificate_authority(folder / "credentials", ["127.0.0.1"])
    transport = FlowerTransport({0: create_node_key(folder / "site-0")}, SuperLinkAddress(credentials=credentials))
    sys.stdout.write(json.dumps({"address": transport.address, "runtime_dir": str(transport._runtime_dir.path)}) + "\n")
    sys.stdout.flush()
    time.sleep(600)
