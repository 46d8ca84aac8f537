"""A sweep with Ray, on this machine: the same files as without, whoever is killed, and nothing is left running."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import fedmosaic
from tests.sweeps.small_studies import SMALL, STUDY, results_in

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc"),
]
LONG = (
    *("misleading", *SMALL, "--seeds", "0", "--set", "train.rounds=900"),
    *("--set", "train.checkpoint_every=5", "--set", "train.execution=threads"),
)
RAY = ("--engine", "ray")
TAG = "SWEEP_TEST"


@dataclass
class Sweep:
    """A sweep in the background. All that it starts carries its tag among the variables."""

    folder: Path
    arguments: tuple[str, ...]
    tag: str = field(default_factory=lambda: secrets.token_hex(8))

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedmosaic_cli", "reproduce", *self.arguments],
            cwd=self.folder,
            env={**os.environ, TAG: self.tag},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def left(self):
        """Whatever of it still runs, as (process, parent, command)."""
        return [(pid, *parent_and_command(pid)) for pid in processes_with(f"{TAG}={self.tag}")]

    def runs(self):
        """The commands that are under way, each with the worker that it belongs to."""
        return [(pid, parent) for pid, parent, command in self.left() if "--resume" in command]

    def end(self, timeout=120.0):
        said, told = self.process.communicate(timeout=timeout)
        return self.process.returncode, said, told


def processes_with(variable):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def parent_and_command(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(status.rpartition(")")[2].split()[1]), Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return 0, ""


@contextmanager
def started(folder, *arguments):
    sweep = Sweep(folder, arguments)
    sweep.start()
    try:
        yield sweep
    finally:
        for pid, _, _ in sweep.left():
            os.kill(pid, signal.SIGKILL)
        sweep.process.communicate()


def wait_for(what, patience=90.0):
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def checkpoints(folder):
    return list(folder.glob("runs/*/*/seed-0/checkpoints/round-*"))


def leftovers():
    return set(Path(tempfile.gettempdir()).glob(".fedmosaic-ray.*")) | set(Path("/tmp").glob(".fedmosaic-ray.*"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What studies end in without Ray."""
    made = {}
    for name, study in (("short", STUDY), ("long", LONG)):
        folder = tmp_path_factory.mktemp(name)
        done = fedmosaic("reproduce", *study, "--jobs", "2", cwd=folder)
        assert done.returncode == 0, done.stderr
        made[name] = results_in(folder), done.stdout
    return made


