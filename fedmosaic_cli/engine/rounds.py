"""The one loop: Algorithm 1 of the paper, for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.local_pool import LocalClientPool
from fedmosaic_cli.engine.method import ServerLog, Traffic
from fedmosaic_cli.errors import DivergenceError, RunFailedError
from fedmosaic_cli.labels.attacks import UploadDelivery
from fedmosaic_cli.labels.inbox import MISSING
from fedmosaic_cli.labels.label_uploads import apply_attack, receive_uploads
from fedmosaic_cli.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.client_pool import ClientHandle, ClientPool, ClientResult, EvalResult
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
    from fedmosaic_cli.engine.method import FederationInfo, Method, ReceivedMessage, State
    from fedmosaic_cli.labels.attacks import LabelAttack
    from fedmosaic_cli.labels.wire import MessageSpec


@dataclass(frozen=True)
class EvalTask:
    """A client's test part, and whose model sits it: the client's own, unless all data is pooled.

    `validation` is what the client set aside to choose models by, if anything.
    """

    client_id: int
    owner_id: int
    test: Examples
    validation: Examples | None = None


@dataclass
class RunState:
    """Where a run stands: all that the next round depends on, beside the configuration."""

    clients: Sequence[Any]
    """Each an `engine.client_pool.Member`; those in this process can do more."""
    server: State
    finished: int = 0


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round: one row a client, as written to the log."""

    number: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Federation:
    """Everything a method plays with."""

    method: Method
    ctx: FederationInfo
    eval_tasks: list[EvalTask]
    worker_pool: WorkerPool
    state: RunState
    seed: int
    clients_per_round: int
    server_device: torch.device
    """Where the server computes."""
    execution: str
    """How clients are run; see `engine.execution.modes`."""
    skip_diverged: bool = False
    """Whether a client that diverges is left out of the round, instead of being the end of the run."""
    attack: LabelAttack | None = None
    """Clients that do not play by the rules."""
    true_public_labels: torch.Tensor | None = None
    """The public set's labels, where somebody knows them. Nobody who takes part does: they are for the log alone."""
    remote_pool: ClientPool | None = None
    """The clients, where they are not in this process."""
    quorum: int | None = None
    """How many clients must take part in a round for it to count; None is all who were to."""

    @property
    def pool(self) -> ClientPool:
        """The clients."""
        return self.remote_pool or LocalClientPool(self)

    @property
    def client_devices(self) -> list[torch.device]:
        """Where clients compute."""
        return list(dict.fromkeys(client.device for client in self.state.clients))


def init_state(method: Method, clients: list[SimulatedClient], ctx: FederationInfo) -> RunState:
    """The state of a run before its first round."""
    for client in clients:
        method.init_client(client, ctx)
        client.state = params.models_to_device(client.state, client.private.device)
    return RunState(clients, method.init_server(ctx))


def run_rounds(federation: Federation, num_rounds: int) -> Iterator[RoundRecord]:
    """Play on from where the run stands until `rounds` are finished, a round at a time."""
    standing = federation.state
    while standing.finished < num_rounds:
        traffic = run_round(federation)
        standing.finished += 1
        yield RoundRecord(standing.finished, evaluate_round(federation, traffic))


def run_round(federation: Federation) -> dict[int, Traffic]:
    """Let the clients of a round take part, and the server hear them. What it cost each; uploads are let go of."""
    method, world, standing = federation.method, federation.ctx, federation.state
    for client in standing.clients:
        client.begin_round(standing.finished + 1)
    clients = select_clients(federation)
    turns = federation.pool.run_round(clients, lambda client: method.broadcast(standing.server, client, world))
    require_quorum(federation, clients, turns)
    if all(client.is_skipped for client in standing.clients):
        raise DivergenceError(clients[0].id, clients[0].round, "as with everybody else, something")
    uploads = {client: turn.upload for client, turn in turns.items() if turn.upload}
    form = method.message_spec(world)
    if form is not None and uploads:
        uploads = collect_label_uploads(federation, form, uploads)
    if uploads:
        standing.server = method.aggregate(standing.server, uploads, world)
        log_server_metrics(federation, standing.server.pop("told", ServerLog()))
    return {client.id: actual_traffic(client, turns[client.id].traffic) for client in clients if client.id in turns}


def require_quorum(
    federation: Federation, clients: Sequence[ClientHandle], results: Mapping[int, ClientResult]
) -> None:
    """Refuse to go on with too few: as it was after the last round, the run can go on when they are back."""
    needed = min(federation.quorum or len(clients), len(clients))
    if len(results) < needed:
        lost = "; ".join(f"client {c.id}: {c.metrics.get('lost', 'lost')}" for c in clients if c.id not in results)
        raise RunFailedError(
            f"{len(results)} of {len(clients)} clients took part in round {clients[0].round}, {needed} are needed "
            f"(--quorum), {lost}: go on with --resume when they are back"
        )


