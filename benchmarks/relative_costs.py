"""CPU time of whole runs of all methods relative to Local, as `sweeps/relative_costs.py` has it.

`python benchmarks/relative_costs.py` prints the table in the form in which that module has it, in about ten minutes. In
each repetition every method runs once, directly after a run of Local. A second run of Local directly after the first is
the control: its ratio shows the size of random differences. `--methods NAME ...` measures some methods, `--execution`
one column of the table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import ours
from measuring import timed
from workload import make_images, split_task

from fedmosaic_cli.methods.registry import METHODS

if TYPE_CHECKING:
    from workload import Task

CONTROL = "local"


@dataclass(frozen=True)
class Regime:
    """A size of networks and data. `warmup` rounds of methods that share labels are a sixth, as in the presets."""

    execution: str
    model: dict[str, Any]
    side: int
    channels: int
    clients: int
    train: int
    test: int
    public: int
    rounds: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        count = self.clients * (self.train + self.test) + self.public
        images = make_images(count, self.side, self.channels)
        return split_task(images, self.clients, self.train, self.test, self.public)

    def seconds(self, method: str, task: Task, optimizer: str) -> float:
        """CPU time of a run, without what is built before its first round."""
        warmup = {"warmup_rounds": self.rounds // 6} if method in ("fedct", "fedmosaic") else {}
        train = {**ours.ONE_EPOCH, **self.settings, "rounds": self.rounds, "optimizer": optimizer}
        federation = ours.federation(
            method, task, self.model, settings=warmup, batch_size=32, execution=self.execution, **train
        )
        with federation.worker_pool:
            return timed(partial(ours.run_rounds, federation, self.rounds)).cpu


REGIMES = (
    Regime(
        "stacked",
        ours.TINY_MLP,
        8,
        1,
        clients=10,
        train=90,
        test=40,
        public=300,
        rounds=30,
        settings={"local_steps": 10},
    ),
    Regime("threads", ours.CNN, 32, 3, clients=4, train=64, test=32, public=64, rounds=12),
)


def measure(methods: list[str], repetitions: int, regimes: list[Regime]) -> dict[str, list[list[float]]]:
    """Return the ratios to Local by method and regime."""
    ratios: dict[str, list[list[float]]] = {name: [[] for _ in regimes] for name in methods}
    for number, regime in enumerate(regimes):
        task = regime.task
        regime.seconds("local", task, "adam")  # warm-up: the first run of a process is slower
        for _ in range(repetitions):
            for name in methods:
                optimizer = "sgd" if METHODS[name]().needs.plain_sgd else "adam"
                local, own = (regime.seconds(each, task, optimizer) for each in ("local", name))
                ratios[name][number].append(own / local)
                print(f"{regime.execution}: {name} {own:.2f} s, {own / local:.2f} x Local", file=sys.stderr)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--execution", choices=[regime.execution for regime in REGIMES], help="Measure only one.")
    options = parser.parse_args()
    regimes = [regime for regime in REGIMES if options.execution in (None, regime.execution)]
    ratios = measure(list(dict.fromkeys([CONTROL, *options.methods])), options.repetitions, regimes)
    for name, measured in ratios.items():
        medians = [1.0 if name == CONTROL else statistics.median(own) for own in measured]
        costs = ", ".join(f"{regime.execution}={cost:.1f}" for regime, cost in zip(regimes, medians, strict=True))
        spread = "; ".join(f"{min(own):.2f}-{max(own):.2f}" for own in measured)
        print(f'    "{name}": RelativeCost({costs}),')
        print(f"{name}: {spread}{', the control' if name == CONTROL else ''}", file=sys.stderr)


if __name__ == "__main__":
    main()
