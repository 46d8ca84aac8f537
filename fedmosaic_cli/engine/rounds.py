"""The one loop: Algorithm 1 of the paper, for every method."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.cotraining.wire import SERVER, Envelope
from fedmosaic_cli.engine import channel, params
from fedmosaic_cli.engine.attacks import Delivery
from fedmosaic_cli.engine.evaluation import Score, score
from fedmosaic_cli.engine.exchange import gather, under_attack
from fedmosaic_cli.engine.inbox import MISSING
from fedmosaic_cli.engine.messages import Way
from fedmosaic_cli.engine.method import Told, Traffic
from fedmosaic_cli.engine.workers import Job
from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.seeds import derive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.cotraining.wire import Form
    from fedmosaic_cli.engine.attacks import Attack
    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import Method, Received, State, World
    from fedmosaic_cli.engine.workers import Workers


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

    clients: list[SimulatedClient]
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
    """How clients are run; see `engine.execution`."""
    skips: bool = False
    """Whether a client that diverges is left out of the round, instead of being the end of the run."""
    attack: Attack | None = None
    """Clients that do not play by the rules."""
    public_truth: torch.Tensor | None = None
    """The public set's labels, where somebody knows them. Nobody who takes part does: they are for the log alone."""

    @property
    def devices(self) -> list[torch.device]:
        """Where clients compute."""
        return list(dict.fromkeys(client.private.device for client in self.standing.clients))


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
    method, world, standing, attack = federation.method, federation.world, federation.standing, federation.attack

    def take_part(client: SimulatedClient) -> tuple[Received, Traffic]:
        seen = world if attack is None else attack.seen_by(client.id, client.round, world)
        answer = method.broadcast(standing.server, client.id, world)
        received, bits_down = channel.send(answer, way(client.private.device, world, client.round, SERVER))
        before = copy.deepcopy(client.state) if federation.skips else {}
        try:
            message = method.local_round(client, received, seen)
            client.check(client.state)
            upload, bits_up = channel.send(message, way(federation.device, world, client.round, client.id))
            client.check(upload)
        except DivergenceError:
            if not federation.skips:
                raise
            upload, bits_up = {}, 0
            client.leave_out(before)
        client.end_turn()
        # Pooling moves the raw data itself: that is no message, and 0 bits would flatter it.
        return upload, Traffic(None, None) if method.pooled else Traffic(bits_up, bits_down)

    for client in standing.clients:
        client.begin_round(standing.finished + 1)
    clients = participants(federation)
    jobs = [Job(client, len(client.private), client.learner.team, client.private.device) for client in clients]
    turns = dict(zip((client.id for client in clients), federation.workers.map(take_part, jobs), strict=True))
    if all(client.left_out for client in standing.clients):
        raise DivergenceError(clients[0].id, clients[0].round, "as with everybody else, something")
    uploads = {client: upload for client, (upload, _) in turns.items() if upload}
    form = method.opinion_form(world)
    if form is not None and uploads:
        uploads = exchanged(federation, form, uploads)
    if uploads:
        standing.server = method.aggregate(standing.server, uploads, world)
        tell(federation, standing.server.pop("told", Told()))
    return {client.id: sent_by(client, turns[client.id][1]) for client in clients}


def sent_by(client: SimulatedClient, traffic: Traffic) -> Traffic:
    """What a client's part in a round cost: attackers may have kept to themselves what they were to send."""
    return replace(traffic, up=0) if client.notes.get("message") == MISSING else traffic


def way(device: torch.device, world: World, number: int, sender: int) -> Way:
    """The way of a message that `sender` sends in a round to somebody who computes on `device`."""
    return Way(device, Envelope(world.run, world.public, number, sender))


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
    method, seen_from = federation.method, servers_by_device(federation)
    client_of = {client.id: client for client in federation.standing.clients}
    consensus = pseudo_label_accuracy(federation)

    def sit(exam: Exam) -> dict[str, Any]:
        client = client_of[exam.owner]
        server = seen_from[client.private.device]
        personal, shared = method.personal(server, client), method.global_model(server, client)
        mark = score(client.learner, personal, exam.test)
        extra = dict(consensus)
        if shared is not None:
            same = all(shared[name] is tensor for name, tensor in personal.items())
            extra["global_accuracy"] = (mark if same else score(client.learner, shared, exam.test)).accuracy
        if exam.validation is not None:
            extra["val_accuracy"] = score(client.learner, personal, exam.validation).accuracy
        return row(exam, client, mark, traffic.get(client.id, Traffic()), extra)

    learners = [client_of[exam.owner].learner for exam in federation.exams]
    pairs = zip(federation.exams, learners, strict=True)
    return federation.workers.map(sit, [Job(exam, len(exam.test), each.team, exam.test.device) for exam, each in pairs])


def pseudo_label_accuracy(federation: Federation) -> dict[str, float]:
    """How many of the pseudo-labels are right."""
    labels = federation.method.pseudo_labels(federation.standing.server)
    known = None if labels is None else accuracy_of(labels, federation)
    return {} if known is None else {"pseudo_label_accuracy": known}


def accuracy_of(labels: torch.Tensor, federation: Federation) -> float | None:
    """How many labels of the public set are right: an oracle's view, by labels that no client and no server has."""
    truth = federation.public_truth
    return None if truth is None else torch.eq(labels.to(truth.device), truth).double().mean().item()


def servers_by_device(federation: Federation) -> dict[torch.device, State]:
    """The server's state as clients on each device would see it; where it is already, that is the state itself."""
    standing, home = federation.standing, federation.device
    devices = {client.private.device for client in standing.clients} - {home}
    return {home: standing.server, **{device: params.models_on(standing.server, device) for device in devices}}


def row(exam: Exam, client: SimulatedClient, mark: Score, traffic: Traffic, extra: dict[str, float]) -> dict[str, Any]:
    """A client's line in the log of a round."""
    if not math.isfinite(mark.loss):
        raise DivergenceError(exam.owner, client.round, "its loss on test examples")
    notes = dict(client.notes)
    if client.left_out:
        notes["left_out"] = 1
    return {
        "round": client.round,
        "client": exam.client,
        "lambda": notes.pop("trust", None),
        "loss_private": notes.pop("loss_private", None),
        "loss_public": notes.pop("loss_public", None),
        "accuracy": mark.accuracy,
        "test_loss": mark.loss,
        "bits_up": traffic.up,
        "bits_down": traffic.down,
        **notes,
        **extra,
    }
