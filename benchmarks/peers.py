"""FedAvg rounds of other tools: fluke and Flower's simulation.

Their dependencies and ours do not go together, so each plays in a process of a Python where it is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from measuring import Sample, Samples
from results import Line, Result
from workload import Job, cifar_task, store

if TYPE_CHECKING:
    from workload import Plan

HERE = Path(__file__).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Peer:
    """Another tool: what it is called, imported and installed as, and what a round of it does."""

    title: str
    script: str
    module: str
    package: str
    work: str


OURS = Peer("ours", "own_peer.py", "fedmosaic_cli", "fedmosaic", "accuracy and loss of every client")
FLUKE = Peer(
    "fluke",
    "fluke_peer.py",
    "fluke",
    "fluke-fl",
    "its own client and loader; the server tests the global model on everybody's test images together, accuracy only",
)
FLOWER = Peer(
    "Flower",
    "flower_peer.py",
    "ray, flwr.simulation",
    "flwr[simulation]",
    "FedAvg in its simulation with one Ray worker, CPU time of all its processes; clients train and test the global "
    "model with the naive simulator's loops, as its users write these themselves",
)


def peers(plan: Plan) -> Result:
    """FedAvg rounds, ours and theirs in turns. The first round, with what starts up in it, is kept apart."""
    result = Result(
        "Peers: FedAvg rounds of other tools",
        [
            f"{plan.peer_clients} clients with {plan.sizes.train} training and {plan.sizes.test} test images, batch "
            f"{plan.batches[-1]}, 1 epoch of SGD, one worker with 1 thread; rounds are given per client. "
            f"{plan.peer_repetitions} turns of a new process each, which plays a first round and "
            f"{plan.peer_rounds - 1} more. Everybody tests the global model in every round."
        ],
    )
    usable = {OURS: sys.executable}
    for peer, asked in ((FLUKE, plan.fluke_python), (FLOWER, plan.flower_python)):
        python = asked or sys.executable
        if importable(python, peer.module):
            usable[peer] = python
            result.notes.append(f"- {peer.title}: {peer.work}.")
        else:
            result.notes.append(f"- {skipped(peer)}")
    if len(usable) > 1:
        measure(result, usable, plan)
    return result


def skipped(peer: Peer) -> str:
    option = f"--{peer.title.lower()}-python"
    return (
        f"{peer.title}: skipped, it is not installed. `python -m venv peer && peer/bin/pip install '{peer.package}' "
        f"torch torchvision`, then {option} peer/bin/python."
    )


def importable(python: str, module: str) -> bool:
    command = [python, "-c", f"import torch, {module}"]
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return False


def measure(result: Result, usable: dict[Peer, str], plan: Plan) -> None:
    """Everybody in turns, in processes of their own."""
    samples, walls = Samples(), {peer: list[float]() for peer in usable}
    with tempfile.TemporaryDirectory() as directory:
        store(cifar_task(plan.sizes, clients=plan.peer_clients, public=0), Path(directory))
        job = Job(directory, plan.peer_clients, plan.sizes.train, plan.sizes.test, plan.batches[-1], plan.peer_rounds)
        for _ in range(plan.peer_repetitions):
            for peer, python in usable.items():
                rounds, wall = played(peer, python, job)
                samples.setdefault(f"{peer.title}, first round", []).append(rounds[0])
                samples.setdefault(f"{peer.title}, steady round", []).append(mean(rounds[1:]))
                walls[peer].append(wall)
    result.add(samples, "s per client", clocks=("cpu", "wall"))
    for peer in usable:
        # Not all processes of a tool are our children, so their CPU time in all is not known.
        result.lines.append(Line(f"{peer.title}, process from start to end", walls[peer], "s, wall"))
    for peer in usable:
        if peer != OURS:
            result.compare(f"{peer.title}, steady round", f"{OURS.title}, steady round")


def mean(samples: list[Sample]) -> Sample:
    return Sample(fmean(each.cpu for each in samples), fmean(each.wall for each in samples))


def played(peer: Peer, python: str, job: Job) -> tuple[list[Sample], float]:
    """The rounds of a tool, per client, and the seconds that its process took in all.

    It prints a list of [CPU seconds, wall seconds], one pair a round.
    """
    environment = {**os.environ, **QUIET, "FLWR_HOME": job.directory}
    command = [python, str(HERE / peer.script), json.dumps(asdict(job))]
    started = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=job.directory, check=False)
    wall = time.perf_counter() - started
    if ended.returncode:
        raise RuntimeError(f"{peer.title} failed:\n{ended.stderr[-2000:]}")
    answer = next(line for line in reversed(ended.stdout.splitlines()) if line.startswith("[["))
    return [Sample(*each).over(job.clients) for each in json.loads(answer)], wall
