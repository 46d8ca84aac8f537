"""Where `fedmosaic reproduce` executes runs: on this machine, or on a Ray cluster."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.common_options import DeviceChoice
from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.cli.help import choices
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


SweepEngineOption = Annotated[
    SweepEngine, typer.Option(metavar=choices(SweepEngine), help="Execute runs on this machine, or on a Ray cluster.")
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Ray cluster to join: auto or host:port.",
        show_default="a private Ray on this machine",
    ),
]
JobCpusOption = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Cores per run with Ray.", show_default="cores / jobs on this machine, 1 on a cluster"
    ),
]
JobGpusOption = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="N", help="GPUs per run with Ray, or a fraction.", show_default="1 with --device cuda, else 0"
    ),
]
RetriesOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Maximum retries of a crashed job.",
        show_default=f"{DEFAULT_RAY_RETRIES} with Ray, else 0",
    ),
]


@dataclass(frozen=True)
class SweepExecutionOptions:
    """The options on how to execute runs; None means the default."""

    engine: SweepEngine
    ray_address: str | None
    requested_jobs: int | None
    requested_cpus: int | None
    requested_gpus: float | None
    requested_retries: int | None
    requested_device: DeviceChoice

    def validate(self) -> None:
        """Raise RequestError for options that contradict each other, without importing Ray."""
        ray_options = {
            "--ray-address": self.ray_address,
            "--job-cpus": self.requested_cpus,
            "--job-gpus": self.requested_gpus,
        }
        for option, value in ray_options.items():
            if value is not None and not self.is_ray:
                raise RequestError(f"{option} {value} requires Ray: add --engine ray, or leave it out")
        gpus, device = self.gpus_per_job, self.device
        if gpus > 1 and gpus % 1:
            raise RequestError(f"{gpus:g} GPUs per run (--job-gpus): give a fraction below 1, or a whole number")
        if self.is_ray and (device is DeviceChoice.cuda) != (gpus > 0):
            raise RequestError(f"{gpus:g} GPUs per run on {device.value} (--job-gpus, --device): change one of them")
        if self.ray_address is not None:
            from fedmosaic_cli.sweeps.ray_session import validate_ray_address

            validate_ray_address(self.ray_address)

    @property
    def is_ray(self) -> bool:
        return self.engine is SweepEngine.ray

    @property
    def max_retries(self) -> int:
        return (DEFAULT_RAY_RETRIES if self.is_ray else 0) if self.requested_retries is None else self.requested_retries

    @property
    def gpus_per_job(self) -> float:
        return float(self.requested_device is DeviceChoice.cuda) if self.requested_gpus is None else self.requested_gpus

    @property
    def device(self) -> DeviceChoice:
        """The device of each run. With Ray, a run uses a GPU only if it has requested one."""
        if self.is_ray and self.requested_device is DeviceChoice.auto:
            return DeviceChoice.cuda if self.gpus_per_job else DeviceChoice.cpu
        return self.requested_device

    @property
    def cpus_per_job(self) -> int:
        """The cores of each run with Ray."""
        local_jobs = self.requested_jobs if self.ray_address is None else None
        return self.requested_cpus or (max(1, num_available_cores() // local_jobs) if local_jobs else 1)

    def workers_per_job(self, max_parallel: int) -> int:
        """Return the number of workers of each run if `max_parallel` runs execute at the same time."""
        return self.cpus_per_job if self.is_ray else max(1, num_available_cores() // max_parallel)

    def max_parallel_jobs(self) -> int:
        """Return how many jobs this machine runs at the same time."""
        return self.requested_jobs or max(1, num_available_cores() // (self.cpus_per_job if self.is_ray else 1))

    @contextmanager
    def open_launcher(self, runs_dir: Path, quiet: bool) -> Iterator[tuple[JobLauncher, int]]:
        """Provide the launcher of jobs, and how many run at the same time."""
        if not self.is_ray:
            yield LocalLauncher(), self.max_parallel_jobs()
            return
        from fedmosaic_cli.sweeps.ray_cluster import JobResources, ray_launcher
        from fedmosaic_cli.sweeps.ray_session import require_ray_installed

        require_ray_installed()
        address = self.ray_address
        if not quiet:
            print_stderr("starting Ray on this machine" if address is None else f"joining Ray at {address}")
        # On one machine --jobs may exceed the number of cores, as it may without Ray.
        num_cpus = max(num_available_cores(), (self.requested_jobs or 0) if self.requested_cpus is None else 0)
        resources = JobResources(self.cpus_per_job, self.gpus_per_job)
        with ray_launcher(address, num_cpus, resources, runs_dir) as launcher:
            capacity = launcher.capacity()
            yield launcher, min(capacity, self.requested_jobs or capacity)
