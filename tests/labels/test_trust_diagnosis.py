"""A few numbers out of a log, and the two ways in which they tell of no collaboration."""

from __future__ import annotations

import copy

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import TrustDiagnosis, diagnose_trust
from fedmosaic_cli.storage.run_summary import validate_summary
from tests.report.runs_by_hand import summary_of

FADED = "lambda is below 1e-6 for 2 of 3 clients since round 4: for them this is Local training"
MEMORISED = "lambda is above 1 for 2 of 3 clients while their private loss rises"


def row(number, client, trust, private=1.0, public=2.0, **more):
    """A line of a log; before round 2 nobody has a consensus."""
    return {
        "round": number,
        "client": client,
        "lambda": trust if number > 1 else 0.0,
        "loss_private": private,
        "loss_public": public if number > 1 else None,
        "bits_down": 80 if number > 1 else 0,
        **more,
    }


def log(*courses, **more):
    """Three clients over rounds, each with a lambda a round or a pair of lambda and private loss."""
    rows = []
    for number, values in enumerate(zip(*courses, strict=True), start=1):
        for client, value in enumerate(values):
            trust, private = value if isinstance(value, tuple) else (value, 1.0)
            rows.append(row(number, client, trust, private, **more))
    return rows


def test_lambda_is_that_of_the_last_round_and_warm_up_rounds_do_not_count():
    found = diagnose_trust(log([0, 1e-9, 0.5], [0, 0.2, 0.25], [0, 0.2, 1e-7]), is_loss_based=True)
    assert (found.clients, found.rounds) == (3, 2)
    assert (found.median_lambda, found.least_lambda, found.largest_lambda) == (0.25, 1e-7, 0.5)
    assert found.silent_clients == 1
    assert found.silent_share == 2 / 6
    assert found.silent_since == 3
    assert found.warnings() == []


def test_warning_names_the_round_since_which_lambda_is_silent():
    rows = log([0, 0.5, 1e-9, 1e-9], [0, 1e-7, 0.1, 1e-9], [0, 0.1, 0.1, 2e-6])
    [warning] = diagnose_trust(rows, is_loss_based=True).warnings()
    assert warning.startswith(FADED)
    assert warning.endswith("nothing here tells of collaboration")


def test_half_of_the_clients_is_not_most_of_them():
    rows = [row(2, client, 1e-9 if client < 2 else 1.0) for client in range(4)]
    assert diagnose_trust(rows, is_loss_based=True).silent_clients == 2
    assert diagnose_trust(rows, is_loss_based=True).warnings() == []


def test_configured_zero_trust_gives_no_warning():
    assert diagnose_trust(log([0, 0], [0, 0], [0, 0]), is_loss_based=False).warnings() == []


def test_gated_clients_give_no_warning():
    rows = log([0, 0.0], [0, 0.0], [0, 0.9])
    assert diagnose_trust(rows, is_loss_based=True).warnings()
    for line in rows[3:]:
        line |= {"gate_on": int(line["client"] == 2), "gate_trust": 0.4, "gate_gain": -0.01, "gate_error": 0.02}
    found = diagnose_trust(rows, is_loss_based=True)
    assert (found.silent_clients, found.silent_by_gate) == (2, 2)
    assert found.warnings() == []
    assert [(each.client, each.round, each.on) for each in found.gate] == [(0, 2, False), (1, 2, False), (2, 2, True)]
    assert (found.gate[0].agreement, found.gate[0].trust, found.gate[0].gain) == (None, 0.4, -0.01)


def test_gated_clients_are_not_counted_as_faded():
    """Three of five are silent, but only one of them by its losses."""
    rows = [row(2, client, 0.0 if client < 3 else 0.5) for client in range(5)]
    for line in rows[:2]:
        line["gate_on"] = 0
    found = diagnose_trust(rows, is_loss_based=True)
    assert (found.silent_clients, found.silent_by_gate, found.silent_since) == (3, 2, 2)
    assert found.warnings() == []


