"""Start a private Ray instance and clean up after it, or join an existing cluster. Requires the extra `cluster`."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import tempfile
import time
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from importlib.util import find_spec
from logging import CRITICAL
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, ResourceError, install_command
from fedmosaic_cli.machine import adopt_orphans, kill_descendants
from fedmosaic_cli.storage.files import (
    create_and_open_directory,
    create_locked_temporary,
    remove_path,
    remove_stale_temporaries,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RAY_INSTALL_HINT = install_command("cluster")
# The object store carries short messages only; Ray accepts hardly less than this.
OBJECT_STORE_BYTES = 100 * 2**20
TEMP_DIR_PREFIX = "fedmosaic-ray"
# Ray nests its socket files deeply, and the operating system limits their paths to 107 bytes.
MAX_TEMP_ROOT_LENGTH = 20
AUTO_ADDRESS = "auto"
ADDRESS_PATTERN = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
CONNECT_TIMEOUT_SECONDS = 10.0
NUM_CONNECT_RETRIES = 3
SHUTDOWN_TIMEOUT_SECONDS = 30.0
KILL_TIMEOUT_SECONDS, KILL_INTERVAL_SECONDS = 10.0, 0.05


def require_ray_installed() -> None:
    """Raise RequestError if Ray is not installed, without importing it."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # a plain directory called "ray" has a spec without origin
        raise RequestError(f"the package ray is not installed (--engine ray): {RAY_INSTALL_HINT}")


def validate_ray_address(address: str) -> None:
    """Raise RequestError for a malformed address, without connecting."""
    if address != AUTO_ADDRESS and not ADDRESS_PATTERN.fullmatch(address):
        raise RequestError(
            f"cannot join '{address}' (--ray-address): run this on a machine of the cluster, with auto or host:port"
        )


def ray_unavailable_error(address: str | None, error: Exception) -> ResourceError:
    """Return the error for a Ray instance that cannot be started or joined."""
    reason = next(iter(str(error).strip().splitlines()), "")
    problem = "Ray cannot be started" if address is None else f"the Ray cluster at '{address}' cannot be joined"
    remedy = f"check the installation of ray ({RAY_INSTALL_HINT})" if address is None else "see 'ray status' there"
    return ResourceError(f"{problem}, {type(error).__name__}: {reason} (--engine ray): {remedy}")


@contextmanager
def ray_session(address: str | None, num_cpus: int) -> Iterator[None]:
    """Join the cluster at `address`, or start Ray on this machine with `num_cpus` cores, for the context's duration.

    Stdout is redirected because Ray reports the end of its workers there.
    """
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
        temp_dir = None
        if address is None:
            temp_dir = stack.enter_context(ray_temp_dir())
            stack.enter_context(adopt_orphans())  # the workers of a dead Ray
        set_ray_env(is_local=address is None)
        host_and_port = ADDRESS_PATTERN.fullmatch(address or AUTO_ADDRESS)
        if host_and_port:  # Ray itself would try for minutes
            host, port = host_and_port["host"].strip("[]"), int(host_and_port["port"])
            try:
                socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS).close()
            except (OSError, OverflowError) as error:
                raise ray_unavailable_error(address, error) from error
        stack.callback(shutdown_ray, is_local=address is None)
        try:
            init_ray(address, num_cpus, temp_dir)
        except BaseException:
            if address is None:  # Ray would wait for the processes of an interrupted start
                kill_descendants()
            raise
        yield


def set_ray_env(is_local: bool) -> None:
    """Set the variables that Ray reads on import. A private instance requires a token and listens on loopback only."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(NUM_CONNECT_RETRIES))
    if is_local:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # Without support for clusters Ray takes the loopback address as its own. It ignores `_node_ip_address`.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def init_ray(address: str | None, num_cpus: int, temp_dir: Path | None) -> None:
    """Start or join Ray, and restore the signal handlers that `ray.init` replaces."""
    options: dict[str, Any] = {"address": address}
    if temp_dir is not None:
        options = {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        options |= {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": str(temp_dir)}
    is_terminated = False
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        import ray

        ray.init(**options, log_to_driver=False, logging_level=CRITICAL)
    except SystemExit:  # Ray's handler of SIGTERM
        is_terminated = True
    except Exception as error:
        raise ray_unavailable_error(address, error) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if is_terminated:
        signal.raise_signal(signal.SIGTERM)


def shutdown_ray(is_local: bool) -> None:
    """Disconnect from Ray; this stops a private instance and leaves a joined cluster running.

    Ray waits for a dead instance without end, and does not stop all processes of an instance that has died or whose
    start was interrupted. Those of a private instance are killed.
    """

    def disconnect() -> None:
        with suppress(Exception):
            import ray

            ray.shutdown()

    thread = Thread(target=disconnect, name="ray-shutdown", daemon=True)
    thread.start()
    thread.join(SHUTDOWN_TIMEOUT_SECONDS)
    if is_local:
        end = time.monotonic() + KILL_TIMEOUT_SECONDS
        while kill_descendants() and time.monotonic() < end:
            time.sleep(KILL_INTERVAL_SECONDS)


@contextmanager
def ray_temp_dir() -> Iterator[Path]:
    """Create a temporary directory for Ray and remove it afterwards, with those that killed processes left."""
    default = Path(tempfile.gettempdir())
    root = default if len(str(default)) <= MAX_TEMP_ROOT_LENGTH else Path("/tmp")
    remove_stale_temporaries(root, TEMP_DIR_PREFIX)
    handle, folder = create_locked_temporary(root / TEMP_DIR_PREFIX, create_and_open_directory)
    try:
        yield folder
    finally:
        with suppress(OSError):  # a dying Ray process may still write; the next call removes the rest
            remove_path(folder)
        os.close(handle)
