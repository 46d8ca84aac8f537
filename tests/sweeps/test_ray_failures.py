"""What a sweep makes of errors of Ray, with a stand-in for the package: lost workers, full memory, a dead cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
import types

import pytest

from fedmosaic_cli.errors import ResourceError
from fedmosaic_cli.sweeps import ray_cluster, ray_session
from fedmosaic_cli.sweeps.ray_cluster import ClusterMonitor, RayProcess
from tests.waiting import HANG_SECONDS, wait_until


class FakeRay(types.ModuleType):
    """Answers one call with an exception, as a worker that Ray has lost does."""

    def __init__(self):
        super().__init__("ray")
        self.exceptions = types.ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})
        for name, base in (
            ("RayActorError", "RayError"),
            ("ActorUnavailableError", "RayActorError"),
            ("OutOfMemoryError", "RayError"),
            ("RayTaskError", "RayError"),
            ("ObjectLostError", "RayError"),
            ("NodeDiedError", "RayError"),
        ):
            setattr(self.exceptions, name, type(name, (getattr(self.exceptions, base),), {"cause": None}))
        self.answer, self.is_alive, self.killed = None, True, []

    def wait(self, calls, timeout):
        return calls, []

    def get(self, call):
        raise self.answer

    def kill(self, actor):
        self.killed.append(actor)

    def nodes(self):
        return [{"NodeID": "own", "Alive": self.is_alive}, {"NodeID": "other", "Alive": True}]

    def get_runtime_context(self):
        return types.SimpleNamespace(get_node_id=lambda: "own")


@pytest.fixture
def fake_ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    monkeypatch.setattr(ray_cluster, "MONITOR_INTERVAL_SECONDS", 0.01)
    return fake


@pytest.fixture
def process(fake_ray):
    actor = types.SimpleNamespace(poll=types.SimpleNamespace(remote=lambda: "call"))
    monitor = ClusterMonitor()
    yield RayProcess(actor, monitor)
    monitor._has_died = True


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("RayActorError", "was lost (Ray)"),
        ("OutOfMemoryError", "was ended, because the machine's memory is full (Ray)"),
        ("ObjectLostError", "was lost, ObjectLostError (Ray)"),
        ("NodeDiedError", "was lost, NodeDiedError (Ray)"),
    ],
)
def test_a_lost_worker_counts_as_a_killed_process(error, reason, fake_ray, process):
    fake_ray.answer = getattr(fake_ray.exceptions, error)("out of memory")
    process.poll()
    assert process.exit_code == -signal.SIGKILL
    assert process.stderr_tail.decode() == f"error: its worker {reason}"
    assert len(fake_ray.killed) == 1


def test_a_worker_that_may_come_back_is_asked_again(fake_ray, process):
    fake_ray.answer = fake_ray.exceptions.ActorUnavailableError("later")
    process.poll()
    assert process.exit_code is None


@pytest.mark.parametrize("death", ["node", "no answer"])
def test_a_dead_cluster_ends_the_sweep_with_one_line(death, fake_ray, process, monkeypatch):
    fake_ray.answer = fake_ray.exceptions.ActorUnavailableError("later")
    if death == "node":
        fake_ray.is_alive = False
    else:
        monkeypatch.setattr(ray_cluster, "ANSWER_TIMEOUT_SECONDS", 0.1)
        monkeypatch.setattr(fake_ray, "nodes", lambda: 1 / 0)
    wait_until(lambda: not process._monitor.is_alive())
    with pytest.raises(ResourceError, match=r"^Ray has stopped or does not answer \(--engine ray\): run the same"):
        process.poll()
    process.send_signal(signal.SIGTERM)
    assert process.exit_code == -signal.SIGTERM
    assert fake_ray.killed == []


@pytest.mark.parametrize("duration_seconds", [0.0, 0.5])
def test_a_shutdown_ends_and_kills_what_a_private_ray_leaves(duration_seconds, fake_ray, monkeypatch):
    num_running = [2, 1, 0]
    monkeypatch.setattr(ray_session, "SHUTDOWN_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(ray_session, "kill_descendants", lambda: num_running.pop(0))
    fake_ray.shutdown = lambda: ray_cluster.time.sleep(duration_seconds)
    ray_session.shutdown_ray(is_local=False)
    assert num_running == [2, 1, 0]
    ray_session.shutdown_ray(is_local=True)
    assert num_running == []


ORPHAN_SCRIPT = """
import os, subprocess, sys, time
from fedmosaic_cli.machine import adopt_orphans, kill_descendants
with adopt_orphans():
    # A shell that ends at once and leaves a process in another session.
    orphan = int(subprocess.check_output(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]))
    while os.getsid(orphan) == os.getsid(0):
        time.sleep(0.01)
    assert kill_descendants() == 1
    while kill_descendants():
        time.sleep(0.01)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl")
def test_processes_whose_parent_died_are_killed_too():
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN_SCRIPT], capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
