"""Certificates of clients and the diagnosis of votes."""

from __future__ import annotations

import pytest

from fedmosaic_cli.labels.certificates import (
    Certificate,
    ExchangeDiagnosis,
    Interval,
    client_certificates,
    describe_certificates,
    diagnose_exchange,
    mean_accuracy_gain,
)

OPEN = {
    **{
        "round": 3,
        "client": 0,
        "gate_on": 1,
        "gate_accuracy_gain": 0.05,
        "gate_accuracy_error": 0.01,
        "gate_gain": 0.1,
    },
    **{"gate_error": 0.02, "weight_local": 0.5, "weight_corrected": 0.5, "weight_tuned": 0.0, "agreement_z": 20.0},
}
CLOSED = {"round": 3, "client": 1, "gate_on": 0, "agreement_z": 1.0}
EARLIER = {"round": 2, "client": 0, "gate_on": 0}


def test_certificates_are_those_of_the_last_round():
    first, second = client_certificates([EARLIER, OPEN, CLOSED])
    assert (first.client, first.collaborates) == (0, True)
    assert first.accuracy_gain.model_dump() == pytest.approx({"mean": 0.05, "low": 0.0304, "high": 0.0696})
    assert first.brier_gain.model_dump() == pytest.approx({"mean": 0.1, "low": 0.0608, "high": 0.1392})
    assert first.weights == {"local": 0.5, "corrected": 0.5, "tuned": 0.0}
    assert (second.collaborates, second.accuracy_gain, second.weights) == (False, None, {})
    assert client_certificates([{"round": 1, "client": 0}]) == []


def test_mean_gain_is_that_of_clients_that_use_the_student():
    used, unused = (
        Certificate(client=n, collaborates=used, accuracy_gain=Interval(mean=gain, low=0.0, high=1.0))
        for n, (used, gain) in enumerate([(True, 0.1), (False, 0.3)])
    )
    assert mean_accuracy_gain([used, unused]) == pytest.approx(0.1)
    assert mean_accuracy_gain([unused]) is None


def test_description_counts_the_clients_and_calls_the_held_out_gain_optimistic():
    certificates = client_certificates([OPEN, CLOSED])
    first, second = describe_certificates(certificates, ExchangeDiagnosis(median_z=20.0, confidence=0.01))
    assert first == (
        "1 of 2 clients use the student; on their held-out training data it brings +5.0 points (an optimistic estimate)"
    )
    assert second == "votes: mean confidence 1.0%, median agreement z 20.0"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"median_z": 2.9}, "(median z 2.9, below 3), so with the gate `safe` all clients keep their own model: "),
        ({"holdout_z": 2.9}, "they are noise"),
        ({"class_coverage": 0.49}, "cover 49% of the classes"),
        ({"largest_client": 501}, "up to 501 training examples"),
        ({"failed": True}, "there was no exchange"),
    ],
)
def test_warnings_name_the_reason(values, words):
    [warning] = ExchangeDiagnosis(**values).warnings()
    assert words in warning
    good = ExchangeDiagnosis(median_z=3.0, holdout_z=3.0, class_coverage=0.5, largest_client=500)
    assert good.warnings() == []


def test_the_remedy_for_votes_that_do_not_agree_depends_on_their_noise():
    diagnosis = ExchangeDiagnosis(median_z=1.0)
    assert "data.public_size" in diagnosis.warnings()[0]
    assert "privacy.label_epsilon" in diagnosis.warnings(has_noise=True)[0]


def test_diagnosis_takes_means_over_clients_and_the_last_vote():
    rows = [
        {"round": 3, "client": 0, "confidence": 0.2, "median_z": 7.0, "holdout_z": 5.0, "class_coverage": 0.9},
        {"round": 3, "client": 1, "confidence": 0.4, "median_z": 7.0, "class_coverage": 0.9},
    ]
    diagnosis = diagnose_exchange(rows, 30)
    assert diagnosis.confidence == pytest.approx(0.3)
    assert (diagnosis.median_z, diagnosis.holdout_z, diagnosis.class_coverage) == (7.0, 5.0, 0.9)
    assert not diagnosis.failed


def test_exchange_without_votes_has_failed():
    assert diagnose_exchange([{"round": 3, "client": 0, "confidence": 0.2, "exchanged": 0}], 30).failed
    assert not diagnose_exchange([{"round": 3, "client": 0, "gate_on": 1}], 30).failed
