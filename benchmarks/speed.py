"""Measure the speed of fedmosaic next to bare loops, a naive simulator and other tools in one run.

python benchmarks/speed.py                          # everything: about half an hour on two cores
python benchmarks/speed.py --only training,round    # some parts
python benchmarks/speed.py --quick                  # a smoke test: tiny sizes, meaningless figures
python benchmarks/speed.py --json speed.json        # every sample in a file

All data is random with a fixed seed. Each variant has its own process. Repetitions of variants are interleaved, and
ratios are computed within a repetition. CPU time is that of the variant's process, which has one thread where CPU times
are compared.
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
from peers import PEERS, peers
from pfllib import pfllib
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
    "pfllib": pfllib,
}
# Other tools start too slowly for a smoke test: with --quick they run only if they are named.
NOT_QUICK = {"peers", "pfllib"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART,...", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--repetitions", type=int, metavar="N", help="repetitions per variant (5; 2 with --quick)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, other tools only if named: a smoke test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    for peer in PEERS:
        name = peer.option
        parser.add_argument(f"--{name}-python", default="", metavar="PATH", help=f"a Python for {peer.title}")
        if peer.repository:
            parser.add_argument(f"--{name}", default="", metavar="PATH", help=f"a clone of {peer.repository}")
    return parser.parse_args()


def plan_of(options: argparse.Namespace) -> Plan:
    plan, paths = QUICK if options.quick else Plan(), vars(options)
    return replace(
        plan,
        repetitions=options.repetitions or plan.repetitions,
        peer_pythons={peer.option: paths[f"{peer.option}_python".replace("-", "_")] for peer in PEERS},
        peer_checkouts={peer.option: paths[peer.option.replace("-", "_")] for peer in PEERS if peer.repository},
    )


def chosen_parts(options: argparse.Namespace) -> list[str]:
    """The parts to run, in the order of the table."""
    if options.only is None:
        return [name for name in PARTS if not (options.quick and name in NOT_QUICK)]
    named = options.only.split(",")
    if unknown := [name for name in named if name not in PARTS]:
        sys.stderr.write(f"error: unknown part '{unknown[0]}' (--only): there are {', '.join(PARTS)}\n")
        sys.exit(2)
    return [name for name in PARTS if name in named]


def run(names: list[str], plan: Plan) -> Iterator[dict[str, Any]]:
    """Run the parts and print each result. Yields all results so far after each part."""
    about, parts = machine(), {}
    print(f"# Speed on {about['cpu']}, {about['cores']} cores, torch {about['torch']}\n")
    if plan.quick:
        print("Tiny sizes: the figures have no meaning.\n")
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
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for results in run(chosen_parts(options), plan_of(options)):
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
