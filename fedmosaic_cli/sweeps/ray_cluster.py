"""`fedmosaic` commands on the machines of a Ray cluster. Ray chooses the machine; `LocalProcess` runs the command."""

from __future__ import annotations

import os
import platform
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__
from fedmosaic_cli.config.rerun_args import RUNS_DIR_VARIABLE, default_runs_dir
from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import create_locked_temporary, make_directories, remove_path, remove_stale_temporaries
from fedmosaic_cli.sweeps.processes import LocalProcess
from fedmosaic_cli.sweeps.ray_session import ray_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fedmosaic_cli.sweeps.processes import JobProcess

STATUS_TIMEOUT_SECONDS = 1.0
STATUS_INTERVAL_SECONDS = 0.1
MONITOR_INTERVAL_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 40.0
"""Ray ends this process without a message after 60 seconds without its control service."""
ENV_PREFIX = "FEDMOSAIC_"


@dataclass(frozen=True)
class JobResources:
    """Resources of one job: whole cores, and GPUs or a fraction of one."""

    num_cpus: int
    num_gpus: float

    def capacity(self, nodes: Iterable[Mapping[str, Any]]) -> int:
        """Return how many jobs fit on these nodes, given as `ray.nodes()` describes them."""
        total = 0
        for resources in (node["Resources"] for node in nodes if node["Alive"]):
            num_jobs = int(resources.get("CPU", 0) // self.num_cpus)
            if self.num_gpus:
                gpus = int(resources.get("GPU", 0))
                per_gpus = gpus * int(1 / self.num_gpus) if self.num_gpus < 1 else int(gpus // self.num_gpus)
                num_jobs = min(num_jobs, per_gpus)
            total += num_jobs
        return total


@dataclass(frozen=True)
class RemoteCommand:
    """A command and what the machine that runs it must provide: directories, variables, version."""

    args: tuple[str, ...]
    working_dir: Path
    marker_path: Path
    env: dict[str, str]
    version: str = __version__

    def incompatibility(self, host: str) -> str:
        """Return why the command cannot run on this machine, or ""."""
        if not self.marker_path.exists():
            return (
                f"{host} has a different runs directory ({self.marker_path.parent}): every machine needs the same "
                "directory under the same path, on a shared file system"
            )
        if not self.working_dir.is_dir():
            return (
                f"{host} does not have the working directory ({self.working_dir}): every machine needs it under the "
                "same path"
            )
        if self.version != __version__:
            return f"{host} has fedmosaic {__version__}, this machine {self.version} (--engine ray): install the same"
        return ""


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker reports about its command."""

    host: str
    pid: int | None
    stderr_tail: bytes = b""
    exit_code: int | None = None
    incompatibility: str = ""


class WorkerActor:
    """Ray actor that runs one command.

    Ray calls its methods one at a time in the worker's main thread, so the command dies with the worker.
    """

    def __init__(self, command: RemoteCommand) -> None:
        self._command = command
        self._process: LocalProcess | None = None

    def poll(self) -> WorkerStatus:
        """Return the status at once when the command has just started or ended, else after a short wait."""
        host, command = platform.node(), self._command
        if self._process is None:
            incompatibility = command.incompatibility(host)
            if incompatibility:
                return WorkerStatus(host, None, incompatibility=incompatibility)
            self._process = LocalProcess(command.args, command.working_dir, command.env)
            return WorkerStatus(host, self._process.pid)
        end = time.monotonic() + STATUS_TIMEOUT_SECONDS
        self._process.poll()
        while self._process.exit_code is None and time.monotonic() < end:
            time.sleep(STATUS_INTERVAL_SECONDS)
            self._process.poll()
        return WorkerStatus(host, self._process.pid, self._process.stderr_tail, self._process.exit_code)

    def send_signal(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)


class ClusterMonitor:
    """Watches in a thread whether Ray answers and whether this machine is still a part of it.

    Ray itself waits without end for workers of a cluster that has died.
    """

    def __init__(self) -> None:
        import ray

        self._node_id = ray.get_runtime_context().get_node_id()
        self._answered_at = time.monotonic()
        self._has_died = False
        self._is_asked = Event()
        Thread(target=self._watch, name="ray-monitor", daemon=True).start()

    def _watch(self) -> None:
        import ray

        while not self._has_died:
            asked_at = time.monotonic()
            with suppress(Exception):  # no answer
                own = [node for node in ray.nodes() if node["NodeID"] == self._node_id]
                self._has_died = not any(node["Alive"] for node in own)
                self._answered_at = asked_at
            self._is_asked.wait(MONITOR_INTERVAL_SECONDS)
            self._is_asked.clear()

    def is_alive(self) -> bool:
        return not self._has_died and time.monotonic() - self._answered_at < ANSWER_TIMEOUT_SECONDS

    def ask(self) -> None:
        """Wait for an answer from now on, or until the cluster counts as dead."""
        asked_at = time.monotonic()
        while self.is_alive() and self._answered_at < asked_at:
            self._is_asked.set()
            time.sleep(STATUS_INTERVAL_SECONDS)

    def require_alive(self) -> None:
        """Raise ResourceError if the cluster is lost for this process."""
        if not self.is_alive():
            raise ResourceError("Ray has stopped or does not answer (--engine ray): run the same command to continue")


class RayProcess:
    """A command on a Ray worker (a `JobProcess`)."""

    def __init__(self, actor: Any, monitor: ClusterMonitor) -> None:
        self.exit_code: int | None = None
        self.stderr_tail = b""
        self.host: str | None = None
        self.pid: int | None = None
        self._actor = actor
        self._monitor = monitor
        self._pending_status = actor.poll.remote()

    def poll(self) -> None:
        """Read the last status and request the next one.

        Raises:
            RequestError: If the machine cannot run commands. It would fail every job, so the sweep ends.
            ResourceError: If the cluster has died.
        """
        import ray
        from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RayError, RayTaskError

        if self.exit_code is not None:
            return
        self._monitor.require_alive()
        if not ray.wait([self._pending_status], timeout=0)[0]:
            return
        try:
            status = ray.get(self._pending_status)
            if status.incompatibility:
                raise RequestError(status.incompatibility)
            self.host, self.pid = status.host, status.pid
            self.stderr_tail, self.exit_code = status.stderr_tail, status.exit_code
        except ActorUnavailableError:
            pass  # the worker may come back
        except RayActorError as error:
            if "No module named 'fedmosaic_cli'" in str(error):
                raise RequestError(
                    "fedmosaic is not installed on Ray's workers (--engine ray): install it on every machine"
                ) from error
            self._lose_worker("was lost")
        except OutOfMemoryError:
            self._lose_worker("was ended, because the machine's memory is full")
        except RayTaskError as error:
            self.exit_code, self.stderr_tail = 1, f"error: its worker failed, {error.cause!r} (Ray)".encode()
        except RayError as error:  # the machine, the owner or the result of the call is lost
            self._lose_worker(f"was lost, {type(error).__name__}")
        if self.exit_code is None:
            self._pending_status = self._actor.poll.remote()
        else:
            ray.kill(self._actor)

    def _lose_worker(self, reason: str) -> None:
        """Record that the worker ended by itself, like a killed process, so that its job is retried.

        Raises:
            ResourceError: If the whole cluster has died.
        """
        self._monitor.ask()
        self._monitor.require_alive()
        self.exit_code = -signal.SIGKILL
        self.stderr_tail = f"error: its worker{f' on {self.host}' if self.host else ''} {reason} (Ray)".encode()

    def send_signal(self, signum: int) -> None:
        """Send a signal to the command. A command that has not started yet is cancelled."""
        import ray

        if not self._monitor.is_alive():
            self.exit_code = -signum
        elif self.host is None:
            self.exit_code = -signum
            ray.kill(self._actor)
        else:
            self._actor.send_signal.remote(signum)


class RayLauncher:
    """Starts commands on any machine of the cluster that has the resources (a `JobLauncher`)."""

    def __init__(self, resources: JobResources, marker_path: Path) -> None:
        import ray

        options = {"num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus, "scheduling_strategy": "SPREAD"}
        self._actor_class = ray.remote(max_restarts=0, max_task_retries=0, **options)(WorkerActor)
        self._resources = resources
        self._marker_path = marker_path
        self._monitor = ClusterMonitor()

    def start(self, args: Sequence[str]) -> JobProcess:
        env = {name: value for name, value in os.environ.items() if name.startswith(ENV_PREFIX)}
        env[RUNS_DIR_VARIABLE] = str(default_runs_dir())
        command = RemoteCommand(tuple(args), Path.cwd(), self._marker_path, env)
        return RayProcess(self._actor_class.remote(command), self._monitor)

    def capacity(self) -> int:
        """Return how many commands can run at once.

        Raises:
            RequestError: If no machine has the resources of one job.
        """
        import ray

        capacity = self._resources.capacity(ray.nodes())
        if not capacity:
            raise RequestError(
                f"no machine of the cluster has {self._resources.num_cpus} cores and {self._resources.num_gpus:g} GPUs "
                "for a run (--job-cpus, --job-gpus): ask for less"
            )
        return capacity


@contextmanager
def ray_launcher(address: str | None, num_cpus: int, resources: JobResources, runs_dir: Path) -> Iterator[RayLauncher]:
    """Connect to the cluster at `address`, or start Ray on this machine with `num_cpus` cores."""
    with ray_session(address, num_cpus), sweep_marker(runs_dir) as marker:
        yield RayLauncher(resources, marker)


@contextmanager
def sweep_marker(runs_dir: Path) -> Iterator[Path]:
    """Create a temporary file that lets a worker recognize this runs directory."""
    make_directories(runs_dir)
    remove_stale_temporaries(runs_dir)
    handle, marker = create_locked_temporary(runs_dir / "sweep", syscalls.create_file)
    try:
        yield marker.absolute()
    finally:
        remove_path(marker)
        os.close(handle)