@pytest.mark.parametrize(
    ("last", "public", "warned"),
    [
        ((1.5, 1.2), 0.3, True),
        ((1.5, 1.0), 0.3, False),  # its own labels fit as well as before
        ((1.0, 1.2), 0.3, False),  # it follows the crowd no more than its own labels
        ((1.5, 1.2), 1.3, False),  # nothing is memorised
    ],
)
def test_self_training_is_a_lambda_above_1_with_a_private_loss_that_rises(last, public, warned):
    """Compared with the first consensus: before it, models know nothing and every loss is high."""
    mine = [(0, 9.0), (1.2, 1.0), last]
    found = diagnose_trust(log(mine, mine, [0, 0.5, 0.5], public=public), is_loss_based=True)
    assert found.self_training_clients == (2 if warned else 0)
    assert [warning.startswith(MEMORISED) for warning in found.warnings()] == [True] * warned


def test_means_are_over_clients_and_rounds_and_the_oracle_sees_the_last_vote():
    rows = log([0, 0.5, 0.5], [0, 0.5, 0.5])
    for line in rows:
        line |= {"vote_agreement": 0.5 + line["client"] / 4, "votes_differ": line["round"] / 10}
        line |= {"weighted_accuracy": 0.2 * line["round"], "majority_accuracy": 0.1 * line["round"]}
        line["public_share"] = 0.25 * (line["round"] - 1)
    found = diagnose_trust(rows, is_loss_based=False)
    assert found.vote_agreement == 0.625
    assert found.votes_differ == pytest.approx(0.2)
    assert found.public_share == 0.375, "rounds without a consensus do not count"
    assert (found.oracle.weighted, found.oracle.majority) == pytest.approx((0.6, 0.3))


def test_absent_client_counts_with_its_last_round():
    rows = [row(2, 0, 0.5), row(2, 1, 1e-9), row(3, 0, 0.7), {**row(3, 1, None), "bits_down": 0}]
    found = diagnose_trust(rows, is_loss_based=True)
    assert (found.clients, found.silent_clients) == (2, 1)
    assert (found.least_lambda, found.largest_lambda) == (1e-9, 0.7)


def test_no_diagnosis_without_a_consensus():
    assert diagnose_trust(log([0], [0]), is_loss_based=True) is None
    assert diagnose_trust([], is_loss_based=True) is None


@pytest.mark.parametrize(
    "damage", [{"round": "two", "lambda": 0.0}, {"votes_differ": 7.0}, {"gate_on": 1, "gate_error": -1.0}]
)
def test_invalid_rows_are_rejected(damage):
    rows = [row(2, client, 0.5) for client in range(2)]
    rows[-1] |= damage
    with pytest.raises((KeyError, TypeError, ValueError)):
        diagnose_trust(rows, is_loss_based=True)


def summary(**changes):
    return summary_of("quick", "fedmosaic-entropy", 0, [0.5], shards={"digest": "0", "parameters": {}}, **changes)


def test_a_summary_may_have_a_diagnosis_or_none(tmp_path):
    entry = diagnose_trust(log([0, 1e-9], [0, 1e-9], [0, 0.5]), is_loss_based=True).to_dict()
    assert entry["warnings"]
    validate_summary(summary(), tmp_path)
    validate_summary(summary(diagnosis=None), tmp_path)
    validate_summary(summary(diagnosis=entry), tmp_path)
    assert TrustDiagnosis.model_validate(entry).warnings() == entry["warnings"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("median_lambda", float("inf")), ("public_share", float("nan")), ("clients", 0), ("silent_share", 1.5)],
)
def test_invalid_diagnosis_is_damage(tmp_path, name, value):
    entry = copy.deepcopy(diagnose_trust(log([0, 1e-9]), is_loss_based=True).to_dict())
    with pytest.raises(RequestError, match=f"damaged, diagnosis.{name}"):
        validate_summary(summary(diagnosis={**entry, name: value}), tmp_path)
