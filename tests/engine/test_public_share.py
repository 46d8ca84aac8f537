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


def rows_by_round(method, toy=TOYS["uneven"], rounds=4):
    federation = toy.changed(rounds=rounds).federation(method)
    with federation.worker_pool:
        return [done.rows for done in run_rounds(federation, rounds)]


def loss_fraction(row, trust):
    return trust * row["loss_public"] / (row["loss_private"] + trust * row["loss_public"])


@pytest.mark.parametrize("execution", ["threads", "stacked"])
@pytest.mark.parametrize(("method", "trust"), [(FedCT(), 1.0), (FedMosaic(trust=0.3), 0.3)])
def test_public_share_is_the_fraction_of_the_loss_from_pseudo_labels(method, trust, execution):
    first, *later = rows_by_round(method, TOYS["uneven"].changed(execution=execution))
    assert {row["public_share"] for row in first} == {0.0}
    for row in (row for rows in later for row in rows):
        assert 0 < row["public_share"] < 1
        assert row["public_share"] == pytest.approx(loss_fraction(row, trust))


def test_public_share_uses_training_losses_with_loss_ratio_trust():
    """The logged losses are on all examples before the round, so their fraction differs."""
    *_, rows = rows_by_round(FedMosaic(trust="paper"))
    assert all(0 < row["public_share"] < 1 for row in rows)
    assert any(row["public_share"] != pytest.approx(loss_fraction(row, row["lambda"])) for row in rows)


def test_public_share_is_0_without_trust():
    assert {row["public_share"] for rows in rows_by_round(FedMosaic(trust=0.0)) for row in rows} == {0.0}


def test_candidate_models_do_not_count_towards_the_public_share():
    """Before the decision only candidate models use pseudo-labels; the client's own model does afterwards."""
    always = GatedCoTraining(gate_z=-1e30, trust_min=0.0)
    rounds = rows_by_round(always, make_toy([24, 18, 30], public=21).changed(local_steps=6), rounds=8)
    closes = always.gate_decision_round(8)
    assert {row["public_share"] for rows in rounds[:closes] for row in rows} == {0.0}
    assert all(row["public_share"] > 0 for rows in rounds[closes:] for row in rows if row["lambda"] > 0)
    assert any(row["lambda"] > 0 for row in rounds[-1])


def test_methods_without_public_loss_log_no_public_share():
    assert not any("public_share" in row for rows in rows_by_round(Local()) for row in rows)


def test_every_learner_and_public_loss_logs_a_public_share():
    assert all(0 < row["public_share"] < 1 for row in rows_by_round(FedCT(), mixed(TOYS["even"]))[-1])
    assert all(0 < row["public_share"] < 1 for row in rows_by_round(PerFedCKT())[-1])
