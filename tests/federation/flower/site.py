"""A site that echoes its requests: `python -m tests.federation.flower.site CLIENT SUPERLINK ROOT KEY FOLDER`.

A request is a word, a space and anything. The word is `echo`, `sleep-N` (seconds before the response) or `die` (the
process kills itself once).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from fedmosaic_cli.federation.flower.site_node import ConnectionEvent, SiteNode
from fedmosaic_cli.machine import die_with_parent


def main(client: str, superlink: str, root: str, key: str, folder: str) -> None:
    log_path = Path(folder) / f"site-{client}.jsonl"

    def write_log(kind: str, detail: str = "") -> None:
        with log_path.open("a") as file:
            file.write(json.dumps({"kind": kind, "detail": detail, "pid": os.getpid(), "time": time.time()}) + "\n")

    def on_event(event: ConnectionEvent) -> None:
        write_log(event.kind, event.detail)

    def handle_request(request: bytes) -> bytes:
        word = request.split(b" ")[0].decode()
        write_log("asked", word)
        died = Path(folder) / f"died-{client}"
        if word == "die" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if word.startswith("sleep-"):
            time.sleep(float(word.removeprefix("sleep-")))
        return f"{client}:".encode() + request

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    credentials = {} if root == "-" else {"root": Path(root), "key": Path(key)}
    with SiteNode(int(client), superlink, handle_request, on_event=on_event, **credentials) as node:
        node.serve(lambda: bool(stopping))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
