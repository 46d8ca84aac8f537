"""The time of a checkpoint after every round, relative to the round."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ours
from measuring import timed
from results import Line, Result, at_most
from workload import cifar_task

if TYPE_CHECKING:
    from workload import Plan

# FedMosaic with Adam has the largest state of all presets: three times the size of a model per client.
CASES: dict[str, dict[str, Any]] = {"FedMosaic": {"optimizer": "adam", "lr": 1e-3}, "FedAvg": {}}


def durability(plan: Plan) -> Result:
    """Measure rounds on images in the shape of CIFAR-10, each followed by its log rows and a checkpoint."""
    batch = plan.batches[-1]
    # One client fewer: the public set needs its share of the images.
    task = cifar_task(plan.sizes, clients=plan.sizes.clients - 1)
    result = Result(
        "Durability: a checkpoint after every round",
        [
            f"{len(task.shares)} clients, cnn, batch {batch}, 2 workers, {plan.repetitions} rounds in one process; "
            "wall time. A checkpoint is captured, hashed, written, synced, renamed, read back and compared; "
            "written on the file system of the temporary directory."
        ],
    )
    for title, train in CASES.items():
        federation = ours.federation(title.lower(), task, batch_size=batch, workers=2, **train)
        with tempfile.TemporaryDirectory() as folder, federation.worker_pool:
            record = ours.recorder(federation, Path(folder))
            ours.run_rounds(federation)
            rounds, saves = [], []
            for _ in range(plan.repetitions):
                rounds.append(timed(partial(ours.run_rounds, federation)).wall)
                saves.append(timed(record).wall)
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 2**20
        result.lines += [
            Line(f"{title}, round", rounds, "s"),
            Line(f"{title}, log and checkpoint", [1e3 * value for value in saves], "ms"),
            Line(f"{title}, files", [size], "MB"),
            Line(
                f"{title}, log and checkpoint / round",
                [save / duration for save, duration in zip(saves, rounds, strict=True)],
                "ratio",
                at_most(0.03),
            ),
        ]
    return result