def actual_traffic(client: ClientHandle, traffic: Traffic) -> Traffic:
    """What a client's part in a round cost: attackers may have kept to themselves what they were to send."""
    return replace(traffic, uplink_bits=0) if client.metrics.get("message") == MISSING else traffic


def collect_label_uploads(
    federation: Federation, spec: MessageSpec, uploads: dict[int, ReceivedMessage]
) -> dict[int, ReceivedMessage]:
    """The opinions that count, of all that clients formed: attackers have had their way, and the server its checks."""
    standing = federation.state
    number, there = standing.finished + 1, select_clients(federation)
    opinions = {client: upload["opinion"] for client, upload in uploads.items()}
    deliveries = [UploadDelivery(client, data) for client, data in opinions.items()]
    if federation.attack is not None:
        consensus = federation.method.pseudo_labels(standing.server)
        deliveries = apply_attack(federation.attack, there, number, opinions, consensus)
    found = receive_uploads(deliveries, spec, federation.ctx, number, [client.id for client in there])
    for client in standing.clients:
        client.log(**found.round_metrics, **found.client_metrics.get(client.id, {}))
    return {ballot.client_id: {"opinion": ballot} for ballot in found.ballots}


def log_server_metrics(federation: Federation, server_log: ServerLog) -> None:
    """Put what the server has to tell on the pages of its clients; and how right labels are, where somebody knows."""
    votes = {
        f"{name}_accuracy": public_label_accuracy(labels, federation)
        for name, labels in server_log.public_labels.items()
    }
    marks = {name: value for name, value in votes.items() if value is not None}
    for client in federation.state.clients:
        client.log(**server_log.round_metrics, **server_log.client_metrics.get(client.id, {}), **marks)


def select_clients(federation: Federation) -> list[SimulatedClient]:
    """Who takes part in the round that comes: everybody, or so many, drawn anew in each. By number: sums and stacks
    are formed in this order."""
    clients, wanted = sorted(federation.state.clients, key=lambda client: client.id), federation.clients_per_round
    if wanted >= len(clients):
        return clients
    stream = torch.Generator().manual_seed(derive_seed(federation.seed, "participants", federation.state.finished + 1))
    drawn = sorted(torch.randperm(len(clients), generator=stream)[:wanted].tolist())
    return [clients[position] for position in drawn]


def evaluate_round(federation: Federation, traffic: dict[int, Traffic]) -> list[dict[str, Any]]:
    """Let everybody sit the exam, and lay the marks beside what happened in the round."""
    client_of = {client.id: client for client in federation.state.clients}
    consensus = pseudo_label_accuracy(federation)
    marks = federation.pool.evaluate(federation.state.server)
    return [
        round_log_row(mark, client_of[mark.owner_id], traffic.get(mark.owner_id, Traffic()), consensus)
        for mark in marks
    ]


def pseudo_label_accuracy(federation: Federation) -> dict[str, float]:
    """How many of the pseudo-labels are right."""
    labels = federation.method.pseudo_labels(federation.state.server)
    known = None if labels is None else public_label_accuracy(labels, federation)
    return {} if known is None else {"pseudo_label_accuracy": known}


def public_label_accuracy(labels: torch.Tensor, federation: Federation) -> float | None:
    """How many labels of the public set are right: an oracle's view, by labels that no client and no server has."""
    truth = federation.true_public_labels
    return None if truth is None else torch.eq(labels.to(truth.device), truth).double().mean().item()


def round_log_row(
    result: EvalResult, client: ClientHandle, traffic: Traffic, consensus_metrics: dict[str, float]
) -> dict[str, Any]:
    """A client's line in the log of a round."""
    if not math.isfinite(result.loss):
        raise DivergenceError(result.owner_id, client.round, "its loss on test examples")
    notes = dict(client.metrics)
    if client.is_skipped:
        notes["left_out"] = 1
    return {
        "round": client.round,
        "client": result.client_id,
        "lambda": notes.pop("trust", None),
        "loss_private": notes.pop("loss_private", None),
        "loss_public": notes.pop("loss_public", None),
        "accuracy": result.accuracy,
        "test_loss": result.loss,
        "bits_up": traffic.uplink_bits,
        "bits_down": traffic.downlink_bits,
        **notes,
        **consensus_metrics,
        **result.extra_metrics,
    }
