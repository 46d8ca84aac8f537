"""Sweeps with Ray on this machine give the same files as without, survive kills and leave no process behind."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.conftest import fedmosaic
from tests.sweeps.small_studies import SMALL, STUDY, results_in
from tests.waiting import read_outputs, wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]
LONG = (
    *("misleading", *SMALL, "--seeds", "0", "--set", "train.rounds=900"),
    *("--set", "train.checkpoint_every=5", "--set", "train.execution=threads"),
)
# It does not end before a test has killed what it kills.
ENDLESS = (*LONG, "--set", "train.rounds=20000")
RAY = ("--engine", "ray")
TAG = "SWEEP_TEST"


@dataclass
class Sweep:
    """A sweep in the background. All its processes have a tag in their environment."""

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

    def processes(self):
        """The processes that still run, as (pid, parent, command)."""
        return [(pid, *parent_and_command(pid)) for pid in processes_with(f"{TAG}={self.tag}")]

    def runs(self):
        """The running jobs as (pid, pid of the worker)."""
        return [(pid, parent) for pid, parent, command in self.processes() if "--resume" in command]

    def wait(self):
        stdout, stderr = read_outputs(self.process)
        return self.process.returncode, stdout, stderr


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
        for pid, _, _ in sweep.processes():
            os.kill(pid, signal.SIGKILL)
        sweep.process.communicate()


def checkpoints(folder):
    return list(folder.glob("runs/*/*/seed-0/checkpoints/round-*"))


def ray_temp_dirs():
    return set(Path(tempfile.gettempdir()).glob(".fedmosaic-ray.*")) | set(Path("/tmp").glob(".fedmosaic-ray.*"))


@pytest.fixture(scope="module")
def results_without_ray(tmp_path_factory):
    """The results of the studies without Ray."""
    results = {}
    for name, study in (("short", STUDY), ("long", LONG)):
        folder = tmp_path_factory.mktemp(name)
        done = fedmosaic("reproduce", *study, "--jobs", "2", cwd=folder)
        assert done.returncode == 0, done.stderr
        results[name] = results_in(folder), done.stdout
    return results


def test_a_sweep_on_ray_gives_the_same_files_and_table(results_without_ray, tmp_path):
    before = ray_temp_dirs()
    done = fedmosaic("reproduce", *STUDY, *RAY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (results_in(tmp_path), done.stdout) == results_without_ray["short"]
    finished = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert len(finished) == 6
    assert all(line.endswith(f"  on {socket.gethostname()}") for line in finished)
    assert ray_temp_dirs() <= before
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("victim", ["run", "worker"])
def test_killed_runs_and_workers_are_retried_without_loss(victim, results_without_ray, tmp_path):
    with started(tmp_path, *LONG, *RAY) as sweep:
        wait_until(lambda: len(checkpoints(tmp_path)) >= 3)
        for run, worker in sweep.runs():
            os.kill(run if victim == "run" else worker, signal.SIGKILL)
        code, stdout, stderr = sweep.wait()
        assert code == 0, stderr
        assert stderr.count("crashed, will be retried: ") >= 1
        assert ("signal 9 ended the process" if victim == "run" else "its worker on ") in stderr
        assert "ray" not in stderr.replace("starting Ray", "").lower().replace("(ray)", ""), "Ray prints nothing"
        assert (results_in(tmp_path), stdout) == results_without_ray["long"]
        assert sweep.processes() == []


def test_a_run_fails_when_its_retries_are_used_up(tmp_path):
    with started(tmp_path, *LONG, *RAY, "--retries", "0", "--jobs", "1") as sweep:
        wait_until(lambda: checkpoints(tmp_path))
        ((run, _),) = sweep.runs()
        os.kill(run, signal.SIGKILL)
        code, _, stderr = sweep.wait()
    assert code == 1
    assert stderr.splitlines()[-1].startswith("error: 1 of 2 jobs failed, the first: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_sweep_leaves_no_process_and_can_be_continued(number, code, results_without_ray, tmp_path):
    before = ray_temp_dirs()
    with started(tmp_path, *LONG, *RAY) as sweep:
        wait_until(lambda: checkpoints(tmp_path))
        if number == signal.SIGINT:  # a terminal signals the whole process group
            os.killpg(sweep.process.pid, number)
        else:
            sweep.process.send_signal(number)
        exit_code, stdout, stderr = sweep.wait()
        assert exit_code == code, stderr
        assert stdout == ""
        assert stderr.splitlines()[-1] == "stopped: run the same command again to continue"
        assert sweep.processes() == []
    assert ray_temp_dirs() <= before
    done = fedmosaic("reproduce", *LONG, cwd=tmp_path)
    assert (results_in(tmp_path), done.stdout) == results_without_ray["long"]


def test_a_second_signal_stops_immediately_and_leaves_no_process(tmp_path):
    with started(tmp_path, *ENDLESS, *RAY) as sweep:
        wait_until(lambda: checkpoints(tmp_path))
        os.killpg(sweep.process.pid, signal.SIGINT)
        assert any("a second signal stops at once" in line for line in sweep.process.stderr)
        os.killpg(sweep.process.pid, signal.SIGINT)
        code, _, stderr = sweep.wait()
        assert code == 130
        assert stderr.splitlines()[-1] == "stopped immediately: run the same command again to continue"
        wait_until(lambda: sweep.processes() == [])


def test_a_signal_during_the_start_of_ray_leaves_no_process(tmp_path):
    with started(tmp_path, *ENDLESS, *RAY) as sweep:
        wait_until(lambda: any("raylet" in command for _, _, command in sweep.processes()))
        sweep.process.send_signal(signal.SIGTERM)
        code, _, _ = sweep.wait()
        assert code == 143
        wait_until(lambda: sweep.processes() == [])


@pytest.mark.parametrize("victim", ["raylet", "gcs_server"])
def test_a_dead_ray_ends_the_sweep_with_one_line(victim, tmp_path):
    with started(tmp_path, *ENDLESS, *RAY) as sweep:
        wait_until(lambda: checkpoints(tmp_path))
        for pid, _, command in sweep.processes():
            if command.split("\0")[0].endswith(f"/{victim}"):
                os.kill(pid, signal.SIGKILL)
        code, stdout, stderr = sweep.wait()
        assert code == 4, stderr
        assert stdout == ""
        assert stderr.splitlines()[-1] == (
            "error: Ray has stopped or does not answer (--engine ray): run the same command to continue"
        )
        wait_until(lambda: sweep.processes() == [])


def test_a_run_fails_when_the_memory_of_the_machine_is_full(tmp_path, monkeypatch):
    """Ray ends workers above a fraction of the memory, and any machine uses a hundredth of it."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with started(tmp_path, *ENDLESS, *RAY, "--retries", "0", "--jobs", "1") as sweep:
        code, _, stderr = sweep.wait()
        assert code == 1, stderr
        assert stderr.splitlines()[-1].startswith("error: 2 of 2 jobs failed, the first: ")
        assert stderr.splitlines()[-1].endswith(" was ended, because the machine's memory is full (Ray)")
        assert sweep.processes() == []


