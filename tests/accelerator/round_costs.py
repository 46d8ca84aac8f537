"""Kernels and waits of a round on a simulated accelerator, and the round time that they predict.

`python -m tests.accelerator.round_costs [METHOD ...] [--steps N] [--cuda-graphs] [--lines]` prints them for all methods
or for some; with `--lines` also the lines of fedmosaic where the host waits.

The model of a round in which arithmetic costs nothing: 6 us to launch a kernel, and 20 us for every time that the host
waits for the device, by a read, a copy between host and device, or the capture of a graph. The replay of a graph counts
as one kernel. The model shows what a fast GPU would spend on a small network besides computing. It is no measurement.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from functools import cache

from fedmosaic_cli.engine.rounds import run_rounds
from tests.accelerator import simulated_graph  # noqa: F401 - provides the graphs of simulated devices
from tests.accelerator.simulated_device import record_operations, register
from tests.test_contract import VARIANTS
from tests.toys import make_toy

KERNEL_MICROSECONDS, WAIT_MICROSECONDS = 6, 20
COUNTED_ROUND = 3
"""Warm-up is over and optimizers have states; it is not the last round, in which some methods train additionally."""
EXAMPLES = 8
"""Training examples per client. Their batches have equal sizes."""


@dataclass(frozen=True)
class RoundCost:
    """What the device was asked for in a round.

    Attributes:
        kernels: Number of kernels.
        waits: Number of times the host waited.
        places: The waits by cause and line.
    """

    kernels: int
    waits: int
    places: Counter[tuple[str, str]]

    @property
    def predicted_ms(self) -> float:
        return (self.kernels * KERNEL_MICROSECONDS + self.waits * WAIT_MICROSECONDS) / 1000


@cache
def round_cost(name: str, execution: str, steps: int, clients: int, cuda_graphs: bool = False) -> RoundCost:
    """Count the operations of a whole round: training of all clients, aggregation and evaluation."""
    train = {"execution": execution, "local_steps": steps, "rounds": COUNTED_ROUND + 1, "cuda_graphs": cuda_graphs}
    toy = make_toy([EXAMPLES] * clients).changed(**train)
    federation = toy.federation(VARIANTS[name], devices=[register()])
    with federation.worker_pool:
        list(run_rounds(federation, COUNTED_ROUND - 1))
        with record_operations() as record:
            list(run_rounds(federation, COUNTED_ROUND))
    return RoundCost(sum(record.kernels.values()), sum(record.waits.values()), record.places)


def main() -> None:
    """Print a table of all methods in both executions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(VARIANTS), metavar="METHOD")
    parser.add_argument("--steps", type=int, default=3, help="steps per round")
    parser.add_argument("--cuda-graphs", action="store_true", help="with train.cuda_graphs")
    parser.add_argument("--lines", action="store_true", help="print where the host waits")
    arguments = parser.parse_args()
    columns = ("method", "execution", "kernels", "waits", "ms", "waits/client", "waits/step", "kernels/step")
    steps = arguments.steps
    print(f"6 clients, {steps} steps; waits per client are those of 6 clients less those of 3")  # noqa: T201
    print(("{:18} {:8}" + "{:>13}" * 6).format(*columns))  # noqa: T201
    for name in arguments.methods:
        for execution in ("threads", "stacked"):
            cost, fewer_clients, more_steps = (
                round_cost(name, execution, number, clients, arguments.cuda_graphs)
                for number, clients in ((steps, 6), (steps, 3), (steps + 3, 6))
            )
            per_client = (cost.waits - fewer_clients.waits) / 3
            per_step, kernels = (more_steps.waits - cost.waits) / 3, (more_steps.kernels - cost.kernels) / 3
            print(  # noqa: T201
                f"{name:18} {execution:8}{cost.kernels:13}{cost.waits:13}{cost.predicted_ms:13.2f}"
                f"{per_client:13.1f}{per_step:13.1f}{kernels:13.1f}"
            )
            if arguments.lines:
                for (cause, line), count in cost.places.most_common():
                    print(f"    {count:4} {cause:15} {line}")  # noqa: T201


if __name__ == "__main__":
    main()
