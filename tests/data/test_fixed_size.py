"""Low-data partitions: exact numbers of examples per client, with the class distributions of each scheme."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.config.run_config import data_fingerprint
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import load_dataset
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.partitioning.public_set import proportional_counts
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.prepare import load_and_partition
from fedmosaic_cli.storage.shards import read_shards
from tests.data.test_partition import SCHEMES, all_indices, all_parts, cases, make_dataset, partition_or_reject

DIGITS = load_dataset(DataSettings(), DataDirs())
DIGITS_DOMAINS = load_dataset(DataSettings(dataset="digits-domains"), DataDirs())


def partition_of(examples=DIGITS, seed=0, **options):
    return partition_dataset(examples, resolve_data_settings(DataSettings(**options), DataDirs()), seed)


def large_dataset(size=60_000, classes=10, domains=4, test=False):
    return make_dataset(np.random.default_rng(0).integers(0, classes, size=size).tolist(), classes, domains, test)


def with_sizes(sizes, **more):
    """Return a data set with these numbers of examples per class, in random order."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return replace(make_dataset(labels.tolist(), len(sizes), 1), **more)


def counts(dataset, indices):
    return np.bincount(dataset.labels[indices], minlength=dataset.num_classes)


def held(shard):
    return np.concatenate([shard.train, shard.validation])


def flat(partition):
    return [part.tolist() for part in all_parts(partition)]


@st.composite
def sized_cases(draw, schemes=SCHEMES):
    """Generate cases with a number of training examples and, for some, of test examples."""
    dataset, options = draw(cases(schemes))
    sizes = {
        "examples_per_client": draw(st.integers(2, 12)),
        "test_examples_per_client": draw(st.none() | st.integers(1, 6)),
        "test_fraction": None,
    }
    return dataset, options.model_copy(update=sizes)


