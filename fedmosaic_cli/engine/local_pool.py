"""Clients in this process. This is the reference implementation of a client pool."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.client_pool import ClientResult, EvalResult
from fedmosaic_cli.engine.evaluation import evaluate_model
from fedmosaic_cli.engine.execution.worker_pool import ClientJob
from fedmosaic_cli.engine.messages import SERVER_ID, Weights, make_route, send_message
from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.client_pool import MessageFactory
    from fedmosaic_cli.engine.federation import EvalTask, Federation
    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import FederationInfo, Method, ReceivedMessage, State


@dataclass(frozen=True)
class LocalClientPool:
    """Runs clients in parallel on the workers of a federation. Implements `engine.client_pool.ClientPool`."""

    federation: Federation

    def run_round(self, clients: Sequence[InProcessClient], make_message: MessageFactory) -> dict[int, ClientResult]:
        """Run one local round on each of these clients. No client is ever lost."""
        federation, ctx = self.federation, self.federation.ctx

        def run_client(client: InProcessClient) -> ClientResult:
            to_client = make_route(client.private.device, ctx, client.round, SERVER_ID)
            to_server = make_route(federation.server_device, ctx, client.round, client.id)
            received, bits_down = send_message(make_message(client.id), to_client)
            client_ctx = federation.client_context(client) if federation.client_context else ctx
            message = run_local_round(federation.method, client, received, client_ctx, federation.skip_diverged)
            upload, bits_up = send_message(message, to_server)
            # Centralized training moves the raw data, which is not a message: 0 bits would be misleading.
            traffic = Traffic(None, None) if federation.method.is_centralized else Traffic(bits_up, bits_down)
            return ClientResult(upload, traffic)

        jobs = [ClientJob(c, len(c.private), c.learner.stack_key, c.private.device) for c in clients]
        results = federation.worker_pool.map(run_client, jobs)
        return {client.id: result for client, result in zip(clients, results, strict=True)}

    def evaluate(self, server: State) -> list[EvalResult]:
        """Evaluate all clients in parallel."""
        federation, server_states = self.federation, server_state_by_device(self.federation)
        clients = {client.id: client for client in federation.state.clients}

        def evaluate(task: EvalTask) -> EvalResult:
            client = clients[task.owner_id]
            return evaluate_client(federation.method, client, task, server_states[client.private.device])

        jobs = [
            ClientJob(task, len(task.test), clients[task.owner_id].learner.stack_key, task.test.device)
            for task in federation.eval_tasks
        ]
        return federation.worker_pool.map(evaluate, jobs)


def run_local_round(
    method: Method, client: InProcessClient, received: ReceivedMessage, ctx: FederationInfo, skip_diverged: bool
) -> Message:
    """Run a client's local round and return its message.

    Args:
        method: The method.
        client: The client; its state is updated.
        received: The server's message.
        ctx: What the client knows about the federation.
        skip_diverged: Roll back a client that diverges and return an empty message, instead of raising.

    Raises:
        DivergenceError: The client diverged and `skip_diverged` is False.
    """
    state_before = copy.deepcopy(client.state) if skip_diverged else {}
    try:
        message = method.local_round(client, received, ctx)
        client.require_finite(client.state)
        client.require_finite({name: part.values for name, part in message.items() if isinstance(part, Weights)})
    except DivergenceError:
        if not skip_diverged:
            raise
        message = {}
        client.rollback(state_before)
    client.finish_round()
    return message


def evaluate_client(method: Method, client: InProcessClient, task: EvalTask, server: State) -> EvalResult:
    """Evaluate the personal model of a client and, where the method has one, the global model."""
    personal, shared = method.personal_model(server, client), method.global_model(server, client)
    score = evaluate_model(client.learner, personal, task.test)
    extra: dict[str, float] = {}
    if shared is not None:
        is_same = all(shared[name] is tensor for name, tensor in personal.items())
        extra["global_accuracy"] = (score if is_same else evaluate_model(client.learner, shared, task.test)).accuracy
    if task.validation is not None:
        extra["val_accuracy"] = evaluate_model(client.learner, personal, task.validation).accuracy
    return EvalResult(task.client_id, task.owner_id, score.accuracy, score.loss, extra)


def server_state_by_device(federation: Federation) -> dict[torch.device, State]:
    """Return the server state for clients on each device. On the server's device it is the state itself, not a copy."""
    server, home = federation.state.server, federation.server_device
    devices = {client.device for client in federation.state.clients} - {home}
    return {home: server, **{device: params.models_to_device(server, device) for device in devices}}
