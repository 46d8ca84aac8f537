"""The one loop: Algorithm 1 of the paper, for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.local_pool import Present
from fedmosaic_cli.engine.method import Told, Traffic
from fedmosaic_cli.errors import DivergenceError, FailedRunError
from fedmosaic_cli.labels.attacks import Delivery
from fedmosaic_cli.labels.inbox import MISSING
from fedmosaic_cli.labels.label_uploads import gather, under_attack
from fedmosaic_cli.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.client_pool import Company, Mark, Member, Turn
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.execution.worker_pool import Workers
    from fedmosaic_cli.engine.method import Method, Received, State, World
    from fedmosaic_cli.labels.attacks import Attack
    from fedmosaic_cli.labels.wire import Form


@dataclass(frozen=True)
class Exam:
    """A client's test part, and whose model sits it: the client's own, unless all data is pooled.

    `validation` is what the client set aside to choose models by, if anything.
    """

    client: int
    owner: int
    test: Examples
    validation: Examples | None = None


@dataclass
class Standing:
    """Where a run stands: all that the next round depends on, beside the configuration."""

    clients: Sequence[Any]
    """Each an `engine.client_pool.Member`; those in this process can do more."""
    server: State
    finished: int = 0


@dataclass(frozen=True)
class Round:
    """What happened in a round: one row a client, as written to the log."""

    number: int
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Federation:
    """Everything a method plays with."""

    method: Method
    world: World
    exams: list[Exam]
    workers: Workers
    standing: Standing
    seed: int
    clients_per_round: int
    device: torch.device
    """Where the server computes."""
    execution: str
    """How clients are run; see `engine.execution.modes`."""
    skips: bool = False
    """Whether a client that diverges is left out of the round, instead of being the end of the run."""
    attack: Attack | None = None
    """Clients that do not play by the rules."""
    public_truth: torch.Tensor | None = None
    """The public set's labels, where somebody knows them. Nobody who takes part does: they are for the log alone."""
    elsewhere: Company | None = None
    """The clients, where they are not in this process."""
    quorum: int | None = None
    """How many clients must take part in a round for it to count; None is all who were to."""

    @property
    def company(self) -> Company:
        """The clients."""
        return self.elsewhere or Present(self)

    @property
    def devices(self) -> list[torch.device]:
        """Where clients compute."""
        return list(dict.fromkeys(client.device for client in self.standing.clients))


def begin(method: Method, clients: list[SimulatedClient], world: World) -> Standing:
    """The state of a run before its first round."""
    for client in clients:
        method.enter(client, world)
        client.state = params.models_on(client.state, client.private.device)
    return Standing(clients, method.open(world))


def play(federation: Federation, rounds: int) -> Iterator[Round]:
    """Play on from where the run stands until `rounds` are finished, a round at a time."""
    standing = federation.standing
    while standing.finished < rounds:
        traffic = play_round(federation)
        standing.finished += 1
        yield Round(standing.finished, examine(federation, traffic))


def play_round(federation: Federation) -> dict[int, Traffic]:
    """Let the clients of a round take part, and the server hear them. What it cost each; uploads are let go of."""
    method, world, standing = federation.method, federation.world, federation.standing
    for client in standing.clients:
        client.begin_round(standing.finished + 1)
    clients = participants(federation)
    turns = federation.company.turns(clients, lambda client: method.broadcast(standing.server, client, world))
    check_quorum(federation, clients, turns)
    if all(client.left_out for client in standing.clients):
        raise DivergenceError(clients[0].id, clients[0].round, "as with everybody else, something")
    uploads = {client: turn.upload for client, turn in turns.items() if turn.upload}
    form = method.opinion_form(world)
    if form is not None and uploads:
        uploads = exchanged(federation, form, uploads)
    if uploads:
        standing.server = method.aggregate(standing.server, uploads, world)
        tell(federation, standing.server.pop("told", Told()))
    return {client.id: sent_by(client, turns[client.id].traffic) for client in clients if client.id in turns}


