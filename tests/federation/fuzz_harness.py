"""A coordinator with recorded responses, and a site with recorded requests, that receive mutated messages."""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmosaic_cli.config.run_config import RunConfig
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.engine.federation import Federation, RunState
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.server import InProcessServer
from fedmosaic_cli.engine.traffic import Traffic
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.coordinator import RemoteCoordinator, build_remote_federation
from fedmosaic_cli.federation.protocol import ERROR, FINISH, Request, Response
from fedmosaic_cli.federation.remote_pool import RemoteClient, RemoteClientPool
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.transport import ClientFailure, ClientResponse
from fedmosaic_cli.runner.checkpoint_state import capture_state
from fedmosaic_cli.storage.shards import ShardSet
from tests.federation.sites import CPU, Sites, make_config, run

PHASES = ("join", protocol.LOCAL_ROUND, "finalize", protocol.EVALUATE, "finish")
METHODS_OF_PHASE = {
    "join": ("fedavgft", "fedmosaic"),
    protocol.LOCAL_ROUND: ("fedavgft", "fedmosaic"),
    "finalize": ("fedavgft",),
    protocol.EVALUATE: ("fedavgft",),
    "finish": ("fedavgft", "fedmosaic"),
}
"""FedAvg with fine-tuning sends models and has all phases; FedMosaic sends labels."""
HOSTILE, NUM_ROUNDS = 1, 2
TINY = (f"train.rounds={NUM_ROUNDS}", "train.local_steps=1", "model.hidden=[2]", "train.batch_size=4")
WRITE_EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate"}


@dataclass
class Recording:
    """A run without mutations: its configuration, and all requests and responses."""

    config: RunConfig
    shards: ShardSet
    exchanges: list[tuple[int, bytes, bytes]]
    models: dict[str, str]

    @property
    def token(self) -> str:
        return str(Request.decode(self.exchanges[0][1]).header["run"]).rpartition("/")[2]

    def requests(self, client: int) -> list[tuple[str, bytes]]:
        """Return the requests to a client with their kinds, in order."""
        return [(Request.decode(request).kind, request) for c, request, _ in self.exchanges if c == client]


def record_run(shards: ShardSet, method: str, folder: Path) -> Recording:
    """Make a run with honest sites."""
    config = make_config(shards, method, folder, *TINY)
    sites = Sites(shards, folder)
    files = run(config, shards, folder / "run", sites)
    return Recording(config, shards, sites.exchanges, files.read_summary()["models"])


class FakeClock:
    """Stands for the module `time`: each request takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class RecordedTransport:
    """Implements `federation.transport.Transport` with recorded responses.

    In one phase the hostile client sends `mutant` instead, or nothing if it is None.
    """

    def __init__(self, recording: Recording, clock: FakeClock, phase: str) -> None:
        self._clock, self._phase = clock, phase
        self.mutant: bytes | None = None
        self._responses: dict[tuple[int, str, int], bytes] = {}
        for client, request, response in recording.exchanges:
            self._responses[self._key(client, request)] = response

    def _key(self, client: int, request: bytes) -> tuple[int, str, int]:
        header = Request.decode(request).header
        return client, header["kind"], header.get("round", 0)

    def recorded(self, client: int) -> list[bytes]:
        """Return the recorded responses of a client in the phase."""
        return [data for (c, kind, _), data in self._responses.items() if c == client and kind == self._phase]

    def reachable_clients(self) -> set[int]:
        return {client for client, _, _ in self._responses}

    def send_requests(
        self, requests: Mapping[int, bytes], timeout_seconds: float
    ) -> Iterator[ClientResponse | ClientFailure]:
        self._clock.now += 1.0
        for client, request in requests.items():
            _, kind, number = key = self._key(client, request)
            if client == HOSTILE and kind == self._phase and number in (0, NUM_ROUNDS):
                yield ClientFailure(client, "deadline") if self.mutant is None else ClientResponse(client, self.mutant)
            else:
                yield ClientResponse(client, self._responses[key])

    def close(self) -> None:
        pass


@dataclass
class ObservedPool(RemoteClientPool):
    """Keeps the reasons that a run does not log, because the client could be evaluated later."""

    unlogged: str = ""

    def finalize(self, server: InProcessServer) -> dict[int, Traffic]:
        traffic = super().finalize(server)
        self.unlogged = self.clients[HOSTILE].metrics.get("evaluation_error", "")
        return traffic

    def finish(self, server: InProcessServer, round_number: int) -> dict[int, dict[str, Any]]:
        headers = super().finish(server, round_number)
        if HOSTILE not in headers:
            _, failures = self._request(FINISH, round_number, {HOSTILE: {}})
            self.unlogged = failures[HOSTILE]
        return headers


@dataclass
class Outcome:
    """What a coordinator made of a run: the reason why it did not use a response, and its results."""

    reason: str
    honest_rows: list[dict[str, Any]]
    server: bytes
    digests: dict[str, str]


@dataclass
class FuzzedCoordinator:
    """Makes runs with recorded responses, of which one client's in one phase is mutated."""

    recording: Recording
    transport: RecordedTransport
    backend: RemoteCoordinator = field(init=False)
    initial: Federation = field(init=False)

    def __post_init__(self) -> None:
        config, shards = self.recording.config, self.recording.shards
        self.backend = RemoteCoordinator("test", None, join_timeout_seconds=1.5)  # type: ignore[arg-type]
        self.initial = build_remote_federation(
            config, shards, DataDirs(shards.path), CPU, self.transport, self.backend, self.recording.token
        )

    def run(self, mutant: bytes | None) -> Outcome:
        """Make a whole run in which the hostile client sends `mutant`."""
        self.transport.mutant = mutant
        clients = [RemoteClient(client.id) for client in self.initial.state.clients]
        initial = self.initial.remote_pool
        pool = ObservedPool(
            self.transport,
            initial.method,
            initial.ctx,
            initial.run_id,
            clients,
            initial.quorum,
            join_timeout_seconds=1.5,
        )
        state = RunState(clients, copy.deepcopy(self.initial.state.server), self.initial.state.finished)
        federation = replace(self.initial, state=state, remote_pool=pool)
        for _ in self.backend.join(federation, self.recording.config, self.recording.shards):
            pass
        refusal = pool.refusals.get(HOSTILE, "")
        rows = [row for record in run_rounds(federation, NUM_ROUNDS) for row in record.rows]
        digests = self.backend.finish(federation)
        json.dumps([rows, self.backend.summary(rows), self.backend.device_types(federation)], allow_nan=False)
        arrays, _ = capture_state(RunState([], state.server))
        server = b"".join(name.encode() + array.tobytes() for name, array in sorted(arrays.items()))
        hostile = [row for row in rows if row["client"] == HOSTILE]
        reasons = [row.get("lost") or row.get("evaluation_error") or rejected_upload(row) for row in hostile]
        reason = refusal or pool.unlogged or next((reason for reason in reasons if reason), "")
        if not reason and len(digests) < len(clients):
            reason = "no digest"
        return Outcome(reason, [row for row in rows if row["client"] != HOSTILE], server, digests)


