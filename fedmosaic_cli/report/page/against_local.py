"""Whom a method helped: its clients beside the same clients trained alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from fedmosaic_cli.report.settings import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from fedmosaic_cli.report.settings import Key, Setting

NO_DIFFERENCE = 1e-9


@dataclass(frozen=True)
class AgainstLocal:
    """How many clients (each counted once a seed) are better off, as they were, or worse off than alone; and the mean
    difference in accuracy, as a fraction, over the seeds that both were run with, None where there is none."""

    helped: int
    same: int
    hurt: int
    difference: float | None
    seeds: tuple[int, ...]

    @property
    def clients(self) -> int:
        return self.helped + self.same + self.hurt


def against_local(setting: Setting) -> dict[Key, AgainstLocal]:
    """Every method but Local itself, compared on the same shards and seed; nothing where nobody ran Local."""
    groups = setting.methods
    if LOCAL not in groups:
        return {}
    local = {(seed, digest): run for seed, digest, run in lines(groups[LOCAL])}
    return {key: compared(runs, local) for key, runs in groups.items() if key != LOCAL}


Run = tuple[float, "Sequence[float] | None"]


def lines(runs: pd.DataFrame) -> list[tuple[int, str, Run]]:
    """Seed, digest, and the accuracies of each run."""
    columns = zip(runs.seed, runs.digest, runs.accuracy, runs.per_client, strict=True)
    return [(int(seed), str(digest), (float(mean), clients)) for seed, digest, mean, clients in columns]


def compared(runs: pd.DataFrame, local: dict[tuple[int, str], Run]) -> AgainstLocal:
    counts = {1: 0, 0: 0, -1: 0}
    gains, seeds = [], []
    for seed, digest, (mean, clients) in lines(runs):
        if (seed, digest) not in local:
            continue
        alone, clients_alone = local[seed, digest]
        gains.append(mean - alone)
        seeds.append(seed)
        if clients is not None and clients_alone is not None and len(clients) == len(clients_alone):
            for here, there in zip(clients, clients_alone, strict=True):
                counts[direction(here - there)] += 1
    return AgainstLocal(counts[1], counts[0], counts[-1], fmean(gains) if gains else None, tuple(seeds))


def direction(difference: float) -> int:
    if abs(difference) < NO_DIFFERENCE:
        return 0
    return 1 if difference > 0 else -1
