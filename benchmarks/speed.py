"""How fast fedmosaic is: against bare loops, a naive simulator and other tools, measured side by side in one run.

python benchmarks/speed.py                          # everything: about half an hour on two cores
python benchmarks/speed.py --only training,round    # some parts
python benchmarks/speed.py --quick                  # a smoke test: tiny sizes, figures without meaning
python benchmarks/speed.py --json speed.json        # every sample in a file

All data is made up with a fixed seed. Contestants have a process each and take turns; ratios are formed within a turn.
CPU time is that of the contestant's process, with one thread for whatever is compared by it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from durability import durability
from load import load
from measuring import machine
from memory import memory
from peers import peers
from reporting import reporting
from rounds import rounds, tiny, workers
from scaling import scaling
from startup import startup
from training import augmentation, evaluation, training
from workload import QUICK, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from results import Result

PARTS: dict[str, Callable[[Plan], Result]] = {
    "training": training,
    "augmentation": augmentation,
    "evaluation": evaluation,
    "round": rounds,
    "workers": workers,
    "tiny": tiny,
    "scaling": scaling,
    "memory": memory,
    "load": load,
    "durability": durability,
    "startup": startup,
    "report": reporting,
    "peers": peers,
}
# Other tools take longer to start than a smoke test may last: with --quick they have to be asked for.
NOT_QUICK = {"peers"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART,...", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repetitions", type=int, metavar="N", help="how often each is measured (5; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, without peers unless named: a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    for peer in ("fluke", "flower"):
        parser.add_argument(
            f"--{peer}-python", default="", metavar="PATH", help=f"a Python that {peer} is installed in"
        )
    return parser.parse_args()


def plan_of(asked: argparse.Namespace) -> Plan:
    plan = QUICK if asked.quick else Plan()
    return replace(
        plan,
        repetitions=asked.repetitions or plan.repetitions,
        fluke_python=asked.fluke_python,
        flower_python=asked.flower_python,
    )


def chosen_parts(asked: argparse.Namespace) -> list[str]:
    """The parts to run, in the order of the table."""
    if asked.only is None:
        return [name for name in PARTS if not (asked.quick and name in NOT_QUICK)]
    named = asked.only.split(",")
    if unknown := [name for name in named if name not in PARTS]:
        sys.stderr.write(f"error: unknown part '{unknown[0]}' (--only): there are {', '.join(PARTS)}\n")
        sys.exit(2)
    return [name for name in PARTS if name in named]


def run(names: list[str], plan: Plan) -> Iterator[dict[str, Any]]:
    """Run parts one after the other, each shown as it ends. All that was found so far, after each."""
    about, parts = machine(), {}
    print(f"# Speed on {about['cpu']}, {about['cores']} cores, torch {about['torch']}\n")
    if plan.quick:
        print("Tiny sizes: this shows that everything runs, and nothing else.\n")
    for name in names:
        started = time.perf_counter()
        result = PARTS[name](plan)
        if plan.quick:
            result.lines = [replace(line, goal=None) for line in result.lines]
        seconds = time.perf_counter() - started
        print(f"{result.table()}\n({name}: {seconds:.0f} s)\n", flush=True)
        parts[name] = {**result.to_dict(), "seconds": seconds}
        yield {"machine": about, "quick": plan.quick, "repetitions": plan.repetitions, "parts": parts}


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for found in run(chosen_parts(asked), plan_of(asked)):
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
