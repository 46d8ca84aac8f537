"""FedAvg rounds of PFLlib, run by its own command line. A process of `peers.py`; see `round_clock.py`.

PFLlib reads one compressed .npz file per client and split, in every round. `peers.py` writes these files by `prepare`
before a process starts.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from functools import cache
from pathlib import Path

import numpy as np
from round_clock import RoundClock
from workload import CLASSES, LR, Job, stored_task

# PFLlib selects the size of its network by this name.
DATASET = "Cifar10"


def prepare(job: Job) -> None:
    """Write the images of all clients: float32 [examples, channels, height, width] in [-1, 1]."""
    task, folder = stored_task(job), root_directory(job) / "dataset" / DATASET
    for number, share in enumerate(task.shares):
        for split, index in (("train", share.train), ("test", share.test)):
            images = task.images[index].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1.0
            path = folder / split / f"{number}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, data={"x": images, "y": task.labels[index]})


def root_directory(job: Job) -> Path:
    return Path(job.directory) / "pfllib"


def run(job: Job) -> None:
    """Run PFLlib in a directory of the job, where it finds the images."""
    clock, folder, system = RoundClock(), root_directory(job) / "system", Path(job.checkout) / "system"
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    sys.path[0] = str(system)
    from flcore.clients import clientbase
    from flcore.servers import serveravg

    class TimedFedAvg(serveravg.FedAvg):
        """FedAvg whose rounds are timed. A round begins with the selection of the clients."""

        def select_clients(self) -> object:
            clock.next_round()
            return super().select_clients()

        def save_results(self) -> None:
            clock.stop()
            super().save_results()

    serveravg.FedAvg = TimedFedAvg
    if job.cache_images:
        clientbase.read_client_data = cache(clientbase.read_client_data)
    options = {
        "device": "cpu",
        "dataset": DATASET,
        "num_classes": CLASSES,
        "batch_size": job.batch,
        "local_learning_rate": LR,
        "global_rounds": job.rounds - 1,  # it runs one more
        "num_clients": job.clients,
        "eval_gap": job.eval_every,
    }
    sys.argv = ["main.py", *(text for name, value in options.items() for text in (f"--{name}", str(value)))]
    runpy.run_path(str(system / "main.py"), run_name="__main__")


if __name__ == "__main__":
    run(Job(**json.loads(sys.argv[1])))
