"""FedAvg rounds against PFLlib in detail: with and without the numbers that PFLlib reports, on one and two cores."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Sample, measure_interleaved
from peers import ONE_THREAD, OURS, PFLLIB, PeerProcess, dropped_images, make_job, usable_peers
from results import Result, at_least
from workload import NEVER

if TYPE_CHECKING:
    from measuring import Samples
    from workload import Job, Plan

LIKE_PFLLIB = "ours with PFLlib's numbers"
TWO_WORKERS = f"{LIKE_PFLLIB}, 2 workers"
GOAL = at_least(3)


def pfllib(plan: Plan) -> Result:
    """Compare rounds on one core in CPU time, and rounds of two workers with PFLlib on one core in wall time."""
    result = Result(
        "PFLlib: FedAvg rounds",
        [
            f"{plan.sizes.train} training and {plan.sizes.test} test images per client, 1 epoch of SGD, figures per "
            f"client, {plan.pfllib_repetitions} interleaved repetitions (2 with more than 10 clients) after a first "
            "round that is not counted. 'Ours' reports the test accuracy and loss of every client, and the training "
            "loss from the training itself. 'Ours with PFLlib's numbers' reports what PFLlib reports: test accuracy, "
            "AUC, and the training loss from another pass over the training set. 'Images in memory' is PFLlib without "
            "reading them from files in every pass. '1 thread' means OMP_NUM_THREADS=1. 'Evaluated every "
            f"{plan.pfllib_eval_every} rounds' is computed from the measurements with and without evaluation. "
            f"{dropped_images(plan)}"
        ],
    )
    usable = usable_peers(plan, (PFLLIB,), result)
    if PFLLIB not in usable:
        return result
    for batch in plan.batches:
        with tempfile.TemporaryDirectory() as directory:
            compare_one_worker(result, plan, usable[PFLLIB], directory, batch)
    for clients in plan.pfllib_client_counts:
        with tempfile.TemporaryDirectory() as directory:
            compare_two_workers(result, plan, usable[PFLLIB], directory, clients)
    return result


class Variants:
    """The processes that are compared on one job, by name."""

    def __init__(self, plan: Plan, python: str, directory: str, clients: int, batch: int) -> None:
        self._clients, self._python = clients, python
        self._repetitions = min(plan.pfllib_repetitions, 2) if clients > 10 else plan.pfllib_repetitions
        job = make_job(plan, [PFLLIB], directory, clients, batch, self._repetitions + 1)
        self._job = replace(job, checkout=str(Path(plan.peer_checkouts[PFLLIB.option]).resolve()))
        self._processes: dict[str, PeerProcess] = {}

    def add_ours(self, name: str, workers: int = 1, like_pfllib: bool = True, eval_every: int = 1) -> None:
        job = replace(self._job, workers=workers, like_pfllib=like_pfllib, eval_every=eval_every)
        self._processes[name] = PeerProcess(OURS, sys.executable, job, ONE_THREAD)

    def add_pfllib(self, name: str, one_thread: bool = True, eval_every: int = 1, cache_images: bool = False) -> None:
        job: Job = replace(self._job, eval_every=eval_every, cache_images=cache_images)
        self._processes[name] = PeerProcess(PFLLIB, self._python, job, ONE_THREAD if one_thread else {})

    def measure(self) -> Samples:
        """Run the rounds of all processes, interleaved. Samples are per client."""
        runs = {name: process.run for name, process in self._processes.items()}
        samples = measure_interleaved(runs, self._repetitions, per=self._clients)
        for process in self._processes.values():
            process.close()
        return samples


def compare_one_worker(result: Result, plan: Plan, python: str, directory: str, batch: int) -> None:
    """CPU time of one worker against one thread."""
    variants, suffix = Variants(plan, python, directory, plan.few, batch), f", batch {batch}"
    variants.add_ours("ours" + suffix, like_pfllib=False)
    variants.add_ours(LIKE_PFLLIB + suffix)
    variants.add_pfllib("PFLlib" + suffix)
    variants.add_pfllib("PFLlib, images in memory" + suffix, cache_images=True)
    variants.add_ours(f"{LIKE_PFLLIB}, duplicate" + suffix)
    result.add(variants.measure(), "s per client")
    result.compare("PFLlib" + suffix, "ours" + suffix)
    result.compare("PFLlib" + suffix, LIKE_PFLLIB + suffix)
    result.compare("PFLlib, images in memory" + suffix, LIKE_PFLLIB + suffix)
    result.compare(f"{LIKE_PFLLIB}, duplicate" + suffix, LIKE_PFLLIB + suffix)


def compare_two_workers(result: Result, plan: Plan, python: str, directory: str, clients: int) -> None:
    """Wall time of two workers against PFLlib with one thread and with its default number of threads."""
    variants, suffix = Variants(plan, python, directory, clients, plan.batches[-1]), f", {clients} clients"
    one_thread, default, ours = f"PFLlib, 1 thread{suffix}", f"PFLlib, default threads{suffix}", TWO_WORKERS + suffix
    variants.add_ours(ours, workers=2)
    variants.add_pfllib(one_thread)
    variants.add_pfllib(default, one_thread=False)
    is_detailed = clients == plan.pfllib_detailed_clients
    duplicate = f"{TWO_WORKERS}, duplicate{suffix}"
    # Rounds without evaluation: neither `--eval-every` nor PFLlib's `--eval_gap` is reached.
    skipping = {name: f"{name}, not evaluated" for name in (ours, one_thread)}
    if is_detailed:
        variants.add_ours(duplicate, workers=2)
        variants.add_ours(skipping[ours], workers=2, eval_every=NEVER)
        variants.add_pfllib(skipping[one_thread], eval_every=NEVER)
    samples = variants.measure()
    mixed = {name: f"{name}, evaluated every {plan.pfllib_eval_every} rounds" for name in skipping}
    if is_detailed:
        for name, other in skipping.items():
            samples[mixed[name]] = mix(samples[name], samples[other], plan.pfllib_eval_every)
    result.add(samples, "s per client", clocks=("wall", "cpu"))
    result.compare(one_thread, ours, GOAL, clock="wall")
    result.compare(default, ours, clock="wall")
    if is_detailed:
        result.compare(duplicate, ours, clock="wall")
        result.compare(skipping[one_thread], skipping[ours], clock="wall")
        result.compare(mixed[one_thread], mixed[ours], clock="wall")


def mix(evaluated: list[Sample], others: list[Sample], every: int) -> list[Sample]:
    """Return the mean time of a round if one of `every` rounds is evaluated."""
    return [
        Sample((a.cpu + (every - 1) * b.cpu) / every, (a.wall + (every - 1) * b.wall) / every)
        for a, b in zip(evaluated, others, strict=True)
    ]
