"""What sites cost: rounds by way of Flower beside the same rounds in one process, and the bytes on the wire.

python benchmarks/federation.py                      # about ten minutes on two cores
python benchmarks/federation.py --rounds 3 --only FedAvg
python benchmarks/federation.py --json federation.json

Three sites on this machine, each a process of its own, over TLS on the loopback interface: a SuperLink, and for every
site a SuperNode and its apps, compete for its cores. Bytes are counted in four places, per client and round, in both
directions together: the packed messages themselves; the letters that they travel in; what Flower's SuperLink counts
(its own messages, without HTTP and TLS); and what goes through the socket of a site, which is all of it, with what
SuperNodes ask for while they wait. The first round is not counted.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from measuring import machine
from results import Line, Result, at_most

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.run_config import RunConfig, resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.federation.coordinator import RemoteCoordinator
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
from fedmosaic_cli.federation.flower.keys import create_certificate_authority, create_node_key
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress as Address
from fedmosaic_cli.federation.local_federation import start_local_site
from fedmosaic_cli.federation.protocol import decode_message
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from fedmosaic_cli.runner.events import RoundCompleted
from fedmosaic_cli.runner.experiment import run_experiment
from fedmosaic_cli.runner.prepare import load_and_partition
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fedmosaic_cli.storage.shards import ShardSet

SITES = 3
PIECE = 1 << 16
# The goal: the wire may take a fifth more than the packed messages, and 2 KB.
TIMES, MORE = 1.2, 2048


@dataclass(frozen=True)
class Case:
    """A method with a size of what it sends."""

    title: str
    method: str
    public_size: int
    settings: tuple[str, ...] = ()


CASES = (
    Case("FedMosaic, 100 public examples", "fedmosaic", 100),
    Case("FedMosaic, 1000 public examples", "fedmosaic", 1000),
    Case("FedAvg, mlp of 256", "fedavg", 100, ("model.hidden=[256]",)),
)


@dataclass
class Bytes:
    """What went through so far, in both directions: packed messages, letters, Flower's count, a site's sockets."""

    messages: int = 0
    letters: int = 0
    flower: int = 0
    sockets: int = 0

    def since(self, before: Bytes) -> Bytes:
        return Bytes(*(now - then for now, then in zip(self.all(), before.all(), strict=True)))

    def all(self) -> tuple[int, int, int, int]:
        return self.messages, self.letters, self.flower, self.sockets


class Turnstile:
    """A port that leads to another one, and counts what goes through in either direction. TLS goes through as it is."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._there = host, int(port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.counted = 0
        threading.Thread(target=self._let_in, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def _let_in(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                try:
                    far = socket.create_connection(self._there)
                except OSError:
                    near.close()
                    continue
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                self.counted += len(piece)
                target.sendall(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class Weighed:
    """A carrier that weighs what it carries. Implements `federation.transport.Carrier`."""

    carrier: FlowerTransport
    turnstiles: list[Turnstile]
    seen: Bytes = field(default_factory=Bytes)

    def present(self) -> set[int]:
        return self.carrier.reachable_clients()

    def ask(self, asked: Mapping[int, bytes], seconds: float) -> Iterator[ClientResponse | ClientFailure]:
        for letter in asked.values():
            self._weigh(letter)
        for outcome in self.carrier.send_requests(asked, seconds):
            if isinstance(outcome, ClientResponse):
                self._weigh(outcome.data)
            yield outcome

    def close(self) -> None:
        self.carrier.close()

    def so_far(self) -> Bytes:
        """All that was counted until now."""
        sockets = sum(turnstile.counted for turnstile in self.turnstiles)
        return Bytes(self.seen.messages, self.seen.letters, sum(self.carrier.traffic_bytes()), sockets)

    def _weigh(self, letter: bytes) -> None:
        self.seen.letters += len(letter)
        self.seen.messages += sum(len(data) for _, data in decode_message(letter)[1].values())


@contextmanager
def sites(shards: ShardSet, folder: Path) -> Iterator[Weighed]:
    """Sites on this machine, and the way to them, with a turnstile before each."""
    papers = create_certificate_authority(folder / "papers", ["127.0.0.1", "localhost"])
    homes = {client: folder / f"site-{client}" for client in range(SITES)}
    keys: dict[int, Path | None] = {c: create_node_key(home / f"client-{c:03d}") for c, home in homes.items()}
    with ExitStack() as stack:
        carrier = stack.enter_context(FlowerTransport(keys, Address(credentials=papers)))
        turnstiles = [Turnstile(carrier.address) for _ in homes]
        for turnstile in turnstiles:
            stack.callback(turnstile.close)
        options = [
            "--ca",
            str(papers.ca_certificate),
            "--allow-upload",
            "models-unprotected",
            "--device",
            "cpu",
            "--quiet",
        ]
        for client, home in homes.items():
            shard = shards.path / f"client-{client:03d}.npz"
            stack.enter_context(
                start_local_site(shard, home, [*options, "--superlink", turnstiles[client].address], folder)
            )
        yield Weighed(carrier, turnstiles)


def configured(case: Case, shards: ShardSet, rounds: int, folder: Path) -> RunConfig:
    """The run of a case: clients one by one, in one process as at sites."""
    layers = ConfigLayers()
    layers.add("shards", {"data": shards.partition.settings.model_dump(mode="json")})
    usual = (f"train.rounds={rounds}", "train.local_steps=10", "train.execution=threads", "train.workers=1")
    for assignment in (*usual, *case.settings):
        layers.add_assignment(assignment)
    return resolve_run_config("benchmark", layers, case.method, 0, DataDirs(folder), shards.partition.seed)


def played(config: RunConfig, shards: ShardSet, folder: Path, weighed: Weighed | None) -> Iterator[RoundCompleted]:
    """The rounds of a run, one by one; the time between them is not theirs."""
    folder.mkdir()

    @contextmanager
    def opened() -> Iterator[Weighed]:
        if weighed is not None:
            yield weighed

    elsewhere = None if weighed is None else RemoteCoordinator("flower", opened)
    terms = RunOptions(device="cpu", remote=elsewhere)
    for event in run_experiment(config, shards, RunDirectory(folder), DataDirs(folder), terms):
        if isinstance(event, RoundCompleted):
            yield event


def measured(case: Case, rounds: int) -> Result:
    """A case at sites and in one process, round by round."""
    here, there, counted = list[float](), list[float](), list[Bytes]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = DataSettings(
            dataset="digits", scheme="dirichlet", alpha=1.0, clients=SITES, public_size=case.public_size
        )
        shards = load_and_partition(data, 0, folder / "shards", DataDirs(folder)).save(export=True)
        config = configured(case, shards, rounds + 1, folder)
        with sites(shards, folder) as weighed:
            before = Bytes()
            alone = played(config, shards, folder / "here", None)
            for done in played(config, shards, folder / "there", weighed):
                now = weighed.so_far()
                counted.append(now.since(before))
                there.append(done.seconds)
                here.append(next(alone).seconds)
                before = weighed.so_far()  # asking for the count, too, takes its time and its polls
        same = (folder / "here/rounds.jsonl").read_bytes() == (folder / "there/rounds.jsonl").read_bytes()
    result = Result(case.title, [f"{rounds} rounds after the first; same log in both: {'yes' if same else 'NO'}."])
    result.lines = [*seconds(here[1:], there[1:]), *weights(counted[1:])]
    return result


def seconds(here: list[float], there: list[float]) -> list[Line]:
    pairs = list(zip(here, there, strict=True))
    return [
        Line("round in one process", here, "s"),
        Line("round at sites", there, "s"),
        Line("round at sites - in one process", [b - a for a, b in pairs], "s"),
        Line("round at sites / in one process", [b / a for a, b in pairs]),
    ]


def weights(counted: list[Bytes]) -> list[Line]:
    """Bytes per client and round, and how far they are from the goal: at most 1 is within it."""
    per = [[value / SITES for value in each.all()] for each in counted]
    names = ("packed messages", "letters", "Flower's count", "through the socket")
    lines = [Line(name, [each[place] for each in per], "bytes") for place, name in enumerate(names)]
    for name, place in (("Flower's count", 2), ("through the socket", 3)):
        shares = [each[place] / (TIMES * each[0] + MORE) for each in per]
        lines.append(Line(f"{name} / ({TIMES:g} x messages + {MORE})", shares, goal=at_most(1)))
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds after the first (6)")
    parser.add_argument("--only", default="", metavar="TITLE", help="cases whose title begins so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    about, found = machine(), list[dict[str, Any]]()
    print(f"# Sites on {about['cpu']}, {about['cores']} cores, load {about['load_at_start']:.1f} at the start\n")
    for case in CASES:
        if case.title.startswith(asked.only):
            result = measured(case, asked.rounds)
            print(result.table(), flush=True)
            found.append(result.to_dict())
            if asked.json:
                asked.json.write_text(json.dumps({"machine": about, "cases": found}, indent=1) + "\n")
    if not found:
        sys.exit(f"error: no case '{asked.only}' (--only): there are {'; '.join(case.title for case in CASES)}")


if __name__ == "__main__":
    main()