def rejected_upload(row: dict[str, Any]) -> str:
    """Return why the labels of a client were rejected."""
    return str(row["message"]) if row.get("message", "accepted") not in ("accepted", "abstained") else ""


def reason_code(reason: str) -> str:
    """Return the code of a reason, without what a site wrote."""
    for prefix in ("no response (", "client 1 sent an invalid response, "):
        reason = reason.removeprefix(prefix)
    if reason.startswith("client 1 has answered in round"):
        return "lost_state"
    if reason.startswith("the site of client 1 refuses the plan, "):
        return "site error"
    return "site error" if ": " in reason else reason.rstrip(")")


@dataclass
class WriteMonitor:
    """Records files that this process changes outside of a directory. Audit hooks cannot be removed."""

    allowed: Path | None = None
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sys.addaudithook(self._check)

    @contextmanager
    def watch(self, allowed: Path) -> Iterator[None]:
        self.allowed = allowed
        try:
            yield
        finally:
            self.allowed = None

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed is None or (event != "open" and event not in WRITE_EVENTS):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            return
        num_paths = 2 if event in ("os.rename", "os.link", "os.symlink") else 1
        folder_fd = arguments[-1] if event.startswith("os.") and arguments[-1] != -1 else None
        for path in arguments[:num_paths]:
            if isinstance(path, (str, bytes, Path)):
                folder = f"/proc/self/fd/{folder_fd}" if isinstance(folder_fd, int) else ""
                resolved = Path(os.path.realpath(Path(folder, os.fsdecode(path))))
                if not resolved.is_relative_to(self.allowed) and resolved != Path(os.devnull):
                    self.violations.append(f"{event} {resolved}")


@dataclass
class FuzzedSite:
    """A site in the state before the request of a phase. `handle` brings it back to this state after each request."""

    sites: Sites
    recording: Recording
    phase: str
    monitor: WriteMonitor
    codes: Counter[str] = field(default_factory=Counter)
    request: bytes = b""
    _snapshot: Path | None = None
    _fingerprint: frozenset[tuple[str, int, int]] = frozenset()

    def __post_init__(self) -> None:
        """Handle all requests before the one to mutate: that of the last round in the phase."""
        requests = self.recording.requests(HOSTILE)
        last = max(position for position, (kind, _) in enumerate(requests) if kind == self.phase)
        for _, request in requests[:last]:
            assert Response.decode(self.site.handle_request(request)).kind != ERROR
        self.request = with_parts(requests, last)
        self.site.folder.mkdir(parents=True, exist_ok=True)
        self._snapshot = self.site.folder.with_name("snapshot")
        if self._runs.exists():
            shutil.copytree(self._runs, self._snapshot)
        self._restore()

    @property
    def site(self) -> Site:
        return self.sites.sites[HOSTILE]

    @property
    def _runs(self) -> Path:
        return self.site.folder / "runs"

    def handle(self, data: bytes) -> Response:
        """Return the site's response to a mutated request, and count its kind or error."""
        with self.monitor.watch(self.site.folder):
            response = Response.decode(self.site.handle_request(data))
        is_error = response.kind == ERROR
        self.codes[str(response.header["error"]) if is_error else f"answered {response.kind}"] += 1
        if fingerprint(self._runs) != self._fingerprint:
            self._restore()
        return response

    def _restore(self) -> None:
        shutil.rmtree(self._runs, ignore_errors=True)
        if self._snapshot is not None and self._snapshot.exists():
            shutil.copytree(self._snapshot, self._runs)
        self._fingerprint = fingerprint(self._runs)
        self.sites.restart(HOSTILE)


def with_parts(requests: list[tuple[str, bytes]], position: int) -> bytes:
    """Return a request with the parts that it refers to by digest, so that they can be mutated."""
    request = Request.decode(requests[position][1])
    if request.cached_digest is None:
        return requests[position][1]
    parts = next(p for _, data in reversed(requests[:position]) if (p := Request.decode(data).parts))
    return Request(request.header, parts).encode()


def fingerprint(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Return what identifies the files of a directory."""
    entries = set()
    for root, _, names in os.walk(folder):
        for name in names:
            status = (Path(root) / name).lstat()
            entries.add((f"{root}/{name}", status.st_size, status.st_mtime_ns))
    return frozenset(entries)
