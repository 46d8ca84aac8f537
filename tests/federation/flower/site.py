"""A site that echoes: `python -m tests.federation.flower.site CLIENT SUPERLINK ROOT KEY FOLDER`. What it is told, it does first.

A letter is a word, a space and anything: `echo`, `sleep-N`, `die` (once a process), `raise`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from fedmosaic_cli.federation.flower.supernode import ConnectionEvent, SuperNode
from fedmosaic_cli.machine import die_with_parent


def main(client: str, superlink: str, root: str, key: str, folder: str) -> None:
    diary = Path(folder) / f"site-{client}.jsonl"

    def note(what: str, detail: str = "") -> None:
        with diary.open("a") as file:
            file.write(json.dumps({"what": what, "detail": detail, "pid": os.getpid(), "time": time.time()}) + "\n")

    def tell(event: ConnectionEvent) -> None:
        note(event.kind, event.detail)

    def answer(letter: bytes) -> bytes:
        word = letter.split(b" ")[0].decode()
        note("asked", word)
        dead = Path(folder) / f"died-{client}"
        if word == "die" and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if word.startswith("sleep-"):
            time.sleep(float(word.removeprefix("sleep-")))
        return f"{client}:".encode() + letter

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    papers = {} if root == "-" else {"root": Path(root), "key": Path(key)}
    with SuperNode(int(client), superlink, answer, on_event=tell, **papers) as node:
        node.serve(lambda: bool(stopping))


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
