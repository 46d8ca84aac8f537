"""`--engine flower`: from the options of a training command to transports to its sites."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.flower.flwr_commands import require_flower
from fedmosaic_cli.federation.flower.nginx import SUPERLINK_PORT
from fedmosaic_cli.federation.flower.superlink import Credentials, SuperLinkAddress, is_loopback, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteCoordinator
    from fedmosaic_cli.federation.transport import Transport
    from fedmosaic_cli.storage.shards import ShardSet

KEYS_DIR = "keys"
DEFAULT_JOIN_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class FlowerOptions:
    """How a training command reaches the sites of its clients. None is the default of an option.

    Attributes:
        superlink: HOST:PORT where the SuperLink listens.
        federation_dir: The directory of `fedmosaic federation init`: certificates, and the sites' public keys.
        simulate_sites: The number of sites to start on this machine.
        quorum: How many clients a round needs.
        round_timeout: Seconds that a round may take.
        join_timeout: Seconds until all sites must have joined.
        insecure: Use neither TLS nor keys.
        allow_unauthenticated_network: Whether the SuperLink may listen on another interface than loopback.
        device: The device of simulated sites.
    """

    superlink: str | None = None
    federation_dir: Path = Path("federation")
    simulate_sites: int | None = None
    quorum: int | None = None
    round_timeout: float | None = None
    join_timeout: float | None = None
    insecure: bool = False
    allow_unauthenticated_network: bool = False
    device: str = "auto"

    def check(self) -> None:
        """Raise `RequestError` if the options are invalid or Flower is not installed."""
        require_flower()
        for option, seconds in (("--round-timeout", self.round_timeout), ("--join-timeout", self.join_timeout)):
            if seconds is not None and not math.isfinite(seconds):
                raise RequestError(f"{seconds} is not a number of seconds ({option}): write one such as 600")

    def check_config(self, config: RunConfig) -> None:
        """Raise `RequestError` if a run needs one process, or its number of clients does not match the options."""
        method, train = config.method, config.train
        if method.needs.pooled_data:
            raise RequestError(
                f"{method.info.title} pools the clients' data, which sites do not share (--engine): use local"
            )
        if method.needs.public_labels:
            raise RequestError(
                f"{method.info.title} knows the labels of the public set, which sites do not (--engine): use local"
            )
        if config.attack.kind != "none":
            raise RequestError(f"attack.kind {config.attack.kind} is simulated in one process (--engine): use local")
        if train.execution == "stacked":
            raise RequestError("clients at sites cannot be stacked (train.execution, --engine): use threads or auto")
        if self.simulate_sites not in (None, config.data.clients):
            raise RequestError(
                f"this setting has {config.data.clients} clients, not {self.simulate_sites} (--simulate-sites): "
                f"use --simulate-sites {config.data.clients}"
            )
        num_participants = train.clients_per_round or config.data.clients or 1
        if self.quorum is not None and self.quorum > num_participants:
            raise RequestError(
                f"a quorum of {self.quorum} is more than the {num_participants} clients of a round (--quorum): "
                "choose a smaller one"
            )

    def superlink_address(self) -> SuperLinkAddress:
        """Return where the SuperLink listens, with checked credentials."""
        host, port = parse_address(self.superlink or f"127.0.0.1:{SUPERLINK_PORT}")
        if not is_loopback(host) and not self.allow_unauthenticated_network:
            raise RequestError(
                f"every machine that reaches {self.superlink} can stop runs and register keys (--superlink): listen on "
                "127.0.0.1 behind a proxy (nginx.conf of 'fedmosaic federation init'), or add "
                "--allow-unauthenticated-network on a network that you trust"
            )
        return SuperLinkAddress(host, port, None if self.insecure else self._load_credentials())

    def _load_credentials(self) -> Credentials:
        from fedmosaic_cli.federation.flower import keys

        folder = self.federation_dir
        if not (folder / keys.SERVER_CERTIFICATE_FILE).is_file():
            raise RequestError(
                f"no certificates here (--federation {folder}): make them with 'fedmosaic federation init --host NAME'"
            )
        keys.check_certificate(folder / keys.CA_FILE)
        keys.check_certificate(folder / keys.SERVER_CERTIFICATE_FILE)
        return Credentials(folder / keys.CA_FILE, folder / keys.SERVER_CERTIFICATE_FILE, folder / keys.SERVER_KEY_FILE)

    def client_public_keys(self, num_clients: int) -> dict[int, Path | None]:
        """Return the path of each client's public key, as its site sent it."""
        if self.insecure:
            return dict.fromkeys(range(num_clients))
        folder = self.federation_dir / KEYS_DIR
        keys: dict[int, Path | None] = {}
        missing = []
        for client in range(num_clients):
            keys[client] = path = folder / f"{node_name(client)}.pub"
            if not path.is_file():
                missing.append(path.name)
        if missing:
            raise RequestError(
                f"no key of {', '.join(missing[:5])} ({folder}): get it from the site, 'fedmosaic site init' makes it"
            )
        return keys


class SiteTransports:
    """The transports of all runs of a command: one per partition, opened when it is first needed.

    Args:
        options: How the sites are reached. None for clients in this process.
        data_dirs: Where the data of simulated sites is.
        exit_stack: Closes the transports.
        on_start: Receives a line of text before a SuperLink is started.
    """

    def __init__(
        self,
        options: FlowerOptions | None,
        data_dirs: DataDirs,
        exit_stack: ExitStack,
        on_start: Callable[[str], None],
    ) -> None:
        self._options = options
        self._data_dirs = data_dirs
        self._exit_stack = exit_stack
        self._on_start = on_start
        self._transports: dict[str, Transport] = {}

    def coordinator(self, shards: ShardSet) -> RemoteCoordinator | None:
        """Return the coordinator of a run with these shards, or None for clients in this process."""
        options = self._options
        if options is None:
            return None
        from fedmosaic_cli.federation.coordinator import RemoteCoordinator

        join_timeout = DEFAULT_JOIN_TIMEOUT_SECONDS if options.join_timeout is None else options.join_timeout
        return RemoteCoordinator(
            "flower", lambda: self._get_transport(options, shards), options.quorum, options.round_timeout, join_timeout
        )

    def _get_transport(self, options: FlowerOptions, shards: ShardSet) -> AbstractContextManager[Transport]:
        if shards.digest not in self._transports:
            self._transports[shards.digest] = self._exit_stack.enter_context(self._start_transport(options, shards))
        return nullcontext(self._transports[shards.digest])

    @contextmanager
    def _start_transport(self, options: FlowerOptions, shards: ShardSet) -> Iterator[Transport]:
        from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport
        from fedmosaic_cli.federation.local_federation import start_local_federation

        num_clients = len(shards.manifest["clients"])
        if options.simulate_sites is not None:
            self._on_start(f"starting Flower's SuperLink and {num_clients} sites on this machine")
            with start_local_federation(shards, self._data_dirs, options.insecure, options.device) as transport:
                yield transport
            return
        address = options.superlink_address()
        self._on_start(f"starting Flower's SuperLink at {address.host_port}")
        with FlowerTransport(options.client_public_keys(num_clients), address) as flower_transport:
            yield flower_transport
