"""Clients trained together come out as if each had been alone."""

from __future__ import annotations

import pytest

from fedmosaic_cli.engine.rounds import play
from tests.test_contract import VARIANTS
from tests.toys import TOYS, close, dealt, personal_models


@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_stacked_clients_learn_what_they_would_learn_alone(method, toy):
    check(method, toy)


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
@pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
def test_batch_statistics_are_each_client_s_own(method, policy):
    # By plain steps: a bias before a normalisation has no gradient but rounding, which Adam would blow up.
    for toy in (TOYS["uneven"], TOYS["epochs"], dealt([5, 1, 4]).changed(local_steps=None)):
        check(method, toy.changed(bn_buffers=policy, optimizer="sgd", momentum=0.5))


def check(method, toy):
    one_by_one, together = toy.federation(method), toy.changed(execution="stacked").federation(method)
    with one_by_one.workers, together.workers:
        for expected, seen in zip(play(one_by_one, 3), play(together, 3), strict=True):
            assert [alike(*rows) for rows in zip(expected.rows, seen.rows, strict=True)]
    assert close(list(personal_models(one_by_one).values()), list(personal_models(together).values()), 1e-9)


def alike(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert right[key] == (value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), key
    return True
