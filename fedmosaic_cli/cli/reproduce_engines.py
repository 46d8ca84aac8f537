"""Where the runs of a study are made: on this machine, or wherever Ray finds room."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.common_options import Device
from fedmosaic_cli.cli.console import remark
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.machine import available_cores
from fedmosaic_cli.sweeps.processes import Here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.sweeps.processes import Pool

RETRIES = 2


class Engine(StrEnum):
    local = "local"
    ray = "ray"


EngineOption = Annotated[Engine, typer.Option(help="Make runs on this machine, or wherever Ray finds room.")]
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
        min=0, help="How often a job that crashed is dealt again.", show_default=f"{RETRIES} with Ray, else 0"
    ),
]


@dataclass(frozen=True)
class Way:
    """How runs are to be made, as asked for; None where nothing was said."""

    engine: Engine
    address: str | None
    jobs: int | None
    job_cpus: int | None
    job_gpus: float | None
    asked_retries: int | None
    asked_device: Device

    def check(self) -> None:
        """Refuse what does not go together; Ray is not loaded for that."""
        given = {"--ray-address": self.address, "--job-cpus": self.job_cpus, "--job-gpus": self.job_gpus}
        for option, value in given.items():
            if value is not None and not self.with_ray:
                raise RequestError(f"{option} {value} is about Ray: add --engine ray, or leave it out")
        if self.gpus > 1 and self.gpus % 1:
            raise RequestError(
                f"{self.gpus:g} GPUs for a run (--job-gpus): it must be a part of one, or a whole number"
            )
        if self.with_ray and (self.device is Device.cuda) != (self.gpus > 0):
            raise RequestError(
                f"{self.gpus:g} GPUs for a run on {self.device.value} (--job-gpus, --device): change one"
            )
        if self.address is not None:
            from fedmosaic_cli.sweeps.ray_session import check_address

            check_address(self.address)

    @property
    def with_ray(self) -> bool:
        return self.engine is Engine.ray

    @property
    def retries(self) -> int:
        """How often a job that crashed is dealt again."""
        return (RETRIES if self.with_ray else 0) if self.asked_retries is None else self.asked_retries

    @property
    def gpus(self) -> float:
        """The GPUs of a run."""
        return float(self.asked_device is Device.cuda) if self.job_gpus is None else self.job_gpus

    @property
    def device(self) -> Device:
        """What runs compute on: with Ray they have the GPUs that they were given, or none."""
        if self.with_ray and self.asked_device is Device.auto:
            return Device.cuda if self.gpus else Device.cpu
        return self.asked_device

    @property
    def cpus(self) -> int:
        """The cores of a run with Ray."""
        here = self.jobs if self.address is None else None
        return self.job_cpus or (max(1, available_cores() // here) if here else 1)

    def workers(self, at_once: int) -> int:
        """How many workers a run has, so many of which are made at once."""
        return self.cpus if self.with_ray else max(1, available_cores() // at_once)

    def at_once(self) -> int:
        """How many jobs this machine alone would run at once."""
        return self.jobs or max(1, available_cores() // (self.cpus if self.with_ray else 1))

    @contextmanager
    def pool(self, runs_dir: Path, silent: bool) -> Iterator[tuple[Pool, int]]:
        """Where commands are made, and how many at once."""
        if not self.with_ray:
            yield Here(), self.at_once()
            return
        from fedmosaic_cli.sweeps.ray_cluster import Share, cluster
        from fedmosaic_cli.sweeps.ray_session import check_installed

        check_installed()
        if not silent:
            remark("starting Ray on this machine" if self.address is None else f"joining Ray at {self.address}")
        # On one machine --jobs may ask for more than there are cores, as it may without Ray.
        cores = max(available_cores(), (self.jobs or 0) if self.job_cpus is None else 0)
        with cluster(self.address, cores, Share(self.cpus, self.gpus), runs_dir) as machines:
            room = machines.room()
            yield machines, min(room, self.jobs or room)
