"""`--engine flower`: from the options of a training command to a way to clients that are elsewhere."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.common_options import Engine
from fedmosaic_cli.cli.console import remark
from fedmosaic_cli.cli.federation import KEYS
from fedmosaic_cli.cli.local_federation import rehearsed
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.nginx import PORT
from fedmosaic_cli.federation.flower.node_names import node_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.cli.train_options import Request
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.federation.coordinator import Elsewhere
    from fedmosaic_cli.federation.flower.superlink import Papers
    from fedmosaic_cli.federation.flower.superlink import Place as Address
    from fedmosaic_cli.federation.transport import Carrier
    from fedmosaic_cli.storage.shards import Shards

OF_FLOWER = ("superlink", "federation", "local_sites", "quorum", "deadline", "wait")


def is_federated(request: Request) -> bool:
    return request.engine is Engine.flower


def check_request(request: Request) -> None:
    """Refuse what cannot be, before anything is looked at."""
    if not is_federated(request):
        for name in OF_FLOWER:
            if getattr(request, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise RequestError(f"{option} is for clients at sites (fedmosaic): add --engine flower")
        if request.insecure or request.expose:
            raise RequestError("--insecure and --expose are for clients at sites (fedmosaic): add --engine flower")
        return
    from fedmosaic_cli.federation.flower.flower_version import check_flower

    check_flower()
    for option, seconds in (("--deadline", request.deadline), ("--wait", request.wait)):
        if seconds is not None and not math.isfinite(seconds):
            raise RequestError(f"{seconds} is no number of seconds ({option}): write one such as 600")
    if request.local_sites is not None and (request.superlink or request.federation or request.expose):
        raise RequestError("--local-sites starts everything by itself (fedmosaic): leave --superlink and others out")
    if request.local_sites is None and not request.dry_run:
        address(request)


def check_config(request: Request, config: RunConfig) -> None:
    """Refuse a run that makes sense in one process alone, or has another number of clients than of sites."""
    if not is_federated(request):
        return
    method = config.method
    if method.pooled:
        raise RequestError(f"{method.title} pools the clients' data, which no site hands over (--engine): use local")
    if config.attack.kind != "none":
        raise RequestError(f"attack.kind {config.attack.kind} is simulated in one process (--engine): use local")
    if config.train.execution == "stacked":
        raise RequestError("clients at sites cannot be stacked (train.execution, --engine): use threads or auto")
    if request.local_sites not in (None, config.data.clients):
        raise RequestError(
            f"this setting has {config.data.clients} clients, not {request.local_sites} (--local-sites): name as many"
        )
    if request.quorum is not None and request.quorum > (config.train.clients_per_round or config.data.clients or 1):
        raise RequestError(f"a quorum of {request.quorum} is more than all who take part (--quorum): name fewer")


def address(request: Request) -> Address:
    """Where our SuperLink listens, and what it shows for itself."""
    from fedmosaic_cli.federation.flower.superlink import Place as Address
    from fedmosaic_cli.federation.flower.superlink import is_loopback, parse_address

    host, port = parse_address(request.superlink or f"127.0.0.1:{PORT}")
    if not is_loopback(host) and not request.expose:
        raise RequestError(
            f"whoever reaches {request.superlink} can run code at every site (--superlink): listen on 127.0.0.1 "
            "behind a proxy (nginx.conf of 'fedmosaic federation init'), or add --expose on a network that you trust"
        )
    return Address(host, port, None if request.insecure else papers(request, host))


def papers(request: Request, host: str) -> Papers:
    """The coordinator's certificates, checked."""
    from fedmosaic_cli.federation.flower.keys import CA, SERVER, SERVER_KEY, check_certificate
    from fedmosaic_cli.federation.flower.superlink import Papers

    folder = federation_of(request)
    if not (folder / SERVER).is_file():
        raise RequestError(
            f"no certificates here (--federation {folder}): make them with 'fedmosaic federation init --host NAME'"
        )
    check_certificate(folder / CA)
    check_certificate(folder / SERVER)
    return Papers(folder / CA, folder / SERVER, folder / SERVER_KEY)


def federation_of(request: Request) -> Path:
    return request.federation or Path("federation")


def known_keys(request: Request, clients: int) -> dict[int, Path | None]:
    """Whose letters are read: each client's public key, as its site sent it."""
    if request.insecure:
        return dict.fromkeys(range(clients))
    folder = federation_of(request) / KEYS
    keys = {client: folder / f"{node_name(client)}.pub" for client in range(clients)}
    missing = [path.name for path in keys.values() if not path.is_file()]
    if missing:
        raise RequestError(
            f"no key of {', '.join(missing[:5])} ({folder}): have the site send what 'fedmosaic site init' made"
        )
    return dict(keys)


class Sites:
    """The way to the sites of all runs of a command: opened when first needed, for each partition once."""

    def __init__(self, request: Request, place: Place, hold: ExitStack) -> None:
        self._request = request
        self._place = place
        self._hold = hold
        self._open: dict[str, Carrier] = {}

    def of(self, shards: Shards) -> Elsewhere | None:
        """Where the clients with these shards are; None for this process."""
        request = self._request
        if not is_federated(request):
            return None
        from fedmosaic_cli.federation.coordinator import Elsewhere

        wait = 600.0 if request.wait is None else request.wait
        return Elsewhere("flower", lambda: self._carrier(shards), request.quorum, request.deadline, wait)

    def _carrier(self, shards: Shards) -> AbstractContextManager[Carrier]:
        if shards.digest not in self._open:
            self._open[shards.digest] = self._hold.enter_context(self._started(shards))
        return nullcontext(self._open[shards.digest])

    @contextmanager
    def _started(self, shards: Shards) -> Iterator[Carrier]:
        from fedmosaic_cli.federation.flower.flower_transport import FlowerCarrier

        clients = len(shards.manifest["clients"])
        rehearsal = self._request.local_sites is not None
        if not self._request.quiet and not self._request.as_json:
            where = f" and {clients} sites on this machine" if rehearsal else f" at {address(self._request).address}"
            remark(f"starting Flower's SuperLink{where}")
        if rehearsal:
            with rehearsed(shards, self._place, self._request.insecure, self._request.device.value) as carrier:
                yield carrier
            return
        with FlowerCarrier(known_keys(self._request, clients), address(self._request)) as carrier:
            yield carrier
