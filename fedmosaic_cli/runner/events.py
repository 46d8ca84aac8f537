"""The events that a run yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fedmosaic_cli.errors import RunFailedError


@dataclass(frozen=True)
class WritingShards:
    """The shards of the run are not on disk yet and are written next."""


@dataclass(frozen=True)
class RunPreparing:
    """The shards of the run are on disk; data and networks are loaded next."""


@dataclass(frozen=True)
class RunStarted:
    """The federation is built and the first round is about to start; `warnings` name options without effect."""

    devices: list[torch.device]
    execution: str
    num_workers: int
    warnings: list[str]


@dataclass(frozen=True)
class RunResumed:
    """The run continues after `round`; `warnings` name files that were damaged and replaced."""

    round: int
    warnings: list[str]


@dataclass(frozen=True)
class WaitingForClients:
    """Some remote clients have not joined yet."""

    missing_clients: set[int]


@dataclass(frozen=True)
class RoundCompleted:
    """A round is finished and logged.

    Attributes:
        mean_accuracy: Mean over the clients that report it; None if all remote sites keep it to themselves.
        failed_clients: The reason for each remote client that did not respond.
    """

    round: int
    mean_accuracy: float | None
    mean_trust: float | None
    seconds: float
    skipped_clients: list[int]
    failed_clients: dict[int, str]
    log_rows: list[dict[str, Any]]


@dataclass(frozen=True)
class RunStopped:
    """The run stopped on request after `round` and can be resumed; `started` is False if it did not begin."""

    round: int
    started: bool = True


@dataclass(frozen=True)
class RunFinished:
    """All rounds are finished and the summary is written; with `was_finished` by an earlier command."""

    summary: dict[str, Any]
    was_finished: bool = False


@dataclass(frozen=True)
class RunFailed:
    """The run cannot continue; other runs of the plan can."""

    error: RunFailedError


RunEvent = RunStarted | RunResumed | WaitingForClients | RoundCompleted | RunStopped | RunFinished
