"""FedAvg rounds of other tools: PFLlib, FL-bench, fluke and Flower's simulation.

Their dependencies conflict with ours, so each tool runs in a process of a Python that it is installed in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NoReturn

import flbench_peer
import pfllib_peer
from measuring import Sample, Samples
from results import Line, Result
from workload import Job, cifar_task, store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workload import Plan

HERE = Path(__file__).parent
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Peer:
    """Another tool.

    Attributes:
        title: Its name in the tables.
        option: Its name in the options of `speed.py`.
        script: The script that runs its rounds.
        imports: Modules that its Python must have.
        packages: The packages that contain them.
        work: What it does in a round besides the training.
        repository: Where to clone it from, if it is not an installed package.
        prepare: Writes the input files of its processes, once per job.
    """

    title: str
    option: str
    script: str
    imports: str
    packages: str
    work: str
    repository: str = ""
    prepare: Callable[[Job], None] | None = None


OURS = Peer("ours", "", "own_peer.py", "fedmosaic_cli", "fedmosaic", "test accuracy and loss of every client")
PFLLIB = Peer(
    "PFLlib",
    "pfllib",
    "pfllib_peer.py",
    "h5py, calmsize, cvxpy, sklearn, matplotlib, torchvision",
    "h5py calmsize cvxpy scikit-learn matplotlib torchvision",
    "its own command line; test accuracy and AUC of every client, and its training loss by another pass over the "
    "training set; it reads the images of a client from a compressed file for each pass",
    "https://github.com/TsingZ0/PFLlib",
    pfllib_peer.prepare,
)
FL_BENCH = Peer(
    "FL-bench",
    "fl-bench",
    "flbench_peer.py",
    "hydra, ray, pynvml, pandas, sklearn, matplotlib, torchvision",
    "hydra-core ray nvidia-ml-py pandas scikit-learn matplotlib rich torchvision",
    "its own command line in serial mode; every client's test set before and after its training",
    "https://github.com/KarhouTam/FL-bench",
    flbench_peer.prepare,
)
FLUKE = Peer(
    "fluke",
    "fluke",
    "fluke_peer.py",
    "fluke",
    "'fluke-fl' torchvision",
    "its own client and loader; the server computes the accuracy of the global model on all test images together",
)
FLOWER = Peer(
    "Flower",
    "flower",
    "flower_peer.py",
    "ray, flwr.simulation",
    "'flwr[simulation]' torchvision",
    "FedAvg in its simulation with one Ray worker, CPU time of all its processes; clients train and test the global "
    "model with the loops of the naive simulator, because users of Flower write these themselves",
)
PEERS = (PFLLIB, FL_BENCH, FLUKE, FLOWER)


class PeerProcess:
    """A process that runs the rounds of a tool on request; see `round_clock.py`. It starts with the first request.

    Args:
        peer: The tool.
        python: A Python that it is installed in.
        job: The rounds.
        environment: Additional environment variables.
    """

    def __init__(self, peer: Peer, python: str, job: Job, environment: dict[str, str]) -> None:
        self._peer = peer
        self._command = [python, str(HERE / peer.script), json.dumps(asdict(job))]
        self._directory = job.directory
        self._environment = {**os.environ, **ENVIRONMENT, **environment, "FLWR_HOME": job.directory}
        self._process: subprocess.Popen[str] | None = None
        self._log = Path(os.devnull)

    def run(self) -> Sample:
        """Run the next round."""
        if self._process is None:
            log, path = tempfile.mkstemp(dir=self._directory, suffix=".log")
            self._log = Path(path)
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            os.close(log)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("round\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._fail()
        return Sample(*json.loads(line))

    def close(self) -> None:
        """Wait for the end of a process whose rounds are all finished."""
        if self._process is not None:
            self._process.communicate()
            if self._process.returncode:
                self._fail()

    def _fail(self) -> NoReturn:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        raise RuntimeError(f"{self._peer.title} failed:\n{self._log.read_text()[-2000:]}")


def peers(plan: Plan) -> Result:
    """FedAvg rounds of all tools, one after the other in each repetition. The first round of a process is separate."""
    result = Result(
        "Peers: FedAvg rounds of other tools",
        [
            f"{plan.peer_clients} clients with {plan.sizes.train} training and {plan.sizes.test} test images, batch "
            f"{plan.batches[-1]}, 1 epoch of SGD, one worker with 1 thread; figures are per client. "
            f"{plan.peer_repetitions} repetitions with a new process per tool, which runs a first round and "
            f"{plan.peer_rounds - 1} more. All tools test the global model in every round. {dropped_images(plan)}"
        ],
    )
    usable = {OURS: sys.executable, **usable_peers(plan, PEERS, result)}
    if len(usable) > 1:
        measure(result, usable, plan)
    return result


def usable_peers(plan: Plan, candidates: tuple[Peer, ...], result: Result) -> dict[Peer, str]:
    """Return the Python of each tool that can run, and add a note on every tool to the result."""
    usable = {}
    for peer in candidates:
        python = plan.peer_pythons.get(peer.option) or sys.executable
        checkout = plan.peer_checkouts.get(peer.option, "")
        has_source = not peer.repository or bool(checkout and Path(checkout).is_dir())
        if has_source and importable(python, peer.imports):
            usable[peer] = python
            result.notes.append(f"- {peer.title}: {peer.work}.")
        else:
            result.notes.append(f"- {skipped(peer)}")
    return usable


def skipped(peer: Peer) -> str:
    """Say how to make a tool available."""
    clone, option = "", f"--{peer.option}-python {peer.option}-venv/bin/python"
    if peer.repository:
        clone, option = f"git clone {peer.repository} {peer.option} && ", f"--{peer.option} {peer.option} {option}"
    return (
        f"{peer.title}: skipped, it is not installed. `{clone}python -m venv {peer.option}-venv && "
        f"{peer.option}-venv/bin/pip install torch {peer.packages}`, then `{option}`."
    )


def importable(python: str, modules: str) -> bool:
    command = [python, "-c", f"import torch, {modules}"]
    try:
        return not subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return False


def dropped_images(plan: Plan) -> str:
    """Say on how many images PFLlib trains."""
    train, batch = plan.sizes.train, plan.batches[-1]
    used = train - train % batch
    return f"PFLlib drops incomplete batches: at batch {batch} it trains on {used:,} of {train:,} images."


def make_job(plan: Plan, tools: Iterable[Peer], directory: str, clients: int, batch: int, rounds: int) -> Job:
    """Write the files that the processes of these tools read, and return a job with one worker."""
    store(cifar_task(plan.sizes, clients=clients, public=0), Path(directory))
    job = Job(directory, clients, plan.sizes.train, plan.sizes.test, batch, rounds)
    for tool in tools:
        if tool.prepare is not None:
            tool.prepare(job)
    return job


def measure(result: Result, usable: dict[Peer, str], plan: Plan) -> None:
    """Run all tools in each repetition, one after the other."""
    samples, walls = Samples(), {peer: list[float]() for peer in usable}
    with tempfile.TemporaryDirectory() as directory:
        job = make_job(plan, usable, directory, plan.peer_clients, plan.batches[-1], plan.peer_rounds)
        for _ in range(plan.peer_repetitions):
            for peer, python in usable.items():
                own_job = replace(job, checkout=str(Path(plan.peer_checkouts.get(peer.option, "")).resolve()))
                started = time.perf_counter()
                process = PeerProcess(peer, python, own_job, ONE_THREAD)
                first, *steady = [process.run().over(job.clients) for _ in range(job.rounds)]
                process.close()
                walls[peer].append(time.perf_counter() - started)
                samples.setdefault(f"{peer.title}, first round", []).append(first)
                samples.setdefault(f"{peer.title}, steady round", []).append(mean(steady))
    result.add(samples, "s per client", clocks=("cpu", "wall"))
    for peer in usable:
        # The CPU time of the whole process is unknown: some tools start processes that are not our children.
        result.lines.append(Line(f"{peer.title}, process from start to end", walls[peer], "s, wall"))
    for peer in usable:
        if peer != OURS:
            result.compare(f"{peer.title}, steady round", f"{OURS.title}, steady round")


def mean(samples: list[Sample]) -> Sample:
    return Sample(fmean(each.cpu for each in samples), fmean(each.wall for each in samples))
