"""Time and memory of `fedmosaic report` on thousands of generated runs; whole commands."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from results import Line, Result, at_most

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.storage.files import sha256, to_checksummed_json
from fedmosaic_cli.storage.runs import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    ROUNDS_FILE,
    SHARDS_FILE,
    TIMINGS_FILE,
    RunDirectory,
)

if TYPE_CHECKING:
    from workload import Plan

    from fedmosaic_cli.config.run_config import RunConfig

SEEDS = 10
COMMANDS = {
    "report": [],
    "report --table all --paper": ["--table", "all", "--paper"],
    "report --statistics": ["--statistics"],
    "report --html": ["--html", "page.html"],
    "report --out": ["--out", "results"],
}
# Limits of `report` without options, in seconds and MB.
LIMITS = {"report": (20.0, 1000.0)}
# Runs the command and prints its peak memory. Requires that torch was not imported.
MEASURED_COMMAND = """
import sys
from fedmosaic_cli.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as error:
    assert not error.code, error.code
assert "torch" not in sys.modules
# Not getrusage: its peak includes the process before exec.
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
sys.stderr.write(f"\\n{int(peak) / 1024}")
"""


def reporting(plan: Plan) -> Result:
    """Measure tables, statistics, the HTML page and figures of many runs."""
    runs, rounds, clients = plan.report_runs, plan.report_rounds, plan.report_clients
    result = Result(
        "Report: many runs",
        [f"{runs} run directories x {rounds} rounds x {clients} clients; whole commands, files in the page cache."],
    )
    with tempfile.TemporaryDirectory() as folder:
        write_runs(Path(folder) / "runs", runs, rounds, clients)
        for name, options in COMMANDS.items():
            seconds, megabytes = [], []
            for _ in range(plan.repetitions):
                seconds_taken, peak = measured(["report", "runs", "-q", *options], Path(folder))
                seconds.append(seconds_taken)
                megabytes.append(peak)
            limits = LIMITS.get(name)
            result.lines += [
                Line(name, seconds, "s", at_most(limits[0]) if limits else None),
                Line(f"{name}, peak memory", megabytes, "MB", at_most(limits[1]) if limits else None),
            ]
    return result


def measured(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Run a command and return its seconds and its peak memory in MB."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED_COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return time.perf_counter() - started, float(done.stderr.splitlines()[-1])


def write_runs(folder: Path, runs: int, rounds: int, clients: int) -> None:
    """Write finished runs with random metrics: all methods, ten seeds, and the number of settings that this needs."""
    rng = random.Random(0)
    logs = {name: make_log(name == "fedmosaic", rounds, clients, rng) for name in METHODS}
    for number in range(runs):
        index, method = divmod(number, len(METHODS))
        setting, seed = divmod(index, SEEDS)
        write_run(folder, f"setting-{setting}", list(METHODS)[method], seed, logs, (rounds, clients), rng)


def make_log(has_trust: bool, rounds: int, clients: int, rng: random.Random) -> str:
    """Return the lines of a log."""
    lines = []
    for number in range(1, rounds + 1):
        for client in range(clients):
            row: dict[str, Any] = {"round": number, "client": client, "lambda": None, "loss_private": None}
            row |= {"loss_public": None, "accuracy": rng.random(), "test_loss": rng.random()}
            row |= {"bits_up": 21_000, "bits_down": 9_000}
            if has_trust:
                row |= {key: rng.random() for key in ("lambda", "loss_private", "loss_public", "agreement")}
            lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def write_run(
    folder: Path,
    setting: str,
    method: str,
    seed: int,
    logs: dict[str, str],
    size: tuple[int, int],
    rng: random.Random,
) -> None:
    rounds, clients = size
    variant = "fedmosaic-entropy" if method == "fedmosaic" else method
    run = RunDirectory(folder / setting / variant / f"seed-{seed}")
    (run.path / "models").mkdir(parents=True)
    manifest = make_manifest(setting, seed, clients, rng)
    texts = {
        CONFIG_FILE: yaml.safe_dump(configuration(setting, method, seed, rounds).to_dict()).encode(),
        ENVIRONMENT_FILE: json.dumps({"arguments": ["baseline", "all", "--preset", setting]}).encode(),
        SHARDS_FILE: to_checksummed_json(manifest),
        ROUNDS_FILE: logs[method].encode(),
        TIMINGS_FILE: b"",
    }
    for name, content in texts.items():
        (run.path / name).write_bytes(content)
    models = {f"client-{client:03d}.safetensors": sha256(b"") for client in range(clients)}
    for name in models:
        (run.path / "models" / name).write_bytes(b"")
    accuracies = [rng.random() for _ in range(clients)]
    run.finalize(
        {
            "schema": 1,
            **{"preset": setting, "dataset": "digits", "scheme": "hybrid", "method": method, "variant": variant},
            **{"hyperparameters": {}, "seed": seed, "rounds": rounds, "model": {"name": "mlp"}, "train": {"lr": 0.1}},
            "shards": {"digest": manifest["digest"], "parameters": {"alpha": 1.0}},
            "accuracy": {"client_mean": sum(accuracies) / clients, "per_client": accuracies},
            "bits": {"up": 21_000 * rounds * clients, "down": 9_000 * rounds * clients},
            "device": "cpu",
            "evaluation": {"clients": "each on its own test part"},
            "models": models,
        },
        {name: sha256(texts[name]) for name in (ROUNDS_FILE, TIMINGS_FILE)},
    )


def configuration(setting: str, method: str, seed: int, rounds: int) -> RunConfig:
    """Return the configuration from which the report derives the command of a run."""
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart-hybrid").layers)
    layers.add("benchmark", {"train": {"rounds": rounds}})
    return resolve_run_config(setting, layers, method, seed, DataDirs())


def make_manifest(setting: str, seed: int, clients: int, rng: random.Random) -> dict[str, Any]:
    def part() -> dict[str, Any]:
        counts = [rng.randrange(50) for _ in range(10)]
        return {"size": sum(counts), "class_counts": counts}

    return {
        "digest": sha256(f"{setting} {seed}".encode()),
        **{"dataset": "digits", "scheme": "hybrid", "protocol": "official", "tested_on": "", "parameters": {}},
        **{"seed": seed, "class_names": [str(name) for name in range(10)], "image_shape": [8, 8, 1]},
        **{"examples": 100_000, "left_out": 0, "source_fingerprint": "", "export": False, "files": {}, "found_at": ""},
        "clients": [
            {
                **{"id": client, "domain": f"domain {client % 5}", "labels_flipped": False, "sha256": ""},
                **{"train": part(), "test": part()},
            }
            for client in range(clients)
        ],
        "public": part(),
    }
