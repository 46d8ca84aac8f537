"""The options of a run that do not change its result, and the interface of a federation of remote sites."""

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
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet


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
