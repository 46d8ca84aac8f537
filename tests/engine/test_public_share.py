"""The logged fraction of the training loss that comes from the public set."""

from __future__ import annotations

import pytest

from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.gated import GatedCoTraining
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from tests.toys import TOYS, make_toy, mixed


def rounds_of(method, toy=TOYS["uneven"], rounds=4):
    federation = toy.changed(rounds=rounds).federation(method)
    with federation.worker_pool:
        return [done.rows for done in run_rounds(federation, rounds)]


def share(row, trust):
    return trust * row["loss_public"] / (row["loss_private"] + trust * row["loss_public"])


@pytest.mark.parametrize("execution", ["threads", "stacked"])
@pytest.mark.parametrize(("method", "trust"), [(FedCT(), 1.0), (FedMosaic(trust=0.3), 0.3)])
def test_public_share_is_the_fraction_of_the_loss_from_pseudo_labels(method, trust, execution):
    alone, *together = rounds_of(method, TOYS["uneven"].changed(execution=execution))
    assert {row["public_share"] for row in alone} == {0.0}
    for row in (row for rows in together for row in rows):
        assert 0 < row["public_share"] < 1
        assert row["public_share"] == pytest.approx(share(row, trust))


def test_public_share_uses_training_losses_with_loss_ratio_trust():
    """The logged losses are those before the round, on all examples: their share is another one."""
    *_, rows = rounds_of(FedMosaic(trust="paper"))
    assert all(0 < row["public_share"] < 1 for row in rows)
    assert any(row["public_share"] != pytest.approx(share(row, row["lambda"])) for row in rows)


def test_public_share_is_0_without_trust():
    assert {row["public_share"] for rows in rounds_of(FedMosaic(trust=0.0)) for row in rows} == {0.0}


def test_candidate_models_do_not_count():
    """At the gate other models learn from pseudo-labels; the client's own does when it has passed."""
    always = GatedCoTraining(gate_z=-1e30, trust_min=0.0)
    rounds = rounds_of(always, make_toy([24, 18, 30], public=21).changed(local_steps=6), rounds=8)
    closes = always.gate_decision_round(8)
    assert {row["public_share"] for rows in rounds[:closes] for row in rows} == {0.0}
    assert all(row["public_share"] > 0 for rows in rounds[closes:] for row in rows if row["lambda"] > 0)
    assert any(row["lambda"] > 0 for row in rounds[-1])


def test_methods_without_public_loss_log_no_public_share():
    assert not any("public_share" in row for rows in rounds_of(Local()) for row in rows)


def test_every_learner_and_public_loss_logs_a_public_share():
    assert all(0 < row["public_share"] < 1 for row in rounds_of(FedCT(), mixed(TOYS["even"]))[-1])
    assert all(0 < row["public_share"] < 1 for row in rounds_of(PerFedCKT())[-1])
