"""What a report costs when there are very many runs: time and memory of whole commands, on runs that are made up."""

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
# What `report` itself must keep to.
LIMITS = {"report": (20.0, 1000.0)}
# Runs the command in this process and says what it took; torch must not have been needed.
TAKEN = """
import sys
from fedmosaic_cli.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as leaving:
    assert not leaving.code, leaving.code
assert "torch" not in sys.modules
# Not getrusage: its peak is that of the process before it became this one.
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
sys.stderr.write(f"\\n{int(peak) / 1024}")
"""


def reporting(plan: Plan) -> Result:
    """Tables, statistics, page and figures of many runs."""
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
                taken = measured(["report", "runs", "-q", *options], Path(folder))
                seconds.append(taken[0])
                megabytes.append(taken[1])
            limits = LIMITS.get(name)
            result.lines += [
                Line(name, seconds, "s", at_most(limits[0]) if limits else None),
                Line(f"{name}, peak memory", megabytes, "MB", at_most(limits[1]) if limits else None),
            ]
    return result


def measured(arguments: list[str], folder: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of a command."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", TAKEN, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return time.perf_counter() - started, float(done.stderr.splitlines()[-1])


def write_runs(folder: Path, runs: int, rounds: int, clients: int) -> None:
    """So many finished runs: all methods, some seeds, as many settings as it takes. Numbers are drawn."""
    draw = random.Random(0)
    logs = {name: log_of(name == "fedmosaic", rounds, clients, draw) for name in METHODS}
    for number in range(runs):
        place, method = divmod(number, len(METHODS))
        setting, seed = divmod(place, SEEDS)
        write_run(folder, f"setting-{setting}", list(METHODS)[method], seed, logs, (rounds, clients), draw)


def log_of(trusts: bool, rounds: int, clients: int, draw: random.Random) -> str:
    """The lines of a log."""
    lines = []
    for number in range(1, rounds + 1):
        for client in range(clients):
            row: dict[str, Any] = {"round": number, "client": client, "lambda": None, "loss_private": None}
            row |= {"loss_public": None, "accuracy": draw.random(), "test_loss": draw.random()}
            row |= {"bits_up": 21_000, "bits_down": 9_000}
            if trusts:
                row |= {key: draw.random() for key in ("lambda", "loss_private", "loss_public", "agreement")}
            lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def write_run(
    folder: Path,
    setting: str,
    method: str,
    seed: int,
    logs: dict[str, str],
    size: tuple[int, int],
    draw: random.Random,
) -> None:
    rounds, clients = size
    variant = "fedmosaic-entropy" if method == "fedmosaic" else method
    run = RunDirectory(folder / setting / variant / f"seed-{seed}")
    (run.path / "models").mkdir(parents=True)
    manifest = manifest_of(setting, seed, clients, draw)
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
    marks = [draw.random() for _ in range(clients)]
    run.finalize(
        {
            "schema": 1,
            **{"preset": setting, "dataset": "digits", "scheme": "hybrid", "method": method, "variant": variant},
            **{"hyperparameters": {}, "seed": seed, "rounds": rounds, "model": {"name": "mlp"}, "train": {"lr": 0.1}},
            "shards": {"digest": manifest["digest"], "parameters": {"alpha": 1.0}},
            "accuracy": {"client_mean": sum(marks) / clients, "per_client": marks},
            "bits": {"up": 21_000 * rounds * clients, "down": 9_000 * rounds * clients},
            "device": "cpu",
            "evaluation": {"clients": "each on its own test part"},
            "models": models,
        },
        {name: sha256(texts[name]) for name in (ROUNDS_FILE, TIMINGS_FILE)},
    )


def configuration(setting: str, method: str, seed: int, rounds: int) -> RunConfig:
    """What the report reads to tell how more runs of the kind are made."""
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart-hybrid").layers)
    layers.add("benchmark", {"train": {"rounds": rounds}})
    return resolve_run_config(setting, layers, method, seed, DataDirs())


def manifest_of(setting: str, seed: int, clients: int, draw: random.Random) -> dict[str, Any]:
    def part() -> dict[str, Any]:
        counts = [draw.randrange(50) for _ in range(10)]
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