def check_quorum(federation: Federation, clients: Sequence[Member], turns: Mapping[int, Turn]) -> None:
    """Refuse to go on with too few: as it was after the last round, the run can go on when they are back."""
    needed = min(federation.quorum or len(clients), len(clients))
    if len(turns) < needed:
        lost = "; ".join(f"client {c.id}: {c.notes.get('lost', 'lost')}" for c in clients if c.id not in turns)
        raise FailedRunError(
            f"{len(turns)} of {len(clients)} clients took part in round {clients[0].round}, {needed} are needed "
            f"(--quorum), {lost}: go on with --resume when they are back"
        )


def sent_by(client: Member, traffic: Traffic) -> Traffic:
    """What a client's part in a round cost: attackers may have kept to themselves what they were to send."""
    return replace(traffic, up=0) if client.notes.get("message") == MISSING else traffic


def exchanged(federation: Federation, form: Form, uploads: dict[int, Received]) -> dict[int, Received]:
    """The opinions that count, of all that clients formed: attackers have had their way, and the server its checks."""
    standing = federation.standing
    number, there = standing.finished + 1, participants(federation)
    opinions = {client: upload["opinion"] for client, upload in uploads.items()}
    deliveries = [Delivery(client, data) for client, data in opinions.items()]
    if federation.attack is not None:
        consensus = federation.method.pseudo_labels(standing.server)
        deliveries = under_attack(federation.attack, there, number, opinions, consensus)
    found = gather(deliveries, form, federation.world, number, [client.id for client in there])
    for client in standing.clients:
        client.note(**found.told, **found.messages.get(client.id, {}))
    return {ballot.client: {"opinion": ballot} for ballot in found.ballots}


def tell(federation: Federation, told: Told) -> None:
    """Put what the server has to tell on the pages of its clients; and how right labels are, where somebody knows."""
    votes = {f"{name}_accuracy": accuracy_of(labels, federation) for name, labels in told.labels.items()}
    marks = {name: value for name, value in votes.items() if value is not None}
    for client in federation.standing.clients:
        client.note(**told.everybody, **told.clients.get(client.id, {}), **marks)


def participants(federation: Federation) -> list[SimulatedClient]:
    """Who takes part in the round that comes: everybody, or so many, drawn anew in each. By number: sums and stacks
    are formed in this order."""
    clients, wanted = sorted(federation.standing.clients, key=lambda client: client.id), federation.clients_per_round
    if wanted >= len(clients):
        return clients
    stream = torch.Generator().manual_seed(derive(federation.seed, "participants", federation.standing.finished + 1))
    drawn = sorted(torch.randperm(len(clients), generator=stream)[:wanted].tolist())
    return [clients[position] for position in drawn]


def examine(federation: Federation, traffic: dict[int, Traffic]) -> list[dict[str, Any]]:
    """Let everybody sit the exam, and lay the marks beside what happened in the round."""
    client_of = {client.id: client for client in federation.standing.clients}
    consensus = pseudo_label_accuracy(federation)
    marks = federation.company.marks(federation.standing.server)
    return [row(mark, client_of[mark.owner], traffic.get(mark.owner, Traffic()), consensus) for mark in marks]


def pseudo_label_accuracy(federation: Federation) -> dict[str, float]:
    """How many of the pseudo-labels are right."""
    labels = federation.method.pseudo_labels(federation.standing.server)
    known = None if labels is None else accuracy_of(labels, federation)
    return {} if known is None else {"pseudo_label_accuracy": known}


def accuracy_of(labels: torch.Tensor, federation: Federation) -> float | None:
    """How many labels of the public set are right: an oracle's view, by labels that no client and no server has."""
    truth = federation.public_truth
    return None if truth is None else torch.eq(labels.to(truth.device), truth).double().mean().item()


def row(mark: Mark, client: Member, traffic: Traffic, consensus: dict[str, float]) -> dict[str, Any]:
    """A client's line in the log of a round."""
    if not math.isfinite(mark.loss):
        raise DivergenceError(mark.owner, client.round, "its loss on test examples")
    notes = dict(client.notes)
    if client.left_out:
        notes["left_out"] = 1
    return {
        "round": client.round,
        "client": mark.client,
        "lambda": notes.pop("trust", None),
        "loss_private": notes.pop("loss_private", None),
        "loss_public": notes.pop("loss_public", None),
        "accuracy": mark.accuracy,
        "test_loss": mark.loss,
        "bits_up": traffic.up,
        "bits_down": traffic.down,
        **notes,
        **consensus,
        **mark.extra,
    }
