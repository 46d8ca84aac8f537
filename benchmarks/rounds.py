"""Whole rounds: against the naive simulator, with two workers, and with stacked clients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import naive
import ours
from measuring import measure_forked
from results import Result, at_least, at_most
from workload import cifar_task, make_images, split_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from workload import Plan, Task

GOALS_FEDAVG = {10: at_least(1.7), 64: at_least(1.9)}
TINY_METHODS = ("fedavg", "ditto", "fedmosaic")
# Networks below and above the size from which stacking no longer pays off on a CPU.
NETWORKS = {
    "mlp 512": {"name": "mlp", "hidden": (512,)},
    "mlp 512-512": {"name": "mlp", "hidden": (512, 512)},
    "cnn, width 0.25": {"name": "cnn", "width": 0.25},
    "cnn": {"name": "cnn"},
}


def rounds(plan: Plan) -> Result:
    """Compare FedAvg and FedMosaic with the naive simulator, and Ditto with FedAvg."""
    sizes = plan.sizes
    result = Result(
        "Rounds: one worker, per client",
        [
            f"Clients with {sizes.train} training and {sizes.test} test images, |U| = {sizes.public}; {plan.few} of "
            f"{sizes.clients} clients for FedAvg, 1 for the others, and all figures per client; 1 thread, "
            f"{plan.repetitions} interleaved repetitions. Both sides report test accuracy, test loss and training "
            "loss every round. Ours takes FedAvg's training loss from the training itself, while the naive simulator "
            "evaluates the training set again, so part of the difference is less work."
        ],
    )
    for batch in plan.batches:
        measure_rounds(result, batch, plan)
    return result


def measure_rounds(result: Result, batch: int, plan: Plan) -> None:
    few, one = cifar_task(plan.sizes, clients=plan.few), cifar_task(plan.sizes, clients=1)
    federations = {
        "FedAvg": ours.federation("fedavg", few, batch_size=batch),
        "Ditto": ours.federation("ditto", one, batch_size=batch),
        "FedMosaic": ours.federation("fedmosaic", one, batch_size=batch),
    }
    variants: dict[str, Callable[[], object]] = {
        f"{title} ours, batch {batch}": partial(ours.run_trusting_round, federation)
        for title, federation in federations.items()
    }
    variants[f"FedAvg naive, batch {batch}"] = naive.FedAvg(few, batch).run_round
    variants[f"FedMosaic naive, batch {batch}"] = naive.FedMosaic(one, batch).run_round
    per = {name: plan.few if name.startswith("FedAvg") else 1 for name in variants}
    # The warm-up is the round in which FedMosaic has no consensus to train on yet.
    result.add(measure_forked(variants, plan.repetitions, per=per), "s per client")
    result.compare(f"FedAvg naive, batch {batch}", f"FedAvg ours, batch {batch}", GOALS_FEDAVG.get(batch))
    result.compare(f"Ditto ours, batch {batch}", f"FedAvg ours, batch {batch}")
    result.compare(f"FedMosaic ours, batch {batch}", f"FedMosaic naive, batch {batch}", at_most(0.70))


def workers(plan: Plan) -> Result:
    """Compare a full FedAvg round with one and with two workers."""
    sizes, batch = plan.sizes, plan.batches[-1]
    result = Result(
        "Workers: a full FedAvg round",
        [
            f"{sizes.clients} clients, batch {batch}, 1 thread a worker, {plan.repetitions} interleaved repetitions; "
            "wall time, so other programs on the machine affect it. Two workers cannot share an odd number of clients "
            f"evenly: the largest possible ratio is {sizes.clients / -(-sizes.clients // 2):.2f}."
        ],
    )
    task = cifar_task(sizes, public=0)
    federations = {count: ours.federation("fedavg", task, batch_size=batch, workers=count) for count in (1, 2)}
    names = {1: "1 worker", 2: "2 workers"}
    variants = {names[count]: partial(ours.run_rounds, federation) for count, federation in federations.items()}
    result.add(measure_forked(variants, plan.repetitions, warm_up=False), "s per round", clocks=("wall", "cpu"))
    result.compare(names[1], names[2], at_least(1.8), clock="wall")
    return result


def tiny(plan: Plan) -> Result:
    """Compare clients one by one and stacked, with the sizes of the preset `quickstart-label-skew`."""
    result = Result(
        "Tiny models: clients one by one, and stacked",
        [
            f"Sizes of the preset quickstart-label-skew for 15 clients: images of 8x8, an mlp with 64 hidden units, "
            f"10 steps of Adam at batch 32; {plan.tiny_rounds} rounds a sample, 1 worker, {plan.repetitions} "
            "interleaved repetitions."
        ],
    )
    task = split_task(make_images(1_797, side=8, channels=1), clients=15, train=75, test=24, public=300)
    for method in TINY_METHODS:
        one_by_one, stacked = f"{method}, one by one", f"{method}, stacked"
        federations = {
            one_by_one: ours.federation(method, task, ours.TINY_MLP, **ours.QUICKSTART, execution="threads"),
            stacked: ours.federation(method, task, ours.TINY_MLP, **ours.QUICKSTART, execution="stacked"),
        }
        variants = {
            name: partial(ours.run_rounds, federation, plan.tiny_rounds) for name, federation in federations.items()
        }
        samples = measure_forked(variants, plan.repetitions, per=plan.tiny_rounds)
        result.add(samples, "ms per round", 1e3, clocks=("wall", "cpu"))
        result.compare(one_by_one, stacked, at_least(3), clock="wall")
        result.compare(one_by_one, stacked, clock="cpu")
    for name, network in NETWORKS.items():
        measure_network(result, name, network, task, plan)
    return result


def measure_network(result: Result, name: str, network: dict[str, Any], task: Task, plan: Plan) -> None:
    """Compare FedAvg with a network one by one on two workers and stacked."""
    names = {"threads": f"{name}, one by one, 2 workers", "stacked": f"{name}, stacked"}
    settings = {**ours.QUICKSTART, "workers": 2}
    federations = {how: ours.federation("fedavg", task, network, **settings, execution=how) for how in names}
    variants = {names[how]: partial(ours.run_rounds, federation, 2) for how, federation in federations.items()}
    result.add(measure_forked(variants, plan.repetitions, per=2), "ms per round", 1e3, clocks=("wall",))
    result.compare(names["threads"], names["stacked"], clock="wall")
