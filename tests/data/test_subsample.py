"""A share of a data set: exact size, stratified and reproducible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets import load_dataset, load_dataset_without_pixels
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.prepare import load_and_partition, load_shard_data
from fedmosaic_cli.storage.shards import read_shards
from tests.data.files import save_images


def embedded(name: str, **options: object) -> Dataset:
    return load_dataset(DataSettings(dataset=name, **options), DataDirs())


@st.composite
def datasets(draw):
    """Generate data sets whose images encode the example number."""
    size, classes = draw(st.integers(1, 400)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))

    def numbers(below):
        return rng.integers(0, below, size=size)

    return Dataset(
        name="made",
        images=np.arange(size, dtype=np.uint32).view(np.uint8).reshape(size, 1, 1, 4),
        labels=numbers(classes),
        class_names=tuple(str(label) for label in range(classes)),
        domain_ids=numbers(3) if draw(st.booleans()) else None,
        domain_names=("a", "b", "c"),
        test_mask=numbers(4) == 0 if draw(st.booleans()) else None,
        client_ids=numbers(2) if draw(st.booleans()) else None,
    )


def example_numbers(dataset: Dataset) -> list[int]:
    """Return the numbers of the examples of a generated data set."""
    return np.ascontiguousarray(dataset.images).view(np.uint32).ravel().tolist()


def strata_of(dataset: Dataset) -> np.ndarray:
    parts = (dataset.domain_ids, dataset.test_mask, dataset.client_ids)
    kinds = dataset.labels.copy()
    for part in parts:
        kinds = kinds * 3 + (0 if part is None else part)
    return kinds


SHARES = st.floats(0.001, 0.999) | st.sampled_from([0.05, 0.1, 0.2, 1 / 3, 0.5, 0.7, 1 - 2**-53])


@given(datasets(), SHARES)
def test_subsample_is_stratified_and_exact(dataset, share):
    part = dataset.subsample(share)
    chosen = example_numbers(part)
    assert len(part) == len(chosen) == round(share * len(dataset))
    assert chosen == sorted(set(chosen)), "nothing twice, and in order"
    assert chosen == example_numbers(dataset.subsample(share))
    for name in ("labels", "domain_ids", "test_mask", "client_ids"):
        before, after = getattr(dataset, name), getattr(part, name)
        assert after is None if before is None else np.array_equal(before[chosen], after)
    most = strata_of(dataset).max() + 1
    there, taken = (np.bincount(strata_of(each), minlength=most) for each in (dataset, part))
    assert np.abs(taken - share * there).max() <= 1 + 1e-9


@pytest.mark.parametrize(("share", "begins"), [(0.2, "db7b80cefef0"), (0.5, "5f5546c4334c")])
def test_subsample_is_reproducible(share, begins):
    """Fingerprints of image files contain only their number, so the drawn subset must never change."""
    assert embedded("digits", share=share).fingerprint.startswith(begins)


def test_different_shares_have_different_fingerprints():
    prints = {embedded("digits", share=share).fingerprint for share in (0.1, 0.2, 0.9, 1.0)}
    assert len(prints) == 4
    assert embedded("digits", share=0.2).fingerprint in prints


def test_share_of_one_is_the_whole_data_set():
    data_dirs = DataDirs()
    assert load_dataset(DataSettings(share=1.0), data_dirs) is load_dataset(DataSettings(), data_dirs)
    assert embedded("digits", share=1.0).fingerprint == embedded("digits").fingerprint
    assert "share" not in DataSettings(share=1.0).used_parameters()
    assert DataSettings(share=0.5).used_parameters()["share"] == 0.5


def test_share_of_selected_domains():
    whole, part = (embedded("digits-domains", domains=("noisy", "plain"), share=share) for share in (1.0, 0.5))
    assert part.domain_names == whole.domain_names == ("noisy", "plain")
    assert np.abs(np.bincount(part.domain_ids) * 2 - np.bincount(whole.domain_ids)).max() <= 20


def save_npz(path, each=40, **more):
    labels = np.repeat(["cat", "dog", "owl"], [each, each, 6])
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.integers(0, 256, size=(len(labels), 4, 4), dtype=np.uint8), y=labels, **more)
    return DataDirs(path)


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ({}, {"share": 0.02}, "a share of 0.02 leaves nothing of class 'owl' to train on in 'npz' (data.fraction)"),
        ({"test": np.arange(86) % 3 == 0}, {"share": 0.2}, "nothing of class 'owl' to test on"),
        ({"domain": np.where(np.arange(86) == 50, "rare", "usual")}, {"share": 0.5}, "nothing of domain 'rare'"),
        ({"client": (np.arange(86) == 50) + 0}, {"share": 0.5, "scheme": "natural"}, "nothing of client 1"),
    ],
)
def test_share_without_a_class_domain_or_client_is_refused(tmp_path, more, options, message):
    data_dirs = save_npz(tmp_path / "mine.npz", **more)
    with pytest.raises(RequestError) as error:
        load_dataset(resolve_data_settings(DataSettings(dataset="npz", public_size=5, **options), data_dirs), data_dirs)
    assert message in str(error.value)
    assert str(error.value).endswith("raise it")
    assert "\n" not in str(error.value)


def test_client_ids_matter_only_for_scheme_natural(tmp_path):
    data_dirs = save_npz(tmp_path / "mine.npz", client=(np.arange(86) == 50) + 0)
    assert len(load_dataset(resolve_data_settings(DataSettings(dataset="npz", share=0.5), data_dirs), data_dirs)) == 43


def test_default_public_size_scales_with_the_share(tmp_path):
    data_dirs = save_npz(tmp_path / "mine.npz", each=500)
    assert resolve_data_settings(DataSettings(dataset="npz"), data_dirs).public_size == 100
    assert resolve_data_settings(DataSettings(dataset="npz", share=0.2), data_dirs).public_size == 20
    assert resolve_data_settings(DataSettings(dataset="fashion-mnist", share=0.2), data_dirs).public_size == 450
    assert (
        resolve_data_settings(DataSettings(dataset="fashion-mnist", share=0.2, public_size=7), data_dirs).public_size
        == 7
    )


def test_loading_without_pixels_allocates_no_images(tmp_path):
    for label in ("cat", "dog"):
        save_images(tmp_path / "mine" / label, 20)
    data_dirs = DataDirs(tmp_path / "mine", cache_dir=tmp_path / "cache")
    options = DataSettings(dataset="folder", share=0.4)
    counted, loaded = load_dataset_without_pixels(options, data_dirs), load_dataset(options, data_dirs)
    assert counted.images.shape == loaded.images.shape == (16, 12, 12, 3)
    assert np.array_equal(counted.labels, loaded.labels)
    assert not any(counted.images.strides)


SETTINGS = resolve_data_settings(DataSettings(clients=4, alpha=1.0, public_size=50, share=0.4), DataDirs())


@pytest.mark.parametrize("export", [False, True])
def test_shards_of_a_share_are_read_back(tmp_path, export):
    made = load_and_partition(SETTINGS, 3, tmp_path / "shards", DataDirs())
    written = made.save(export)
    assert written.manifest["examples"] == len(made.dataset) == 719
    assert written.manifest["parameters"]["share"] == 0.4
    again = read_shards(tmp_path / "shards")
    assert again.partition.settings == SETTINGS
    dataset, dealt = load_shard_data(again, DataDirs())
    for ours, theirs in zip(dealt.shards, made.shards.partition.shards, strict=True):
        for part, index in theirs.splits().items():
            assert np.array_equal(dataset.images[ours.splits()[part]], made.dataset.images[index])
            assert np.array_equal(ours.split_labels(part, dataset), theirs.split_labels(part, made.dataset))
    assert load_and_partition(SETTINGS, 3, tmp_path / "shards", DataDirs()).save(export).digest == written.digest


def test_shards_refuse_another_share(tmp_path):
    written = load_and_partition(SETTINGS, 3, tmp_path / "shards", DataDirs()).save()
    other = SETTINGS.model_copy(update={"share": 0.41})
    with pytest.raises(RequestError, match="not the data these shards were made from"):
        load_shard_data(replace(written, partition=replace(written.partition, settings=other)), DataDirs())
    with pytest.raises(RequestError, match="the directory contains other shards"):
        load_and_partition(other, 3, tmp_path / "shards", DataDirs()).save()
