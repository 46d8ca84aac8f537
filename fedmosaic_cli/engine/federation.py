"""A federation as the loop sees it: method, clients, server state, and how clients are run and evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.local_pool import LocalClientPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.client_pool import ClientPool
    from fedmosaic_cli.engine.context import FederationInfo
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.engine.server import InProcessServer
    from fedmosaic_cli.engine.upload_filters import UploadFilter


@dataclass(frozen=True)
class EvalTask:
    """The test data of a client and the client whose model is evaluated on it.

    Both are the same client, except in centralized training, where client 0 owns the only model.
    """

    client_id: int
    owner_id: int
    test: Examples
    validation: Examples | None = None


@dataclass
class RunState:
    """Everything the next round depends on, besides the configuration. Checkpoints store it."""

    clients: Sequence[Any]
    """One `engine.client_pool.ClientHandle` per client."""
    server: InProcessServer
    finished: int = 0
    """The number of finished rounds; -1 before the initial exchange of a method that has one."""


@dataclass(frozen=True)
class Federation:
    """A method, its clients and its server, ready to run rounds."""

    method: Method
    ctx: FederationInfo
    eval_tasks: list[EvalTask]
    worker_pool: WorkerPool
    state: RunState
    seed: int
    clients_per_round: int
    server_device: torch.device
    execution: str
    """How clients are executed: "threads", "stacked" or both; see `engine.execution`."""
    skip_diverged: bool = False
    """Whether a client that diverges is skipped in the round. Otherwise the run stops."""
    filters: tuple[UploadFilter, ...] = ()
    """The steps between the uploads of a round and `Method.aggregate`, in order."""
    client_context: Callable[[InProcessClient], FederationInfo] | None = None
    """Returns the `FederationInfo` of a client, if it differs from `ctx`. Used for simulated attackers."""
    eval_every: int = 1
    """Rounds between two evaluations."""
    remote_pool: ClientPool | None = None
    """The clients, if they run on remote sites."""

    def is_evaluated(self, round_number: int) -> bool:
        """Return whether clients are evaluated after a round: in every `eval_every`-th round and in the last one."""
        return round_number % self.eval_every == 0 or round_number == self.ctx.num_rounds

    @property
    def pool(self) -> ClientPool:
        """The clients: on remote sites, or in this process."""
        return self.remote_pool or LocalClientPool(self)

    @property
    def client_devices(self) -> list[torch.device]:
        """The devices that clients compute on, without repetition."""
        return list(dict.fromkeys(client.device for client in self.state.clients))


def init_state(
    method: Method,
    clients: list[InProcessClient],
    server: InProcessServer,
    ctx: FederationInfo,
    with_server: bool = True,
) -> RunState:
    """Return the state of a run before its first round. A site has no state of the server."""
    for client in clients:
        method.init_client(client, ctx)
        client.state = params.models_to_device(client.state, client.private.device)
        client.release_state()
    if with_server:
        method.init_server(server, ctx)
    return RunState(clients, server, finished=first_round(method) - 1)


def first_round(method: Method) -> int:
    """Return the number of the first round: 0 for methods with an initial exchange, else 1."""
    return 0 if method.needs.initial_exchange else 1
