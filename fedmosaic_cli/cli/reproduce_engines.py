"""Where the runs of a study are made: on this machine, or wherever Ray finds room."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.common_options import DeviceChoice
from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.machine import num_available_cores
from fedmosaic_cli.sweeps.processes import LocalLauncher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.sweeps.processes import JobLauncher

DEFAULT_RAY_RETRIES = 2


class SweepEngine(StrEnum):
    local = "local"
    ray = "ray"


SweepEngineOption = Annotated[SweepEngine, typer.Option(help="Make runs on this machine, or wherever Ray finds room.")]
RayAddressOption = Annotated[
    str | None,
    typer.Option(help="A cluster to join: auto or host:port.", show_default="a Ray of our own, on this machine"),
]
JobCpusOption = Annotated[
    int | None, typer.Option(min=1, help="Cores of a run with Ray.", show_default="cores / jobs here, 1 elsewhere")
]
JobGpusOption = Annotated[
    float | None,
    typer.Option(min=0, help="GPUs of a run with Ray, or a part of one.", show_default="1 with --device cuda, else 0"),
]
RetriesOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How often a job that crashed is dealt again.",
        show_default=f"{DEFAULT_RAY_RETRIES} with Ray, else 0",
    ),
]


@dataclass(frozen=True)
class SweepExecutionOptions:
    """How runs are to be made, as asked for; None where nothing was said."""

    engine: SweepEngine
    ray_address: str | None
    requested_jobs: int | None
    requested_cpus: int | None
    requested_gpus: float | None
    requested_retries: int | None
    requested_device: DeviceChoice

    def validate(self) -> None:
        """Refuse what does not go together; Ray is not loaded for that."""
        given = {
            "--ray-address": self.ray_address,
            "--job-cpus": self.requested_cpus,
            "--job-gpus": self.requested_gpus,
        }
        for option, value in given.items():
            if value is not None and not self.is_ray:
                raise RequestError(f"{option} {value} is about Ray: add --engine ray, or leave it out")
        if self.gpus_per_job > 1 and self.gpus_per_job % 1:
            raise RequestError(
                f"{self.gpus_per_job:g} GPUs for a run (--job-gpus): it must be a part of one, or a whole number"
            )
        if self.is_ray and (self.device is DeviceChoice.cuda) != (self.gpus_per_job > 0):
            raise RequestError(
                f"{self.gpus_per_job:g} GPUs for a run on {self.device.value} (--job-gpus, --device): change one"
            )
        if self.ray_address is not None:
            from fedmosaic_cli.sweeps.ray_session import validate_ray_address

            validate_ray_address(self.ray_address)

    @property
    def is_ray(self) -> bool:
        return self.engine is SweepEngine.ray

    @property
    def max_retries(self) -> int:
        """How often a job that crashed is dealt again."""
        return (DEFAULT_RAY_RETRIES if self.is_ray else 0) if self.requested_retries is None else self.requested_retries

    @property
    def gpus_per_job(self) -> float:
        """The GPUs of a run."""
        return float(self.requested_device is DeviceChoice.cuda) if self.requested_gpus is None else self.requested_gpus

    @property
    def device(self) -> DeviceChoice:
        """What runs compute on: with Ray they have the GPUs that they were given, or none."""
        if self.is_ray and self.requested_device is DeviceChoice.auto:
            return DeviceChoice.cuda if self.gpus_per_job else DeviceChoice.cpu
        return self.requested_device

    @property
    def cpus_per_job(self) -> int:
        """The cores of a run with Ray."""
        here = self.requested_jobs if self.ray_address is None else None
        return self.requested_cpus or (max(1, num_available_cores() // here) if here else 1)

    def workers_per_job(self, max_parallel: int) -> int:
        """How many workers a run has, so many of which are made at once."""
        return self.cpus_per_job if self.is_ray else max(1, num_available_cores() // max_parallel)

    def max_parallel_jobs(self) -> int:
        """How many jobs this machine alone would run at once."""
        return self.requested_jobs or max(1, num_available_cores() // (self.cpus_per_job if self.is_ray else 1))

    @contextmanager
    def open_launcher(self, runs_dir: Path, quiet: bool) -> Iterator[tuple[JobLauncher, int]]:
        """Where commands are made, and how many at once."""
        if not self.is_ray:
            yield LocalLauncher(), self.max_parallel_jobs()
            return
        from fedmosaic_cli.sweeps.ray_cluster import JobResources, ray_launcher
        from fedmosaic_cli.sweeps.ray_session import require_ray_installed

        require_ray_installed()
        if not quiet:
            print_stderr(
                "starting Ray on this machine" if self.ray_address is None else f"joining Ray at {self.ray_address}"
            )
        # On one machine --jobs may ask for more than there are cores, as it may without Ray.
        cores = max(num_available_cores(), (self.requested_jobs or 0) if self.requested_cpus is None else 0)
        with ray_launcher(
            self.ray_address, cores, JobResources(self.cpus_per_job, self.gpus_per_job), runs_dir
        ) as machines:
            room = machines.capacity()
            yield machines, min(room, self.requested_jobs or room)
