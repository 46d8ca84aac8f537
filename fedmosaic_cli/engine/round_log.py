"""The rows of rounds.jsonl: one per round and client."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.client_pool import ClientResult
from fedmosaic_cli.engine.traffic import Traffic
from fedmosaic_cli.errors import DivergenceError

if TYPE_CHECKING:
    from fedmosaic_cli.engine.client_pool import ClientHandle, EvalResult


def add_traffic(results: dict[int, ClientResult], earlier: dict[int, ClientResult]) -> dict[int, ClientResult]:
    """Return the results of a round with the traffic of an earlier exchange."""
    for client_id, result in earlier.items():
        later = results.get(client_id, ClientResult({}, Traffic()))
        results[client_id] = replace(later, traffic=later.traffic + result.traffic)
    return results


def log_row(client: ClientHandle, result: EvalResult, traffic: Traffic, shared: dict[str, Any]) -> dict[str, Any]:
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
