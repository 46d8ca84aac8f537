"""What must hold for every split: nothing twice, nothing lost, and what was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.partition import partition, split
from fedmosaic_cli.data.public import fill_evenly, fill_skewed
from fedmosaic_cli.data.settings import DataSettings
from fedmosaic_cli.data.sources import SOURCES
from fedmosaic_cli.errors import RequestError


def make_dataset(labels: list[int], classes: int, domains: int) -> Dataset:
    values = np.array(labels, dtype=np.int64)
    return Dataset(
        name="made",
        images=np.zeros((len(values), 1, 1, 1), dtype=np.uint8),
        labels=values,
        class_names=tuple(str(c) for c in range(classes)),
        domains=np.arange(len(values)) % domains,
        domain_names=tuple(str(d) for d in range(domains)),
    )


@st.composite
def cases(draw, schemes=("iid", "pathological", "dirichlet", "domain", "hybrid")):
    classes, domains = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=60, max_size=240))
    scheme = draw(st.sampled_from(schemes))
    per_domain = draw(st.integers(1, 3))
    clients = per_domain * domains if scheme in ("domain", "hybrid") else draw(st.integers(1, 6))
    asked = DataSettings(
        dataset="made",
        scheme=scheme,
        clients=clients,
        alpha=draw(st.sampled_from([0.05, 0.3, 1.0, 100.0])),
        classes_per_client=draw(st.integers(1, classes)),
        clients_per_domain=per_domain,
        public_size=draw(st.integers(0, 30)),
        public_alpha=draw(st.none() | st.sampled_from([0.1, 1.0])),
        test_fraction=draw(st.sampled_from([0.1, 0.25, 0.5])),
        min_size=draw(st.integers(2, 6)),
    )
    return make_dataset(labels, classes, domains), asked


def dealt_or_refused(dataset, asked, seed):
    """The partition; where none is possible, the refusal must be a clear one."""
    try:
        return partition(dataset, asked, seed)
    except RequestError:
        reject()


@given(cases(), st.integers(0, 1000))
@settings(max_examples=150)
def test_parts_are_disjoint_sorted_and_cover_what_they_should(case, seed):
    dataset, asked = case
    result = dealt_or_refused(dataset, asked, seed)
    parts = [result.public, *(part for shard in result.shards for part in (shard.train, shard.test))]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all(np.array_equal(part, np.unique(part)) for part in parts)
    assert len(result.shards) == asked.clients
    if asked.scheme != "hybrid" or asked.classes_per_client * asked.clients_per_domain >= dataset.num_classes:
        assert len(together) == len(dataset)


@given(cases(), st.integers(0, 1000))
@settings(max_examples=100)
def test_every_client_can_train_and_be_tested(case, seed):
    dataset, asked = case
    for shard in dealt_or_refused(dataset, asked, seed).shards:
        size = len(shard.train) + len(shard.test)
        assert len(shard.train) >= 1
        assert len(shard.test) == min(max(round(size * asked.test_fraction), 1), size - 1)


@given(cases(schemes=("pathological", "hybrid")), st.integers(0, 1000))
@settings(max_examples=100)
def test_nobody_holds_more_classes_than_asked_for(case, seed):
    dataset, asked = case
    result = dealt_or_refused(dataset, asked, seed)
    for shard in result.shards:
        held = set(dataset.labels[np.concatenate([shard.train, shard.test])].tolist())
        assert len(held) <= asked.classes_per_client


@given(cases(schemes=("domain", "hybrid")), st.integers(0, 1000))
@settings(max_examples=100)
def test_a_client_stays_inside_its_domain(case, seed):
    dataset, asked = case
    for shard in dealt_or_refused(dataset, asked, seed).shards:
        held = dataset.domains[np.concatenate([shard.train, shard.test])]
        assert {dataset.domain_names[number] for number in held} <= {shard.domain}


@given(cases(schemes=("dirichlet",)), st.integers(0, 1000))
@settings(max_examples=60)
def test_dirichlet_keeps_the_minimum_size(case, seed):
    dataset, asked = case
    result = dealt_or_refused(dataset, asked, seed)
    assert min(len(shard.train) + len(shard.test) for shard in result.shards) >= asked.min_size


@given(cases(), st.integers(0, 1000))
@settings(max_examples=60)
def test_the_public_set_has_its_size_and_is_balanced_where_it_can_be(case, seed):
    dataset, asked = case
    public = dealt_or_refused(dataset, asked, seed).public
    assert len(public) == asked.public_size
    if asked.public_alpha is None:
        keys = dataset.domains * dataset.num_classes + dataset.labels
        groups = len(dataset.domain_names) * dataset.num_classes
        taken = np.bincount(keys[public], minlength=groups)
        there = np.bincount(keys, minlength=groups)
        with_room = taken[taken < there]
        assert len(with_room) == 0 or taken.max() - with_room.min() <= 1


@pytest.mark.parametrize("scheme", ["iid", "pathological", "dirichlet"])
def test_a_seed_gives_one_split_and_another_seed_another(scheme):
    dataset = SOURCES["digits"].load()
    asked = DataSettings(scheme=scheme, public_size=300, alpha=0.5)

    def flat(seed):
        result = partition(dataset, asked, seed)
        return [part.tolist() for shard in result.shards for part in (shard.train, shard.test)] + [
            result.public.tolist()
        ]

    assert flat(3) == flat(3)
    assert flat(3) != flat(4)


def test_the_test_part_has_the_client_s_own_mix():
    labels = np.array([0] * 80 + [1] * 40 + [2] * 4)
    train, test = split(labels, np.arange(124), 0.25, np.random.default_rng(0))
    assert np.bincount(labels[test]).tolist() == [20, 10, 1]
    assert np.bincount(labels[train]).tolist() == [60, 30, 3]


def test_pathological_clients_hold_exactly_their_classes_and_every_class_is_held():
    dataset = SOURCES["digits"].load()
    result = partition(dataset, DataSettings(scheme="pathological", public_size=300), seed=0)
    held = [set(dataset.labels[shard.train].tolist()) for shard in result.shards]
    assert all(len(classes) == 2 for classes in held)
    assert set.union(*held) == set(range(10))


def test_a_smaller_alpha_means_more_skew():
    dataset = SOURCES["digits"].load()

    def largest_share(alpha):
        result = partition(dataset, DataSettings(alpha=alpha, public_size=300, clients=10), seed=0)
        counts = [np.bincount(dataset.labels[shard.train], minlength=10) for shard in result.shards]
        return np.mean([count.max() / count.sum() for count in counts])

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"scheme": "pathological", "classes_per_client": 11}, "at most 10"),
        ({"scheme": "pathological", "classes_per_client": 2, "clients": 4}, "cannot hold all 10"),
        ({"public_size": 1790}, "ask for at most 1767"),
        ({"clients": 1000}, "too many"),
        ({"clients": 400}, "lower clients"),
        ({"alpha": 0.001, "clients": 100}, "raise alpha"),
    ],
)
def test_what_cannot_be_dealt_is_refused_in_one_line(asked, hint):
    dataset = SOURCES["digits"].load()
    with pytest.raises(RequestError, match=hint) as refused:
        partition(dataset, DataSettings(**{"public_size": 300, **asked}), seed=0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", range(10))
def test_small_groups_give_what_they_have_and_the_others_the_same(seed):
    taken = fill_evenly(np.array([57, 2, 1, 40]), 25, np.random.default_rng(seed))
    assert taken.tolist() == [11, 2, 1, 11]
    assert sorted(fill_evenly(np.array([57, 2, 1]), 5, np.random.default_rng(seed)).tolist()) == [1, 2, 2]


def test_a_skewed_public_set_follows_its_shares():
    available = np.full(20, 50)
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    taken = fill_skewed(10, available, 200, alpha=0.3, rng=rng).reshape(2, 10).sum(axis=0)
    wanted = 200 * again.dirichlet(np.full(10, 0.3))
    assert taken.sum() == 200
    assert np.abs(taken - np.minimum(wanted, 100))[wanted < 100].max() <= 2 + max(0, wanted.max() - 100)


def test_five_domains_share_the_digits_and_look_different():
    digits, domains = SOURCES["digits"].load(), SOURCES["digits-domains"].load()
    assert np.array_equal(digits.labels, domains.labels)
    table = np.histogram2d(domains.domains, domains.labels, bins=(5, 10))[0]
    assert (table.max(axis=0) - table.min(axis=0)).max() <= 1
    plain = domains.domains == 0
    assert np.array_equal(domains.images[plain], digits.images[plain])
    for number in range(1, 5):
        assert not np.array_equal(domains.images[domains.domains == number], digits.images[domains.domains == number])
    assert SOURCES["digits-domains"].load().fingerprint == domains.fingerprint != digits.fingerprint
