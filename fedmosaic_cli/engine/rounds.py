"""The training loop: Algorithm 1 of the paper, shared by all methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine.client_pool import EvalResult
from fedmosaic_cli.engine.method import has_finalize
from fedmosaic_cli.engine.round_log import add_traffic, log_row
from fedmosaic_cli.engine.traffic import Traffic
from fedmosaic_cli.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.engine.client_pool import ClientHandle, ClientResult
    from fedmosaic_cli.engine.federation import Federation


@dataclass(frozen=True)
class RoundRecord:
    """A finished round: its number, and one log row per client."""

    number: int
    rows: list[dict[str, Any]]


def run_rounds(federation: Federation, num_rounds: int) -> Iterator[RoundRecord]:
    """Run the remaining rounds, up to `num_rounds` in total, and yield each one when it is finished."""
    while federation.state.finished < num_rounds:
        yield run_round(federation)


def run_round(federation: Federation) -> RoundRecord:
    """Run one communication round: broadcast, local training, aggregation, evaluation."""
    state = federation.state
    initial = exchange(federation, 0) if state.finished < 0 else {}
    number = max(state.finished, 0) + 1
    results = add_traffic(exchange(federation, number), {c: result.traffic for c, result in initial.items()})
    state.finished = number
    if number == federation.ctx.num_rounds and has_finalize(federation.method):
        results = add_traffic(results, federation.pool.finalize(state.server))
    return RoundRecord(number, evaluate_round(federation, results))


def exchange(federation: Federation, number: int) -> dict[int, ClientResult]:
    """Run the clients of a round and aggregate their uploads. Round 0 is an exchange before the first round."""
    method, state, ctx = federation.method, federation.state, federation.ctx
    for participant in (state.server, *state.clients):
        participant.begin_round(number)
    clients = select_clients(federation) if number else sorted(state.clients, key=lambda client: client.id)
    results = federation.pool.run_round(clients, lambda client_id: method.broadcast(state.server, client_id, ctx))
    for upload_filter in federation.filters:
        results = upload_filter.apply(federation, clients, results)
    uploads = {client_id: result.upload for client_id, result in results.items() if result.upload}
    if uploads:
        method.aggregate(state.server, uploads, ctx)
        state.server.finish_round()
    for upload_filter in federation.filters:
        upload_filter.after_aggregate(federation)
    return results


def select_clients(federation: Federation) -> list[ClientHandle]:
    """Select the clients of the next round, sorted by id: all of them, or a random sample."""
    clients = sorted(federation.state.clients, key=lambda client: client.id)
    if federation.clients_per_round >= len(clients):
        return clients
    seed = derive_seed(federation.seed, "participants", federation.state.finished + 1)
    order = torch.randperm(len(clients), generator=torch.Generator().manual_seed(seed))
    return [clients[position] for position in sorted(order[: federation.clients_per_round].tolist())]


def evaluate_round(federation: Federation, results: dict[int, ClientResult]) -> list[dict[str, Any]]:
    """Evaluate all clients, if this round is evaluated, and merge the metrics with this round's log entries."""
    shared: dict[str, Any] = dict(federation.state.server.metrics)
    for upload_filter in federation.filters:
        shared |= upload_filter.round_metrics(federation)
    clients = {client.id: client for client in federation.state.clients}
    traffic = {client_id: result.traffic for client_id, result in results.items()}
    if federation.is_evaluated(federation.state.finished):
        evaluations = federation.pool.evaluate(federation.state.server)
    else:
        evaluations = [EvalResult(task.client_id, task.owner_id, None, None, {}) for task in federation.eval_tasks]
    return [
        log_row(clients[result.owner_id], result, traffic.get(result.owner_id, Traffic()), shared)
        for result in evaluations
    ]
