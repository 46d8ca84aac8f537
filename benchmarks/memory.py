"""Resident memory, each figure from a process of its own.

`python benchmarks/memory.py CASE SIZES` is such a process: it prints what it found as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from results import Line, Result, at_most
from workload import Sizes, deal, make_images

if TYPE_CHECKING:
    from results import Goal
    from workload import Plan, Task

MEGABYTE = 2**20
BATCH = 64


def memory(plan: Plan) -> Result:
    """What 15 clients need on the whole array, and what 1,000 models need beside the data."""
    sizes, many = plan.sizes, plan.many
    result = Result(
        "Memory",
        [
            f"One process each, after one round, batch {BATCH}, 2 workers, {sizes.images} images in all. FedAvg: the "
            "cnn. Local: a cnn of width 0.25 for each client. 'Beside torch and data' is resident memory less that of "
            "`import torch` and of the images, so our own imports and the buffers of two threads are in it; the growth "
            f"from {sizes.clients} to {many} clients leaves these out."
        ],
    )
    torch_alone, averaged = measured("torch", sizes, 0), measured("fedavg", sizes, sizes.clients)
    some, all_models = measured("local", sizes, sizes.clients), measured("local", sizes, many)
    add_case(result, "import torch", torch_alone)
    add_case(result, f"FedAvg, {sizes.clients} clients", averaged, at_most(1024))
    add_case(result, f"Local, {sizes.clients} clients", some)
    add_case(result, f"Local, {many} clients", all_models)
    weights = all_models["weights"]
    beside = all_models["resident"] - torch_alone["resident"] - all_models["data"]
    growth = (all_models["resident"] - some["resident"]) / (weights - some["weights"])
    result.lines += [
        Line("images", [all_models["data"] / MEGABYTE], "MB"),
        Line(f"weights of {many} models", [weights / MEGABYTE], "MB"),
        Line("beside torch and data / weights", [beside / weights], "ratio", at_most(2)),
        Line("growth / weights of the further models", [growth], "ratio"),
    ]
    return result


def add_case(result: Result, name: str, found: dict[str, float], goal: Goal | None = None) -> None:
    result.lines.append(Line(f"{name}, resident", [found["resident"] / MEGABYTE], "MB", goal))
    result.lines.append(Line(f"{name}, peak", [found["peak"] / MEGABYTE], "MB"))


def measured(case: str, sizes: Sizes, clients: int) -> dict[str, float]:
    """What a new process finds."""
    command = [sys.executable, str(Path(__file__)), case, json.dumps({"clients": clients, "sizes": asdict(sizes)})]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def own_memory() -> dict[str, float]:
    """This process's resident memory and its peak, in bytes (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, peak = (1024 * float(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return {"resident": resident, "peak": peak}


def played(case: str, task: Task) -> dict[str, float]:
    """Memory after a round, with the sizes of the data and of all personal models."""
    import ours

    model = ours.CNN if case == "fedavg" else ours.SMALL_CNN
    federation = ours.federation(case, task, model, batch_size=BATCH, workers=2)
    with federation.worker_pool:
        ours.play_rounds(federation)
        weights = 4.0 * ours.weight_count(federation) * len(task.shares)
        return {**own_memory(), "data": task.images.nbytes, "weights": weights}


def child(case: str, asked: str) -> dict[str, float]:
    """What the process of a case does."""
    if case == "torch":
        import torch  # noqa: F401

        return own_memory()
    given = json.loads(asked)
    sizes, clients = Sizes(**given["sizes"]), given["clients"]
    share = sizes.clients * sizes.train // clients, sizes.clients * sizes.test // clients
    return played(case, deal(make_images(sizes.images), clients, *share))


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
