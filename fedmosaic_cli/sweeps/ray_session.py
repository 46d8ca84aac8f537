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
from fedmosaic_cli.machine import kill_descendants
from fedmosaic_cli.storage.files import (
    create_and_open_directory,
    create_locked_temporary,
    remove_path,
    remove_stale_temporaries,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RAY_INSTALL_HINT = "pip install 'fedmosaic[cluster]'"
# Nothing but a few words travels through the store of objects; this is about the least that Ray accepts.
OBJECT_STORE_BYTES = 100 * 2**20
TEMP_DIR_PREFIX = "fedmosaic-ray"
# Ray's sockets lie deep below its directory, and the system takes names of at most 107 bytes.
MAX_TEMP_ROOT_LENGTH = 20
AUTO_ADDRESS = "auto"
ADDRESS_PATTERN = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
CONNECT_TIMEOUT_SECONDS = 10.0
NUM_CONNECT_RETRIES = 3
"""How often Ray asks a cluster that does not answer."""


def require_ray_installed() -> None:
    """Refuse to begin where the package is missing; nothing is loaded."""
    found = find_spec("ray")
    if found is None or found.origin is None:  # a directory of this name is no package
        raise RequestError(f"the package ray is not installed (--engine ray): {RAY_INSTALL_HINT}")


def validate_ray_address(address: str) -> None:
    """Refuse what is no address of a cluster; nobody is asked."""
    if address != AUTO_ADDRESS and not ADDRESS_PATTERN.fullmatch(address):
        raise RequestError(
            f"cannot join '{address}' (--ray-address): call this on a machine of the cluster, with auto or host:port"
        )


def require_ray_reachable(address: str) -> None:
    """Refuse at once where nobody answers: Ray would try for minutes."""
    found = ADDRESS_PATTERN.fullmatch(address)
    if found:
        try:
            socket.create_connection((found["host"].strip("[]"), int(found["port"])), CONNECT_TIMEOUT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ray_unavailable_error(address, error) from error


def ray_unavailable_error(address: str | None, error: Exception) -> ResourceError:
    """The error for a Ray that is not to be had."""
    reason = next(iter(str(error).strip().splitlines()), "")
    what = "Ray cannot be started" if address is None else f"the Ray cluster at '{address}' cannot be joined"
    way_out = f"see that ray works ({RAY_INSTALL_HINT})" if address is None else "see 'ray status' there"
    return ResourceError(f"{what}, {type(error).__name__}: {reason} (--engine ray): {way_out}")


@contextmanager
def ray_session(address: str | None, num_cpus: int) -> Iterator[None]:
    """Ray while the context lasts: the cluster at `address`, or one on this machine alone with so many cores.

    Ray would write to stdout what becomes of its workers; we tell it in our own words.
    """
    with ExitStack() as end:
        end.enter_context(redirect_stdout(end.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
        folder = end.enter_context(ray_temp_dir()) if address is None else None
        set_ray_env(is_local=address is None)
        require_ray_reachable(address or AUTO_ADDRESS)
        end.callback(shutdown_ray)
        try:
            init_ray(address, num_cpus, folder)
        except BaseException:
            if address is None:  # of what it had started by then, Ray itself would forget some
                kill_descendants()
            raise
        yield


def set_ray_env(is_local: bool) -> None:
    """Ray reads them when it is loaded. A Ray of our own takes requests from nobody else, though its ports are open."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(NUM_CONNECT_RETRIES))
    if is_local:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def init_ray(address: str | None, num_cpus: int, temp_dir: Path | None) -> None:
    """Start Ray, or join it. It takes SIGTERM for itself and makes an exit of its own of it: we take it back."""
    options: dict[str, Any] = {"address": address}
    if temp_dir is not None:
        options = {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        options |= {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": str(temp_dir)}
    asked_to_stop = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        import ray

        ray.init(**options, log_to_driver=False, logging_level=CRITICAL)
    except SystemExit:
        asked_to_stop = True
    except Exception as error:
        raise ray_unavailable_error(address, error) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked_to_stop:
        signal.raise_signal(signal.SIGTERM)


def shutdown_ray() -> None:
    """End what we started, and leave what was there."""
    with suppress(ImportError):
        import ray

        ray.shutdown()


@contextmanager
def ray_temp_dir() -> Iterator[Path]:
    """A directory for what Ray writes, removed in the end; what others left who were killed goes as well."""
    usual = Path(tempfile.gettempdir())
    root = usual if len(str(usual)) <= MAX_TEMP_ROOT_LENGTH else Path("/tmp")
    remove_stale_temporaries(root, TEMP_DIR_PREFIX)
    handle, folder = create_locked_temporary(root / TEMP_DIR_PREFIX, create_and_open_directory)
    try:
        yield folder
    finally:
        with suppress(OSError):  # a process of Ray's that is dying may still write; the next one sweeps
            remove_path(folder)
        os.close(handle)
