"""Resident memory, each figure from a separate process.

python benchmarks/memory.py estimates      # peak memory of runs of five presets against `--dry-run`, three times
python benchmarks/memory.py estimates 1    # once

`python benchmarks/memory.py CASE SIZES` is a process of `speed.py --only memory`: it prints what it found as JSON.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from results import Line, Result, at_most
from workload import Sizes, make_images, split_task

from fedmosaic_cli.machine import TUNABLES, TUNABLES_VARIABLE

if TYPE_CHECKING:
    from results import Goal
    from workload import Plan, Task

MEGABYTE = 2**20
BATCH = 64
PEAK_FILE = "peak.json"
STEPS = ("train.local_epochs=null", "train.local_steps=4", "methods.fedmosaic.warmup_rounds=0")
PRESETS: dict[str, tuple[str, ...]] = {
    "quickstart": (),
    "practical-cifar10": STEPS,
    "pathological-fashion-mnist": STEPS,
    "lowdata-cifar10": ("methods.fedmosaic.warmup_rounds=0",),
    "feature-shift-office10": STEPS,
}
"""Presets, with the settings that shorten them without a change to what they hold."""


def memory(plan: Plan) -> Result:
    """Measure the memory of 15 clients, and of 1,000 models besides the data."""
    sizes, many = plan.sizes, plan.many
    result = Result(
        "Memory",
        [
            f"Each case in a separate process, after one round, batch {BATCH}, 2 workers, {sizes.images} images in "
            "all. FedAvg: the cnn. Local: a cnn of width 0.25 for each client. 'Beside torch and data' is resident "
            "memory less that of `import torch` and of the images, so our own imports and the buffers of two threads "
            f"are in it; the growth from {sizes.clients} to {many} clients leaves these out."
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
    """Return the measurements of a new process."""
    command = [sys.executable, str(Path(__file__)), case, json.dumps({"clients": clients, "sizes": asdict(sizes)})]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def own_memory() -> dict[str, float]:
    """This process's resident memory and its peak, in bytes (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, peak = (1024 * float(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return {"resident": resident, "peak": peak}


def memory_after_round(case: str, task: Task) -> dict[str, float]:
    """Memory after a round, with the sizes of the data and of all personal models."""
    import ours

    model = ours.CNN if case == "fedavg" else ours.SMALL_CNN
    federation = ours.federation(case, task, model, batch_size=BATCH, workers=2)
    with federation.worker_pool:
        ours.run_rounds(federation)
        weights = 4.0 * ours.weight_count(federation) * len(task.shares)
        return {**own_memory(), "data": task.images.nbytes, "weights": weights}


def child(case: str, options: str) -> dict[str, float]:
    """Measure a case in this process."""
    if case == "torch":
        import torch  # noqa: F401

        return own_memory()
    given = json.loads(options)
    sizes, clients = Sizes(**given["sizes"]), given["clients"]
    share = sizes.clients * sizes.train // clients, sizes.clients * sizes.test // clients
    return memory_after_round(case, split_task(make_images(sizes.images), clients, *share))


def estimates(repetitions: int) -> None:
    """Print the peaks of runs of two rounds (median, range) and what the dry run says, for each preset."""
    print("preset | estimate MB | peak MB | range | estimate / peak")
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        write_random_data(data)
        for preset, settings in PRESETS.items():
            command = ["train", "--preset", preset, "--rounds", "2", "--data-dir", str(data)]
            command += [word for setting in settings for word in ("--set", setting)]
            fedmosaic = [sys.executable, "-m", "fedmosaic_cli", *command, "--dry-run", "--json"]
            plan = subprocess.run(fedmosaic, cwd=scratch, check=True, capture_output=True)
            estimate = json.loads(plan.stdout)["runs"][0]["memory_mb"]
            peaks = [run_peak(command, Path(scratch) / f"{preset}-{number}") / 1e6 for number in range(repetitions)]
            found = f"{median(peaks):,.0f} | {min(peaks):,.0f}-{max(peaks):,.0f} | {estimate / median(peaks):.2f}"
            print(f"{preset} | {estimate:,.0f} | {found}", flush=True)


def run_peak(command: list[str], folder: Path) -> float:
    """Return the peak memory of a run, in bytes."""
    folder.mkdir()
    reporting = [sys.executable, str(Path(__file__).absolute()), "run", *command, "--quiet"]
    environment = {TUNABLES_VARIABLE: TUNABLES, **os.environ}  # the command `fedmosaic` sets it
    subprocess.run(reporting, cwd=folder, env=environment, check=True, capture_output=True)
    peak = json.loads((folder / PEAK_FILE).read_text())["peak"]
    shutil.rmtree(folder)
    return float(peak)


def run_and_report(arguments: list[str]) -> None:
    """Run fedmosaic and write the peak of this process to a file when it ends.

    The peak that the system reports for an ended process is larger: to end, a process reads what it never used.
    """
    from fedmosaic_cli.cli import main

    atexit.register(lambda: Path(PEAK_FILE).write_text(json.dumps(own_memory())))
    sys.argv[1:] = arguments
    main()


def write_random_data(data: Path) -> None:
    """Write files with the layout and shapes of CIFAR-10, Fashion-MNIST and Office-Caltech10, with random pixels."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    batches = data / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        pixels = rng.integers(0, 256, (10_000, 3072), dtype=np.uint8)
        (batches / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": rng.integers(0, 10, 10_000).tolist()}))
    fashion = data / "FashionMNIST" / "raw"
    fashion.mkdir(parents=True)
    for split, count in (("train", 60_000), ("t10k", 10_000)):
        images, labels = rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count, np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (fashion / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())
    from fedmosaic_cli.data.datasets.office10 import CLASSES, DOMAINS

    for domain, size in zip(DOMAINS, (958, 1123, 157, 295), strict=True):
        for number in range(size):
            folder = data / "office10" / domain / CLASSES[number % len(CLASSES)]
            folder.mkdir(parents=True, exist_ok=True)
            image = Image.new("RGB", (256, 256), tuple(int(value) for value in rng.integers(0, 256, 3)))
            image.save(folder / f"{number}.jpg")


if __name__ == "__main__":
    if sys.argv[1] == "estimates":
        estimates(int(sys.argv[2]) if sys.argv[2:] else 3)
    elif sys.argv[1] == "run":
        run_and_report(sys.argv[2:])
    else:
        print(json.dumps(child(*sys.argv[1:])))
