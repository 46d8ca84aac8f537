"""The one loop: Algorithm 1 of the paper, for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine import channel
from fedmosaic_cli.engine.evaluation import Score, score
from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import FedMosaicError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import Method, Parameters, Received, State, World
    from fedmosaic_cli.engine.workers import Workers
    from fedmosaic_cli.engine.workspace import Workspace


@dataclass(frozen=True)
class Exam:
    """A client's test part, and whose model sits it: the client's own, unless all data is pooled."""

    client: int
    owner: int
    test: Examples


@dataclass
class Session:
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
    workspace: Workspace
    workers: Workers
    session: Session = field(compare=False)


def begin(method: Method, clients: list[SimulatedClient], world: World) -> Session:
    """The state of a run before its first round."""
    for client in clients:
        method.enter(client)
    return Session(clients, method.open(world))


def play(federation: Federation, rounds: int) -> Iterator[Round]:
    """Play on from where the session stands until `rounds` are finished, a round at a time."""
    method, session = federation.method, federation.session
    while session.finished < rounds:
        number = session.finished + 1

        def take_part(client: SimulatedClient, number: int = number) -> tuple[Received, Traffic]:
            client.round = number
            client.notes = {}
            received, bits_down = channel.send(method.broadcast(session.server, client.id, federation.world))
            upload, bits_up = channel.send(method.local_round(client, received, federation.world))
            check_finite(client)
            return upload, Traffic(bits_up, bits_down)

        heard = dict(
            zip((c.id for c in session.clients), federation.workers.map(take_part, session.clients), strict=True)
        )
        uploads = {client: upload for client, (upload, _) in heard.items() if upload}
        session.server = method.aggregate(session.server, uploads, federation.world) if uploads else session.server
        session.finished = number
        yield Round(number, rows(federation, {client: traffic for client, (_, traffic) in heard.items()}))


def personal_models(federation: Federation) -> dict[int, Parameters]:
    """Every client's personal model as it stands, by client."""
    session = federation.session
    return {client.id: federation.method.personal(session.server, client) for client in session.clients}


def rows(federation: Federation, traffic: dict[int, Traffic]) -> list[dict[str, Any]]:
    """Examine everybody, and lay what they noted beside their marks."""
    models, clients = personal_models(federation), {client.id: client for client in federation.session.clients}

    def examine(exam: Exam) -> Score:
        return score(federation.workspace, models[exam.owner], exam.test)

    def row(exam: Exam, mark: Score) -> dict[str, Any]:
        notes = dict(clients[exam.owner].notes)
        return {
            "round": federation.session.finished,
            "client": exam.client,
            "lambda": notes.pop("trust", None),
            "loss_private": notes.pop("loss_private", None),
            "loss_public": notes.pop("loss_public", None),
            "accuracy": mark.accuracy,
            "test_loss": mark.loss,
            "bits_up": traffic[exam.owner].up,
            "bits_down": traffic[exam.owner].down,
            **notes,
        }

    return [
        row(exam, mark)
        for exam, mark in zip(federation.exams, federation.workers.map(examine, federation.exams), strict=True)
    ]


def check_finite(client: SimulatedClient) -> None:
    """Refuse to go on with a model that has diverged: every later number would be noise."""
    for name, value in client.notes.items():
        if not math.isfinite(value):
            raise FedMosaicError(
                f"client {client.id} diverged in round {client.round}: {name} is {value} (train.lr): "
                "lower the learning rate"
            )
