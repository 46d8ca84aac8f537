"""FedAvg rounds of fedmosaic. A process of `peers.py`; see `round_clock.py`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import ours
from round_clock import RoundClock
from workload import NEVER, Job, stored_task


def run(job: Job) -> None:
    """Run the rounds with our own evaluation, or with the numbers that PFLlib reports in its place."""
    clock, task = RoundClock(), stored_task(job)
    federation = ours.federation(
        "fedavg",
        replace(task, images=np.array(task.images)),
        batch_size=job.batch,
        workers=job.workers,
        eval_every=NEVER if job.like_pfllib else job.eval_every,
    )
    with federation.worker_pool:
        for number in range(1, job.rounds + 1):
            clock.start()
            ours.run_rounds(federation)
            if job.like_pfllib and number % job.eval_every == 0:
                ours.evaluate_like_pfllib(federation)
            clock.stop()


if __name__ == "__main__":
    run(Job(**json.loads(sys.argv[1])))
