"""How a round grows with the number of clients and with the public set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import ours
from measuring import interleaved
from results import Result
from workload import deal, make_images

if TYPE_CHECKING:
    from workload import Plan

BATCH = 10
MOST_REPETITIONS = 3


def scaling(plan: Plan) -> Result:
    """Rounds of more and more clients, and over larger and larger public sets."""
    sizes, plan = plan.sizes, replace(plan, repetitions=min(plan.repetitions, MOST_REPETITIONS))
    result = Result(
        "Scaling: number of clients, size of the public set",
        [
            f"A cnn of width 0.25 (so that what is not computing shows), batch {BATCH}, 1 worker, {plan.repetitions} "
            f"interleaved repetitions. Clients: FedAvg, always about {sizes.clients * sizes.train} training and "
            f"{sizes.clients * sizes.test} test images in all. Public set: FedMosaic, {plan.few} clients with "
            f"{sizes.train} training images each, per client."
        ],
    )
    measure_clients(result, plan)
    measure_public(result, plan)
    return result


def measure_clients(result: Result, plan: Plan) -> None:
    sizes, data = plan.sizes, make_images(plan.sizes.images)
    names = {count: f"FedAvg, {count} clients" for count in plan.client_counts}
    federations, examples = {}, {}
    for count, name in names.items():
        train, test = sizes.clients * sizes.train // count, sizes.clients * sizes.test // count
        task = deal(data, count, train, test)
        federations[name] = ours.federation("fedavg", task, ours.SMALL_CNN, batch_size=BATCH)
        examples[name] = count * train
    contestants = {name: partial(ours.play_rounds, federation) for name, federation in federations.items()}
    samples = interleaved(contestants, plan.repetitions, per=examples)
    result.add(samples, "us per training image", 1e6)
    for count in plan.client_counts[1:]:
        result.compare(names[count], names[plan.client_counts[0]])


def measure_public(result: Result, plan: Plan) -> None:
    sizes, data = plan.sizes, make_images(plan.sizes.images)
    names = {count: f"FedMosaic, \\|U\\| = {count}" for count in plan.public_sizes}
    federations = {}
    for count, name in names.items():
        task = deal(data, plan.few, sizes.train, sizes.test, public=count)
        federations[name] = ours.federation("fedmosaic", task, ours.SMALL_CNN, batch_size=BATCH)
    contestants = {name: partial(ours.play_rounds, federation) for name, federation in federations.items()}
    samples = interleaved(contestants, plan.repetitions, per=plan.few)
    result.add(samples, "s per client")
    for count in plan.public_sizes[1:]:
        result.compare(names[count], names[plan.public_sizes[0]])
