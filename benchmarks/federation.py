"""Cost of remote sites: rounds through Flower compared with rounds in one process, and bytes on the wire.

python benchmarks/federation.py                      # about three minutes on two cores
python benchmarks/federation.py --rounds 3 --only FedAvg
python benchmarks/federation.py --json federation.json

Three sites run on this machine, each in its own process, and connect over TLS on the loopback interface. The SuperLink,
its relay and the sites share the cores of this machine. Bytes are counted in four places, per client and round, in both
directions together: the encoded parts of a message (labels or models); the requests and responses that contain them;
Flower's own count, without HTTP and TLS; and everything that a site's connections transmit, including requests for
messages while the site waits. The first round is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
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
from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress
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

NUM_SITES = 3
RECEIVE_BYTES = 1 << 16
SITE_OPTIONS = (
    *("--allow-upload", "models-unprotected", "--metrics", "exact-unprotected", "--device", "cpu", "--quiet"),
    *(("--allow-root",) if os.geteuid() == 0 else ()),
)
"""Exact metrics, so that the log can be compared with that of one process."""
# The goal: at most 20 % and 2 KB more bytes than the encoded parts.
GOAL_FACTOR, GOAL_EXTRA_BYTES = 1.2, 2048


@dataclass(frozen=True)
class Case:
    """A method and the size of its messages."""

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
class ByteCounts:
    """Bytes so far, in both directions: encoded parts, requests and responses, Flower's count, the sites' sockets."""

    parts: int = 0
    requests: int = 0
    flower: int = 0
    sockets: int = 0

    def since(self, before: ByteCounts) -> ByteCounts:
        return ByteCounts(*(now - then for now, then in zip(self.values(), before.values(), strict=True)))

    def values(self) -> tuple[int, int, int, int]:
        return self.parts, self.requests, self.flower, self.sockets


class CountingProxy:
    """A port that forwards to another one and counts the bytes of both directions. TLS is forwarded unchanged."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target_address = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target_address)
                except OSError:
                    client.close()
                    continue
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(RECEIVE_BYTES):
                self.num_bytes += len(data)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class CountingTransport:
    """A transport that counts the bytes of its messages. Implements `federation.transport.Transport`."""

    transport: FlowerTransport
    proxies: list[CountingProxy]
    counts: ByteCounts = field(default_factory=ByteCounts)

    def reachable_clients(self) -> set[int]:
        return self.transport.reachable_clients()

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        for data in requests.values():
            self._count(data)
        for outcome in self.transport.send_requests(requests, timeout_seconds):
            if isinstance(outcome, ClientResponse):
                self._count(outcome.data)
            yield outcome

    def close(self) -> None:
        self.transport.close()

    def read_counts(self) -> ByteCounts:
        """Return all bytes that were counted until now."""
        sockets = sum(proxy.num_bytes for proxy in self.proxies)
        return ByteCounts(self.counts.parts, self.counts.requests, sum(self.transport.traffic_bytes()), sockets)

    def _count(self, data: bytes) -> None:
        self.counts.requests += len(data)
        self.counts.parts += sum(len(part) for _, part in decode_message(data)[1].values())


@contextmanager
def start_sites(shards: ShardSet, folder: Path) -> Iterator[CountingTransport]:
    """Start sites on this machine, each behind a proxy that counts bytes, and yield the transport to them."""
    credentials = create_certificate_authority(folder / "credentials", ["127.0.0.1", "localhost"])
    site_dirs = {client: folder / f"site-{client}" for client in range(NUM_SITES)}
    keys: dict[int, Path | None] = {c: create_node_key(path / f"client-{c:03d}") for c, path in site_dirs.items()}
    with ExitStack() as stack:
        transport = stack.enter_context(FlowerTransport(keys, SuperLinkAddress(credentials=credentials)))
        proxies = [CountingProxy(transport.address) for _ in site_dirs]
        for proxy in proxies:
            stack.callback(proxy.close)
        for client, path in site_dirs.items():
            shard = shards.path / f"client-{client:03d}.npz"
            connection = ["--ca", str(credentials.ca_certificate), "--superlink", proxies[client].address]
            stack.enter_context(start_local_site(shard, path, [*connection, *SITE_OPTIONS], folder))
        yield CountingTransport(transport, proxies)


