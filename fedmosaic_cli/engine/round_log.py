"""The rows of rounds.jsonl: one per round and client."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.client_pool import ClientResult
from fedmosaic_cli.engine.traffic import Traffic
from fedmosaic_cli.errors import DivergenceError, FedMosaicError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.client_pool import ClientHandle, EvalResult


METRIC_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_METRICS = 64
# Names that the run itself logs.
RESERVED_METRICS = {
    *(
        "round",
        "client",
        "lambda",
        "accuracy",
        "test_loss",
        "bits_up",
        "bits_down",
        "lost",
        "evaluation_error",
        "message",
    ),
    *("left_out", "withheld", "received", "accepted", "abstained", "late", "rejected", "retried", "degraded"),
}
RESERVED_METRIC_SUFFIX = "_accuracy"
MAX_ABS_VALUE = 1e100
"""Limit of all logged numbers, so that their sums stay finite."""


def invalid_metric(values: Mapping[Any, Any]) -> str:
    """Return why values cannot be logged by a method; "" if they can."""
    if len(values) > MAX_METRICS:
        return f"{len(values)} values, at most {MAX_METRICS} are allowed"
    for name, value in values.items():
        if not isinstance(name, str) or not METRIC_NAME_PATTERN.fullmatch(name):
            return f"the name {name!r:.60}: use lower-case letters, digits and '_'"
        if name in RESERVED_METRICS or name.endswith(RESERVED_METRIC_SUFFIX):
            return f"'{name}', which the run logs itself: choose another name"
        if value is not None and type(value) not in (int, float, bool):
            return f"'{name}' is {type(value).__name__}: log a number"
    return ""


def require_loggable(values: Mapping[Any, Any], where: str) -> None:
    """Raise FedMosaicError if a method logs values that it must not log."""
    problem = invalid_metric(values)
    if problem:
        what, _, remedy = problem.partition(": ")
        raise FedMosaicError(f"a method logs {what} ({where}): {remedy or 'log less'}")


def add_traffic(results: dict[int, ClientResult], more: Mapping[int, Traffic]) -> dict[int, ClientResult]:
    """Return the results of a round with the traffic of another exchange."""
    for client_id, traffic in more.items():
        result = results.get(client_id, ClientResult({}, Traffic()))
        results[client_id] = replace(result, traffic=result.traffic + traffic)
    return results


def log_row(client: ClientHandle, result: EvalResult, traffic: Traffic, shared: dict[str, Any]) -> dict[str, Any]:
    """Return the row of one client in rounds.jsonl."""
    if result.loss is not None and not math.isfinite(result.loss):
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
