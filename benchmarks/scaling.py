"""How a round grows with the number of clients and with the public set.

`python benchmarks/scaling.py` runs thousands of clients in one process, with their states in memory and on disk.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ours
from measuring import measure_forked, timed
from memory import own_memory
from results import Result
from workload import make_images, split_task

if TYPE_CHECKING:
    from workload import Plan

BATCH = 10
MOST_REPETITIONS = 3
LARGE_CASES: dict[str, tuple[int, dict[str, Any], int, int]] = {
    "cnn (width 0.25)": (1_000, ours.SMALL_CNN, 32, 3),
    "mlp (64)": (5_000, ours.TINY_MLP, 28, 1),
    "linear": (10_000, {"name": "mlp", "hidden": ()}, 28, 1),
}
"""Clients, their network, and the side and channels of their images."""


def scaling(plan: Plan) -> Result:
    """Measure rounds for growing numbers of clients and sizes of the public set."""
    sizes, plan = plan.sizes, replace(plan, repetitions=min(plan.repetitions, MOST_REPETITIONS))
    result = Result(
        "Scaling: number of clients, size of the public set",
        [
            f"A cnn of width 0.25 (so that overhead is visible), batch {BATCH}, 1 worker, {plan.repetitions} "
            f"interleaved repetitions. Clients: FedAvg, always about {sizes.clients * sizes.train} training and "
            f"{sizes.clients * sizes.test} test images in all. Public set: FedMosaic, {plan.few} clients with "
            f"{sizes.train} training images each, per client."
        ],
    )
    measure_clients(result, plan)
    measure_public(result, plan)
    return result


def measure_clients(result: Result, plan: Plan) -> None:
    sizes, data = plan.sizes, make_images(plan.sizes.images)
    names = {count: f"FedAvg, {count} clients" for count in plan.client_counts}
    federations, examples = {}, {}
    for count, name in names.items():
        train, test = sizes.clients * sizes.train // count, sizes.clients * sizes.test // count
        task = split_task(data, count, train, test)
        federations[name] = ours.federation("fedavg", task, ours.SMALL_CNN, batch_size=BATCH)
        examples[name] = count * train
    variants = {name: partial(ours.run_rounds, federation) for name, federation in federations.items()}
    samples = measure_forked(variants, plan.repetitions, per=examples)
    result.add(samples, "us per training image", 1e6)
    for count in plan.client_counts[1:]:
        result.compare(names[count], names[plan.client_counts[0]])


def measure_public(result: Result, plan: Plan) -> None:
    sizes, data = plan.sizes, make_images(plan.sizes.images)
    names = {count: f"FedMosaic, \\|U\\| = {count}" for count in plan.public_sizes}
    federations = {}
    for count, name in names.items():
        task = split_task(data, plan.few, sizes.train, sizes.test, public=count)
        federations[name] = ours.federation("fedmosaic", task, ours.SMALL_CNN, batch_size=BATCH)
    variants = {name: partial(ours.run_rounds, federation) for name, federation in federations.items()}
    samples = measure_forked(variants, plan.repetitions, per=plan.few)
    result.add(samples, "s per client")
    for count in plan.public_sizes[1:]:
        result.compare(names[count], names[plan.public_sizes[0]])


def many_clients() -> None:
    """Print time and memory of thousands of clients with Adam, each case in a separate process."""
    print("Local, Adam, 20 training and 10 test images each, 10 steps of batch 10, 1 worker")
    print("clients | network | states | kB of state | ms per client and round (CPU) | kB of memory per client")
    for name, (clients, *_) in LARGE_CASES.items():
        for place in ("memory", "disk"):
            command = [sys.executable, __file__, name, place]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(
                f"{clients:,} | {name} | {place} | {found['state'] / 1e3:.1f} | {found['milliseconds']:.1f} | "
                f"{found['memory'] / 1e3:.1f}",
                flush=True,
            )


def measure_large_case(name: str, place: str) -> dict[str, float]:
    """Run two rounds of many clients. Memory is the peak, without the images and what the process held before."""
    clients, model, side, channels = LARGE_CASES[name]
    task = split_task(make_images(30 * clients, side, channels), clients, 20, 10)
    before = own_memory()["peak"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if place == "disk" else None
        federation = ours.federation(
            "local", task, model, folder, batch_size=BATCH, optimizer="adam", local_steps=10, execution="auto"
        )
        with federation.worker_pool:
            ours.run_rounds(federation)
            took = timed(lambda: ours.run_rounds(federation))
        return {
            "state": 3 * 4.0 * ours.weight_count(federation),
            "milliseconds": 1e3 * took.cpu / clients,
            "memory": (own_memory()["peak"] - before) / clients,
        }


if __name__ == "__main__":
    if len(sys.argv) == 1:
        many_clients()
    else:
        print(json.dumps(measure_large_case(sys.argv[1], sys.argv[2])))
