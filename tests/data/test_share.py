"""A share of a data set: as many as asked for, alike of every kind, and the same ones everywhere."""

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
from tests.data.files import save_pictures


def embedded(name: str, **asked: object) -> Dataset:
    return load_dataset(DataSettings(dataset=name, **asked), DataDirs())


@st.composite
def datasets(draw):
    """Few or many examples of few or many kinds, each with an image of its own."""
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


def numbers_of(dataset: Dataset) -> list[int]:
    """Which examples of a made data set they are."""
    return np.ascontiguousarray(dataset.images).view(np.uint32).ravel().tolist()


def kinds_of(dataset: Dataset) -> np.ndarray:
    parts = (dataset.domain_ids, dataset.test_mask, dataset.client_ids)
    kinds = dataset.labels.copy()
    for part in parts:
        kinds = kinds * 3 + (0 if part is None else part)
    return kinds


SHARES = st.floats(0.001, 0.999) | st.sampled_from([0.05, 0.1, 0.2, 1 / 3, 0.5, 0.7, 1 - 2**-53])


@given(datasets(), SHARES)
def test_every_kind_gives_its_share_and_the_whole_is_exact(dataset, share):
    part = dataset.subsample(share)
    chosen = numbers_of(part)
    assert len(part) == len(chosen) == round(share * len(dataset))
    assert chosen == sorted(set(chosen)), "nothing twice, and in order"
    assert chosen == numbers_of(dataset.subsample(share))
    for name in ("labels", "domain_ids", "test_mask", "client_ids"):
        before, after = getattr(dataset, name), getattr(part, name)
        assert after is None if before is None else np.array_equal(before[chosen], after)
    most = kinds_of(dataset).max() + 1
    there, taken = (np.bincount(kinds_of(each), minlength=most) for each in (dataset, part))
    assert np.abs(taken - share * there).max() <= 1 + 1e-9


@pytest.mark.parametrize(("share", "begins"), [(0.2, "db7b80cefef0"), (0.5, "5f5546c4334c")])
def test_a_share_is_the_same_on_every_machine(share, begins):
    """Fingerprints of image files tell how many there are, not which: what is drawn must never change."""
    assert embedded("digits", share=share).fingerprint.startswith(begins)


def test_other_shares_are_other_data():
    prints = {embedded("digits", share=share).fingerprint for share in (0.1, 0.2, 0.9, 1.0)}
    assert len(prints) == 4
    assert embedded("digits", share=0.2).fingerprint in prints


def test_all_of_it_is_the_very_data_set():
    place = DataDirs()
    assert load_dataset(DataSettings(share=1.0), place) is load_dataset(DataSettings(), place)
    assert embedded("digits", share=1.0).fingerprint == embedded("digits").fingerprint
    assert "share" not in DataSettings(share=1.0).used_parameters()
    assert DataSettings(share=0.5).used_parameters()["share"] == 0.5


def test_a_share_of_some_domains_is_one_of_theirs():
    whole, part = (embedded("digits-domains", domains=("noisy", "plain"), share=share) for share in (1.0, 0.5))
    assert part.domain_names == whole.domain_names == ("noisy", "plain")
    assert np.abs(np.bincount(part.domain_ids) * 2 - np.bincount(whole.domain_ids)).max() <= 20


def save_npz(path, each=40, **more):
    labels = np.repeat(["cat", "dog", "owl"], [each, each, 6])
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.integers(0, 256, size=(len(labels), 4, 4), dtype=np.uint8), y=labels, **more)
    return DataDirs(path)


@pytest.mark.parametrize(
    ("more", "asked", "words"),
    [
        ({}, {"share": 0.02}, "a share of 0.02 leaves nothing of class 'owl' to train on in 'npz' (data.fraction)"),
        ({"test": np.arange(86) % 3 == 0}, {"share": 0.2}, "nothing of class 'owl' to test on"),
        ({"domain": np.where(np.arange(86) == 50, "rare", "usual")}, {"share": 0.5}, "nothing of domain 'rare'"),
        ({"client": (np.arange(86) == 50) + 0}, {"share": 0.5, "scheme": "natural"}, "nothing of client 1"),
    ],
)
def test_a_share_that_loses_something_is_refused(tmp_path, more, asked, words):
    place = save_npz(tmp_path / "mine.npz", **more)
    with pytest.raises(RequestError) as refused:
        load_dataset(resolve_data_settings(DataSettings(dataset="npz", public_size=5, **asked), place), place)
    assert words in str(refused.value)
    assert str(refused.value).endswith("raise it")
    assert "\n" not in str(refused.value)


def test_whose_an_example_is_does_not_matter_where_all_are_dealt_anew(tmp_path):
    place = save_npz(tmp_path / "mine.npz", client=(np.arange(86) == 50) + 0)
    assert len(load_dataset(resolve_data_settings(DataSettings(dataset="npz", share=0.5), place), place)) == 43


def test_a_public_set_that_nobody_asked_for_shrinks_with_the_data(tmp_path):
    place = save_npz(tmp_path / "mine.npz", each=500)
    assert resolve_data_settings(DataSettings(dataset="npz"), place).public_size == 100
    assert resolve_data_settings(DataSettings(dataset="npz", share=0.2), place).public_size == 20
    assert resolve_data_settings(DataSettings(dataset="fashion-mnist", share=0.2), place).public_size == 450
    assert (
        resolve_data_settings(DataSettings(dataset="fashion-mnist", share=0.2, public_size=7), place).public_size == 7
    )


def test_what_is_only_counted_takes_no_room(tmp_path):
    for label in ("cat", "dog"):
        save_pictures(tmp_path / "mine" / label, 20)
    place = DataDirs(tmp_path / "mine", cache_dir=tmp_path / "cache")
    asked = DataSettings(dataset="folder", share=0.4)
    counted, loaded = load_dataset_without_pixels(asked, place), load_dataset(asked, place)
    assert counted.images.shape == loaded.images.shape == (16, 12, 12, 3)
    assert np.array_equal(counted.labels, loaded.labels)
    assert not any(counted.images.strides)


SETTINGS = resolve_data_settings(DataSettings(clients=4, alpha=1.0, public_size=50, share=0.4), DataDirs())


@pytest.mark.parametrize("export", [False, True])
def test_shards_of_a_share_open_again(tmp_path, export):
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


def test_another_share_is_not_what_the_shards_were_made_from(tmp_path):
    written = load_and_partition(SETTINGS, 3, tmp_path / "shards", DataDirs()).save()
    other = SETTINGS.model_copy(update={"share": 0.41})
    with pytest.raises(RequestError, match="not the data these shards were made from"):
        load_shard_data(replace(written, partition=replace(written.partition, settings=other)), DataDirs())
    with pytest.raises(RequestError, match="the directory contains other shards"):
        load_and_partition(other, 3, tmp_path / "shards", DataDirs()).save()
