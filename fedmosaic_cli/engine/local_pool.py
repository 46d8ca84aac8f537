"""Clients that are in this process: the reference for all others."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.engine import channel, params
from fedmosaic_cli.engine.client_pool import Mark, Turn
from fedmosaic_cli.engine.evaluation import score
from fedmosaic_cli.engine.execution.worker_pool import Job
from fedmosaic_cli.engine.messages import Way, Weights
from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.labels.wire import SERVER, Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.client_pool import Letter
    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Method, Received, State, World
    from fedmosaic_cli.engine.rounds import Exam, Federation


@dataclass(frozen=True)
class Present:
    """Implements `engine.client_pool.Company`: clients run side by side on the workers of a federation."""

    federation: Federation

    def turns(self, clients: Sequence[SimulatedClient], letter: Letter) -> dict[int, Turn]:
        """Nobody is ever lost here."""
        federation = self.federation
        method, world, attack = federation.method, federation.world, federation.attack

        def take_turn(client: SimulatedClient) -> Turn:
            seen = world if attack is None else attack.seen_by(client.id, client.round, world)
            received, bits_down = channel.send(
                letter(client.id), way(client.private.device, world, client.round, SERVER)
            )
            message = part_in(method, client, received, seen, federation.skips)
            upload, bits_up = channel.send(message, way(federation.device, world, client.round, client.id))
            # Pooling moves the raw data itself: that is no message, and 0 bits would flatter it.
            return Turn(upload, Traffic(None, None) if method.pooled else Traffic(bits_up, bits_down))

        jobs = [Job(client, len(client.private), client.learner.team, client.private.device) for client in clients]
        return dict(zip((client.id for client in clients), federation.workers.map(take_turn, jobs), strict=True))

    def marks(self, server: State) -> list[Mark]:
        federation, seen_from = self.federation, servers_by_device(self.federation)
        client_of = {client.id: client for client in federation.standing.clients}

        def sit(exam: Exam) -> Mark:
            client = client_of[exam.owner]
            return examined(federation.method, client, exam, seen_from[client.private.device])

        learners = [client_of[exam.owner].learner for exam in federation.exams]
        pairs = zip(federation.exams, learners, strict=True)
        jobs = [Job(exam, len(exam.test), each.team, exam.test.device) for exam, each in pairs]
        return federation.workers.map(sit, jobs)


def way(device: torch.device, world: World, number: int, sender: int) -> Way:
    """The way of a message that `sender` sends in a round to somebody who computes on `device`."""
    return Way(device, Envelope(world.run, world.public, number, sender))


def part_in(method: Method, client: SimulatedClient, received: Received, world: World, skips: bool) -> Message:
    """What a client has to send after its part in a round; nothing where it diverged and such clients are skipped."""
    before = copy.deepcopy(client.state) if skips else {}
    try:
        message = method.local_round(client, received, world)
        client.check(client.state)
        client.check({name: part.values for name, part in message.items() if isinstance(part, Weights)})
    except DivergenceError:
        if not skips:
            raise
        message = {}
        client.leave_out(before)
    client.end_turn()
    return message


def examined(method: Method, client: SimulatedClient, exam: Exam, server: State) -> Mark:
    """How the exam goes for a client that sees this of the server."""
    personal, shared = method.personal(server, client), method.global_model(server, client)
    mark = score(client.learner, personal, exam.test)
    extra: dict[str, float] = {}
    if shared is not None:
        same = all(shared[name] is tensor for name, tensor in personal.items())
        extra["global_accuracy"] = (mark if same else score(client.learner, shared, exam.test)).accuracy
    if exam.validation is not None:
        extra["val_accuracy"] = score(client.learner, personal, exam.validation).accuracy
    return Mark(exam.client, exam.owner, mark.accuracy, mark.loss, extra)


def servers_by_device(federation: Federation) -> dict[torch.device, State]:
    """The server's state as clients on each device would see it; where it is already, that is the state itself."""
    standing, home = federation.standing, federation.device
    devices = {client.device for client in standing.clients} - {home}
    return {home: standing.server, **{device: params.models_on(standing.server, device) for device in devices}}
