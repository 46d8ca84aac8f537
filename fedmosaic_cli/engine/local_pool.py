"""Clients in this process. This is the reference implementation of a client pool."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.client_pool import ClientResult, EvalResult
from fedmosaic_cli.engine.evaluation import evaluate_model, score_logits
from fedmosaic_cli.engine.execution.worker_pool import ClientJob
from fedmosaic_cli.engine.messages import (
    SERVER_ID,
    make_route,
    preview_message,
    require_complete,
    require_declared,
    send_message,
)
from fedmosaic_cli.engine.method import has_prediction_rule
from fedmosaic_cli.engine.round_log import require_loggable
from fedmosaic_cli.engine.traffic import broadcast_traffic, client_traffic
from fedmosaic_cli.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.client_pool import MessageFactory
    from fedmosaic_cli.engine.context import FederationInfo, Message, ReceivedMessage
    from fedmosaic_cli.engine.evaluation import Score
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.federation import EvalTask, Federation
    from fedmosaic_cli.engine.method import Method
    from fedmosaic_cli.engine.server import InProcessServer
    from fedmosaic_cli.engine.traffic import Traffic


@dataclass(frozen=True)
class LocalClientPool:
    """Runs clients in parallel on the workers of a federation. Implements `engine.client_pool.ClientPool`."""

    federation: Federation

    def run_round(self, clients: Sequence[InProcessClient], make_message: MessageFactory) -> dict[int, ClientResult]:
        """Run one local round on each of these clients. No client is ever lost."""
        federation, method, ctx = self.federation, self.federation.method, self.federation.ctx

        def run_client(client: InProcessClient) -> ClientResult:
            to_client = make_route(client.private.device, ctx, client.round, SERVER_ID)
            to_server = make_route(federation.server_device, ctx, client.round, client.id)
            received, bits_down = send_message(make_message(client.id), method.downloads, to_client)
            client_ctx = federation.client_context(client) if federation.client_context else ctx
            message = run_local_round(method, client, received, client_ctx, federation.skip_diverged)
            require_complete(message, method.uploads)
            upload, bits_up = send_message(message, method.uploads, to_server)
            client.release_state()
            return ClientResult(upload, client_traffic(method, client.id, ctx, bits_up, bits_down))

        results = federation.worker_pool.map(run_client, self._jobs(clients))
        return {client.id: result for client, result in zip(clients, results, strict=True)}

    def finalize(self, server: InProcessServer) -> dict[int, Traffic]:
        """Call `Method.finalize` on all clients in parallel."""
        federation, method, ctx = self.federation, self.federation.method, self.federation.ctx
        view = ServerView(federation)

        def finalize(client: InProcessClient) -> Traffic:
            received = view.for_client(client)
            finalize_client(method, client, received, ctx, federation.skip_diverged)
            client.release_state()
            return broadcast_traffic(method, received, client.id, ctx)

        clients = federation.state.clients
        results = federation.worker_pool.map(finalize, self._jobs(clients))
        return {client.id: traffic for client, traffic in zip(clients, results, strict=True)}

    def evaluate(self, server: InProcessServer) -> list[EvalResult]:
        """Evaluate all clients in parallel."""
        federation, received = self.federation, ServerView(self.federation)
        clients = {client.id: client for client in federation.state.clients}

        def evaluate(task: EvalTask) -> EvalResult:
            client = clients[task.owner_id]
            was_stored = client.is_state_stored
            result = evaluate_client(federation.method, client, task, received.for_client(client))
            client.release_state(is_changed=not was_stored)
            return result

        jobs = [
            ClientJob(
                task, len(task.test), clients[task.owner_id].learner.stack_key, task.test.device, client=task.owner_id
            )
            for task in federation.eval_tasks
        ]
        return federation.worker_pool.map(evaluate, jobs)

    def _jobs(self, clients: Sequence[InProcessClient]) -> list[ClientJob[InProcessClient]]:
        return [ClientJob(c, len(c.private), c.learner.stack_key, c.private.device, client=c.id) for c in clients]


class ServerView:
    """What each client would receive from the server now, for evaluations. Nothing is sent or copied without need."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._server = server = federation.state.server
        devices = {client.device for client in federation.state.clients}
        self._states = {device: server.on_device(device) for device in devices}

    def for_client(self, client: InProcessClient) -> ReceivedMessage:
        """Return what `Method.broadcast` would send to a client; {} unless `Needs.broadcast_to_evaluate`."""
        method, ctx = self._federation.method, self._federation.ctx
        if not method.needs.broadcast_to_evaluate:
            return {}
        server = self._server.with_state(self._states[client.device])
        route = make_route(client.device, ctx, self._federation.state.finished + 1, SERVER_ID)
        return preview_message(method.broadcast(server, client.id, ctx), method.downloads, route)


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
    message: Message = {}
    with rollback_diverged(client, skip_diverged):
        message = method.local_round(client, received, ctx)
        require_declared(message, method.uploads)
        require_loggable(client.metrics, "client.log")
        client.require_finite(client.state)
        client.require_finite(message, "upload")
    client.finish_round()
    return {} if client.is_skipped else message


def finalize_client(
    method: Method, client: InProcessClient, received: ReceivedMessage, ctx: FederationInfo, skip_diverged: bool
) -> None:
    """Call `Method.finalize` on a client. A client that diverges keeps its state if `skip_diverged`.

    Values that the round has logged take precedence over those that are logged here.
    """
    logged, client.metrics = client.metrics, {}
    withheld = set(client.withheld_metrics)
    with rollback_diverged(client, skip_diverged):
        method.finalize(client, received, ctx)
        require_loggable(client.metrics, "client.log")
        client.require_finite(client.state)
    client.metrics = {**client.metrics, **logged}
    client.withheld_metrics |= withheld
    client.finish_round()


@contextmanager
def rollback_diverged(client: InProcessClient, skip_diverged: bool) -> Iterator[None]:
    """Restore the state of a client that diverges, if `skip_diverged`. Otherwise the error is raised."""
    state_before = params.copy_state(client.state) if skip_diverged else {}
    try:
        yield
    except DivergenceError:
        if not skip_diverged:
            raise
        client.rollback(state_before)


def evaluate_client(method: Method, client: InProcessClient, task: EvalTask, received: ReceivedMessage) -> EvalResult:
    """Evaluate the personal model of a client and, where the method has one, the global model."""
    personal, shared = method.personal_model(client, received), method.global_model(client, received)

    def score_personal(examples: Examples) -> Score:
        if not has_prediction_rule(method):
            return evaluate_model(client.learner, personal, examples)
        return score_logits(method.predict(personal, client.predictor, examples), examples)

    score = score_personal(task.test)
    extra: dict[str, float] = {}
    if shared is not None:
        is_same = all(shared.get(name) is tensor for name, tensor in personal.items())
        extra["global_accuracy"] = (score if is_same else evaluate_model(client.learner, shared, task.test)).accuracy
    if task.validation is not None:
        extra["val_accuracy"] = score_personal(task.validation).accuracy
    return EvalResult(task.client_id, task.owner_id, score.accuracy, score.loss, extra)
