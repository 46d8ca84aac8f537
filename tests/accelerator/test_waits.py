"""Upper bounds on what a round costs besides arithmetic: kernels and waits; see `tests.accelerator.round_costs`."""

from __future__ import annotations

import pytest

from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedavg import FedAvg
from tests.accelerator.round_costs import EXAMPLES, RoundCost, round_cost
from tests.accelerator.simulated_device import record_operations, register
from tests.test_contract import VARIANTS
from tests.toys import make_toy

EXECUTIONS = ("threads", "stacked")
# Waits of a round of six clients, waits per client, and the predicted time in ms: in threads, and stacked. They may
# only decrease. `python -m tests.accelerator.round_costs` prints them, and with `--lines` where the host waits.
BOUNDS: dict[str, tuple[tuple[int, int, float], tuple[int, int, float]]] = {
    "centralized": ((15, 2, 3.8), (15, 2, 3.6)),
    "local": ((30, 5, 4.5), (30, 4, 2.7)),
    "fedavg": ((30, 5, 4.9), (30, 4, 3.0)),
    "fedprox": ((30, 5, 5.9), (31, 4, 3.4)),
    "fedct": ((54, 8, 6.9), (53, 6, 3.6)),
    "fedbn": ((30, 5, 4.9), (30, 4, 3.0)),
    "perfedavg": ((54, 9, 9.2), (61, 9, 7.3)),
    "ditto": ((60, 10, 10.2), (61, 8, 5.9)),
    "pfedme": ((48, 8, 24.2), (63, 8, 20.0)),
    "apfl": ((66, 11, 11.0), (72, 11, 9.5)),
    "fedphp": ((48, 8, 8.6), (49, 7, 4.7)),
    "perfedckt": ((48, 8, 7.0), (47, 6, 3.5)),
    "fedmosaic": ((60, 9, 7.4), (59, 7, 4.0)),
    "gated": ((72, 11, 10.8), (71, 8, 5.6)),
    "fedavgft": ((30, 5, 4.9), (30, 4, 3.0)),
    "scaffold": ((42, 7, 7.6), (42, 6, 5.4)),
    "feddf": ((39, 6, 32.5), (39, 5, 30.6)),
    "fedper": ((36, 6, 5.0), (36, 5, 3.2)),
    "fedrep": ((48, 8, 6.4), (48, 6, 3.9)),
    "lgfedavg": ((36, 6, 5.0), (36, 5, 3.2)),
    "fedproto": ((54, 9, 8.3), (55, 8, 6.3)),
    "fedfomo": ((140, 32, 13.4), (140, 31, 10.7)),
    "pfedhn": ((36, 6, 12.8), (36, 5, 11.0)),
    "dpsgd": ((36, 6, 5.7), (36, 5, 3.9)),
    "student": ((132, 22, 21.8), (131, 16, 11.8)),
    "oracle": ((102, 17, 16.1), (102, 13, 9.3)),
    "fedmosaic-entropy": ((60, 9, 7.4), (59, 7, 4.0)),
    "fedmosaic-late": ((54, 8, 6.9), (53, 6, 3.6)),
    "perfedckt-groups": ((48, 8, 7.0), (47, 6, 3.5)),
    "perfedavg-hf": ((60, 10, 15.5), (73, 10, 12.1)),
    "fedphp-mmd": ((48, 8, 17.2), (49, 7, 14.9)),
}
# Methods with their own step rule copy the sizes of the batches for every stack of gradients.
STACKED_WAITS_PER_STEP = {"perfedavg": 2, "pfedme": 5, "apfl": 2, "perfedavg-hf": 4}


def cost(name: str, execution: str, steps: int = 3, clients: int = 6) -> RoundCost:
    return round_cost(name, execution, steps, clients)


@pytest.mark.thinned(every=11)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", VARIANTS)
class TestRound:
    def test_waits_do_not_grow_with_steps(self, name, execution):
        allowed = STACKED_WAITS_PER_STEP.get(name, 0) if execution == "stacked" else 0
        assert cost(name, execution, steps=6).waits - cost(name, execution).waits <= 3 * allowed

    def test_waits_and_predicted_time_are_within_their_bounds(self, name, execution):
        waits, waits_per_client, milliseconds = BOUNDS[name][EXECUTIONS.index(execution)]
        found, fewer_clients = cost(name, execution), cost(name, execution, clients=3)
        assert found.waits <= waits, found.places.most_common()
        assert found.waits - fewer_clients.waits <= 3 * waits_per_client, found.places.most_common()
        assert found.predicted_ms <= milliseconds


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_another_read_per_client_exceeds_the_bounds(execution, monkeypatch):
    """The bounds are tight enough to notice a single read."""
    local_round = FedAvg.local_round

    def reading(self, client, received, ctx):
        assert client.private.targets.sum().item() >= 0
        return local_round(self, client, received, ctx)

    monkeypatch.setattr(FedAvg, "local_round", reading)
    bound = BOUNDS["fedavg"][EXECUTIONS.index(execution)][0]
    assert round_cost.__wrapped__("fedavg", execution, 3, 6).waits > bound


def test_images_on_the_host_are_copied_once_per_step():
    def copies(steps: int) -> int:
        toy = make_toy([EXAMPLES, EXAMPLES]).changed(images="host", local_steps=steps)
        federation = toy.federation(VARIANTS["fedct"], devices=[register()])
        with federation.worker_pool:
            list(run_rounds(federation, 2))
            with record_operations() as record:
                list(run_rounds(federation, 3))
        return sum(record.waits.values())

    assert copies(6) - copies(3) == 2 * 3, "private and public images together, for two clients and three more steps"


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_number_of_evaluation_passes_does_not_depend_on_the_size_of_the_set(execution):
    def kernels(examples: int) -> int:
        federation = (
            make_toy([EXAMPLES, EXAMPLES], public=examples)
            .changed(execution=execution)
            .federation(VARIANTS["local"], devices=[register()])
        )
        client = federation.state.clients[0]
        with federation.worker_pool, record_operations() as record:
            client.predict_public(client.initial_model)
        return sum(record.kernels.values())

    assert kernels(4000) == kernels(100) < kernels(5000)
