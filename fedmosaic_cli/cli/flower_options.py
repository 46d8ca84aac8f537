"""`--engine flower`: from the options of a training command to a way to clients that are elsewhere."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.common_options import TrainEngine
from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.cli.federation import KEYS_DIR
from fedmosaic_cli.cli.local_federation import start_local_federation
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.nginx import SUPERLINK_PORT
from fedmosaic_cli.federation.flower.flower_messages import node_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.cli.train_options import TrainOptions
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteCoordinator
    from fedmosaic_cli.federation.flower.superlink import Credentials
    from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress as Address
    from fedmosaic_cli.federation.transport import Transport
    from fedmosaic_cli.storage.shards import ShardSet

FLOWER_OPTIONS = ("superlink", "federation", "simulate_sites", "quorum", "round_timeout", "join_timeout")


def is_federated(options: TrainOptions) -> bool:
    return options.engine is TrainEngine.flower


def check_flower_options(options: TrainOptions) -> None:
    """Refuse what cannot be, before anything is looked at."""
    if not is_federated(options):
        for name in FLOWER_OPTIONS:
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise RequestError(f"{option} is for clients at sites (fedmosaic): add --engine flower")
        if options.insecure or options.allow_unauthenticated_network:
            raise RequestError(
                "--insecure and --allow-unauthenticated-network are for clients at sites (fedmosaic): "
                "add --engine flower"
            )
        return
    from fedmosaic_cli.federation.flower.flwr_commands import require_flower

    require_flower()
    for option, seconds in (("--round-timeout", options.round_timeout), ("--join-timeout", options.join_timeout)):
        if seconds is not None and not math.isfinite(seconds):
            raise RequestError(f"{seconds} is no number of seconds ({option}): write one such as 600")
    if options.simulate_sites is not None and (
        options.superlink or options.federation or options.allow_unauthenticated_network
    ):
        raise RequestError("--simulate-sites starts everything by itself (fedmosaic): leave --superlink and others out")
    if options.simulate_sites is None and not options.dry_run:
        superlink_address(options)


def check_federated_config(options: TrainOptions, config: RunConfig) -> None:
    """Refuse a run that makes sense in one process alone, or has another number of clients than of sites."""
    if not is_federated(options):
        return
    method = config.method
    if method.is_centralized:
        raise RequestError(f"{method.title} pools the clients' data, which no site hands over (--engine): use local")
    if config.attack.kind != "none":
        raise RequestError(f"attack.kind {config.attack.kind} is simulated in one process (--engine): use local")
    if config.train.execution == "stacked":
        raise RequestError("clients at sites cannot be stacked (train.execution, --engine): use threads or auto")
    if options.simulate_sites not in (None, config.data.clients):
        raise RequestError(
            f"this setting has {config.data.clients} clients, not {options.simulate_sites} (--simulate-sites): "
            "name as many"
        )
    if options.quorum is not None and options.quorum > (config.train.clients_per_round or config.data.clients or 1):
        raise RequestError(f"a quorum of {options.quorum} is more than all who take part (--quorum): name fewer")


def superlink_address(options: TrainOptions) -> Address:
    """Where our SuperLink listens, and what it shows for itself."""
    from fedmosaic_cli.federation.flower.superlink import SuperLinkAddress as Address
    from fedmosaic_cli.federation.flower.superlink import is_loopback, parse_address

    host, port = parse_address(options.superlink or f"127.0.0.1:{SUPERLINK_PORT}")
    if not is_loopback(host) and not options.allow_unauthenticated_network:
        raise RequestError(
            f"whoever reaches {options.superlink} can run code at every site (--superlink): listen on 127.0.0.1 "
            "behind a proxy (nginx.conf of 'fedmosaic federation init'), or add "
            "--allow-unauthenticated-network on a network that you trust"
        )
    return Address(host, port, None if options.insecure else load_credentials(options, host))


def load_credentials(options: TrainOptions, host: str) -> Credentials:
    """The coordinator's certificates, checked."""
    from fedmosaic_cli.federation.flower.keys import (
        CA_FILE,
        SERVER_CERTIFICATE_FILE,
        SERVER_KEY_FILE,
        check_certificate,
    )
    from fedmosaic_cli.federation.flower.superlink import Credentials

    folder = federation_dir(options)
    if not (folder / SERVER_CERTIFICATE_FILE).is_file():
        raise RequestError(
            f"no certificates here (--federation {folder}): make them with 'fedmosaic federation init --host NAME'"
        )
    check_certificate(folder / CA_FILE)
    check_certificate(folder / SERVER_CERTIFICATE_FILE)
    return Credentials(folder / CA_FILE, folder / SERVER_CERTIFICATE_FILE, folder / SERVER_KEY_FILE)


def federation_dir(options: TrainOptions) -> Path:
    return options.federation or Path("federation")


def client_public_keys(options: TrainOptions, num_clients: int) -> dict[int, Path | None]:
    """Whose letters are read: each client's public key, as its site sent it."""
    if options.insecure:
        return dict.fromkeys(range(num_clients))
    folder = federation_dir(options) / KEYS_DIR
    keys = {client: folder / f"{node_name(client)}.pub" for client in range(num_clients)}
    missing = [path.name for path in keys.values() if not path.is_file()]
    if missing:
        raise RequestError(
            f"no key of {', '.join(missing[:5])} ({folder}): have the site send what 'fedmosaic site init' made"
        )
    return dict(keys)


class SiteTransports:
    """The way to the sites of all runs of a command: opened when first needed, for each partition once."""

    def __init__(self, options: TrainOptions, data_dirs: DataDirs, exit_stack: ExitStack) -> None:
        self._options = options
        self._data_dirs = data_dirs
        self._exit_stack = exit_stack
        self._transports: dict[str, Transport] = {}

    def coordinator(self, shards: ShardSet) -> RemoteCoordinator | None:
        """The remote federation for these shards; None if clients run in this process."""
        request = self._options
        if not is_federated(request):
            return None
        from fedmosaic_cli.federation.coordinator import RemoteCoordinator

        wait = 600.0 if request.join_timeout is None else request.join_timeout
        return RemoteCoordinator(
            "flower", lambda: self._get_transport(shards), request.quorum, request.round_timeout, wait
        )

    def _get_transport(self, shards: ShardSet) -> AbstractContextManager[Transport]:
        if shards.digest not in self._transports:
            self._transports[shards.digest] = self._exit_stack.enter_context(self._start_transport(shards))
        return nullcontext(self._transports[shards.digest])

    @contextmanager
    def _start_transport(self, shards: ShardSet) -> Iterator[Transport]:
        from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport

        clients = len(shards.manifest["clients"])
        rehearsal = self._options.simulate_sites is not None
        if not self._options.quiet and not self._options.as_json:
            where = (
                f" and {clients} sites on this machine"
                if rehearsal
                else f" at {superlink_address(self._options).host_port}"
            )
            print_stderr(f"starting Flower's SuperLink{where}")
        if rehearsal:
            with start_local_federation(
                shards, self._data_dirs, self._options.insecure, self._options.device.value
            ) as carrier:
                yield carrier
            return
        with FlowerTransport(client_public_keys(self._options, clients), superlink_address(self._options)) as carrier:
            yield carrier
