"""Our own SuperLink: nobody else's is used, and it lives no longer than whoever started it."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import FailedRunError, RequestError, ResourceError
from fedmosaic_cli.federation.flower.flower_processes import Child, end_all
from fedmosaic_cli.federation.flower.flwr_commands import flwr
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = "fm"
"""What the connection is called in Flower's settings."""
LISTENING = "Uvicorn running on"
"""What a SuperLink says once it has its port."""
START_SECONDS = 90.0
APP = """\
[project]
name = "fedmosaic-relay"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedmosaic"

[tool.flwr.app.components]
serverapp = "fedmosaic_cli.federation.flower.relay_serverapp:app"
clientapp = "fedmosaic_cli.federation.flower.relay_clientapp:app"

[tool.flwr.app.config]
names-as-claimed = {claims}
"""


@dataclass(frozen=True)
class Papers:
    """What a SuperLink shows for itself: who vouches for it, its certificate, and the key to that."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Place:
    """Where a SuperLink listens. Without papers whoever reaches it is believed: that is for this machine alone."""

    host: str = "127.0.0.1"
    port: int = 0
    papers: Papers | None = None

    def __post_init__(self) -> None:
        if self.papers is None and not is_loopback(self.host):
            raise RequestError(
                f"{self.host} can be reached from other machines (--insecure): give certificates, or stay on 127.0.0.1"
            )

    @property
    def reached(self) -> str:
        """The host under which this machine reaches it: whoever listens on all addresses does so on this one, too."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def address(self) -> str:
        """Host and port under which this machine reaches it."""
        return f"[{self.reached}]:{self.port}" if ":" in self.reached else f"{self.reached}:{self.port}"


def parse_address(text: str, option: str = "--superlink") -> tuple[str, int]:
    """Host and port of an address as people write it."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RequestError(f"'{text}' is no address ({option}): write HOST:PORT")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_free(place: Place) -> None:
    """Refuse to start where somebody else listens."""
    with socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.host, place.port))
        except OSError as error:
            raise ResourceError(
                f"the SuperLink cannot listen here, {error.strerror} ({place.address}): choose another port"
            ) from None


def settings(place: Place) -> str:
    """Flower's own file of settings: how its commands reach our SuperLink."""
    quoted = json.dumps(str(place.papers.authority.absolute()), ensure_ascii=False) if place.papers else ""
    trust = f"root-certificates = {quoted}" if place.papers else "insecure = true"
    return f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{place.address}"\n{trust}\n'


class Link:
    """A SuperLink that runs, with the keys that it knows and our relay in it."""

    def __init__(self, place: Place, room: Path, keys: Mapping[str, Path]) -> None:
        self.place = place
        self._room = room
        self._keys = keys
        self._registered = False
        self._child: Child | None = None
        self._run = ""
        for folder in ("flwr", "app"):
            files.make_directories(room / folder)
        files.put(room / "flwr" / "config.toml", settings(place).encode())
        claims = "true" if place.papers is None else "false"
        files.put(room / "app" / "pyproject.toml", APP.format(claims=claims).encode())

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    def start(self) -> None:
        """Start what does not run: the SuperLink, and in it a relay. What a SuperLink knew, the next one knows."""
        if not self.alive:
            end_all(self._room)
            check_free(self.place)
            self._child = Child(self._command(), self._room)
            self._wait(self._child)
        keys = {} if self._registered else self._keys
        registrations = [("supernode", "register", str(key), NAME, "--name", name) for name, key in keys.items()]
        answers = flwr(self._room, *registrations, ("run", str(self._room / "app"), NAME))
        self._registered = True
        self._run = str(answers[-1].get("run-id"))

    def stop_relay(self) -> None:
        """End the relay, if there is one; nobody minds if it has ended already."""
        if self.alive and self._run:
            with suppress(FailedRunError):
                flwr(self._room, ("stop", self._run, NAME))
        self._run = ""

    def close(self) -> None:
        """End everything that was started here."""
        self.stop_relay()
        end_all(self._room)
        if self._child is not None:
            self._child.process.wait()

    def state_of_relay(self) -> str:
        """What Flower says of the relay."""
        if not self.alive:
            return self._child.last_words() if self._child else "it was not started"
        run = self.counts()
        return ", ".join(str(run[key]) for key in ("status", "status-details") if run.get(key)) or "unknown"

    def counts(self) -> dict[str, Any]:
        """What Flower knows of the present relay: among others, the bytes to and from nodes."""
        [answer] = flwr(self._room, ("list", NAME, "--run-id", self._run))
        return dict((answer.get("runs") or [{}])[0])

    def _command(self) -> list[str]:
        place = self.place
        command = ["flower-superlink", "--host", place.host, "--port", str(place.port)]
        command += ["--database", str(self._room / "link.db"), "--disable-runtime-dependency-installation"]
        if place.papers is None:
            return [*command, "--insecure"]
        papers = {
            "ca-certfile": place.papers.authority,
            "certfile": place.papers.certificate,
            "keyfile": place.papers.key,
        }
        command += [part for option, path in papers.items() for part in (f"--ssl-{option}", str(path.absolute()))]
        return [*command, "--enable-supernode-auth"]

    def _wait(self, child: Child) -> None:
        """Wait until our SuperLink listens: that something does at this address is not enough."""
        deadline = time.monotonic() + START_SECONDS
        while child.alive and time.monotonic() < deadline:
            if child.said(LISTENING):
                return
            time.sleep(0.05)
        words = child.last_words() if not child.alive else f"it does not listen after {START_SECONDS:g} s"
        raise ResourceError(f"Flower's SuperLink did not start, {words} ({self.place.address}): choose another address")