def test_a_private_ray_listens_on_loopback_only(tmp_path):
    with started(tmp_path, *ENDLESS, *RAY) as sweep:
        wait_until(lambda: checkpoints(tmp_path))
        addresses = {
            connection.laddr.ip
            for pid, _, _ in sweep.processes()
            for connection in psutil.Process(pid).net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }
    assert addresses
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


CLUSTER_SCRIPT = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster
Path(sys.argv[1], "ray").mkdir()
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
class RayCluster:
    """An existing cluster of two simulated machines with one core each."""

    process: subprocess.Popen[str]
    address: str

    def remove_node(self):
        """Remove one machine and all its processes."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def cluster():
    """A cluster with its own temporary directory, in which Ray expects the directory of its address to exist."""
    with (
        tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER_SCRIPT, folder],
            env={**os.environ, "FEDMOSAIC_RUNS": "not-here", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        address = process.stdout.readline().strip()
        assert address, "the cluster did not start"
        yield RayCluster(process, address)
        process.stdin.close()


def test_an_existing_cluster_is_joined_and_keeps_running(cluster, results_without_ray, tmp_path):
    arguments = (*STUDY, *RAY, "--ray-address", cluster.address)
    done = fedmosaic("reproduce", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (results_in(tmp_path), done.stdout) == results_without_ray["short"]
    assert not (tmp_path / "not-here").exists()
    refused = fedmosaic("reproduce", *arguments, "--job-cpus", "2", "--runs-dir", "others", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == (
        "error: no machine of the cluster has 2 cores and 0 GPUs for a run (--job-cpus, --job-gpus): ask for less"
    )


def test_losing_a_machine_loses_no_results(cluster, results_without_ray, tmp_path):
    with started(tmp_path, *LONG, *RAY, "--ray-address", cluster.address) as sweep:
        wait_until(lambda: len({path.parent for path in checkpoints(tmp_path)}) == 2)
        cluster.remove_node()
        code, stdout, stderr = sweep.wait()
    assert code == 0, stderr
    assert "crashed, will be retried: " in stderr
    assert (results_in(tmp_path), stdout) == results_without_ray["long"]


def test_an_unreachable_cluster_is_refused(tmp_path):
    done = fedmosaic("reproduce", *STUDY, *RAY, "--ray-address", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("error: the Ray cluster at '127.0.0.1:1' cannot be joined, ")
    assert not (tmp_path / "runs").exists()
