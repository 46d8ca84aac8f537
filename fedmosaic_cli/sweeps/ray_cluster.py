"""Commands on the machines of a Ray cluster. Ray finds a place for each; what is done there is `Child`'s, as here."""

from __future__ import annotations

import os
import platform
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__
from fedmosaic_cli.config.rerun_args import RUNS_DIR_VARIABLE, default_runs_dir
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import create_locked_temporary, make_directories, remove_path, remove_stale_temporaries
from fedmosaic_cli.sweeps.processes import LocalProcess
from fedmosaic_cli.sweeps.ray_session import ray_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fedmosaic_cli.sweeps.processes import JobProcess

POLL_TIMEOUT_SECONDS = 1.0
POLL_INTERVAL_SECONDS = 0.1
ENV_PREFIX = "FEDMOSAIC_"


@dataclass(frozen=True)
class JobResources:
    """What one run takes of a machine: whole cores, and GPUs, of which it may be a part."""

    num_cpus: int
    num_gpus: float

    def capacity(self, nodes: Iterable[Mapping[str, Any]]) -> int:
        """How many runs have room on these machines, as Ray tells of them."""
        places = 0
        for resources in (node["Resources"] for node in nodes if node["Alive"]):
            room = int(resources.get("CPU", 0) // self.num_cpus)
            if self.num_gpus:
                gpus = int(resources.get("GPU", 0))
                room = min(room, gpus * int(1 / self.num_gpus) if self.num_gpus < 1 else int(gpus // self.num_gpus))
            places += room
        return places


@dataclass(frozen=True)
class RemoteCommand:
    """A command, and what must be the same where it is made: directories, variables, version."""

    args: tuple[str, ...]
    working_dir: Path
    marker_path: Path
    env: dict[str, str]
    version: str = __version__

    def incompatibility(self, host: str) -> str:
        """Why it cannot be made here, "" if it can."""
        if not self.marker_path.exists():
            return (
                f"the runs directory is not this sweep's on {host} ({self.marker_path.parent}): every machine needs it "
                "under the same path, on a file system that all of them share"
            )
        if not self.working_dir.is_dir():
            return (
                f"the working directory is not there on {host} ({self.working_dir}): every machine needs it under the "
                "same path"
            )
        if self.version != __version__:
            return f"fedmosaic is {__version__} on {host} and {self.version} here (--engine ray): install the same"
        return ""


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker tells of its command."""

    host: str
    pid: int | None
    stderr_tail: bytes = b""
    exit_code: int | None = None
    incompatibility: str = ""


class WorkerActor:
    """On a worker: makes one command, and tells how it goes.

    Ray calls its methods one after the other, in the worker's main thread, so the command dies when the worker does.
    """

    def __init__(self, command: RemoteCommand) -> None:
        self._command = command
        self._process: LocalProcess | None = None

    def poll(self) -> WorkerStatus:
        """How it goes: at once when it has just begun or ended, else after a moment."""
        host, errand = platform.node(), self._command
        if self._process is None:
            unfit = errand.incompatibility(host)
            if unfit:
                return WorkerStatus(host, None, incompatibility=unfit)
            self._process = LocalProcess(errand.args, errand.working_dir, errand.env)
            return WorkerStatus(host, self._process.pid)
        end = time.monotonic() + POLL_TIMEOUT_SECONDS
        self._process.poll()
        while self._process.exit_code is None and time.monotonic() < end:
            time.sleep(POLL_INTERVAL_SECONDS)
            self._process.poll()
        return WorkerStatus(host, self._process.pid, self._process.stderr_tail, self._process.exit_code)

    def send_signal(self, signum: int) -> None:
        """Pass a signal on."""
        if self._process is not None:
            self._process.send_signal(signum)


class RayProcess:
    """A command in a worker's hand, as seen from here."""

    def __init__(self, actor: Any) -> None:
        self.exit_code: int | None = None
        self.stderr_tail = b""
        self.host: str | None = None
        self.pid: int | None = None
        self._actor = actor
        self._pending_status = actor.poll.remote()

    def poll(self) -> None:
        """Take in the last answer and ask again. A machine on which nothing can be made is the end of all of it:
        it would take one job after the other."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

        if self.exit_code is not None or not ray.wait([self._pending_status], timeout=0)[0]:
            return
        try:
            self._update(ray.get(self._pending_status))
        except ActorUnavailableError:
            pass  # nobody knows yet what became of it
        except RayActorError as error:
            self._on_worker_lost(error)
        except RayTaskError as error:
            self.exit_code, self.stderr_tail = 1, f"error: its worker failed, {error.cause!r} (Ray)".encode()
        if self.exit_code is None:
            self._pending_status = self._actor.poll.remote()
        else:
            ray.kill(self._actor)

    def send_signal(self, signum: int) -> None:
        """Pass a signal on. What nobody has begun is not begun any more."""
        import ray

        if self.host is None:
            self.exit_code = -signum
            ray.kill(self._actor)
        else:
            self._actor.send_signal.remote(signum)

    def _update(self, status: WorkerStatus) -> None:
        if status.incompatibility:
            raise RequestError(status.incompatibility)
        self.host, self.pid, self.stderr_tail, self.exit_code = (
            status.host,
            status.pid,
            status.stderr_tail,
            status.exit_code,
        )

    def _on_worker_lost(self, error: Exception) -> None:
        if "No module named 'fedmosaic_cli'" in str(error):
            raise RequestError(
                "fedmosaic is not installed where Ray's workers run (--engine ray): install it on every machine"
            ) from error
        self.exit_code = -signal.SIGKILL
        self.stderr_tail = f"error: its worker{f' on {self.host}' if self.host else ''} was lost (Ray)".encode()


class RayLauncher:
    """Commands with a share of a machine each, wherever there is room."""

    def __init__(self, resources: JobResources, marker_path: Path) -> None:
        import ray

        options = {"num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus, "scheduling_strategy": "SPREAD"}
        self._actor_class = ray.remote(max_restarts=0, max_task_retries=0, **options)(WorkerActor)
        self._resources = resources
        self._marker_path = marker_path

    def start(self, args: Sequence[str]) -> JobProcess:
        ours = {name: value for name, value in os.environ.items() if name.startswith(ENV_PREFIX)}
        variables = {**ours, RUNS_DIR_VARIABLE: str(default_runs_dir())}
        return RayProcess(
            self._actor_class.remote(RemoteCommand(tuple(args), Path.cwd(), self._marker_path, variables))
        )

    def capacity(self) -> int:
        """How many commands have room at once; none is refused, as nothing would ever begin."""
        import ray

        room = self._resources.capacity(ray.nodes())
        if not room:
            raise RequestError(
                f"no machine of the cluster has {self._resources.num_cpus} cores and {self._resources.num_gpus:g} GPUs for a run "
                "(--job-cpus, --job-gpus): ask for less"
            )
        return room


@contextmanager
def ray_launcher(address: str | None, num_cpus: int, resources: JobResources, runs_dir: Path) -> Iterator[RayLauncher]:
    """The machines of the cluster at `address`, or so many cores of this one."""
    with ray_session(address, num_cpus), sweep_marker(runs_dir) as marker:
        yield RayLauncher(resources, marker)


@contextmanager
def sweep_marker(runs_dir: Path) -> Iterator[Path]:
    """A file by which a worker sees that the directory is this one, and not another of the same name."""
    make_directories(runs_dir)
    remove_stale_temporaries(runs_dir)
    handle, marker = create_locked_temporary(runs_dir / "sweep", syscalls.create_file)
    try:
        yield marker.absolute()
    finally:
        remove_path(marker)
        os.close(handle)
