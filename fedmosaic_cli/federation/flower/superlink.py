"""The coordinator's own SuperLink, which starts no app but our relay. It ends with the process that started it.

The SuperLink runs with Flower's isolation mode `process`, so it starts no apps. Our version of Flower's SuperExec does,
and it is the only process that knows the secret by which a SuperExec authenticates.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, ResourceError, RunFailedError
from fedmosaic_cli.federation.flower.flower_processes import FlowerProcess, terminate_all
from fedmosaic_cli.federation.flower.flwr_commands import run_flwr
from fedmosaic_cli.federation.flower.superexec import APP_DIR
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONNECTION_NAME = "fm"
"""Name of the connection in Flower's configuration file."""
LISTENING_TEXT = "Uvicorn running on"
"""Printed by a SuperLink once it listens."""
START_SECONDS = 90.0
RELAY_PYPROJECT = """\
[project]
name = "fedmosaic-relay"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedmosaic"

[tool.flwr.app.components]
serverapp = "fedmosaic_cli.federation.flower.relay_serverapp:app"
# Flower requires a name here. Sites load no app.
clientapp = "fedmosaic_cli.federation.flower.relay_serverapp:app"
"""
RELAY_CONFIG_FILE, SECRET_FILE = "relay.json", "superexec.secret"


@dataclass(frozen=True)
class Credentials:
    """The files by which a SuperLink proves its identity."""

    ca_certificate: Path
    certificate: Path
    private_key: Path


@dataclass(frozen=True)
class SuperLinkAddress:
    """Where a SuperLink listens. Without credentials it trusts every node, so it must listen on loopback."""

    host: str = "127.0.0.1"
    port: int = 0
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if self.credentials is None and not is_loopback(self.host):
            raise RequestError(
                f"{self.host} can be reached from other machines (--insecure): give certificates, or use 127.0.0.1"
            )

    @property
    def connect_host(self) -> str:
        """The host under which this machine reaches it, also if it listens on all interfaces."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def host_port(self) -> str:
        """Host and port under which this machine reaches it."""
        return f"[{self.connect_host}]:{self.port}" if ":" in self.connect_host else f"{self.connect_host}:{self.port}"


def parse_address(text: str, option: str = "--superlink") -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RequestError(f"'{text}' is not an address ({option}): write HOST:PORT")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is not in use."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def flwr_config(listen_address: SuperLinkAddress) -> str:
    """Return Flower's configuration file: how the `flwr` command reaches our SuperLink."""
    trust = "insecure = true"
    if listen_address.credentials:
        path = str(listen_address.credentials.ca_certificate.absolute())
        trust = f"root-certificates = {json.dumps(path, ensure_ascii=False)}"
    section = f'[superlink.{CONNECTION_NAME}]\naddress = "{listen_address.host_port}"\n{trust}\n'
    return f'[superlink]\ndefault = "{CONNECTION_NAME}"\n\n{section}'


