"""FedAvg rounds of FL-bench, run by its own command line. A process of `peers.py`; see `round_clock.py`.

Only the download of CIFAR-10 is replaced: its data set class gets the images of the job. `peers.py` writes which client
has which examples by `prepare` before a process starts.
"""

from __future__ import annotations

import json
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
from round_clock import RoundClock
from workload import CLASSES, LR, Job, stored_task

# FL-bench selects the size of its network and the normalisation by this name.
DATASET = "cifar10"


def prepare(job: Job) -> None:
    """Write which client has which examples, as FL-bench's `generate_data.py` does."""
    task = stored_task(job)
    clients = list(range(len(task.shares)))
    partition = {
        "separation": {"train": clients, "val": clients, "test": clients, "total": len(clients)},
        "data_indices": [
            {"train": share.train.tolist(), "val": [], "test": share.test.tolist()} for share in task.shares
        ],
    }
    folder = root_directory(job) / "data" / DATASET
    folder.mkdir(parents=True)
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition))
    (folder / "args.json").write_text(json.dumps({"name": DATASET, "split": "sample"}))


def root_directory(job: Job) -> Path:
    return Path(job.directory) / "fl-bench"


def run(job: Job) -> None:
    """Run FL-bench with its default evaluations: each client's test set before and after its training."""
    clock, task = RoundClock(), stored_task(job)
    sys.path[0] = job.checkout  # in place of this folder, whose `data.py` would hide its `data` package
    import torch
    from data.utils import datasets
    from src.server import fedavg

    def dataset(root: Path, args: Any = None, **transforms: Any) -> Any:
        images = torch.from_numpy(np.array(task.images)).permute(0, 3, 1, 2).float().contiguous()
        return datasets.BaseDataset(images, torch.from_numpy(task.labels), list(range(CLASSES)), **transforms)

    class TimedServer(fedavg.FedAvgServer):
        """The server, with timed rounds. A round ends where the next begins, so evaluations are included."""

        def train_one_round(self) -> None:
            clock.next_round()
            super().train_one_round()

        def train(self) -> None:
            super().train()
            clock.stop()

    datasets.DATASETS[DATASET] = dataset
    fedavg.FLBENCH_ROOT = root_directory(job)
    fedavg.FedAvgServer = TimedServer
    options = {
        "method": "fedavg",
        "dataset.name": DATASET,
        "model.name": "avgcnn",
        "optimizer.lr": LR,
        "common.use_cuda": False,
        "common.join_ratio": 1,
        "common.global_epoch": job.rounds,
        "common.local_epoch": 1,
        "common.batch_size": job.batch,
    }
    sys.argv = ["main.py", *(f"{name}={value}" for name, value in options.items())]
    runpy.run_path(str(Path(job.checkout) / "main.py"), run_name="__main__")


if __name__ == "__main__":
    run(Job(**json.loads(sys.argv[1])))
