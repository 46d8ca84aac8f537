"""A Ray of our own that leaves nothing behind, or a place in one that is there. Whoever calls this needs the extra
`cluster`; nobody else loads it."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import tempfile
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from importlib.util import find_spec
from logging import CRITICAL
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.machine import end_descendants
from fedmosaic_cli.storage.files import claim, of_directory, remove, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

WAY_OUT = "pip install 'fedmosaic[cluster]'"
# Nothing but a few words travels through the store of objects; this is about the least that Ray accepts.
STORE_BYTES = 100 * 2**20
FOLDER = "fedmosaic-ray"
# Ray's sockets lie deep below its directory, and the system takes names of at most 107 bytes.
LONGEST_FOLDER = 20
AUTO = "auto"
ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
PATIENCE_SECONDS = 10.0
TRIES = 3
"""How often Ray asks a cluster that does not answer."""


def check_installed() -> None:
    """Refuse to begin where the package is missing; nothing is loaded."""
    found = find_spec("ray")
    if found is None or found.origin is None:  # a directory of this name is no package
        raise RequestError(f"the package ray is not installed (--engine ray): {WAY_OUT}")


def check_address(address: str) -> None:
    """Refuse what is no address of a cluster; nobody is asked."""
    if address != AUTO and not ADDRESS.fullmatch(address):
        raise RequestError(
            f"cannot join '{address}' (--ray-address): call this on a machine of the cluster, with auto or host:port"
        )


def check_reachable(address: str) -> None:
    """Refuse at once where nobody answers: Ray would try for minutes."""
    found = ADDRESS.fullmatch(address)
    if found:
        try:
            socket.create_connection((found["host"].strip("[]"), int(found["port"])), PATIENCE_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise cannot(address, error) from error


def cannot(address: str | None, error: Exception) -> ResourceError:
    """The error for a Ray that is not to be had."""
    reason = next(iter(str(error).strip().splitlines()), "")
    what = "Ray cannot be started" if address is None else f"the Ray cluster at '{address}' cannot be joined"
    way_out = f"see that ray works ({WAY_OUT})" if address is None else "see 'ray status' there"
    return ResourceError(f"{what}, {type(error).__name__}: {reason} (--engine ray): {way_out}")


@contextmanager
def session(address: str | None, cores: int) -> Iterator[None]:
    """Ray while the context lasts: the cluster at `address`, or one on this machine alone with so many cores.

    Ray would write to stdout what becomes of its workers; we tell it in our own words.
    """
    with ExitStack() as end:
        end.enter_context(redirect_stdout(end.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
        folder = end.enter_context(own_folder()) if address is None else None
        set_variables(alone=address is None)
        check_reachable(address or AUTO)
        end.callback(leave)
        try:
            begin(address, cores, folder)
        except BaseException:
            if address is None:  # of what it had started by then, Ray itself would forget some
                end_descendants()
            raise
        yield


def set_variables(alone: bool) -> None:
    """Ray reads them when it is loaded. A Ray of our own takes requests from nobody else, though its ports are open."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(TRIES))
    if alone:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def begin(address: str | None, cores: int, folder: Path | None) -> None:
    """Start Ray, or join it. It takes SIGTERM for itself and makes an exit of its own of it: we take it back."""
    options: dict[str, Any] = {"address": address}
    if folder is not None:
        options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
        options |= {"object_store_memory": STORE_BYTES, "_temp_dir": str(folder)}
    asked_to_stop = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        import ray

        ray.init(**options, log_to_driver=False, logging_level=CRITICAL)
    except SystemExit:
        asked_to_stop = True
    except Exception as error:
        raise cannot(address, error) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked_to_stop:
        signal.raise_signal(signal.SIGTERM)


def leave() -> None:
    """End what we started, and leave what was there."""
    with suppress(ImportError):
        import ray

        ray.shutdown()


@contextmanager
def own_folder() -> Iterator[Path]:
    """A directory for what Ray writes, removed in the end; what others left who were killed goes as well."""
    usual = Path(tempfile.gettempdir())
    root = usual if len(str(usual)) <= LONGEST_FOLDER else Path("/tmp")
    sweep(root, FOLDER)
    handle, folder = claim(root / FOLDER, of_directory)
    try:
        yield folder
    finally:
        with suppress(OSError):  # a process of Ray's that is dying may still write; the next one sweeps
            remove(folder)
        os.close(handle)
