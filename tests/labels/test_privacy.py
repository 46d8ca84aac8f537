"""From a budget to noise, and from noise to what is told of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedmosaic_cli.errors import FedMosaicError, RequestError
from fedmosaic_cli.labels.label_settings import PrivacySettings
from fedmosaic_cli.labels.privacy.accounting import Release, gaussian_epsilon, total_epsilon, zcdp_total_epsilon
from fedmosaic_cli.labels.privacy.noise import (
    PrivacyNoise,
    expertise_noise_bound,
    num_exchange_rounds,
    require_budget,
    require_planned_budget,
    resolve_noise,
)
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning, planned_privacy_report, spent_privacy_report
from fedmosaic_cli.storage.privacy_summary import format_rounded_up, privacy_lines


def noise_for(kind="frequency", public_size=3000, times=100, **settings):
    settings = {"labels": "krr", **settings}
    return resolve_noise(PrivacySettings(**settings), public_size, times, kind)


def ledger_of(noise, times, public_size):
    """What a client writes down that takes part in every round."""
    rounds = range(1, times + 1)
    return [each for n in rounds for each in noise.round_releases(n, 40, public_size, 1.0, is_first=n == 1)]


@pytest.mark.parametrize(
    ("rounds", "warmup", "times"), [(100, 1, 100), (100, 0, 100), (100, 2, 99), (5, 5, 1), (5, 6, 0), (1, 9, 0)]
)
def test_number_of_exchange_rounds(rounds, warmup, times):
    assert num_exchange_rounds(rounds, warmup) == times == sum(number >= warmup for number in range(1, rounds + 1))


def test_default_settings_have_no_noise():
    assert resolve_noise(PrivacySettings(), 100, 10, "frequency") is None


@pytest.mark.parametrize(
    ("asked", "kind", "found"),
    [
        *(("auto", "frequency", "histogram"), ("auto", "entropy", "gaussian"), ("auto", "uniform", "none")),
        *(("auto", None, "none"), ("none", "frequency", "none"), ("gaussian", "frequency", "gaussian")),
        *(("gaussian", None, "none"), ("histogram", None, "none"), ("histogram", "uniform", "none")),
    ],
)
def test_expertise_mechanism_follows_settings_and_rule(asked, kind, found):
    assert noise_for(kind, expertise=asked, epsilon=8.0).expertise_mechanism == found


def test_histogram_is_rejected_for_entropy():
    with pytest.raises(RequestError, match=r"histogram does not determine entropy \(privacy.expertise\): use gaussian"):
        noise_for("entropy", expertise="histogram", epsilon=8.0)


@given(
    st.floats(1e-3, 1e4),
    st.sampled_from(["frequency", "entropy", None]),
    st.integers(1, 5000),
    st.integers(1, 200),
    st.floats(0.01, 0.99),
)
def test_budget_is_spent_and_not_exceeded(epsilon, kind, public_size, times, share):
    noise = noise_for(kind, public_size, times, epsilon=epsilon, label_share=share)
    ledger = ledger_of(noise, times, public_size)
    bound = zcdp_total_epsilon(ledger, noise.delta)
    assert bound <= epsilon * (1 + 1e-12)
    assert bound == pytest.approx(epsilon, rel=1e-6)
    spent = total_epsilon(ledger, noise.delta, num_classes=10)
    assert spent <= bound
    assert noise.planned_epsilon(times, public_size, num_classes=10) == pytest.approx(spent, rel=1e-9)


def test_noise_of_a_budget_is_part_of_the_definition_of_a_run():
    """The exact total of a run is below its budget, but the noise does not follow it."""
    noise = noise_for("frequency", 300, 26, epsilon=8.0)
    assert noise.label_epsilon == pytest.approx(0.012556184919376965, rel=1e-12)
    assert noise.noise_multiplier == pytest.approx(float.fromhex("0x1.cdb55c0a66827p-1"), rel=1e-12)
    assert noise.planned_epsilon(26, 300, num_classes=10) == pytest.approx(5.4945, abs=1e-3)


def test_label_share_of_the_budget():
    noise = noise_for("entropy", epsilon=8.0, label_share=0.3)
    ledger = ledger_of(noise, 100, 3000)
    labels = sum(each.rho for each in ledger if each.mechanism == "krr")
    assert labels / sum(each.rho for each in ledger) == pytest.approx(0.3)


def test_infinite_budget_has_no_noise():
    noise = noise_for("frequency", epsilon="inf")
    assert (noise.keep_probability(10), noise.other_label_probability(10), noise.flip_probability()) == (1.0, 0.0, 0.0)
    assert noise.histogram_sigma(40) == noise.expertise_sigma(100, 1.0) == 0.0
    assert math.isinf(noise.planned_epsilon(100, 3000))


def test_no_exchange_spends_nothing():
    noise = noise_for(times=0, epsilon=1.0)
    assert noise.planned_epsilon(0, 3000) == 0
    assert math.isfinite(noise.label_epsilon)


@pytest.mark.parametrize("public_size", [1, 3000, 10_000_000])
def test_million_rounds_can_be_planned(public_size):
    noise = noise_for("entropy", public_size, 1_000_000, epsilon=1000.0)
    assert 600 < noise.planned_epsilon(1_000_000, public_size, num_classes=10) <= 1000


def test_planning_sheet():
    """3000 public examples, 10 classes, 100 rounds, the whole data of a client."""

    def multiplier(sigma, high):
        return sigma / (high * math.sqrt(3000))

    def only_gaussian(sigma, high):
        noise = noise_for("entropy", expertise="gaussian", label_epsilon=1.0, noise_multiplier=multiplier(sigma, high))
        assert noise.expertise_sigma(3000, high) == pytest.approx(sigma)
        ledger = [each for each in ledger_of(noise, 100, 3000) if each.mechanism == "gaussian"]
        return total_epsilon(ledger[:1], 1e-5), total_epsilon(ledger, 1e-5)

    assert only_gaussian(1, 1.0) == (pytest.approx(1732.6, abs=0.05), pytest.approx(152_335, abs=0.5))
    assert only_gaussian(100, 1.0)[1] == pytest.approx(37.6, abs=0.05)
    log_classes = expertise_noise_bound("entropy", 10)
    for high, total, sigma in ((1.0, 10, 274), (1.0, 1, 2043), (log_classes, 10, 630), (log_classes, 1, 4705)):
        assert only_gaussian(sigma, high)[1] == pytest.approx(total, rel=2e-3)
    labels = noise_for(None, epsilon=10.0)
    assert labels.keep_probability(10) == pytest.approx(0.1003, abs=5e-5)
    assert 0.0032 < labels.label_epsilon < 0.0035


def test_histogram_of_a_record():
    """3000 examples, epsilon 1: the noise is far below every share that counts."""
    multiplier = 3.730632
    record = noise_for(
        unit="record-assumed", changed_rows=10, expertise="histogram", label_epsilon=1.0, noise_multiplier=multiplier
    )
    assert record.histogram_sigma(3000) == pytest.approx(0.00176, abs=5e-6)
    client = noise_for(expertise="histogram", label_epsilon=1.0, noise_multiplier=multiplier)
    assert client.histogram_sigma(3000) == pytest.approx(multiplier * math.sqrt(2))


def test_a_record_changes_few_labels_and_any_score():
    noise = noise_for(
        "entropy", unit="record-assumed", changed_rows=10, label_epsilon=0.5, noise_multiplier=2.0, labels="xor"
    )
    labels, scores = noise.round_releases(4, 40, 3000, 2.0, is_first=False)
    assert labels == Release(4, "xor", 10, epsilon=0.5)
    assert scores == Release(4, "gaussian", 1, mu=0.5, sigma=pytest.approx(2 * 2.0 * math.sqrt(3000)))


def test_histogram_is_released_once():
    noise = noise_for(label_epsilon=0.5, noise_multiplier=2.0)
    assert [each.mechanism for each in noise.round_releases(1, 40, 10, 1.0, is_first=True)] == ["krr", "histogram"]
    assert [each.mechanism for each in noise.round_releases(2, 40, 10, 1.0, is_first=False)] == ["krr"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"labels": "off", "epsilon": 1.0}, "epsilon has no effect while labels are off: "),
        ({"labels": "off", "max_epsilon": 1.0}, "max_epsilon has no effect while labels are off: "),
        ({}, "neither epsilon nor label_epsilon is given: "),
        ({"noise_multiplier": 1.0}, "neither epsilon nor label_epsilon is given: "),
        ({"epsilon": 1.0, "label_epsilon": 1.0}, "epsilon and label_epsilon are both given: "),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, "epsilon and noise_multiplier are both given: "),
        ({"label_epsilon": 1.0, "label_share": 0.4}, "label_share has no effect while there is no epsilon to share: "),
        (
            {"epsilon": 1.0, "expertise": "none", "label_share": 0.4},
            "label_share has no effect while expertise is none",
        ),
        ({"epsilon": 1.0, "unit": "record-assumed"}, "unit record-assumed without changed_rows: "),
        ({"epsilon": 1.0, "changed_rows": 3}, "changed_rows 3 has no effect with unit client"),
    ],
)
def test_contradictory_settings_are_rejected(settings, words):
    with pytest.raises(ValidationError, match=words):
        PrivacySettings(**{"labels": "krr", **settings})


def test_settings_that_contradict_the_run_are_rejected():
    with pytest.raises(RequestError, match=r"privacy\.label_epsilon is given, but no privacy\.noise_multiplier"):
        noise_for("frequency", label_epsilon=1.0)
    assert noise_for(None, label_epsilon=1.0).noise_multiplier == 0
    with pytest.raises(RequestError, match=r"changed_rows is 3001 .* at most 3000"):
        noise_for(unit="record-assumed", changed_rows=3001, epsilon=1.0)
    with pytest.raises(RequestError, match="no better than guessing"):
        noise_for(public_size=10_000_000, times=1_000_000, epsilon=1e-9)


def test_limits():
    noise = noise_for(None, epsilon=8.0)
    noise = replace(noise, max_epsilon=noise.planned_epsilon(100, 3000, num_classes=10))
    require_planned_budget(noise, noise.planned_epsilon(100, 3000, num_classes=10))
    with pytest.raises(
        RequestError, match=r"planned total epsilon of 9 is above the limit of 2\.\d+ .*fewer public examples"
    ):
        require_planned_budget(noise, 9.0)
    ledger = ledger_of(noise, 100, 3000)
    require_budget(ledger[:-1], ledger[-1:], noise, num_classes=10)
    more = noise.round_releases(101, 40, 3000, 1.0, is_first=False)
    with pytest.raises(FedMosaicError, match=r"would bring a client's total epsilon to 2\.\d+, above the limit of 2\."):
        require_budget(ledger, more, noise, num_classes=10)
    with pytest.raises(FedMosaicError, match="above the limit of 2"):
        require_budget(ledger, [], noise)
    require_budget(ledger, ledger, replace(noise, max_epsilon=None))


def test_large_delta_gives_a_warning():
    assert delta_warning(1e-5, [40, 99_999]) == ""
    assert "not below 1/100" in delta_warning(0.01, [100, 500])
    assert delta_warning(0.01, []) == ""


def lines_of(times=100, **settings):
    noise = noise_for(times=times, **settings)
    return privacy_lines(planned_privacy_report(noise, times, 3000, 10, 1.0, [30, 40]))


def test_block_of_the_paper_s_mechanism():
    lines = lines_of(expertise="gaussian", label_epsilon=4.0, noise_multiplier=1 / math.sqrt(3000))
    assert lines[0] == "privacy unit: client | delta: 1e-05 | rounds: 100"
    assert lines[2] == "per-round epsilon: labels 12000.0, expertise 1732.6 (paper formula: 265.4, not valid above 1)"
    assert lines[3] == "TOTAL epsilon over 100 rounds: 1.17e+06   -> NO MEANINGFUL GUARANTEE (above 10)"


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 10.0, 100.0, 1e9, "inf"])
@pytest.mark.parametrize("kind", ["frequency", "entropy", None])
def test_words_of_a_block(epsilon, kind):
    text = "\n".join(lines_of(kind=kind, epsilon=epsilon)).lower()
    assert "private" not in text
    assert "guaranteed" not in text
    assert ("no meaningful guarantee" in text) == (float(epsilon) > 10)
    assert "seed" in text
    assert "conditional" not in text


def randomised_labels(**settings):
    """Noise of a method that claims no privacy, with 500 public examples and one exchange."""
    return resolve_noise(PrivacySettings(**{"labels": "krr", **settings}), 500, 1, "entropy", claims_privacy=False)


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_budget_of_randomised_labels_is_the_worst_case(labels):
    noise = randomised_labels(labels=labels, epsilon=8.0, expertise="gaussian", delta=0.01)
    assert (noise.label_epsilon, noise.expertise_mechanism, noise.delta) == (8 / 500, "none", 0.0)
    assert noise.planned_epsilon(1, 500) == pytest.approx(8)
    one_record = randomised_labels(epsilon=8.0, unit="record-assumed", changed_rows=4)
    assert (one_record.label_epsilon, one_record.planned_epsilon(1, 500)) == (2.0, 8.0)
    with pytest.raises(RequestError, match="planned total epsilon of 1000 is above the limit of 10"):
        require_planned_budget(randomised_labels(label_epsilon=2.0, max_epsilon=10), 1000)


@pytest.mark.parametrize(("epsilon", "total"), [(0.016, "8"), (2.0, "1000"), (8.0, "4000"), ("inf", "inf")])
def test_lines_about_randomised_labels_claim_nothing(epsilon, total):
    noise = randomised_labels(label_epsilon=epsilon)
    planned = planned_privacy_report(noise, 1, 500, 10, 1.0, [30, 40])
    spent = spent_privacy_report(noise, {3: noise.round_releases(10, 40, 500, 1.0, is_first=True)}, 10)
    for section in (planned, spent):
        assert (section["verdict"], section["delta"]) == ("randomised labels", 0.0)
        lines = privacy_lines(json.loads(json.dumps(section, allow_nan=False)))
        assert lines[0].startswith(f"randomised labels: krr (epsilon {float(epsilon):g} each, keeps ")
        assert lines[0].endswith(" | confidence: none sent")
        assert lines[1] == f"worst-case epsilon of the one exchange: 500 labels x {float(epsilon):g} = {total}"
        text = "\n".join(lines).lower()
        assert not [
            word for word in ("delta", "dp", "guarantee", "privacy", "strong", "weak", "private") if word in text
        ]


def test_report_states_the_assumption():
    text = "\n".join(lines_of(epsilon=1.0, unit="record-assumed", changed_rows=12))
    assert "conditional: only if one record changes at most 12 public labels" in text


def test_spent_report_describes_the_worst_client():
    noise = noise_for("frequency", epsilon=8.0)
    ledger = ledger_of(noise, 100, 3000)
    block = spent_privacy_report(noise, {0: ledger[:50], 1: ledger, 2: ledger}, 10)
    json.dumps(block, allow_nan=False)
    assert (block["worst_client"], block["rounds"]) == (1, 100)
    assert block["total_epsilon"] == pytest.approx(5.4922, abs=1e-3)
    assert [(e["mechanism"], e["rounds"], e["count"]) for e in block["ledger"]] == [
        ("krr", 100, 300_000),
        ("histogram", 1, 1),
    ]
    planned = planned_privacy_report(noise, 100, 3000, 10, 1.0, [40])
    same = planned.keys() - {"stage", "worst_client", "total_epsilon"}
    assert {key: planned[key] for key in same} == {key: block[key] for key in same}
    assert privacy_lines(block)[0].endswith("| worst client: 1")


def test_round_epsilon_is_not_the_total():
    block = planned_privacy_report(noise_for("entropy", epsilon=8.0), 100, 3000, 10, 1.0, None)
    once = gaussian_epsilon(block["ledger"][1]["mu"], 1e-5)
    assert block["round_epsilon"]["expertise"] == once < block["total_epsilon"] == pytest.approx(5.4922, abs=1e-3)


def test_sigma_is_unknown_without_client_sizes():
    noise = noise_for(epsilon=8.0, unit="record-assumed", changed_rows=5)
    assert planned_privacy_report(noise, 100, 3000, 10, 1.0, [30, 40])["expertise"]["sigma"] == noise.histogram_sigma(
        30
    )
    assert planned_privacy_report(noise, 100, 3000, 10, 1.0, None)["expertise"]["sigma"] is None


def test_spent_report_without_releases():
    block = spent_privacy_report(noise_for(epsilon=1.0), {0: [], 1: []}, 10)
    assert (block["total_epsilon"], block["rounds"], block["verdict"]) == (0.0, 0, "strong")
    assert privacy_lines(block)


def test_noise_free_blocks_can_be_written():
    noise = noise_for(epsilon="inf")
    block = spent_privacy_report(noise, {0: ledger_of(noise, 2, 3000)}, 10)
    assert json.loads(json.dumps(block, allow_nan=False))["total_epsilon"] == "inf"
    assert "inf" in privacy_lines(block)[3]


@pytest.mark.parametrize(
    ("total", "text"), [(8, "8"), (7.9999999, "8"), (10.0001, "10.1"), (37.622, "37.7"), (0.3333, "0.334"), (0, "0")]
)
def test_totals_are_never_rounded_down(total, text):
    assert format_rounded_up(total) == text


def test_noise_is_frozen():
    with pytest.raises(AttributeError):
        PrivacyNoise("krr", "none", 1.0, 0.0).label_mechanism = "xor"
