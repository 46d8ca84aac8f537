"""A federation on one machine: its sites are processes of their own, and everything between them is as it would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import FailedRunError
from fedmosaic_cli.federation.flower.node_names import node_name
from fedmosaic_cli.machine import PARENT
from fedmosaic_cli.runner.prepare import open_shards
from fedmosaic_cli.storage import shards as records
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import read_file, remove
from fedmosaic_cli.storage.lock import check_free
from fedmosaic_cli.storage.shards import Shards, client_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.federation.flower.flower_transport import FlowerCarrier
    from fedmosaic_cli.federation.transport import Answer, Carrier, Loss

GRACE_SECONDS = 15.0


@contextmanager
def rehearsed(shards: Shards, place: Place, insecure: bool, device: str) -> Iterator[Carrier]:
    """A way to sites on this machine, one for each client of these shards; all of them end with it.

    What the sites remember lies in sites/<name of the shards>, so that the next run finds it.
    """
    from fedmosaic_cli.federation.flower.flower_transport import FlowerCarrier
    from fedmosaic_cli.federation.flower.keys import make_authority, make_node_key
    from fedmosaic_cli.federation.flower.runtime_dir import Room
    from fedmosaic_cli.federation.flower.superlink import Place as Address

    home = Path("sites") / shards.path.name
    clients = range(len(shards.manifest["clients"]))
    folders = {client: home / node_name(client) for client in clients}
    for folder in folders.values():
        check_free(folder)
    exported = exported_copy(shards, place, home / "shards")
    with ExitStack() as stack:
        room = Room()
        stack.callback(room.close)
        papers = None if insecure else make_authority(room.path / "papers", ["localhost", "127.0.0.1"])
        keys: dict[int, Path | None] = dict.fromkeys(clients)
        if not insecure:
            for client, folder in folders.items():
                key = folder / node_name(client)
                for old in (key, key.with_name(f"{key.name}.pub")):  # a rehearsal trusts nothing of the last one
                    with suppress(FileNotFoundError):
                        remove(old)
                keys[client] = make_node_key(key)
        carrier = stack.enter_context(FlowerCarrier(keys, Address(papers=papers)))
        options = ["--insecure"] if papers is None else ["--ca", str(papers.authority)]
        options += ["--superlink", carrier.address, "--share", "models", "--device", device, "--quiet"]
        sites = {
            client: stack.enter_context(started(exported / client_file(client), folder, options, room.path))
            for client, folder in folders.items()
        }
        yield Watched(carrier, sites)


def exported_copy(shards: Shards, place: Place, target: Path) -> Path:
    """The shards with their examples, as sites have them."""
    if shards.exported:
        return shards.path
    dataset, _ = open_shards(shards, place)
    copy = Shards(target, shards.manifest, shards.partition)
    return records.save(copy, dataset, lambda _: {}, export=True, watch=lambda *_: None).path


@contextmanager
def started(shard: Path, folder: Path, options: list[str], room: Path) -> Iterator[LocalSite]:
    """A site in a process of its own, which ends with ours, however ours ends. What it says is kept in the room."""
    said = room / f"{folder.name}.txt"
    handle = syscalls.create(said)
    command = [sys.executable, "-m", "fedmosaic_cli", "site", "start", "--site-dir", str(folder), "--shard", str(shard)]
    process = subprocess.Popen(
        [*command, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=handle,
        env={**os.environ, PARENT: str(os.getpid())},
        start_new_session=True,
    )
    os.close(handle)
    try:
        yield LocalSite(process, said)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class LocalSite:
    """A site of a rehearsal, and where it says what."""

    process: subprocess.Popen[bytes]
    said: Path

    def last_words(self) -> str:
        """Why it ended; "" as long as it has not."""
        if self.process.poll() is None:
            return ""
        lines = [line for line in read_file(self.said).decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].removeprefix("error: ") if lines else f"code {self.process.returncode}"


class Watched:
    """A carrier whose sites are processes of ours: one that has ended will not answer any more."""

    def __init__(self, carrier: FlowerCarrier, sites: Mapping[int, LocalSite]) -> None:
        self._carrier = carrier
        self._sites = sites

    def present(self) -> set[int]:
        self._check()
        return self._carrier.present()

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[Answer | Loss]:
        self._check()
        return self._carrier.ask(letters, seconds)

    def close(self) -> None:
        self._carrier.close()

    def _check(self) -> None:
        for client, site in self._sites.items():
            if words := site.last_words():
                raise FailedRunError(f"the site of client {client} ended, {words}")
