"""Start-up time of commands, each in a new process.

`python benchmarks/startup.py ARGUMENTS` runs fedmosaic with these arguments and stops when its first round begins.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from measuring import measure_interleaved, timed_process
from results import Result, at_most

if TYPE_CHECKING:
    from workload import Plan

# The help of an empty application: the time that typer itself takes.
EMPTY_APP = """
import typer
app = typer.Typer(rich_markup_mode="rich")
app.command("a")(lambda: None)
app.command("b")(lambda: None)
app(["--help"])
"""
TRAIN = ("train", "--preset", "quickstart", "--rounds", "1")


def startup(plan: Plan) -> Result:
    """Compare `--help` and a first run with the imports that they need."""
    repetitions = 1 if plan.quick else plan.repetitions
    result = Result(
        "Start-up: new processes",
        [
            f"{repetitions} interleaved repetitions; goals are for wall time. Training runs in an empty directory, "
            "so it creates the shards first; 'to its first round' stops when the first round begins."
        ],
    )
    python, fedmosaic = sys.executable, (sys.executable, "-m", "fedmosaic_cli")
    commands: dict[str, tuple[str, ...]] = {
        "import typer, rich": (python, "-c", "import typer, rich"),
        "an empty typer app's --help": (python, "-c", EMPTY_APP),
        "fedmosaic --help": (*fedmosaic, "--help"),
        "import torch": (python, "-c", "import torch"),
        "import torch, again": (python, "-c", "import torch"),
        "import torch, torchvision": (python, "-c", "import torch, torchvision"),
        "train, to its first round": (python, str(Path(__file__)), *TRAIN),
        "train, 1 round, to its end": (*fedmosaic, *TRAIN),
        "train --preset quickstart": (*fedmosaic, "train", "--preset", "quickstart"),
    }

    variants = {name: partial(timed_process, command) for name, command in commands.items()}
    samples = measure_interleaved(variants, repetitions, warm_up=not plan.quick)
    result.add(samples, "s", clocks=("wall", "cpu"))
    result.compare("fedmosaic --help", "import typer, rich", at_most(2), clock="wall")
    result.compare("an empty typer app's --help", "import typer, rich", clock="wall")
    result.compare("train, to its first round", "import torch, torchvision", at_most(1.3), clock="wall")
    result.compare("train, 1 round, to its end", "import torch, torchvision", clock="wall")
    result.compare("train --preset quickstart", "import torch", at_most(1.6))
    result.compare("import torch, again", "import torch")
    return result


def stop(*_: object) -> NoReturn:
    os._exit(0)


def run_to_first_round() -> None:
    """Run fedmosaic and exit when the first round begins."""
    from fedmosaic_cli.cli import main
    from fedmosaic_cli.engine import rounds

    rounds.run_round = stop  # type: ignore[assignment]
    main()
    raise SystemExit("the first round did not begin")


if __name__ == "__main__":
    run_to_first_round()
