"""Properties of every partition: disjoint, complete and as configured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets import load_dataset
from fedmosaic_cli.data.partitioning.partition import add_label_noise, partition_dataset
from fedmosaic_cli.data.partitioning.public_set import balanced_counts, skewed_group_counts
from fedmosaic_cli.data.partitioning.schemes import min_client_size, pfllib_clients_per_class, uneven_split
from fedmosaic_cli.data.partitioning.splits import assign_tests, stratified_split
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError

SCHEMES = ("iid", "pathological", "dirichlet", "domain", "hybrid", "natural")


def embedded(name: str) -> Dataset:
    return load_dataset(DataSettings(dataset=name), DataDirs())


def partition_of(examples: Dataset, seed: int = 0, **options: object):
    return partition_dataset(examples, resolve_data_settings(DataSettings(**options), DataDirs()), seed)


def make_dataset(labels: list[int], classes: int, domains: int, test: bool = False) -> Dataset:
    values = np.array(labels, dtype=np.int64)
    return Dataset(
        name="made",
        images=np.zeros((len(values), 1, 1, 1), dtype=np.uint8),
        labels=values,
        class_names=tuple(str(c) for c in range(classes)),
        domain_ids=np.arange(len(values)) % domains,
        domain_names=tuple(str(d) for d in range(domains)),
        test_mask=np.arange(len(values)) % 5 == 4 if test else None,
        client_ids=np.arange(len(values)) // 2 % 4,
    )


@st.composite
def cases(draw, schemes=SCHEMES):
    classes, domains = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=60, max_size=240))
    scheme = draw(st.sampled_from(schemes))
    per_domain = draw(st.integers(1, 3))
    clients = per_domain * domains if scheme in ("domain", "hybrid") else draw(st.integers(1, 6))
    clients = 4 if scheme == "natural" else clients
    protocol = draw(st.sampled_from(["official", "pfllib"])) if scheme != "natural" else "official"
    test = draw(st.booleans())
    options = DataSettings(
        dataset="made",
        scheme=scheme,
        protocol=protocol,
        clients=clients,
        balanced=draw(st.booleans()),
        alpha=draw(st.sampled_from([0.05, 0.3, 1.0, 100.0])),
        classes_per_client=draw(st.integers(1, classes)),
        clients_per_domain=per_domain,
        public_size=draw(st.integers(0, 30)),
        public_alpha=draw(st.none() | st.sampled_from([0.1, 1.0])),
        test_fraction=None if test and protocol == "official" else draw(st.sampled_from([0.1, 0.25, 0.5])),
        val_fraction=draw(st.sampled_from([0.0, 0.2])),
        min_size=draw(st.integers(2, 6)),
        flip_labels=draw(st.sampled_from([(), (0,)])),
        label_noise=draw(st.sampled_from([0.0, 0.3])),
        label_noise_kind=draw(st.sampled_from(["symmetric", "asymmetric"])),
    )
    return make_dataset(labels, classes, domains, test), options


def all_indices(shard) -> np.ndarray:
    return np.concatenate(list(shard.splits().values()))


def partition_or_reject(dataset, options, seed):
    """Return the partition; an impossible one must raise RequestError."""
    try:
        return partition_dataset(dataset, options, seed)
    except RequestError:
        reject()


def all_parts(partition):
    return [partition.public, *(part for shard in partition.shards for part in shard.splits().values())]


@given(cases(), st.integers(0, 1000))
@settings(max_examples=250)
def test_parts_are_disjoint_sorted_and_cover_what_they_should(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    parts = all_parts(result)
    assert [part.tobytes() for part in parts] == [
        part.tobytes() for part in all_parts(partition_or_reject(*case, seed))
    ]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all(np.array_equal(part, np.unique(part)) for part in parts)
    assert len(result.shards) == options.clients
    left = np.setdiff1d(np.arange(len(dataset)), together)
    if options.scheme == "hybrid" and options.classes_per_client * options.clients_per_domain < dataset.num_classes:
        return
    if dataset.test_mask is None or options.protocol == "pfllib":
        assert len(left) == 0
    else:
        # Only test examples can be left: those of a class (in a domain) that nobody trains on.
        assert dataset.test_mask[left].all()
        groups = dataset.labels + dataset.num_classes * dataset.domain_ids * (options.scheme in ("domain", "hybrid"))
        if options.scheme != "natural":
            trained = np.concatenate([np.concatenate([shard.train, shard.validation]) for shard in result.shards])
            assert not set(groups[left].tolist()) & set(groups[trained].tolist())


@given(cases(), st.integers(0, 1000))
@settings(max_examples=150)
def test_every_client_can_train_and_be_tested(case, seed):
    dataset, options = case
    for shard in partition_or_reject(dataset, options, seed).shards:
        held = len(shard.train) + len(shard.validation)
        assert len(shard.train) >= 1
        assert len(shard.test) >= 1
        if options.val_fraction:
            assert len(shard.validation) == min(max(round(held * options.val_fraction), 1), held - 1)
        if options.test_fraction is not None and options.protocol == "official":
            size = held + len(shard.test)
            assert len(shard.test) == min(max(round(size * options.test_fraction), 1), size - 1)


@given(cases(), st.integers(0, 1000))
@settings(max_examples=150)
def test_official_test_split_is_used_for_testing_only(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    if dataset.test_mask is None:
        return
    assert not dataset.test_mask[result.public].any(), "U comes from the training part, whatever the protocol"
    if options.protocol == "official":
        for shard in result.shards:
            assert dataset.test_mask[shard.test].all()
            assert not dataset.test_mask[np.concatenate([shard.train, shard.validation])].any()


@given(cases(), st.integers(0, 1000))
@settings(max_examples=100)
def test_labels_are_wrong_as_often_as_asked_and_only_in_training(case, seed):
    dataset, options = case
    for shard in partition_or_reject(dataset, options, seed).shards:
        truth = {part: dataset.labels[index] for part, index in shard.splits().items()}
        if shard.client in options.flip_labels:
            truth = {part: dataset.num_classes - 1 - labels for part, labels in truth.items()}
        wrong = {part: int((shard.split_labels(part, dataset) != labels).sum()) for part, labels in truth.items()}
        assert wrong.pop("train") == round(options.label_noise * len(shard.train))
        assert not any(wrong.values())


@given(cases(schemes=("pathological", "hybrid")), st.integers(0, 1000))
@settings(max_examples=100)
def test_clients_have_at_most_the_configured_classes(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    for shard in result.shards:
        assert len(set(dataset.labels[all_indices(shard)].tolist())) <= options.classes_per_client


@given(cases(schemes=("domain", "hybrid")), st.integers(0, 1000))
@settings(max_examples=100)
def test_a_client_stays_inside_its_domain(case, seed):
    dataset, options = case
    for shard in partition_or_reject(dataset, options, seed).shards:
        held = dataset.domain_ids[all_indices(shard)]
        assert {dataset.domain_names[number] for number in held} <= {shard.domain}


@given(cases(schemes=("dirichlet",)), st.integers(0, 1000))
@settings(max_examples=60)
def test_dirichlet_keeps_the_minimum_size(case, seed):
    dataset, options = case
    result = partition_or_reject(dataset, options, seed)
    kept_apart = dataset.test_mask is not None and options.protocol == "official"
    sizes = [len(all_indices(shard)) - (len(shard.test) if kept_apart else 0) for shard in result.shards]
    assert min(sizes) >= options.min_size


@given(cases(schemes=("natural",)), st.integers(0, 1000))
@settings(max_examples=30)
def test_natural_scheme_keeps_client_ids(case, seed):
    dataset, options = case
    for shard in partition_or_reject(dataset, options, seed).shards:
        assert set(dataset.client_ids[all_indices(shard)].tolist()) == {shard.client}


@given(cases(), st.integers(0, 1000))
@settings(max_examples=60)
def test_the_public_set_has_its_size_and_is_balanced_where_it_can_be(case, seed):
    dataset, options = case
    public = partition_or_reject(dataset, options, seed).public
    assert len(public) == options.public_size
    if options.public_alpha is None:
        keys = dataset.domain_ids * dataset.num_classes + dataset.labels
        groups = len(dataset.domain_names) * dataset.num_classes
        taken = np.bincount(keys[public], minlength=groups)
        there = np.bincount(keys[dataset.train_indices], minlength=groups)
        with_room = taken[taken < there]
        assert len(with_room) == 0 or taken.max() - with_room.min() <= 1


@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_seed_gives_one_split_and_another_seed_another(scheme, test):
    dataset = make_dataset(np.random.default_rng(0).integers(0, 5, size=600).tolist(), 5, 2, test)
    options = DataSettings(
        scheme=scheme, clients=4, clients_per_domain=2, public_size=40, alpha=5.0, min_size=2, val_fraction=0.2
    )

    def flat(seed):
        result = partition_dataset(dataset, options, seed)
        parts = [part.tolist() for shard in result.shards for part in shard.splits().values()]
        return [*parts, result.public.tolist()]

    assert flat(3) == flat(3)
    assert flat(3) != flat(4)


def test_stratified_split_keeps_the_class_distribution():
    labels = np.array([0] * 80 + [1] * 40 + [2] * 4)
    train, test = stratified_split(labels, np.arange(124), 0.25, np.random.default_rng(0))
    assert np.bincount(labels[test]).tolist() == [20, 10, 1]
    assert np.bincount(labels[train]).tolist() == [60, 30, 3]


def test_pathological_clients_hold_exactly_their_classes_and_every_class_is_held():
    dataset = embedded("digits")
    result = partition_of(dataset, scheme="pathological")
    held = [set(dataset.labels[shard.train].tolist()) for shard in result.shards]
    assert all(len(classes) == 2 for classes in held)
    assert set.union(*held) == set(range(10))


def test_a_smaller_alpha_means_more_skew():
    dataset = embedded("digits")

    def largest_share(alpha):
        result = partition_of(dataset, alpha=alpha, clients=10)
        counts = [np.bincount(dataset.labels[shard.train], minlength=10) for shard in result.shards]
        return np.mean([count.max() / count.sum() for count in counts])

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"scheme": "pathological", "classes_per_client": 11}, "at most 10"),
        ({"scheme": "pathological", "classes_per_client": 2, "clients": 4}, "cannot hold all 10"),
        ({"public_size": 1790}, "ask for at most 1767"),
        ({"clients": 1000}, "too many"),
        ({"clients": 400}, "lower clients"),
        ({"alpha": 0.001, "clients": 100}, "alpha 0.001 gives each of 100 clients 10 .*raise alpha"),
        ({"scheme": "iid", "clients": 700, "val_fraction": 0.5}, "too few"),
        ({"scheme": "pathological", "protocol": "pfllib", "clients": 7}, "assigns class 8 to no client"),
    ],
)
def test_impossible_partition_is_refused_in_one_line(options, hint):
    dataset = embedded("digits")
    with pytest.raises(RequestError, match=hint) as error:
        partition_of(dataset, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", range(10))
def test_balanced_counts_with_small_groups(seed):
    taken = balanced_counts(np.array([57, 2, 1, 40]), 25, np.random.default_rng(seed))
    assert taken.tolist() == [11, 2, 1, 11]
    assert sorted(balanced_counts(np.array([57, 2, 1]), 5, np.random.default_rng(seed)).tolist()) == [1, 2, 2]


def test_a_skewed_public_set_follows_its_shares():
    available = np.full(20, 50)
    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    taken = skewed_group_counts(10, available, 200, alpha=0.3, rng=rng).reshape(2, 10).sum(axis=0)
    wanted = 200 * again.dirichlet(np.full(10, 0.3))
    assert taken.sum() == 200
    assert np.abs(taken - np.minimum(wanted, 100))[wanted < 100].max() <= 2 + max(0, wanted.max() - 100)


def test_five_domains_share_the_digits_and_look_different():
    digits, domains = embedded("digits"), embedded("digits-domains")
    assert np.array_equal(digits.labels, domains.labels)
    table = np.histogram2d(domains.domain_ids, domains.labels, bins=(5, 10))[0]
    assert (table.max(axis=0) - table.min(axis=0)).max() <= 1
    plain = domains.domain_ids == 0
    assert np.array_equal(domains.images[plain], digits.images[plain])
    for number in range(1, 5):
        assert not np.array_equal(
            domains.images[domains.domain_ids == number], digits.images[domains.domain_ids == number]
        )
    assert embedded("digits-domains").fingerprint == domains.fingerprint != digits.fingerprint


def test_test_examples_follow_the_training_distribution():
    groups = np.array([0] * 90 + [1] * 60 + [0] * 30 + [1] * 20)
    tests = np.arange(150, 200)
    shares = [np.arange(0, 60), np.arange(60, 120), np.arange(120, 150)]
    parts = assign_tests(groups, shares, tests, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == tests.tolist()
    # Client 0 holds 60 of 90, client 1 30 of 90 and 30 of 60, client 2 30 of 60.
    assert [np.bincount(groups[part], minlength=2).tolist() for part in parts] == [[20, 0], [10, 10], [0, 10]]


@pytest.mark.parametrize("seed", range(20))
def test_every_client_gets_a_test_example(seed):
    groups = np.array([0] * 100 + [0] * 12)
    shares = [np.arange(0, 90), *np.split(np.arange(90, 100), 10)]
    parts = assign_tests(groups, shares, np.arange(100, 112), np.random.default_rng(seed))
    assert min(map(len, parts)) == 1
    assert sum(map(len, parts)) == 12
    with pytest.raises(RequestError, match="no test example is left for client"):
        assign_tests(groups[:110], shares, np.arange(100, 110), np.random.default_rng(seed))


def test_pathological_clients_of_pfllib_come_in_groups():
    assert pfllib_clients_per_class(10, 15, 2) == [[3 * (c // 2) + i for i in range(3)] for c in range(10)]
    dataset = make_dataset([c for c in range(10) for _ in range(60)], 10, 1, test=True)
    result = partition_of(dataset, scheme="pathological", protocol="pfllib", clients=15, public_size=0, balanced=False)
    for shard in result.shards:
        pair = 2 * (shard.client // 3)
        assert set(dataset.labels[all_indices(shard)].tolist()) == {pair, pair + 1}
        size = len(all_indices(shard))
        assert len(shard.test) == -(-size // 4), "a quarter, rounded up as scikit-learn does"


def test_uneven_shares_stay_in_their_bounds_and_lose_nothing():
    examples = np.arange(600)
    sizes = []
    for seed in range(50):
        shares = uneven_split(examples, 3, 4, np.random.default_rng(seed))
        assert np.array_equal(np.concatenate(shares), examples)
        sizes.append([len(share) for share in shares])
    first = np.array(sizes)[:, :2]
    assert 20 <= first.min() < 60
    assert 150 < first.max() < 200
    assert min(len(share) for share in uneven_split(np.arange(3), 3, 4, np.random.default_rng(0))) == 1
    assert min(len(share) for share in uneven_split(examples, 3, 150, np.random.default_rng(0))) >= 150


def test_symmetric_and_asymmetric_noise():
    labels = np.repeat(np.arange(5), 200)
    symmetric = add_label_noise(labels, 5, 0.4, "symmetric", np.random.default_rng(0))
    asymmetric = add_label_noise(labels, 5, 0.4, "asymmetric", np.random.default_rng(0))
    assert (symmetric != labels).sum() == (asymmetric != labels).sum() == 400
    assert set(((asymmetric - labels) % 5).tolist()) == {0, 1}
    steps = np.bincount((symmetric - labels) % 5)
    assert steps[1:].min() > 70, "every other class gets its share"


def test_label_noise_is_drawn_for_each_client_and_seed():
    """With one stream for all clients, the same positions would be wrong everywhere."""
    dataset = make_dataset([0, 1, 2, 3] * 100, 4, 1)
    options = DataSettings(dataset="made", scheme="iid", clients=4, public_size=40, label_noise=0.3)
    wrong = set()
    for seed in (0, 1):
        for shard in partition_dataset(dataset, options, seed).shards:
            wrong.add(tuple(np.flatnonzero(shard.noisy_labels != dataset.labels[shard.train])))
    assert len(wrong) == 8


def test_dirichlet_with_many_clients_and_tiny_alpha_terminates():
    dataset = make_dataset(np.random.default_rng(0).integers(0, 10, size=50_000).tolist(), 10, 1)
    with pytest.raises(RequestError, match=r"alpha 0\.05 gives each of 500 clients 10"):
        partition_of(dataset, clients=500, alpha=0.05, public_size=100)


def test_fedbn_takes_a_share_of_the_smallest_list_and_the_whole_test_list():
    sizes = {0: 125, 1: 300, 2: 766, 3: 900}
    domains = np.concatenate([np.repeat(number, size + size // 4) for number, size in sizes.items()])
    test = np.concatenate([np.repeat([False, True], [size, size // 4]) for size in sizes.values()])
    dataset = Dataset(
        name="office10",
        images=np.zeros((len(domains), 1, 1, 3), dtype=np.uint8),
        labels=np.arange(len(domains)) % 10,
        class_names=tuple("abcdefghij"),
        domain_ids=domains,
        domain_names=("amazon", "caltech", "dslr", "webcam"),
        test_mask=test,
    )
    result = partition_of(dataset, dataset="office10", scheme="domain", protocol="fedbn")
    assert [len(shard.train) for shard in result.shards] == [62] * 4
    # The smallest domain gives 20 images to the public set, so 50 are not left for validation.
    assert [len(shard.validation) for shard in result.shards] == [43, 50, 50, 50]
    assert [len(shard.test) for shard in result.shards] == [size // 4 for size in sizes.values()]
    for number, shard in enumerate(result.shards):
        listed = np.setdiff1d(np.flatnonzero((domains == number) & ~test), result.public)
        assert np.array_equal(shard.train, listed[:62]), "the first of the list"
        assert np.array_equal(shard.validation, listed[-len(shard.validation) :]), "the last of the list"


def test_data_with_other_clients_than_asked_for():
    dataset = make_dataset([0, 1] * 50, 2, 1)
    options = DataSettings(scheme="natural", clients=3, public_size=0)
    with pytest.raises(RequestError, match="the data has 4 clients, not 3"):
        partition_dataset(dataset, options, 0)


def test_pfllib_minimum_depends_on_the_data_size():
    assert min_client_size(DataSettings(protocol="pfllib", clients=30), 1497) == 24
    assert min_client_size(DataSettings(protocol="pfllib", clients=15), 60_000) == 40
    assert min_client_size(DataSettings(protocol="pfllib", clients=15, min_size=7), 60_000) == 7


def test_a_skewed_public_set_takes_from_the_domains_that_have_it():
    available = np.array([5, 5, 5, 1000, 1000, 1000])
    taken = skewed_group_counts(3, available, 300, 0.05, np.random.default_rng(3)).reshape(2, 3)
    wanted = 300 * np.random.default_rng(3).dirichlet(np.full(3, 0.05))
    assert np.abs(taken.sum(axis=0) - wanted).max() < 1.01
    assert taken[0].max() <= 5


def test_fedbn_refuses_a_public_set_that_exhausts_a_domain():
    dataset = make_dataset([c for c in range(10) for _ in range(40)], 10, 2, test=True)
    settings = DataSettings(dataset="office10", scheme="domain", protocol="fedbn", clients=2, public_size=300)
    with pytest.raises(RequestError, match=r"which needs 80 \(data\.public_size\)"):
        partition_dataset(dataset, settings, 0)


def test_an_official_test_part_makes_a_test_fraction_meaningless():
    dataset = make_dataset([0, 1] * 100, 2, 1, test=True)
    with pytest.raises(RequestError, match="has an official test split"):
        partition_of(dataset, scheme="iid", clients=2, public_size=0, test_fraction=0.5)


def test_a_part_of_the_domains():
    dataset = load_dataset(DataSettings(dataset="digits-domains", domains=("noisy", "plain")), DataDirs())
    assert dataset.domain_names == ("noisy", "plain")
    full = embedded("digits-domains")
    names = np.array(full.domain_names)[full.domain_ids]
    assert np.array_equal(dataset.images[dataset.domain_ids == 0], full.images[names == "noisy"])
    assert np.array_equal(dataset.labels[dataset.domain_ids == 1], full.labels[names == "plain"])


@pytest.mark.parametrize(
    ("scheme", "dataset", "counts"),
    [("domain", "made", (3, 1, 2)), ("hybrid", "made", (3, 1, 2)), ("domain", "office10", (2, 1, 4))],
)
def test_domains_have_their_own_numbers_of_clients(scheme, dataset, counts):
    protocol = "fedbn" if dataset == "office10" else "official"
    options = DataSettings(
        dataset=dataset,
        scheme=scheme,
        protocol=protocol,
        clients=sum(counts),
        clients_per_domain=counts,
        public_size=30,
    )
    labels = np.random.default_rng(0).integers(0, 5, size=600).tolist()
    result = partition_dataset(make_dataset(labels, 5, 3, test=True), options, 0)
    assert [shard.domain for shard in result.shards] == [str(d) for d, count in enumerate(counts) for _ in range(count)]
    assert [shard.client for shard in result.shards] == list(range(sum(counts)))
    together = np.concatenate(all_parts(result))
    assert len(np.unique(together)) == len(together)


def test_equal_numbers_of_clients_per_domain_give_the_partition_of_one_number():
    dataset = embedded("digits-domains")
    for scheme in ("domain", "hybrid"):
        one, several = (partition_of(dataset, scheme=scheme, clients_per_domain=n) for n in (2, (2,) * 5))
        assert [part.tolist() for part in all_parts(one)] == [part.tolist() for part in all_parts(several)]
        other = partition_of(dataset, scheme=scheme, clients_per_domain=(2, 2, 2, 3, 1))
        assert len(other.shards) == 10
        assert [part.tolist() for part in all_parts(other)] != [part.tolist() for part in all_parts(one)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"clients_per_domain": (4, 1, 2)},
            "3 numbers of clients for 5 domains (data.clients_per_domain): give one number, or one each for plain, ",
        ),
        (
            {"clients_per_domain": (60_000, 50_000), "domains": ("plain", "noisy")},
            "110000 clients in 2 domains are too many (data.clients_per_domain): at most 100000",
        ),
        ({"clients_per_domain": 20_001}, "100005 clients in 5 domains are too many (data.clients_per_domain)"),
    ],
)
def test_numbers_of_clients_that_do_not_match_the_domains_are_refused(options, message):
    with pytest.raises(RequestError) as error:
        resolve_data_settings(DataSettings(scheme="domain", **options), DataDirs())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(cases(schemes=("iid", "pathological", "domain", "hybrid", "natural")), st.integers(0, 1000))
@settings(max_examples=60)
def test_public_set_size_changes_only_its_own_examples(case, seed):
    """This separates the effect of the public set from that of the partition."""
    dataset, options = case
    options = options.model_copy(update={"val_fraction": 0.0})
    small = partition_or_reject(dataset, options.model_copy(update={"public_size": 0}), seed)
    large = partition_or_reject(dataset, options.model_copy(update={"public_size": 20}), seed)
    for one, other in zip(small.shards, large.shards, strict=True):
        before, after = set(all_indices(one).tolist()), set(all_indices(other).tolist())
        if dataset.test_mask is None or options.protocol == "pfllib":
            assert after == before - set(large.public.tolist())
        else:
            assert set(other.train.tolist()) == set(one.train.tolist()) - set(large.public.tolist())


def test_public_set_size_does_not_change_a_dirichlet_partition():
    dataset = embedded("digits")
    splits = [partition_of(dataset, alpha=0.5, clients=10, public_size=size) for size in (50, 300)]
    taken = set(splits[1].public.tolist())
    for one, other in zip(splits[0].shards, splits[1].shards, strict=True):
        assert (
            set(all_indices(other).tolist()) - set(splits[0].public.tolist()) == set(all_indices(one).tolist()) - taken
        )


def test_tests_without_trained_classes_are_refused():
    labels = [0] * 20 + [1] * 20
    dataset = replace(make_dataset(labels, 2, 1), test_mask=np.arange(40) >= 20)
    with pytest.raises(RequestError, match="no test example is of a class that a client trains on"):
        partition_of(dataset, scheme="iid", clients=2, public_size=0)
