"""Documented results of the presets on the digits data set. Takes minutes: `python -m pytest -m slow`."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from tests.preset_runs import prepare_preset, run_prepared

pytestmark = pytest.mark.slow

FLIPPED_CLIENT = ("data.scheme=iid", "data.clients=5", "data.flip_labels=[0]")


@cache
def last_rows(preset: str, method: str, seed: int, changes: tuple[str, ...] = ()) -> list[dict]:
    """Return the rows of the last round of a run."""
    return run_prepared(*prepare_preset(preset, method, seed, changes))[1]


def accuracy(preset: str, method: str, changes: tuple[str, ...] = ()) -> float:
    """Return the accuracy in percent, the mean over clients and three seeds."""
    return 100 * fmean(row["accuracy"] for seed in range(3) for row in last_rows(preset, method, seed, changes))


def test_fedmosaic_beats_local_training_and_fedct():
    ours = accuracy("quickstart-label-skew", "fedmosaic")
    assert ours > accuracy("quickstart-label-skew", "local") + 1
    assert ours > accuracy("quickstart-label-skew", "fedct") + 1
    trusts = [row["lambda"] for seed in range(3) for row in last_rows("quickstart-label-skew", "fedmosaic", seed)]
    assert all(0 <= trust <= 1 for trust in trusts)
    assert fmean(trusts) > 0.3, "with a lambda near 0 there is no collaboration"


def test_with_few_examples_one_exchange_of_labels_pays_and_harms_no_client():
    local, student = accuracy("quickstart", "local"), accuracy("quickstart", "student")
    assert student > local + 3
    assert student > accuracy("quickstart", "fedmosaic") + 1
    assert accuracy("quickstart", "oracle") > student - 1
    for seed in range(3):
        pairs = zip(last_rows("quickstart", "student", seed), last_rows("quickstart", "local", seed), strict=True)
        assert sum(ours["accuracy"] < alone["accuracy"] for ours, alone in pairs) <= 1


def test_feature_shift_harms_fedavg_but_not_fedmosaic():
    local = accuracy("quickstart-feature-shift", "local")
    assert accuracy("quickstart-feature-shift", "fedmosaic") > local - 2
    assert accuracy("quickstart-feature-shift", "fedavg") < local - 3


def test_hybrid_shift_makes_global_models_worse_than_local_training():
    local = accuracy("quickstart-hybrid", "local")
    assert accuracy("quickstart-hybrid", "centralized") < local - 5
    assert accuracy("quickstart-hybrid", "fedavg") < local - 10
    assert abs(accuracy("quickstart-hybrid", "fedmosaic") - local) < 1


def test_client_with_flipped_labels_opts_out_and_other_clients_do_not():
    for seed in range(3):
        rows = last_rows("quickstart-label-skew", "fedmosaic", seed, FLIPPED_CLIENT)
        assert rows[0]["lambda"] < 1e-2
        assert all(row["lambda"] > 0.5 for row in rows[1:])
        # FedCT has no trust weight, so this client cannot opt out.
        assert (
            last_rows("quickstart-label-skew", "fedct", seed, FLIPPED_CLIENT)[0]["accuracy"] < rows[0]["accuracy"] - 0.2
        )


def test_small_privacy_budget_keeps_fedmosaic_local_and_harms_fedct():
    local = accuracy("quickstart-dp", "local")
    assert abs(accuracy("quickstart-dp", "fedmosaic") - local) < 1
    assert accuracy("quickstart-dp", "fedct") < local - 3
    rows = [row for seed in range(3) for row in last_rows("quickstart-dp", "fedmosaic", seed)]
    assert fmean(row["pseudo_label_accuracy"] for row in rows) < 0.2


def honest_accuracy(preset: str) -> float:
    """Return the accuracy in percent over the clients that do not attack."""
    rows = [row for seed in range(3) for row in last_rows(preset, "fedmosaic", seed)]
    return 100 * fmean(row["accuracy"] for row in rows if row["client"] > 2)


def test_three_attackers_of_ten_do_harm_and_the_defences_prevent_it():
    assert honest_accuracy("quickstart-robust") > honest_accuracy("quickstart-attack") + 1
    assert honest_accuracy("quickstart-robust") > honest_accuracy("quickstart-label-skew") - 1
    assert honest_accuracy("quickstart-attack") < honest_accuracy("quickstart-label-skew") - 1
    for seed in range(3):
        rows = last_rows("quickstart-robust", "fedmosaic", seed)
        assert max(row["reputation"] for row in rows[:3]) < min(row["reputation"] for row in rows[3:])