def test_a_sweep_gives_the_same_files_and_the_same_table(plain, tmp_path):
    before = leftovers()
    done = fedmosaic("reproduce", *STUDY, *RAY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (results_in(tmp_path), done.stdout) == plain["short"]
    finished = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(finished) == 6
    assert all(line.endswith(f"  on {socket.gethostname()}") for line in finished)
    assert leftovers() <= before
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("victim", ["run", "worker"])
def test_who_is_killed_goes_on_elsewhere_and_nothing_is_lost(victim, plain, tmp_path):
    with started(tmp_path, *LONG, *RAY) as sweep:
        wait_for(lambda: len(checkpoints(tmp_path)) >= 3)
        for run, worker in sweep.runs():
            os.kill(run if victim == "run" else worker, signal.SIGKILL)
        code, said, told = sweep.end()
        assert code == 0, told
        assert told.count("crashed, and dealt again: ") >= 1
        assert ("ended by signal 9" if victim == "run" else "its worker on ") in told
        assert "ray" not in told.replace("starting Ray", "").lower().replace("(ray)", ""), "Ray keeps silent"
        assert (results_in(tmp_path), said) == plain["long"]
        assert sweep.left() == []


def test_what_is_killed_more_often_than_allowed_fails_alone(tmp_path):
    with started(tmp_path, *LONG, *RAY, "--retries", "0", "--jobs", "1") as sweep:
        wait_for(lambda: checkpoints(tmp_path))
        ((run, _),) = sweep.runs()
        os.kill(run, signal.SIGKILL)
        code, _, told = sweep.end()
    assert code == 1
    assert told.splitlines()[-1].startswith("error: 1 of 2 jobs failed, the first: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_it_leaves_no_process_behind_and_goes_on_from_there(number, code, plain, tmp_path):
    before = leftovers()
    with started(tmp_path, *LONG, *RAY) as sweep:
        wait_for(lambda: checkpoints(tmp_path))
        if number == signal.SIGINT:  # as a terminal does it: everybody in the foreground hears
            os.killpg(sweep.process.pid, number)
        else:
            sweep.process.send_signal(number)
        ended, said, told = sweep.end(timeout=60)
        assert ended == code, told
        assert said == ""
        assert told.splitlines()[-1] == "stopped: the same command goes on from there"
        assert sweep.left() == []
    assert leftovers() <= before
    done = fedmosaic("reproduce", *LONG, cwd=tmp_path)
    assert (results_in(tmp_path), done.stdout) == plain["long"]


def test_stopped_twice_it_leaves_at_once_and_no_process_behind(tmp_path):
    with started(tmp_path, *LONG, *RAY) as sweep:
        wait_for(lambda: checkpoints(tmp_path))
        os.killpg(sweep.process.pid, signal.SIGINT)
        time.sleep(0.2)
        os.killpg(sweep.process.pid, signal.SIGINT)
        code, _, told = sweep.end(timeout=10)
        assert code == 130
        assert told.splitlines()[-1] == "stopped at once: the same command goes on from there"
        wait_for(lambda: sweep.left() == [], patience=5.0)


def test_stopped_while_ray_starts_it_leaves_no_process_behind(tmp_path):
    with started(tmp_path, *LONG, *RAY) as sweep:
        wait_for(lambda: any("raylet" in command for _, _, command in sweep.left()))
        sweep.process.send_signal(signal.SIGTERM)
        code, _, _ = sweep.end(timeout=60)
        assert code == 143
        wait_for(lambda: sweep.left() == [], patience=10.0)


MACHINES = """
import sys
from ray.cluster_utils import Cluster
small = {"object_store_memory": 10**8, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": sys.argv[1], **small})
first, second = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
cluster.wait_for_nodes()
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(first, allow_graceful=False)
cluster.shutdown()
"""


@dataclass
class Machines:
    """A cluster that is there already: two machines with a core each, as far as Ray can tell."""

    process: subprocess.Popen[str]
    address: str

    def lose_one(self):
        """One of them is gone, and all that ran there."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def machines():
    with (
        tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, "-c", MACHINES, folder],
            env={**os.environ, "FEDMOSAIC_RUNS": "not-here", "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        yield Machines(process, process.stdout.readline().strip())
        process.stdin.close()


def test_a_cluster_that_is_there_is_joined_and_left_as_it_was(machines, plain, tmp_path):
    arguments = (*STUDY, *RAY, "--ray-address", machines.address)
    done = fedmosaic("reproduce", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (results_in(tmp_path), done.stdout) == plain["short"]
    assert not (tmp_path / "not-here").exists()
    refused = fedmosaic("reproduce", *arguments, "--job-cpus", "2", "--runs-dir", "others", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == (
        "error: no machine of the cluster has 2 cores and 0 GPUs for a run (--job-cpus, --job-gpus): ask for less"
    )


def test_a_machine_that_is_lost_loses_nothing(machines, plain, tmp_path):
    with started(tmp_path, *LONG, *RAY, "--ray-address", machines.address) as sweep:
        wait_for(lambda: len({path.parent for path in checkpoints(tmp_path)}) == 2)
        machines.lose_one()
        code, said, told = sweep.end()
    assert code == 0, told
    assert "crashed, and dealt again: " in told
    assert (results_in(tmp_path), said) == plain["long"]


def test_a_cluster_that_is_not_there_is_named(tmp_path):
    done = fedmosaic("reproduce", *STUDY, *RAY, "--ray-address", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("error: the Ray cluster at '127.0.0.1:1' cannot be joined, ")
    assert not (tmp_path / "runs").exists()
