"""FedAvg rounds of fedmosaic. A process of `peers.py`: prints the [CPU, wall] seconds of every round as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import ours
from measuring import timed
from workload import Job, stored_task


def play(job: Job) -> list[tuple[float, float]]:
    task = stored_task(job)
    federation = ours.federation("fedavg", replace(task, images=np.array(task.images)), batch_size=job.batch)
    with federation.worker_pool:
        samples = [timed(partial(ours.play_rounds, federation)) for _ in range(job.rounds)]
    return [(sample.cpu, sample.wall) for sample in samples]


if __name__ == "__main__":
    print(json.dumps(play(Job(**json.loads(sys.argv[1])))))