class SuperLink:
    """A SuperLink process with the sites' registered public keys and a relay app."""

    def __init__(self, listen_address: SuperLinkAddress, runtime_dir: Path, public_keys: Mapping[str, Path]) -> None:
        self.listen_address = listen_address
        self._runtime_dir = runtime_dir
        self._public_keys = public_keys
        self._has_registered_keys = False
        self._process: FlowerProcess | None = None
        self._superexec: FlowerProcess | None = None
        self._relay_run_id = ""
        for folder in ("flwr", APP_DIR):
            files.make_directories(runtime_dir / folder)
        files.write_new_file(runtime_dir / "flwr" / "config.toml", flwr_config(listen_address).encode())
        files.write_new_file(runtime_dir / APP_DIR / "pyproject.toml", RELAY_PYPROJECT.encode())
        keys = {name: key.read_text(encoding="utf-8") for name, key in public_keys.items()}
        relay_config = {"trusts_claimed_names": listen_address.credentials is None, "keys": keys}
        files.write_new_private_file(runtime_dir / RELAY_CONFIG_FILE, json.dumps(relay_config).encode())
        files.write_new_private_file(runtime_dir / SECRET_FILE, secrets.token_bytes(32))

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    def start(self) -> None:
        """Start the SuperLink unless it runs, and a relay in it. A restarted SuperLink keeps its database."""
        if not self.is_alive:
            terminate_all(self._runtime_dir)
            self._require_free_port()
            self._process = FlowerProcess(self._command(), self._runtime_dir)
            self._wait_until_listening(self._process)
        if self._superexec is None or not self._superexec.is_alive:
            self._superexec = FlowerProcess(
                self._superexec_command(), self._runtime_dir, output_file="superexec-output"
            )
        keys = {} if self._has_registered_keys else self._public_keys
        registrations = [
            ("supernode", "register", str(key), CONNECTION_NAME, "--name", name) for name, key in keys.items()
        ]
        answers = run_flwr(
            self._runtime_dir, *registrations, ("run", str(self._runtime_dir / APP_DIR), CONNECTION_NAME)
        )
        self._has_registered_keys = True
        self._relay_run_id = str(answers[-1].get("run-id"))

    def stop_relay(self) -> None:
        """Stop the relay if one runs."""
        if self.is_alive and self._relay_run_id:
            with suppress(RunFailedError):
                run_flwr(self._runtime_dir, ("stop", self._relay_run_id, CONNECTION_NAME))
        self._relay_run_id = ""

    def close(self) -> None:
        """End all processes that were started here."""
        self.stop_relay()
        terminate_all(self._runtime_dir)
        for process in (self._superexec, self._process):
            if process is not None:
                process.process.wait()

    def relay_status(self) -> str:
        """Return Flower's status of the relay in one line."""
        if not self.is_alive:
            return self._process.exit_reason() if self._process else "it was not started"
        run = self.relay_run_info()
        return ", ".join(str(run[key]) for key in ("status", "status-details") if run.get(key)) or "unknown"

    def relay_run_info(self) -> dict[str, Any]:
        """Return Flower's record of the relay, which includes the bytes to and from nodes."""
        [answer] = run_flwr(self._runtime_dir, ("list", CONNECTION_NAME, "--run-id", self._relay_run_id))
        return dict((answer.get("runs") or [{}])[0])

    def _command(self) -> list[str]:
        address = self.listen_address
        command = ["flower-superlink", "--host", address.host, "--port", str(address.port)]
        command += ["--database", str(self._runtime_dir / "link.db"), "--disable-runtime-dependency-installation"]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(self._runtime_dir / SECRET_FILE)]
        if address.credentials is None:
            return [*command, "--insecure"]
        command += ["--ssl-ca-certfile", str(address.credentials.ca_certificate.absolute())]
        command += ["--ssl-certfile", str(address.credentials.certificate.absolute())]
        command += ["--ssl-keyfile", str(address.credentials.private_key.absolute())]
        return [*command, "--enable-supernode-auth"]

    def _superexec_command(self) -> list[str]:
        credentials = self.listen_address.credentials
        trust = ["--root-certificates", str(credentials.ca_certificate.absolute())] if credentials else ["--insecure"]
        command = [sys.executable, "-m", "fedmosaic_cli.federation.flower.superexec", *trust]
        command += ["--superexec-auth-secret-file", str(self._runtime_dir / SECRET_FILE)]
        return [*command, "--runtime-api-address", self.listen_address.host_port]

    def _require_free_port(self) -> None:
        address = self.listen_address
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address.host, address.port))
            except OSError as error:
                raise ResourceError(
                    f"the SuperLink cannot listen here, {error.strerror} ({address.host_port}): choose another port"
                ) from None

    def _wait_until_listening(self, process: FlowerProcess) -> None:
        """Wait for our SuperLink's own output: another program could listen at the same address."""
        deadline = time.monotonic() + START_SECONDS
        while process.is_alive and time.monotonic() < deadline:
            if process.has_output(LISTENING_TEXT):
                return
            time.sleep(0.05)
        reason = f"it does not listen after {START_SECONDS:g} s" if process.is_alive else process.exit_reason()
        raise ResourceError(
            f"Flower's SuperLink did not start, {reason} ({self.listen_address.host_port}): choose another address"
        )
