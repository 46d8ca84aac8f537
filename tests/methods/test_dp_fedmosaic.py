"""Co-training behind noise: without any it is what it would have been, with some it is written down, and drawn once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmosaic_cli.engine.rounds import play
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.labels.privacy.accounting import Release
from fedmosaic_cli.labels.privacy.privatize import HISTOGRAM, LEDGER, rates_of, released
from fedmosaic_cli.labels.wire import ExpertiseCode, LabelCode
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.runner.run_state import capture, restore
from tests.toys import TOYS, dealt, from_disk, models, played, same

FREQUENCY, ENTROPY = FedMosaic(expertise="frequency", trust=1.0), FedMosaic(expertise="entropy", trust="stabilised")
NOISY = {"labels": "krr", "label_epsilon": 1.0, "noise_multiplier": 0.5}
TOY = dealt([9, 8, 10], public=40)


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize(
    ("method", "expertise"),
    [(FREQUENCY, "gaussian"), (FREQUENCY, "histogram"), (ENTROPY, "gaussian"), (FedCT(), "auto")],
)
def test_an_infinite_budget_changes_nothing(method, labels, expertise):
    endless = TOYS["uneven"].changed(privacy={"labels": labels, "expertise": expertise, "epsilon": "inf"})
    assert same(models(method, endless, rounds=4), models(method, TOYS["uneven"], rounds=4))


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_without_expertise_an_infinite_budget_leaves_equal_votes(labels):
    endless = TOYS["uneven"].changed(privacy={"labels": labels, "expertise": "none", "epsilon": "inf"})
    plain = models(replace(FREQUENCY, expertise="uniform"), TOYS["uneven"], rounds=4)
    assert same(models(FREQUENCY, endless, rounds=4), plain)


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY, FedCT()])
def test_noise_that_is_there_makes_a_difference_and_the_same_one_again(method, labels):
    noisy = TOY.changed(privacy={**NOISY, "labels": labels})
    first = models(method, noisy, rounds=4)
    assert not same(first, models(method, TOY, rounds=4))
    assert same(first, models(method, noisy, rounds=4))
    assert same(first, models(method, noisy.changed(workers=3), rounds=4))
    assert not same(first, models(method, noisy, rounds=4, seed=1))


def said(federation, client, number, labels):
    """What a client would send of these labels in a round."""
    player = federation.standing.clients[client]
    player.begin_round(number)
    form = federation.method.opinion_form(federation.world)
    return released(labels, np.full(len(labels), 0.5), player, federation.world, form)


@pytest.mark.parametrize("labels", ["krr", "xor"])
def test_noise_is_fresh_for_every_client_and_round(labels):
    federation = TOY.changed(privacy={**NOISY, "labels": labels, "expertise": "gaussian"}).federation(FREQUENCY)
    truth = np.arange(40) % 3
    told = {(c, r): said(federation, c, r, truth) for c in (0, 1) for r in (1, 2)}
    for part in (0, 1):
        assert len({messages[part].tobytes() for messages in told.values()}) == 4
    again = said(TOY.changed(privacy={**NOISY, "labels": labels}).federation(FREQUENCY), 0, 1, truth)
    assert np.array_equal(again[0], told[0, 1][0]), "the noise of a round is a matter of its name alone"


def test_the_histogram_is_told_once_and_said_again_as_it_was():
    federation = TOY.changed(privacy=NOISY).federation(FREQUENCY)
    with federation.workers:
        told = [federation.standing.clients[0].state[HISTOGRAM].clone() for _ in play(federation, 4)]
    assert all(torch.equal(told[0], later) for later in told[1:])
    ledger = federation.standing.clients[0].state[LEDGER]
    assert [entry["mechanism"] for entry in ledger] == ["krr", "histogram", "krr", "krr", "krr"]
    assert [entry["round"] for entry in ledger] == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY])
def test_the_ledger_has_every_message_and_nothing_else(method):
    federation = played(replace(method, warmup_rounds=3), TOY.changed(privacy=NOISY), rounds=5)
    for client in federation.standing.clients:
        labels = [Release.from_dict(entry) for entry in client.state[LEDGER] if entry["mechanism"] == "krr"]
        assert [(release.round, release.count, release.epsilon) for release in labels] == [
            (number, 40, 1.0) for number in (3, 4, 5)
        ]


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize("method", [FREQUENCY, ENTROPY])
def test_going_on_after_a_break_neither_draws_nor_spends_anything_twice(method, labels):
    toy = TOY.changed(privacy={**NOISY, "labels": labels})
    whole = played(method, toy, rounds=5)
    broken = played(method, toy, rounds=2)
    continued = toy.federation(method)
    restore(continued, *from_disk(capture(broken.standing)), 2)
    with continued.workers:
        for _ in play(continued, 5):
            pass
    left, right = capture(whole.standing), capture(continued.standing)
    assert left[1] == right[1]
    assert all(np.array_equal(left[0][name], right[0][name]) for name in left[0])


def test_a_release_that_would_exceed_the_limit_is_not_made():
    toy = TOY.changed(privacy={**NOISY, "max_epsilon": 90.0})
    federation = toy.federation(FREQUENCY)
    with federation.workers, pytest.raises(FedMosaicError, match="above the limit of 90"):
        list(play(federation, 10))
    spent = [len(client.state[LEDGER]) for client in federation.standing.clients]
    assert 0 < min(spent) < 10


@pytest.mark.parametrize(
    ("method", "privacy", "labels", "expertise", "up"),
    [
        # 40 labels of 3 classes: 2 bits each as classes, 3 as bits; expertise 8 bits, a value an example or a class.
        (FREQUENCY, {"labels": "krr"}, LabelCode.INDEX, ExpertiseCode.HISTOGRAM, 80 + 24),
        (FREQUENCY, {"labels": "xor", "expertise": "gaussian"}, LabelCode.BITS, ExpertiseCode.LEVELS, 120 + 320),
        (
            ENTROPY,
            {"labels": "krr", "expertise": "none", "noise_multiplier": None},
            LabelCode.INDEX,
            ExpertiseCode.NONE,
            80,
        ),
        (
            replace(ENTROPY, expertise_bits="float32"),
            {"labels": "krr"},
            LabelCode.INDEX,
            ExpertiseCode.LEVELS,
            80 + 320,
        ),
        (FedCT(), {"labels": "xor"}, LabelCode.BITS, ExpertiseCode.NONE, 120),
    ],
)
def test_what_travels_is_as_small_as_noise_allows(method, privacy, labels, expertise, up):
    federation = TOY.changed(privacy={**NOISY, **privacy}).federation(method)
    form = method.opinion_form(federation.world)
    assert (form.labels, form.expertise) == (labels, expertise)
    with federation.workers:
        rows = next(play(federation, 1)).rows
    assert {row["bits_up"] for row in rows} == {up} == {method.traffic(federation.world, 40).up}
    assert {row["message"] for row in rows} == {"accepted"}


def test_the_server_knows_how_often_labels_are_others():
    krr, xor = (
        TOY.changed(privacy={**NOISY, "labels": labels}).federation(FREQUENCY).world for labels in ("krr", "xor")
    )
    rates = rates_of(krr)
    assert rates.hit / rates.false == pytest.approx(np.e)
    assert rates.hit + 2 * rates.false == pytest.approx(1)
    rates = rates_of(xor)
    assert rates.hit + rates.false == pytest.approx(1)
    assert rates.false == pytest.approx(1 / (1 + np.exp(0.5)))


def test_noise_depends_on_nobody_s_labels():
    """The same streams and amounts for other private labels: only what they hide differs."""
    toy = TOY.changed(privacy={**NOISY, "expertise": "gaussian"})
    truth = np.arange(40) % 3
    one, other = (said(toy.federation(FREQUENCY), 0, 1, labels) for labels in (truth, (truth + 1) % 3))
    assert np.array_equal((one[0] - truth) % 3, (other[0] - (truth + 1) % 3) % 3)
    assert np.array_equal(one[1], other[1])
