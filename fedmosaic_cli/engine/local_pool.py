"""Clients that are in this process: the reference for all others."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.engine import channel, params
from fedmosaic_cli.engine.client_pool import ClientResult, EvalResult
from fedmosaic_cli.engine.evaluation import evaluate_model
from fedmosaic_cli.engine.execution.worker_pool import ClientJob
from fedmosaic_cli.engine.messages import Route, Weights
from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.labels.wire import SERVER_ID, MessageHeader

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.client_pool import MessageFactory
    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import FederationInfo, Method, ReceivedMessage, State
    from fedmosaic_cli.engine.rounds import EvalTask, Federation


@dataclass(frozen=True)
class LocalClientPool:
    """Implements `engine.client_pool.Company`: clients run side by side on the workers of a federation."""

    federation: Federation

    def run_round(self, clients: Sequence[SimulatedClient], make_message: MessageFactory) -> dict[int, ClientResult]:
        """Nobody is ever lost here."""
        federation = self.federation
        method, world, attack = federation.method, federation.ctx, federation.attack

        def take_turn(client: SimulatedClient) -> ClientResult:
            seen = world if attack is None else attack.context_for_client(client.id, client.round, world)
            received, bits_down = channel.send_message(
                make_message(client.id), make_route(client.private.device, world, client.round, SERVER_ID)
            )
            message = run_local_round(method, client, received, seen, federation.skip_diverged)
            upload, bits_up = channel.send_message(
                message, make_route(federation.server_device, world, client.round, client.id)
            )
            # Pooling moves the raw data itself: that is no message, and 0 bits would flatter it.
            return ClientResult(upload, Traffic(None, None) if method.is_centralized else Traffic(bits_up, bits_down))

        jobs = [
            ClientJob(client, len(client.private), client.learner.stack_key, client.private.device)
            for client in clients
        ]
        return dict(zip((client.id for client in clients), federation.worker_pool.map(take_turn, jobs), strict=True))

    def evaluate(self, server: State) -> list[EvalResult]:
        federation, seen_from = self.federation, server_state_by_device(self.federation)
        client_of = {client.id: client for client in federation.state.clients}

        def sit(exam: EvalTask) -> EvalResult:
            client = client_of[exam.owner_id]
            return evaluate_client(federation.method, client, exam, seen_from[client.private.device])

        learners = [client_of[exam.owner_id].learner for exam in federation.eval_tasks]
        pairs = zip(federation.eval_tasks, learners, strict=True)
        jobs = [ClientJob(exam, len(exam.test), each.stack_key, exam.test.device) for exam, each in pairs]
        return federation.worker_pool.map(sit, jobs)


def make_route(device: torch.device, ctx: FederationInfo, round_number: int, sender: int) -> Route:
    """The way of a message that `sender` sends in a round to somebody who computes on `device`."""
    return Route(device, MessageHeader(ctx.run_id, ctx.public_set_id, round_number, sender))


def run_local_round(
    method: Method, client: SimulatedClient, received: ReceivedMessage, ctx: FederationInfo, skip_diverged: bool
) -> Message:
    """What a client has to send after its part in a round; nothing where it diverged and such clients are skipped."""
    before = copy.deepcopy(client.state) if skip_diverged else {}
    try:
        message = method.local_round(client, received, ctx)
        client.require_finite(client.state)
        client.require_finite({name: part.values for name, part in message.items() if isinstance(part, Weights)})
    except DivergenceError:
        if not skip_diverged:
            raise
        message = {}
        client.rollback(before)
    client.finish_round()
    return message


def evaluate_client(method: Method, client: SimulatedClient, task: EvalTask, server: State) -> EvalResult:
    """How the exam goes for a client that sees this of the server."""
    personal, shared = method.personal_model(server, client), method.global_model(server, client)
    mark = evaluate_model(client.learner, personal, task.test)
    extra: dict[str, float] = {}
    if shared is not None:
        same = all(shared[name] is tensor for name, tensor in personal.items())
        extra["global_accuracy"] = (mark if same else evaluate_model(client.learner, shared, task.test)).accuracy
    if task.validation is not None:
        extra["val_accuracy"] = evaluate_model(client.learner, personal, task.validation).accuracy
    return EvalResult(task.client_id, task.owner_id, mark.accuracy, mark.loss, extra)


def server_state_by_device(federation: Federation) -> dict[torch.device, State]:
    """The server's state as clients on each device would see it; where it is already, that is the state itself."""
    standing, home = federation.state, federation.server_device
    devices = {client.device for client in standing.clients} - {home}
    return {home: standing.server, **{device: params.models_to_device(standing.server, device) for device in devices}}
