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
from fedmosaic_cli.config.rerun_args import RUNS_DIR, default_runs_dir
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import claim, make_directories, remove, sweep
from fedmosaic_cli.sweeps.processes import Child
from fedmosaic_cli.sweeps.ray_session import session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fedmosaic_cli.sweeps.processes import Process

PATIENCE_SECONDS = 1.0
PAUSE_SECONDS = 0.1
OURS = "FEDMOSAIC_"


@dataclass(frozen=True)
class Share:
    """What one run takes of a machine: whole cores, and GPUs, of which it may be a part."""

    cpus: int
    gpus: float

    def room(self, nodes: Iterable[Mapping[str, Any]]) -> int:
        """How many runs have room on these machines, as Ray tells of them."""
        places = 0
        for resources in (node["Resources"] for node in nodes if node["Alive"]):
            room = int(resources.get("CPU", 0) // self.cpus)
            if self.gpus:
                gpus = int(resources.get("GPU", 0))
                room = min(room, gpus * int(1 / self.gpus) if self.gpus < 1 else int(gpus // self.gpus))
            places += room
        return places


@dataclass(frozen=True)
class Errand:
    """A command, and what must be the same where it is made: directories, variables, version."""

    words: tuple[str, ...]
    directory: Path
    marker: Path
    variables: dict[str, str]
    version: str = __version__

    def unfit(self, host: str) -> str:
        """Why it cannot be made here, "" if it can."""
        if not self.marker.exists():
            return (
                f"the runs directory is not this sweep's on {host} ({self.marker.parent}): every machine needs it "
                "under the same path, on a file system that all of them share"
            )
        if not self.directory.is_dir():
            return (
                f"the working directory is not there on {host} ({self.directory}): every machine needs it under the "
                "same path"
            )
        if self.version != __version__:
            return f"fedmosaic is {__version__} on {host} and {self.version} here (--engine ray): install the same"
        return ""


@dataclass(frozen=True)
class Word:
    """What a worker tells of its command."""

    host: str
    pid: int | None
    said: bytes = b""
    code: int | None = None
    unfit: str = ""


class Hand:
    """On a worker: makes one command, and tells how it goes.

    Ray calls its methods one after the other, in the worker's main thread, so the command dies when the worker does.
    """

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._child: Child | None = None

    def look(self) -> Word:
        """How it goes: at once when it has just begun or ended, else after a moment."""
        host, errand = platform.node(), self._errand
        if self._child is None:
            unfit = errand.unfit(host)
            if unfit:
                return Word(host, None, unfit=unfit)
            self._child = Child(errand.words, errand.directory, errand.variables)
            return Word(host, self._child.pid)
        end = time.monotonic() + PATIENCE_SECONDS
        self._child.look()
        while self._child.code is None and time.monotonic() < end:
            time.sleep(PAUSE_SECONDS)
            self._child.look()
        return Word(host, self._child.pid, self._child.said, self._child.code)

    def tell(self, number: int) -> None:
        """Pass a signal on."""
        if self._child is not None:
            self._child.tell(number)


class Remote:
    """A command in a worker's hand, as seen from here."""

    def __init__(self, hand: Any) -> None:
        self.code: int | None = None
        self.said = b""
        self.host: str | None = None
        self.pid: int | None = None
        self._hand = hand
        self._answer = hand.look.remote()

    def look(self) -> None:
        """Take in the last answer and ask again. A machine on which nothing can be made is the end of all of it:
        it would take one job after the other."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

        if self.code is not None or not ray.wait([self._answer], timeout=0)[0]:
            return
        try:
            self._take(ray.get(self._answer))
        except ActorUnavailableError:
            pass  # nobody knows yet what became of it
        except RayActorError as error:
            self._lost(error)
        except RayTaskError as error:
            self.code, self.said = 1, f"error: its worker failed, {error.cause!r} (Ray)".encode()
        if self.code is None:
            self._answer = self._hand.look.remote()
        else:
            ray.kill(self._hand)

    def tell(self, number: int) -> None:
        """Pass a signal on. What nobody has begun is not begun any more."""
        import ray

        if self.host is None:
            self.code = -number
            ray.kill(self._hand)
        else:
            self._hand.tell.remote(number)

    def _take(self, word: Word) -> None:
        if word.unfit:
            raise RequestError(word.unfit)
        self.host, self.pid, self.said, self.code = word.host, word.pid, word.said, word.code

    def _lost(self, error: Exception) -> None:
        if "No module named 'fedmosaic_cli'" in str(error):
            raise RequestError(
                "fedmosaic is not installed where Ray's workers run (--engine ray): install it on every machine"
            ) from error
        self.code = -signal.SIGKILL
        self.said = f"error: its worker{f' on {self.host}' if self.host else ''} was lost (Ray)".encode()


class Cluster:
    """Commands with a share of a machine each, wherever there is room."""

    def __init__(self, share: Share, marker: Path) -> None:
        import ray

        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "scheduling_strategy": "SPREAD"}
        self._hand = ray.remote(max_restarts=0, max_task_retries=0, **options)(Hand)
        self._share = share
        self._marker = marker

    def start(self, words: Sequence[str]) -> Process:
        ours = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
        variables = {**ours, RUNS_DIR: str(default_runs_dir())}
        return Remote(self._hand.remote(Errand(tuple(words), Path.cwd(), self._marker, variables)))

    def room(self) -> int:
        """How many commands have room at once; none is refused, as nothing would ever begin."""
        import ray

        room = self._share.room(ray.nodes())
        if not room:
            raise RequestError(
                f"no machine of the cluster has {self._share.cpus} cores and {self._share.gpus:g} GPUs for a run "
                "(--job-cpus, --job-gpus): ask for less"
            )
        return room


@contextmanager
def cluster(address: str | None, cores: int, share: Share, runs_dir: Path) -> Iterator[Cluster]:
    """The machines of the cluster at `address`, or so many cores of this one."""
    with session(address, cores), marked(runs_dir) as marker:
        yield Cluster(share, marker)


@contextmanager
def marked(runs_dir: Path) -> Iterator[Path]:
    """A file by which a worker sees that the directory is this one, and not another of the same name."""
    make_directories(runs_dir)
    sweep(runs_dir)
    handle, marker = claim(runs_dir / "sweep", syscalls.create)
    try:
        yield marker.absolute()
    finally:
        remove(marker)
        os.close(handle)
