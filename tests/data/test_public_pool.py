"""Public sets from a pool: clients hold the same examples for every size and skew."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import load_dataset
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.partitioning.public_set import select_public_set
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.prepare import load_and_partition, load_shard_data
from fedmosaic_cli.storage.shards import read_shards
from tests.data.test_partition import all_indices, all_parts, cases, make_dataset, partition_or_reject

DIGITS = load_dataset(DataSettings(), DataDirs())
SIZES = (0, 50, 100, 300)


def held(result) -> list[bytes]:
    """Return the bytes of all splits and noisy labels."""
    parts = [part.tobytes() for shard in result.shards for part in shard.splits().values()]
    return parts + [b"" if shard.noisy_labels is None else shard.noisy_labels.tobytes() for shard in result.shards]


def partition_of(**options: object):
    return partition_dataset(DIGITS, resolve_data_settings(DataSettings(**options), DataDirs()), 5)


def attempt(dataset, options, seed):
    """Return the partition, or the error message."""
    try:
        return partition_dataset(dataset, options, seed), ""
    except RequestError as error:
        return None, str(error)


@given(
    cases(schemes=("iid", "dirichlet", "pathological", "domain", "hybrid")),
    st.integers(1, 30),
    st.lists(st.tuples(st.floats(0, 1), st.none() | st.sampled_from([0.1, 1.0, 50.0])), min_size=1, max_size=4),
    st.integers(0, 1000),
)
@settings(max_examples=100)
def test_clients_are_independent_of_the_public_set(case, reserve, others, seed):
    dataset, options = case
    first = options.model_copy(update={"public_from": reserve, "public_size": reserve, "public_alpha": None})
    full = partition_or_reject(dataset, first, seed)
    for portion, alpha in others:
        size = round(portion * reserve)
        again = first.model_copy(update={"public_size": size, "public_alpha": alpha})
        result, error = attempt(dataset, again, seed)
        if result is None:
            assert alpha is not None
            assert "data.public_pool_size" in error
            continue
        assert held(result) == held(full)
        assert len(result.public) == size
        assert set(result.public.tolist()) <= set(full.public.tolist()), "nothing but the reserve"
        together = np.concatenate(all_parts(result))
        assert len(np.unique(together)) == len(together)


@given(cases(), st.integers(0, 30), st.integers(0, 1000))
@settings(max_examples=100)
def test_balanced_public_set_is_the_same_with_and_without_a_pool(case, more, seed):
    dataset, options = case
    options = options.model_copy(update={"public_alpha": None})
    plain = partition_or_reject(dataset, options, seed)
    reserved = partition_or_reject(
        dataset, options.model_copy(update={"public_from": options.public_size + more or 1}), seed
    )
    assert np.array_equal(plain.public, reserved.public)
    if not more and options.public_size:
        assert held(plain) == held(reserved), "a reserve that is public as a whole is no other"


def test_smaller_public_sets_are_part_of_larger_ones():
    public = [set(partition_of(public_from=300, public_size=size).public.tolist()) for size in SIZES]
    assert [len(each) for each in public] == list(SIZES)
    assert all(small < large for small, large in pairwise(public))


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_skewed_public_set_has_the_same_classes_with_and_without_a_pool(alpha):
    options = {"scheme": "iid", "public_size": 60, "public_alpha": alpha}
    plain, reserved = (partition_of(**options, public_from=reserve).public for reserve in (None, 900))
    counts = [np.bincount(DIGITS.labels[public], minlength=10).tolist() for public in (plain, reserved)]
    assert counts[0] == counts[1]
    assert not np.array_equal(plain, reserved)


def test_unused_pool_examples_belong_to_no_client(tmp_path):
    options = resolve_data_settings(DataSettings(clients=4, alpha=1.0, public_size=50, public_from=300), DataDirs())
    made = load_and_partition(options, 3, tmp_path / "shards", DataDirs())
    manifest = made.save().manifest
    assert manifest["left_out"] == 250
    assert manifest["parameters"]["public_from"] == 300
    again = read_shards(tmp_path / "shards")
    assert again.partition.settings == options
    dataset, opened = load_shard_data(again, DataDirs())
    assert held(opened) == held(made.shards.partition)
    reserve, public = select_public_set(dataset, options, 3)
    assert len(reserve) == 300
    assert np.array_equal(public, opened.public)
    assert not np.intersect1d(reserve, np.concatenate([all_indices(shard) for shard in opened.shards])).size


def test_pool_is_recorded_only_if_configured():
    assert "public_from" not in DataSettings().used_parameters().keys() | DataSettings().to_record().keys()
    options = DataSettings(public_from=300)
    assert options.used_parameters()["public_from"] == options.to_record()["public_from"] == 300


def test_pfllib_minimum_is_independent_of_the_public_set(tmp_path):
    least = set()
    for size in (100, 900):
        options = {"protocol": "pfllib", "alpha": 10.0, "clients": 12, "public_size": size, "public_from": 900}
        least.add(
            load_and_partition(DataSettings(**options), 0, tmp_path, DataDirs()).shards.manifest["parameters"][
                "min_size"
            ]
        )
    assert least == {(1797 - 900) // 12 // 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"public_size": 100, "public_from": 99},
            "a public set of 100 does not fit into a pool of 99 (data.public_pool_size): make it at least 100, ",
        ),
        ({"public_from": 299}, "a public set of 300 does not fit into a pool of 299 (data.public_pool_size)"),
        (
            {"public_size": 100, "public_from": 1790},
            "a public pool of 1790 does not fit (data.public_pool_size): 'digits' has 1797 training "
            "examples and 15 clients need some too; ask for at most 1767",
        ),
        (
            {"public_size": 1000, "public_from": 1000, "public_alpha": 0.3},
            "of which 1767 fit, so lower public_size or raise public_alpha",
        ),
    ],
)
def test_impossible_pool_is_refused_in_one_line(options, message):
    with pytest.raises(RequestError) as error:
        partition_of(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("domains", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_too_small_pool_is_refused_with_the_minimum(seed, domains):
    dataset = make_dataset(np.random.default_rng(0).integers(0, 5, size=2000).tolist(), 5, domains)
    options = DataSettings(scheme="iid", clients=4, public_size=100, public_from=100, public_alpha=0.3)
    with pytest.raises(RequestError, match=r"and a pool of 100 has \d+ \(data\.public_pool_size\): ") as error:
        partition_dataset(dataset, options, seed)
    _, _, least = str(error.value).rpartition("make it at least ")
    with pytest.raises(RequestError, match=f"make it at least {least}"):
        partition_dataset(dataset, options.model_copy(update={"public_from": int(least) - 1}), seed)
    assert len(partition_dataset(dataset, options.model_copy(update={"public_from": int(least)}), seed).public) == 100


def test_fedbn_lists_are_independent_of_the_public_set():
    dataset = make_dataset([c for c in range(10) for _ in range(40)], 10, 2, test=True)
    options = DataSettings(dataset="office10", scheme="domain", protocol="fedbn", clients=2, public_size=60)
    options = options.model_copy(update={"public_from": 60})
    full = partition_dataset(dataset, options, 0)
    for size, alpha in ((0, None), (20, None), (10, 5.0)):
        result = partition_dataset(dataset, options.model_copy(update={"public_size": size, "public_alpha": alpha}), 0)
        assert held(result) == held(full)
        assert set(result.public.tolist()) <= set(full.public.tolist())
    with pytest.raises(
        RequestError, match=r"the public pool leaves .*which needs 80 \(data\.public_pool_size\): make it small"
    ):
        partition_dataset(dataset, options.model_copy(update={"public_from": 300}), 0)
