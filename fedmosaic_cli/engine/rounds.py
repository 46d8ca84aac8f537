"""The one loop: Algorithm 1 of the paper, for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine import channel
from fedmosaic_cli.engine.client import diverged
from fedmosaic_cli.engine.evaluation import Score, score
from fedmosaic_cli.engine.method import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import Method, Parameters, Received, State, World
    from fedmosaic_cli.engine.workers import Workers
    from fedmosaic_cli.engine.workspace import Workspace


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
class Turn:
    """A client's part in a round."""

    client: SimulatedClient
    upload: Received
    traffic: Traffic


@dataclass(frozen=True)
class Federation:
    """Everything a method plays with."""

    method: Method
    world: World
    exams: list[Exam]
    workspace: Workspace
    workers: Workers
    standing: Standing


def begin(method: Method, clients: list[SimulatedClient], world: World) -> Standing:
    """The state of a run before its first round."""
    for client in clients:
        method.enter(client)
    return Standing(clients, method.open(world))


def play(federation: Federation, rounds: int) -> Iterator[Round]:
    """Play on from where the run stands until `rounds` are finished, a round at a time."""
    method, world, standing = federation.method, federation.world, federation.standing

    def take_part(client: SimulatedClient) -> Turn:
        client.begin_round(standing.finished + 1)
        received, bits_down = channel.send(method.broadcast(standing.server, client.id, world))
        upload, bits_up = channel.send(method.local_round(client, received, world))
        # Pooling moves the raw data itself: that is no message, and 0 bits would flatter it.
        return Turn(client, upload, Traffic(None, None) if method.pooled else Traffic(bits_up, bits_down))

    while standing.finished < rounds:
        turns = federation.workers.map(take_part, standing.clients)
        uploads = {turn.client.id: turn.upload for turn in turns if turn.upload}
        if uploads:
            standing.server = method.aggregate(standing.server, uploads, world)
        standing.finished += 1
        yield Round(standing.finished, examine(federation, turns))


def personal_models(federation: Federation) -> dict[int, Parameters]:
    """Every client's personal model as it stands, by client."""
    standing = federation.standing
    return {client.id: federation.method.personal(standing.server, client) for client in standing.clients}


def examine(federation: Federation, turns: list[Turn]) -> list[dict[str, Any]]:
    """Let everybody sit the exam, and lay the marks beside what happened in the round."""
    models = personal_models(federation)
    turn_of = {turn.client.id: turn for turn in turns}

    def sit(exam: Exam) -> list[Score]:
        papers = [exam.test] if exam.validation is None else [exam.test, exam.validation]
        return [score(federation.workspace, models[exam.owner], paper) for paper in papers]

    marks = federation.workers.map(sit, federation.exams)
    return [row(exam, *both, turn=turn_of[exam.owner]) for exam, both in zip(federation.exams, marks, strict=True)]


def row(exam: Exam, mark: Score, validation: Score | None = None, *, turn: Turn) -> dict[str, Any]:
    """A client's line in the log of a round."""
    notes = dict(turn.client.notes)
    if validation is not None:
        notes["val_accuracy"] = validation.accuracy
    if not math.isfinite(mark.loss):
        raise diverged(exam.owner, turn.client.round)
    return {
        "round": turn.client.round,
        "client": exam.client,
        "lambda": notes.pop("trust", None),
        "loss_private": notes.pop("loss_private", None),
        "loss_public": notes.pop("loss_public", None),
        "accuracy": mark.accuracy,
        "test_loss": mark.loss,
        "bits_up": turn.traffic.up,
        "bits_down": turn.traffic.down,
        **notes,
    }
