"""Where the CPU time of a stacked round goes: 8x8 images, a small mlp, 15 clients, settings of the quickstart presets.

Functions are wrapped with a clock of their thread, and the time of a wrapped function does not include that of wrapped
functions that it calls. The clock itself takes about a microsecond per call. Run it with
`python benchmarks/stacked_profile.py fedavg fedmosaic`.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from typing import Any

import ours
import torch
from workload import make_images, split_task

from fedmosaic_cli.engine import local_pool
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.execution.lockstep import LockstepGroup
from fedmosaic_cli.engine.execution.stacked import stacked_trainer
from fedmosaic_cli.engine.execution.stacked.batch_table import BatchTable
from fedmosaic_cli.engine.execution.stacked.stacked_learner import StackedNetworkLearner
from fedmosaic_cli.methods.registry import METHODS

PHASES: list[tuple[str, Any, list[str]]] = [
    ("steps: forward pass and losses", stacked_trainer.StackedTrainer, ["_step", "_run_steps"]),
    ("steps: backward pass", torch.autograd, ["grad"]),
    ("steps: optimizer", stacked_trainer, ["optimizer_step"]),
    ("steps: batches", BatchTable, ["step_batch"]),
    ("stacking and unstacking", stacked_trainer.StackedTrainer, ["__init__", "run"]),
    ("stacking and unstacking", StackedNetworkLearner, ["_fit_group"]),
    ("stacking and unstacking", BatchTable, ["__init__"]),
    ("predictions and scores", StackedNetworkLearner, ["_predict_group", "_evaluate_group"]),
    ("clients: batches", InProcessClient, ["_private_batches", "_batch_schedule"]),
    ("clients: messages", local_pool, ["send_message", "require_complete", "require_declared"]),
    ("clients: checks", InProcessClient, ["require_finite"]),
    ("clients: checks", local_pool, ["require_loggable"]),
    ("clients: training calls and logs", InProcessClient, ["train_all", "_make_fit", "_log_result"]),
    ("clients: rounds and evaluations", local_pool, ["run_local_round", "evaluate_client"]),
    ("threads and requests", LockstepGroup, ["run_client", "run", "submit"]),
    ("server and the rest of the main thread", local_pool.LocalClientPool, ["run_round", "evaluate"]),
]
SECONDS: Counter[str] = Counter()
CALLERS = threading.local()


def measure(phase: str, owner: Any, name: str) -> None:
    """Add the time of a function to a phase."""
    function = getattr(owner, name)

    def measured(*args: Any, **options: Any) -> Any:
        inner = CALLERS.__dict__.setdefault("inner", [])
        inner.append(0.0)
        start = time.thread_time()
        try:
            return function(*args, **options)
        finally:
            seconds = time.thread_time() - start
            SECONDS[phase] += seconds - inner.pop()
            if inner:
                inner[-1] += seconds

    setattr(owner, name, measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for phase, owner, names in PHASES:
        for name in names:
            measure(phase, owner, name)
    classes = {owner for method in options.methods for owner in METHODS[method].__mro__ if owner is not object}
    for owner in classes:
        for name in ("local_round", "aggregate", "broadcast"):
            if name in vars(owner) and not getattr(vars(owner)[name], "__isabstractmethod__", False):
                measure("the method", owner, name)
    task = split_task(make_images(1_797, side=8, channels=1), clients=15, train=75, test=24, public=300)
    for method in options.methods:
        settings = {**ours.QUICKSTART, "rounds": 100_000}
        federation = ours.federation(method, task, ours.TINY_MLP, **settings, execution="stacked")
        ours.run_rounds(federation, 3)
        SECONDS.clear()
        start = time.process_time()
        ours.run_rounds(federation, options.rounds)
        total = time.process_time() - start
        SECONDS["switching threads and everything else"] = total - sum(SECONDS.values())
        print(f"{method}: {1e3 * total / options.rounds:.1f} ms per round")
        for phase, seconds in SECONDS.most_common():
            print(f"  {1e3 * seconds / options.rounds:6.2f} ms {seconds / total:6.1%}  {phase}")


if __name__ == "__main__":
    main()