@given(sized_cases(), st.integers(0, 1000))
@settings(max_examples=300)
def test_every_client_has_exactly_the_configured_examples(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    has_official_tests = dataset.test_mask is not None and options.protocol == "official"
    size, num_tests = options.examples_per_client, options.test_examples_per_client
    if options.scheme == "dirichlet" and not has_official_tests:
        num_tests = num_tests or size
    for shard in result.shards:
        assert len(held(shard)) == size
        assert len(shard.test) == num_tests or (num_tests is None and len(shard.test) >= 1)
        if options.val_fraction:
            assert len(shard.validation) == min(max(round(size * options.val_fraction), 1), size - 1)
    if num_tests is None and has_official_tests and options.scheme != "natural":
        tested = np.concatenate([shard.test for shard in result.shards])
        groups = dataset.labels + dataset.num_classes * dataset.domain_ids * (options.scheme in ("domain", "hybrid"))
        trained = np.unique(groups[np.concatenate([held(shard) for shard in result.shards])])
        assert len(tested) == np.isin(groups[dataset.test_indices], trained).sum(), "distributed as a whole"


@given(sized_cases(), st.integers(0, 1000))
@settings(max_examples=100)
def test_parts_are_disjoint_sorted_and_reproducible(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    together = np.concatenate(all_parts(result))
    assert len(np.unique(together)) == len(together)
    assert all(np.array_equal(part, np.unique(part)) for part in all_parts(result))
    assert [shard.client for shard in result.shards] == list(range(options.clients))
    assert flat(result) == flat(partition_dataset(dataset, options, seed))
    if dataset.test_mask is not None:
        assert not dataset.test_mask[result.public].any()
        if options.protocol == "official":
            assert all(dataset.test_mask[shard.test].all() for shard in result.shards)
            assert not any(dataset.test_mask[held(shard)].any() for shard in result.shards)


@given(sized_cases(), st.integers(0, 1000))
@settings(max_examples=100)
def test_clients_keep_the_domains_classes_and_ids_of_their_scheme(case, seed):
    dataset, options = case
    for shard in partition_or_reject(dataset, options, seed).shards:
        everything = all_indices(shard)
        if options.scheme in ("domain", "hybrid"):
            assert {dataset.domain_names[number] for number in dataset.domain_ids[everything]} == {shard.domain}
        if options.scheme in ("pathological", "hybrid"):
            assert np.count_nonzero(counts(dataset, everything)) <= options.classes_per_client
        if options.scheme == "natural":
            assert set(dataset.client_ids[everything].tolist()) == {shard.client}


@given(sized_cases(("iid", "pathological", "domain", "hybrid", "natural")), st.integers(0, 1000))
@settings(max_examples=100)
def test_examples_come_from_the_share_that_a_client_has_without_a_limit(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    if options.scheme in ("domain", "hybrid"):
        options = options.model_copy(update={"public_size": 0})  # it may take other examples
    whole = partition_or_reject(
        dataset, options.model_copy(update={"examples_per_client": None, "test_examples_per_client": None}), seed
    )
    has_official_tests = dataset.test_mask is not None and options.protocol == "official"
    for limited, full in zip(result.shards, whole.shards, strict=True):
        share = held(full) if has_official_tests else all_indices(full)
        assert set(held(limited).tolist()) <= set(share.tolist())
        if not has_official_tests and options.public_size:
            assert set(limited.test.tolist()) <= set(share.tolist())
            if options.test_examples_per_client is None:
                assert set(all_indices(limited).tolist()) == set(share.tolist()), "the rest is for testing"


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_seed_gives_another_partition(scheme, test):
    dataset = large_dataset(2000, 5, 2, test)
    options = DataSettings(
        scheme=scheme,
        clients=4,
        clients_per_domain=2,
        alpha=1.0,
        public_size=40,
        examples_per_client=20,
        test_examples_per_client=10,
    )
    one, again, other = (partition_dataset(dataset, options, seed) for seed in (3, 3, 4))
    assert flat(one) == flat(again) != flat(other)
    together = np.concatenate(all_parts(one))
    assert len(np.unique(together)) == len(together) == 40 + 4 * 30
    if scheme == "dirichlet":
        mixes = [[counts(dataset, shard.train).tolist() for shard in result.shards] for result in (one, other)]
        assert mixes[0] != mixes[1]


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_class_counts_follow_a_dirichlet_distribution_per_client(alpha, test):
    """Moments of Dirichlet-multinomial counts: the mean, the mean of squares, and the covariance of train and test."""
    classes, clients, size, num_tests = 10, 1500, 20, 10
    dataset = large_dataset(400_000, classes, test=test)
    result = partition_of(
        dataset,
        alpha=alpha,
        clients=clients,
        public_size=100,
        examples_per_client=size,
        test_examples_per_client=num_tests,
    )
    train = np.array([counts(dataset, shard.train) for shard in result.shards]) / size
    tests = np.array([counts(dataset, shard.test) for shard in result.shards]) / num_tests
    assert np.allclose(train.mean(axis=0), 1 / classes, atol=0.03)
    variance = (1 / classes) * (1 - 1 / classes) / (classes * alpha + 1)
    mean_square = variance + 1 / classes**2
    assert (train**2).mean() == pytest.approx((1 - 1 / size) * mean_square + 1 / classes / size, rel=0.05)
    assert (tests**2).mean() == pytest.approx((1 - 1 / num_tests) * mean_square + 1 / classes / num_tests, rel=0.05)
    # Train and test counts share q and are independent given q.
    assert (train * tests).mean() == pytest.approx(mean_square, rel=0.05)


def test_class_distribution_of_a_client_depends_on_the_seed_only():
    dataset = large_dataset()
    options = {"alpha": 0.5, "public_size": 50, "test_examples_per_client": 10}
    few, many = (partition_of(dataset, clients=n, examples_per_client=400, **options) for n in (3, 8))
    assert [counts(dataset, shard.train).tolist() for shard in few.shards] == [
        counts(dataset, shard.train).tolist() for shard in many.shards[:3]
    ]
    small = partition_of(dataset, clients=3, examples_per_client=200, **options)
    for one, other in zip(small.shards, few.shards, strict=True):
        difference = counts(dataset, one.train) / 200 - counts(dataset, other.train) / 400
        assert np.abs(difference).max() < 0.12, "two samples of the same distribution"


def test_a_draw_with_an_exhausted_class_is_repeated():
    dataset = with_sizes([6, 3000, 3000, 3000])
    result = partition_of(dataset, scheme="dirichlet", alpha=0.3, clients=20, public_size=0, examples_per_client=20)
    total = sum(counts(dataset, all_indices(shard)) for shard in result.shards)
    assert total.sum() == 20 * 40
    assert total[0] <= 6


@pytest.mark.parametrize(("alpha", "most"), [(5e-324, 1.0), (1e308, 0.4)])
def test_extreme_alphas_give_one_class_or_all(alpha, most):
    result = partition_of(
        large_dataset(), alpha=alpha, clients=5, public_size=0, examples_per_client=100, test_examples_per_client=1
    )
    largest = [counts(large_dataset(), shard.train).max() / 100 for shard in result.shards]
    assert max(largest) <= most
    assert min(largest) >= most - 0.3


def test_dirichlet_ignores_classes_without_training_examples():
    dataset = with_sizes([300, 0, 300])
    result = partition_of(dataset, alpha=1.0, clients=5, public_size=0, examples_per_client=30)
    assert sum(counts(dataset, all_indices(shard)) for shard in result.shards).tolist()[1] == 0


@pytest.mark.parametrize("protocol", ["official", "pfllib"])
@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("scheme", ["pathological", "hybrid"])
def test_selected_classes_have_equal_numbers_of_examples(scheme, test, protocol):
    dataset = large_dataset(8000, test=test)
    options = DataSettings(
        scheme=scheme,
        protocol=protocol,
        clients=20,
        clients_per_domain=5,
        classes_per_client=2,
        public_size=100,
        examples_per_client=51,
        test_examples_per_client=20,
    )
    for shard in partition_dataset(dataset, options, 0).shards:
        train, tests = counts(dataset, shard.train), counts(dataset, shard.test)
        assert sorted(train[train > 0].tolist()) == [25, 26]
        assert np.abs(tests / 20 - train / 51).max() < 1 / 20


def test_unbalanced_classes_have_unequal_numbers_of_examples():
    dataset = large_dataset(20_000, test=True)
    options = {"scheme": "pathological", "clients": 20, "public_size": 100}
    sizes = {"examples_per_client": 50, "test_examples_per_client": 40}
    differences = []
    for seed in range(5):
        result = partition_of(dataset, seed, balanced=False, **options, **sizes)
        whole = partition_of(dataset, seed, balanced=False, **options)
        for shard, full in zip(result.shards, whole.shards, strict=True):
            train, tests, share = (counts(dataset, part) for part in (shard.train, shard.test, full.train))
            assert np.abs(train / 50 - share / share.sum()).max() <= 1 / 50, "the proportions of the uneven share"
            assert np.abs(tests / 40 - train / 50).max() <= 1 / 40
            differences.append(train.max() - train[train > 0].min())
    assert np.mean(differences) > 10


def test_iid_examples_are_drawn_uniformly():
    chosen = np.zeros(1797)
    for seed in range(200):
        result = partition_of(seed=seed, scheme="iid", clients=3, public_size=0, examples_per_client=100)
        chosen[np.concatenate([shard.train for shard in result.shards])] += 1
    rate = 300 / 1797
    assert chosen.sum() == 200 * 300
    assert chosen.max() < 200 * rate + 6 * np.sqrt(200 * rate)
    thirds = [part.mean() for part in np.array_split(chosen, 3)]
    assert np.ptp(thirds) < 0.1 * np.mean(thirds), "no part of the data set is preferred"


def test_public_set_leaves_each_domain_what_its_clients_need():
    """A balanced public set of this size would take all examples of the small domain."""
    domains = np.repeat([0, 1], [900, 150])
    labels = np.random.default_rng(0).integers(0, 5, size=1050)
    dataset = replace(make_dataset(labels.tolist(), 5, 2), domain_ids=domains)
    options = DataSettings(
        scheme="domain", clients=5, clients_per_domain=(4, 1), public_size=400, examples_per_client=50
    )
    result = partition_dataset(dataset, options, 0)
    assert np.bincount(domains[result.public]).tolist() == [350, 50]
    by_class = [counts(dataset, result.public[domains[result.public] == d]) for d in (0, 1)]
    assert [np.ptp(each) for each in by_class] == [0, 0]
    # Without a number of test examples, as many as training examples are left for testing.
    assert [len(shard.test) for shard in result.shards][4] == 50
    with pytest.raises(RequestError, match=r"a public set of 551 does not fit .*ask for at most 550"):
        partition_dataset(dataset, options.model_copy(update={"public_size": 551}), 0)
    fewer_tests = options.model_copy(update={"public_size": 600, "test_examples_per_client": 20})
    assert np.bincount(domains[partition_dataset(dataset, fewer_tests, 0).public]).tolist() == [520, 80]


def test_public_sets_from_a_pool_do_not_change_the_clients():
    for scheme in ("iid", "dirichlet", "pathological"):
        options = {"scheme": scheme, "clients": 6, "alpha": 1.0, "public_from": 300, "examples_per_client": 40}
        if scheme == "pathological":
            options["classes_per_client"] = 3
        parts = [flat(partition_of(public_size=size, **options))[1:] for size in (0, 100, 300)]
        assert parts[0] == parts[1] == parts[2]


def test_number_of_test_examples_alone_limits_the_test_sets():
    for protocol, dataset in (("official", DIGITS), ("pfllib", DIGITS), ("official", large_dataset(3000, test=True))):
        options = {"scheme": "dirichlet", "alpha": 1.0, "clients": 6, "public_size": 50, "protocol": protocol}
        whole, limited = (partition_of(dataset, test_examples_per_client=m, **options) for m in (None, 12))
        for full, shard in zip(whole.shards, limited.shards, strict=True):
            assert np.array_equal(shard.train, full.train)
            assert len(shard.test) == 12
            assert set(shard.test.tolist()) < set(full.test.tolist())
            all_tests = counts(dataset, full.test)
            assert np.abs(counts(dataset, shard.test) - 12 * all_tests / all_tests.sum()).max() <= 1


def test_validation_examples_count_as_training_examples():
    for shard in partition_of(alpha=1.0, clients=5, examples_per_client=40, val_fraction=0.25).shards:
        assert (len(shard.train), len(shard.validation), len(shard.test)) == (30, 10, 40)


def test_natural_clients_use_their_own_examples():
    dataset = make_dataset([0, 1, 2] * 200, 3, 1, test=True)
    options = DataSettings(scheme="natural", clients=4, public_size=60, examples_per_client=80)
    for shard in partition_dataset(dataset, options, 0).shards:
        assert len(shard.train) == 80
        assert np.array_equal(shard.test, np.flatnonzero(dataset.test_mask & (dataset.client_ids == shard.client)))


@pytest.mark.parametrize("shares", [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
@pytest.mark.parametrize("available", [[40, 40, 40], [3, 40, 40], [0, 0, 40]])
def test_proportional_counts_have_the_exact_size(available, shares):
    taken = proportional_counts(np.array(available), 20, np.array(shares))
    assert taken.sum() == 20
    assert (taken <= available).all()
    if min(available) == 40:
        assert np.abs(taken - 20 * np.array(shares)).max() < 1


SCARCE = {"scheme": "dirichlet", "alpha": 100.0, "clients": 10, "public_size": 0}
NATURAL = {"dataset": "npz", "scheme": "natural", "clients": 4, "public_size": 0}


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (
            with_sizes([5, 2000, 2000]),
            {**SCARCE, "examples_per_client": 30},
            "class '0' lacks ",
        ),
        (
            with_sizes([5, 2000, 2000]),
            {**SCARCE, "examples_per_client": 30},
            " training and test examples for client 0 in the last of 200 draws with alpha 100 "
            "(data.examples_per_client): lower it, data.test_examples_per_client, data.clients or data.public_size, "
            "or raise data.alpha",
        ),
        (
            with_sizes([300, 2000, 2000], test_mask=np.arange(4300) % 5 == 0),
            {**SCARCE, "examples_per_client": 200, "test_examples_per_client": 5},
            "(data.examples_per_client): lower it, data.clients or data.public_size, or raise data.alpha",
        ),
        (
            with_sizes([300, 2000, 2000], test_mask=np.arange(4300) % 5 == 0),
            {**SCARCE, "examples_per_client": 5, "test_examples_per_client": 60},
            " test examples for client 3 in the last of 200 draws with alpha 100 (data.test_examples_per_client): "
            "lower it, data.clients, or raise data.alpha",
        ),
        (
            DIGITS,
            {"scheme": "dirichlet", "alpha": 100.0, "clients": 10, "public_from": 290, "examples_per_client": 75}
            | {"public_size": 100},
            "data.clients or data.public_pool_size",
        ),
        (
            DIGITS,
            {"scheme": "dirichlet", "clients": 10, "examples_per_client": 90},
            "10 clients with 90 training examples each are too many (data.examples_per_client): 'digits' has 1797 "
            "examples and 180 per client are needed; lower it or data.clients",
        ),
        (
            DIGITS,
            {"scheme": "iid", "clients": 10, "public_size": 797, "examples_per_client": 100},
            "a public set of 797 does not fit (data.public_size): 'digits' has 1797 training examples and 10 clients "
            "need 100 each too; ask for at most 787",
        ),
        (
            DIGITS,
            {"scheme": "iid", "clients": 10, "public_size": 95, "examples_per_client": 169},
            " examples, too few for 169 to train on and 1 to test on (data.examples_per_client): lower it, or use "
            "fewer clients",
        ),
        (
            DIGITS,
            {"scheme": "iid", "clients": 10, "public_size": 100, "examples_per_client": 100}
            | {"test_examples_per_client": 69},
            " examples, too few for 100 to train on and 69 to test on (data.examples_per_client): lower it, or use ",
        ),
        (
            replace(make_dataset([0, 1] * 100, 2, 1, test=True), client_ids=np.arange(200) % 7 % 4),
            {**NATURAL, "examples_per_client": 30},
            "client 3 has 23 examples, too few for 30 to train on (data.examples_per_client): lower it",
        ),
        (
            make_dataset([0, 1] * 100, 2, 1, test=True),
            {**NATURAL, "examples_per_client": 20, "test_examples_per_client": 11},
            "client 0 has 10 test examples, fewer than 11 (data.test_examples_per_client): lower it",
        ),
        (
            large_dataset(1000, test=True),
            {"scheme": "iid", "clients": 10, "public_size": 0, "examples_per_client": 20}
            | {"test_examples_per_client": 50},
            " test examples, fewer than 50 (data.test_examples_per_client): lower it, or use fewer clients",
        ),
        (
            DIGITS,
            {"scheme": "iid", "clients": 10, "public_size": 0, "test_examples_per_client": 50},
            " test examples, fewer than 50 (data.test_examples_per_client): lower it, or use fewer clients",
        ),
        (
            DIGITS_DOMAINS,
            {"dataset": "office10", "scheme": "domain", "protocol": "fedbn", "examples_per_client": 20},
            "protocol fedbn determines the number of examples (data.examples_per_client): leave it out, or choose ",
        ),
        (
            DIGITS_DOMAINS,
            {"dataset": "office10", "scheme": "domain", "protocol": "fedbn", "test_examples_per_client": 20},
            "protocol fedbn determines the number of examples (data.test_examples_per_client): leave it out, or ",
        ),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(dataset, options, message):
    with pytest.raises(RequestError) as error:
        partition_of(dataset, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_sizes_are_recorded_only_if_configured():
    names = {"examples_per_client", "test_examples_per_client"}
    assert not names & (DataSettings().used_parameters().keys() | DataSettings().to_record().keys())
    options = DataSettings(examples_per_client=30, test_examples_per_client=20, min_size=5, test_fraction=0.5)
    assert options.to_record()["examples_per_client"] == options.used_parameters()["examples_per_client"] == 30
    assert options.used_parameters()["test_examples_per_client"] == 20
    assert not {"min_size", "test_fraction"} & options.used_parameters().keys(), "they have no effect"
    assert {"min_size", "test_fraction"} <= DataSettings().used_parameters().keys()


def test_names_of_shards_depend_on_the_sizes():
    options = [{}, {"examples_per_client": 30}, {"test_examples_per_client": 30}, {"examples_per_client": 31}]
    assert len({data_fingerprint(DataSettings(**each)) for each in options}) == 4
    explicit = {"examples_per_client": None, "test_examples_per_client": None}
    assert data_fingerprint(DataSettings(**explicit)) == data_fingerprint(DataSettings())


@pytest.mark.parametrize(
    ("options", "parameters", "tested_on"),
    [
        (
            {"alpha": 1.0},
            {"test_examples_per_client": 30},
            "other examples, drawn by each client's class distribution, 30 per client",
        ),
        ({"scheme": "iid"}, {}, "the other examples of each client's share"),
        (
            {"scheme": "iid", "test_examples_per_client": 20},
            {"test_examples_per_client": 20},
            "the other examples of each client's share, 20 per client",
        ),
    ],
)
def test_shards_of_fixed_size_are_read_back(tmp_path, options, parameters, tested_on):
    settings = resolve_data_settings(DataSettings(clients=5, examples_per_client=30, **options), DataDirs())
    made = load_and_partition(settings, 3, tmp_path / "shards", DataDirs()).save()
    assert made.manifest["parameters"].items() >= {"examples_per_client": 30, **parameters}.items()
    assert not {"min_size", "test_fraction"} & made.manifest["parameters"].keys()
    assert made.manifest["tested_on"] == tested_on
    again = read_shards(tmp_path / "shards")
    assert again.partition.settings == settings
    assert flat(again.partition) == flat(made.partition)
    assert load_and_partition(settings, 3, tmp_path / "shards", DataDirs()).save().digest == made.digest
