"""The training loop: Algorithm 1 of the paper, shared by all methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine.method import Traffic
from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.seeds import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.engine.client_pool import ClientHandle, ClientResult, EvalResult
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
    method, state, ctx = federation.method, federation.state, federation.ctx
    number = state.finished + 1
    for client in state.clients:
        client.begin_round(number)
    clients = select_clients(federation)
    results = federation.pool.run_round(clients, lambda client_id: method.broadcast(state.server, client_id, ctx))
    for upload_filter in federation.filters:
        results = upload_filter.apply(federation, clients, results)
    uploads = {client_id: result.upload for client_id, result in results.items() if result.upload}
    if uploads:
        state.server = method.aggregate(state.server, uploads, ctx)
    for upload_filter in federation.filters:
        upload_filter.after_aggregate(federation)
    state.finished = number
    return RoundRecord(number, evaluate_round(federation, results))


def select_clients(federation: Federation) -> list[ClientHandle]:
    """Select the clients of the next round, sorted by id: all of them, or a random sample."""
    clients = sorted(federation.state.clients, key=lambda client: client.id)
    if federation.clients_per_round >= len(clients):
        return clients
    seed = derive_seed(federation.seed, "participants", federation.state.finished + 1)
    order = torch.randperm(len(clients), generator=torch.Generator().manual_seed(seed))
    return [clients[position] for position in sorted(order[: federation.clients_per_round].tolist())]


def evaluate_round(federation: Federation, results: dict[int, ClientResult]) -> list[dict[str, Any]]:
    """Evaluate all clients and merge the metrics with this round's log entries."""
    shared: dict[str, float] = {}
    for upload_filter in federation.filters:
        shared |= upload_filter.round_metrics(federation)
    clients = {client.id: client for client in federation.state.clients}
    traffic = {client_id: result.traffic for client_id, result in results.items()}
    return [
        log_row(clients[result.owner_id], result, traffic.get(result.owner_id, Traffic()), shared)
        for result in federation.pool.evaluate(federation.state.server)
    ]


def log_row(client: ClientHandle, result: EvalResult, traffic: Traffic, shared: dict[str, float]) -> dict[str, Any]:
    """Return the row of one client in rounds.jsonl."""
    if not math.isfinite(result.loss):
        raise DivergenceError(result.owner_id, client.round, "its loss on test examples")
    metrics = {**client.metrics, **({"left_out": 1} if client.is_skipped else {})}
    return {
        "round": client.round,
        "client": result.client_id,
        "lambda": metrics.pop("trust", None),
        "loss_private": metrics.pop("loss_private", None),
        "loss_public": metrics.pop("loss_public", None),
        "accuracy": result.accuracy,
        "test_loss": result.loss,
        "bits_up": traffic.uplink_bits,
        "bits_down": traffic.downlink_bits,
        **metrics,
        **shared,
        **result.extra_metrics,
    }
