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
# Stacked clients share their waits, so their number does not depend on the number of clients, with three exceptions:
# FedDF's server copies the predictions of every teacher, pFedHN's server takes a step with a norm for every upload,
# and a client of FedFomo validates up to `num_models` models of other clients, one after the other.
BOUNDS: dict[str, tuple[tuple[int, int, float], tuple[int, int, float]]] = {
    "centralized": ((9, 1, 3.8), (4, 0, 3.2)),
    "local": ((24, 4, 4.3), (8, 0, 1.5)),
    "fedavg": ((24, 4, 4.8), (8, 0, 1.8)),
    "fedprox": ((24, 4, 5.8), (9, 0, 2.2)),
    "fedct": ((48, 7, 6.8), (21, 0, 2.2)),
    "fedbn": ((24, 4, 4.8), (8, 0, 1.8)),
    "perfedavg": ((42, 7, 9.1), (14, 0, 3.7)),
    "ditto": ((48, 8, 9.9), (17, 0, 3.5)),
    "pfedme": ((36, 6, 24.0), (9, 0, 6.3)),
    "apfl": ((54, 9, 10.8), (12, 0, 4.6)),
    "fedphp": ((36, 6, 8.3), (12, 0, 3.1)),
    "perfedckt": ((42, 7, 6.9), (15, 0, 2.0)),
    "fedmosaic": ((54, 8, 7.4), (22, 0, 2.4)),
    "gated": ((66, 10, 10.6), (28, 0, 3.4)),
    "fedavgft": ((24, 4, 4.8), (8, 0, 1.8)),
    "scaffold": ((36, 6, 7.3), (10, 0, 3.8)),
    "feddf": ((33, 5, 32.4), (17, 1, 29.4)),
    "fedper": ((30, 5, 4.8), (9, 0, 1.8)),
    "fedrep": ((42, 7, 6.3), (15, 0, 2.4)),
    "lgfedavg": ((30, 5, 4.8), (9, 0, 1.8)),
    "fedproto": ((42, 7, 7.9), (12, 0, 4.9)),
    "fedfomo": ((112, 25, 13.0), (23, 2, 7.6)),
    "pfedhn": ((30, 5, 12.7), (14, 1, 9.8)),
    "dpsgd": ((30, 5, 5.5), (9, 0, 2.6)),
    "student": ((126, 21, 21.4), (27, 0, 5.1)),
    "oracle": ((96, 16, 15.7), (14, 0, 3.5)),
    "fedmosaic-entropy": ((54, 8, 7.4), (22, 0, 2.4)),
    "fedmosaic-late": ((48, 7, 6.8), (21, 0, 2.2)),
    "perfedckt-groups": ((42, 7, 6.9), (15, 0, 2.0)),
    "perfedavg-hf": ((48, 8, 15.4), (18, 0, 5.1)),
    "fedphp-mmd": ((36, 6, 16.9), (12, 0, 13.2)),
}


def cost(name: str, execution: str, steps: int = 3, clients: int = 6) -> RoundCost:
    return round_cost(name, execution, steps, clients)


@pytest.mark.thinned(every=11)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", VARIANTS)
class TestRound:
    def test_waits_do_not_grow_with_steps(self, name, execution):
        assert cost(name, execution, steps=6).waits <= cost(name, execution).waits

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
    bound, bound_per_client, _ = BOUNDS["fedavg"][EXECUTIONS.index(execution)]
    waits, fewer_clients = (round_cost.__wrapped__("fedavg", execution, 3, clients).waits for clients in (6, 3))
    assert waits > bound
    assert waits - fewer_clients > 3 * bound_per_client


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
