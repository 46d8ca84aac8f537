"""Upper bounds on what a round costs besides arithmetic: kernels and waits; see `tests.accelerator.round_costs`."""

from __future__ import annotations

import pytest

from fedmosaic_cli.methods.fedavg import FedAvg
from tests.accelerator.round_costs import EXAMPLES, RoundCost, round_cost
from tests.accelerator.simulated_device import record_operations, register
from tests.test_contract import VARIANTS
from tests.toys import make_toy

EXECUTIONS = ("threads", "stacked")
# Waits of a round of six clients, waits per client, and the predicted time in ms: in threads, and stacked. They may
# only decrease. `python -m tests.accelerator.round_costs` prints them, and with `--lines` where the host waits.
BOUNDS: dict[str, tuple[tuple[int, int, float], tuple[int, int, float]]] = {
    "centralized": ((16, 2, 3.8), (16, 2, 3.6)),
    "local": ((36, 6, 4.5), (30, 4, 2.7)),
    "fedavg": ((36, 6, 5.0), (30, 4, 3.0)),
    "fedprox": ((36, 6, 6.0), (31, 4, 3.4)),
    "fedct": ((78, 12, 7.4), (59, 7, 3.7)),
    "fedbn": ((36, 6, 5.0), (30, 4, 3.0)),
    "perfedavg": ((72, 12, 9.6), (79, 12, 7.6)),
    "ditto": ((72, 12, 10.3), (61, 8, 5.9)),
    "pfedme": ((54, 9, 24.4), (69, 9, 20.2)),
    "apfl": ((72, 12, 11.1), (78, 12, 9.6)),
    "fedphp": ((60, 10, 8.8), (49, 7, 4.7)),
    "perfedckt": ((66, 11, 7.4), (47, 6, 3.5)),
    "fedmosaic": ((90, 14, 8.0), (71, 9, 4.2)),
    "gated": ((108, 17, 11.4), (83, 10, 5.9)),
    "fedavgft": ((36, 6, 5.0), (30, 4, 3.0)),
    "scaffold": ((48, 8, 7.7), (42, 6, 5.4)),
    "feddf": ((47, 7, 32.6), (41, 5, 30.6)),
    "fedper": ((42, 7, 5.1), (36, 5, 3.2)),
    "fedrep": ((60, 10, 6.6), (48, 6, 3.9)),
    "lgfedavg": ((42, 7, 5.1), (36, 5, 3.2)),
    "fedproto": ((84, 14, 8.9), (73, 11, 6.7)),
    "fedfomo": ((182, 42, 14.2), (176, 40, 11.4)),
    "pfedhn": ((42, 7, 12.9), (36, 5, 11.0)),
    "dpsgd": ((42, 7, 5.8), (36, 5, 3.9)),
    "student": ((192, 32, 22.8), (149, 19, 12.2)),
    "oracle": ((144, 24, 16.8), (120, 16, 9.6)),
    "fedmosaic-entropy": ((90, 14, 8.0), (71, 9, 4.2)),
    "fedmosaic-late": ((84, 13, 7.5), (65, 8, 3.8)),
    "perfedckt-groups": ((66, 11, 7.4), (47, 6, 3.5)),
    "perfedavg-hf": ((84, 14, 16.0), (97, 14, 12.5)),
    "fedphp-mmd": ((60, 10, 17.4), (49, 7, 14.9)),
}
# Methods with their own step rule copy the sizes of the batches for every stack of gradients.
STACKED_WAITS_PER_STEP = {"perfedavg": 2, "pfedme": 5, "apfl": 2, "perfedavg-hf": 4}


def cost(name: str, execution: str, steps: int = 3, clients: int = 6) -> RoundCost:
    return round_cost(name, execution, steps, clients)


@pytest.mark.thinned(every=8)
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
