"""Co-training with local differential privacy: infinite budgets, fresh noise, and the privacy ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.labels.privacy.accounting import Release
from fedmosaic_cli.labels.privacy.privatize import HISTOGRAM_KEY, LEDGER_KEY, privatize
from fedmosaic_cli.labels.sharing import reporting_rates
from fedmosaic_cli.labels.wire import ExpertiseEncoding, LabelEncoding
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.toys import TOYS, from_disk, make_toy, models, run_toy, same

FREQUENCY, ENTROPY = FedMosaic(expertise="frequency", trust=1.0), FedMosaic(expertise="entropy", trust="stabilised")
NOISY = {"labels": "krr", "label_epsilon": 1.0, "noise_multiplier": 0.5}
TOY = make_toy([9, 8, 10], public=40)


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize(
    ("method", "expertise"),
    [(FREQUENCY, "gaussian"), (FREQUENCY, "histogram"), (ENTROPY, "gaussian"), (FedCT(), "auto")],
)
def test_infinite_budget_does_not_change_results(method, labels, expertise):
    no_noise = TOYS["uneven"].changed(privacy={"labels": labels, "expertise": expertise, "epsilon": "inf"})
    assert same(models(method, no_noise, rounds=4), models(method, TOYS["uneven"], rounds=4))


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_infinite_budget_without_expertise_equals_uniform_expertise(labels):
    no_noise = TOYS["uneven"].changed(privacy={"labels": labels, "expertise": "none", "epsilon": "inf"})
    plain = models(replace(FREQUENCY, expertise="uniform"), TOYS["uneven"], rounds=4)
    assert same(models(FREQUENCY, no_noise, rounds=4), plain)


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY, FedCT()])
def test_noise_changes_results_reproducibly(method, labels):
    noisy = TOY.changed(privacy={**NOISY, "labels": labels})
    first = models(method, noisy, rounds=4)
    assert not same(first, models(method, TOY, rounds=4))
    assert same(first, models(method, noisy, rounds=4))
    assert same(first, models(method, noisy.changed(workers=3), rounds=4))
    assert not same(first, models(method, noisy, rounds=4, seed=1))


def privatized_upload(federation, client, number, labels):
    """Return the privatized labels and expertise of a client in a round."""
    sender = federation.state.clients[client]
    sender.begin_round(number)
    spec = federation.method.message_spec(federation.ctx)
    return privatize(labels, np.full(len(labels), 0.5), sender, federation.ctx, spec)


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_noise_is_fresh_for_every_client_and_round(labels):
    federation = TOY.changed(privacy={**NOISY, "labels": labels, "expertise": "gaussian"}).federation(FREQUENCY)
    truth = np.arange(40) % 3
    uploads = {(c, r): privatized_upload(federation, c, r, truth) for c in (0, 1) for r in (1, 2)}
    for part in (0, 1):
        assert len({upload[part].tobytes() for upload in uploads.values()}) == 4
    again = privatized_upload(TOY.changed(privacy={**NOISY, "labels": labels}).federation(FREQUENCY), 0, 1, truth)
    assert np.array_equal(again[0], uploads[0, 1][0]), "noise depends only on seed, client and round"


@pytest.mark.parametrize("expertise", ["gaussian", "histogram"])
def test_labels_and_expertise_have_independent_noise(expertise, monkeypatch):
    """Noise from one stream would tell which labels were kept."""
    federation = TOY.changed(privacy={**NOISY, "expertise": expertise}).federation(FREQUENCY)
    sender, purposes = federation.state.clients[0], []
    draw = sender.privacy_rng
    monkeypatch.setattr(sender, "privacy_rng", lambda purpose: (purposes.append(purpose), draw(purpose))[1])
    privatized_upload(federation, 0, 1, np.arange(40) % 3)
    assert len(purposes) == len(set(purposes)) == 2


def test_histogram_is_released_once_and_repeated_unchanged():
    federation = TOY.changed(privacy=NOISY).federation(FREQUENCY)
    with federation.worker_pool:
        histograms = [federation.state.clients[0].state[HISTOGRAM_KEY].clone() for _ in run_rounds(federation, 4)]
    assert all(torch.equal(histograms[0], later) for later in histograms[1:])
    ledger = federation.state.clients[0].state[LEDGER_KEY]
    assert [entry["mechanism"] for entry in ledger] == ["krr", "histogram", "krr", "krr", "krr"]
    assert [entry["round"] for entry in ledger] == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY])
def test_ledger_contains_exactly_the_released_messages(method):
    federation = run_toy(replace(method, warmup_rounds=3), TOY.changed(privacy=NOISY), rounds=5)
    for client in federation.state.clients:
        labels = [Release.from_dict(entry) for entry in client.state[LEDGER_KEY] if entry["mechanism"] == "krr"]
        assert [(release.round, release.count, release.epsilon) for release in labels] == [
            (number, 40, 1.0) for number in (3, 4, 5)
        ]


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY])
def test_resume_neither_draws_noise_nor_spends_budget_twice(method, labels):
    toy = TOY.changed(privacy={**NOISY, "labels": labels})
    uninterrupted = run_toy(method, toy, rounds=5)
    stopped = run_toy(method, toy, rounds=2)
    resumed = toy.federation(method)
    restore_state(resumed, *from_disk(capture_state(stopped.state)), 2)
    with resumed.worker_pool:
        for _ in run_rounds(resumed, 5):
            pass
    left, right = capture_state(uninterrupted.state), capture_state(resumed.state)
    assert left[1] == right[1]
    assert all(np.array_equal(left[0][name], right[0][name]) for name in left[0])


def test_release_above_the_limit_is_refused():
    toy = TOY.changed(privacy={**NOISY, "max_epsilon": 90.0})
    federation = toy.federation(FREQUENCY)
    with federation.worker_pool, pytest.raises(FedMosaicError, match="above the limit of 90"):
        list(run_rounds(federation, 10))
    spent = [len(client.state[LEDGER_KEY]) for client in federation.state.clients]
    assert 0 < min(spent) < 10


@pytest.mark.parametrize(
    ("method", "privacy", "labels", "expertise", "up"),
    [
        # 40 labels of 3 classes: 2 bits each as indices, 3 as bits; expertise: 8 bits per example or per class.
        (FREQUENCY, {"labels": "krr"}, LabelEncoding.INDEX, ExpertiseEncoding.HISTOGRAM, 80 + 24),
        (
            FREQUENCY,
            {"labels": "xor", "expertise": "gaussian"},
            LabelEncoding.BITS,
            ExpertiseEncoding.LEVELS,
            120 + 320,
        ),
        (
            ENTROPY,
            {"labels": "krr", "expertise": "none", "noise_multiplier": None},
            LabelEncoding.INDEX,
            ExpertiseEncoding.NONE,
            80,
        ),
        (
            replace(ENTROPY, expertise_bits="float32"),
            {"labels": "krr"},
            LabelEncoding.INDEX,
            ExpertiseEncoding.LEVELS,
            80 + 320,
        ),
        (FedCT(), {"labels": "xor"}, LabelEncoding.BITS, ExpertiseEncoding.NONE, 120),
    ],
)
def test_encoding_and_size_of_uploads_follow_the_mechanism(method, privacy, labels, expertise, up):
    federation = TOY.changed(privacy={**NOISY, **privacy}).federation(method)
    spec = method.message_spec(federation.ctx)
    assert (spec.label_encoding, spec.expertise_encoding) == (labels, expertise)
    with federation.worker_pool:
        rows = next(run_rounds(federation, 1)).rows
    assert {row["bits_up"] for row in rows} == {up} == {planned_traffic(method, federation.ctx).uplink_bits}
    assert {row["message"] for row in rows} == {"accepted"}


def test_reporting_rates_follow_from_epsilon():
    krr, xor = (TOY.changed(privacy={**NOISY, "labels": labels}).federation(FREQUENCY).ctx for labels in ("krr", "xor"))
    rates = reporting_rates(krr)
    assert rates.true_positive / rates.false_positive == pytest.approx(np.e)
    assert rates.true_positive + 2 * rates.false_positive == pytest.approx(1)
    rates = reporting_rates(xor)
    assert rates.true_positive + rates.false_positive == pytest.approx(1)
    assert rates.false_positive == pytest.approx(1 / (1 + np.exp(0.5)))


def test_noise_does_not_depend_on_labels():
    """Other private labels get the same noise."""
    toy = TOY.changed(privacy={**NOISY, "expertise": "gaussian"})
    truth = np.arange(40) % 3
    one, other = (privatized_upload(toy.federation(FREQUENCY), 0, 1, labels) for labels in (truth, (truth + 1) % 3))
    assert np.array_equal((one[0] - truth) % 3, (other[0] - (truth + 1) % 3) % 3)
    assert np.array_equal(one[1], other[1])