def case_config(case: Case, shards: ShardSet, rounds: int, folder: Path) -> RunConfig:
    """Return the run of a case. Clients train one by one, in one process as well as at sites."""
    layers = ConfigLayers()
    layers.add("shards", {"data": shards.partition.settings.model_dump(mode="json")})
    common = (f"train.rounds={rounds}", "train.local_steps=10", "train.execution=threads", "train.workers=1")
    for assignment in (*common, *case.settings):
        layers.add_assignment(assignment)
    return resolve_run_config("benchmark", layers, case.method, 0, DataDirs(folder), shards.partition.seed)


def run_rounds(
    config: RunConfig, shards: ShardSet, folder: Path, transport: CountingTransport | None
) -> Iterator[RoundCompleted]:
    """Run one round per step of the iterator: through the transport, or in one process without one."""
    folder.mkdir()

    @contextmanager
    def open_transport() -> Iterator[CountingTransport]:
        if transport is not None:
            yield transport

    remote = None if transport is None else RemoteCoordinator("flower", open_transport)
    options = RunOptions(device="cpu", remote=remote)
    for event in run_experiment(config, shards, RunDirectory(folder), DataDirs(folder), options):
        if isinstance(event, RoundCompleted):
            yield event


def measure_case(case: Case, rounds: int) -> Result:
    """Run a case at sites and in one process, alternating after each round."""
    local_seconds, site_seconds, counts = list[float](), list[float](), list[ByteCounts]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = DataSettings(
            dataset="digits", scheme="dirichlet", alpha=1.0, clients=NUM_SITES, public_size=case.public_size
        )
        shards = load_and_partition(data, 0, folder / "shards", DataDirs(folder)).save(export=True)
        config = case_config(case, shards, rounds + 1, folder)
        with start_sites(shards, folder) as transport:
            before = ByteCounts()
            local_rounds = run_rounds(config, shards, folder / "local", None)
            for event in run_rounds(config, shards, folder / "sites", transport):
                counts.append(transport.read_counts().since(before))
                site_seconds.append(event.seconds)
                local_seconds.append(next(local_rounds).seconds)
                before = transport.read_counts()  # sites request messages while Flower's count is read
        logs = [(folder / name / "rounds.jsonl").read_bytes() for name in ("local", "sites")]
    is_same = "yes" if logs[0] == logs[1] else "NO"
    result = Result(case.title, [f"{rounds} rounds after the first; the logs are equal: {is_same}."])
    result.lines = [*duration_lines(local_seconds[1:], site_seconds[1:]), *byte_lines(counts[1:])]
    return result


def duration_lines(local_seconds: list[float], site_seconds: list[float]) -> list[Line]:
    pairs = list(zip(local_seconds, site_seconds, strict=True))
    return [
        Line("round in one process", local_seconds, "s"),
        Line("round at sites", site_seconds, "s"),
        Line("round at sites - in one process", [site - local for local, site in pairs], "s"),
        Line("round at sites / in one process", [site / local for local, site in pairs]),
    ]


def byte_lines(counts: list[ByteCounts]) -> list[Line]:
    """Return bytes per client and round, and their ratio to the goal, which is met by at most 1."""
    per_client = [[value / NUM_SITES for value in each.values()] for each in counts]
    names = ("encoded parts", "requests and responses", "Flower's count", "sockets")
    lines = [Line(name, [each[index] for each in per_client], "bytes") for index, name in enumerate(names)]
    for name, index in (("Flower's count", 2), ("sockets", 3)):
        ratios = [each[index] / (GOAL_FACTOR * each[0] + GOAL_EXTRA_BYTES) for each in per_client]
        lines.append(Line(f"{name} / ({GOAL_FACTOR:g} x parts + {GOAL_EXTRA_BYTES})", ratios, goal=at_most(1)))
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds after the first (6)")
    parser.add_argument("--only", default="", metavar="TITLE", help="cases whose title starts with TITLE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    about, results = machine(), list[dict[str, Any]]()
    print(f"# Sites on {about['cpu']}, {about['cores']} cores, load {about['load_at_start']:.1f} at the start\n")
    for case in CASES:
        if case.title.startswith(arguments.only):
            result = measure_case(case, arguments.rounds)
            print(result.table(), flush=True)
            results.append(result.to_dict())
            if arguments.json:
                arguments.json.write_text(json.dumps({"machine": about, "cases": results}, indent=1) + "\n")
    if not results:
        sys.exit(f"error: no case '{arguments.only}' (--only): choose from {'; '.join(case.title for case in CASES)}")


if __name__ == "__main__":
    main()
