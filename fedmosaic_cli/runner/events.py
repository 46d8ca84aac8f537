"""What a run is started with and what it reports: options, events, and the contract of a remote federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.errors import RunFailedError
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet


@dataclass(frozen=True)
class RunPreparing:
    """The shards of the run are on disk; data and networks are loaded next."""


@dataclass(frozen=True)
class RunStarted:
    """The federation is built and the first round is about to start."""

    devices: list[torch.device]
    execution: str
    num_workers: int


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
    """A round is finished and logged. `failed_clients` maps remote clients that did not answer to the reason."""

    round: int
    mean_accuracy: float
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
    """All rounds are finished and the summary is written."""

    summary: dict[str, Any]


@dataclass(frozen=True)
class RunFailed:
    """The run cannot continue; other runs of the plan can."""

    error: RunFailedError


RunEvent = RunStarted | RunResumed | WaitingForClients | RoundCompleted | RunStopped | RunFinished


class RemoteBackend(Protocol):
    """What differs for a run whose clients are at remote sites."""

    def open(
        self, config: RunConfig, shards: ShardSet, files: RunDirectory, data_dirs: DataDirs, device: torch.device
    ) -> AbstractContextManager[Federation]:
        """Connect to the sites and build the server's side of the federation."""

    def join(self, federation: Federation, config: RunConfig, shards: ShardSet) -> Iterator[set[int]]:
        """Invite the sites; yield the missing clients until all have joined."""

    def finish(self, federation: Federation) -> dict[str, str]:
        """Let the sites save their final models; return the SHA-256 digest of each model file."""

    def environment(self, federation: Federation) -> dict[str, Any]:
        """Entries for env.json."""

    def device_types(self, federation: Federation) -> list[str]:
        """The types of the devices that clients use, e.g. `["cpu", "cuda"]`."""

    def summary(self, log_rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Entries for summary.json."""


@dataclass(frozen=True)
class RunOptions:
    """How to run, without effect on the result.

    Attributes:
        device: auto, cpu, cuda or mps.
        cli_args: The command line, recorded in env.json.
        should_stop: Polled after each round; if True, the run stops with a checkpoint.
        stop_timeout_seconds: How long a stop request waits for the round. Checkpoints are at most this old.
        allow_nonidentical: Resume even if the result differs from that of an uninterrupted run.
        remote: The remote federation; None runs all clients in this process.
    """

    device: str = "auto"
    cli_args: tuple[str, ...] = ()
    should_stop: Callable[[], bool] = lambda: False
    stop_timeout_seconds: float = 30.0
    allow_nonidentical: bool = False
    remote: RemoteBackend | None = None
