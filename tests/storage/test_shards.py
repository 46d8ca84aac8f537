"""Shards on disk are reproducible, and damage is detected."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedmosaic_cli.config.run_config import data_fingerprint
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import OMITTED_IF_DEFAULT, DataSettings
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.prepare import load_and_partition, load_shard_data, write_partition_plots
from fedmosaic_cli.storage.files import read_checksummed_json, sha256, to_checksummed_json
from fedmosaic_cli.storage.shard_manifest import arrays_digest, manifest_digest
from fedmosaic_cli.storage.shards import load_exported_shards, read_shards

SETTINGS = resolve_data_settings(DataSettings(clients=4, alpha=1.0, public_size=50, flip_labels=(2,)), DataDirs())


@pytest.fixture
def shards(tmp_path):
    return load_and_partition(SETTINGS, 3, tmp_path / "shards", DataDirs()).save()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_written_shards_are_read_back(shards):
    again = read_shards(shards.path)
    assert again.digest == shards.digest
    assert again.partition.settings == SETTINGS
    for ours, theirs in zip(again.partition.shards, shards.partition.shards, strict=True):
        assert np.array_equal(ours.train, theirs.train)
        assert (ours.client, ours.has_flipped_labels) == (theirs.client, theirs.has_flipped_labels)


def test_same_settings_give_the_same_bytes(shards, tmp_path):
    again = load_and_partition(SETTINGS, 3, tmp_path / "again", DataDirs()).save()
    assert contents(again.path) == contents(shards.path)
    other = load_and_partition(SETTINGS, 4, tmp_path / "other", DataDirs()).save()
    assert other.digest != shards.digest


@pytest.mark.parametrize(
    ("asked", "begins", "name"),
    [
        ({}, "f3a1ca2e77d9", "00be6c49"),
        ({"scheme": "iid", "public_alpha": 0.3, "val_fraction": 0.2}, "d9791e66cdba", "168aabb6"),
        ({"scheme": "pathological", "protocol": "pfllib", "public_size": 100}, "1a237f8438c9", "d6e84550"),
        ({"alpha": 0.5, "protocol": "pfllib", "public_alpha": 1.0}, "50a66f950fc6", "652a4ec4"),
        ({"scheme": "domain"}, "fce61670f9bb", "2bb810e0"),
        ({"scheme": "hybrid", "public_alpha": 0.1, "label_noise": 0.2}, "6b26ffbb9b41", "55288e98"),
    ],
)
def test_default_values_of_later_settings_keep_old_digests(tmp_path, asked, begins, name):
    """Digests and directory names from before `share`, `public_from` and the numbers of examples per client existed."""
    settings = resolve_data_settings(DataSettings(**asked), DataDirs())
    assert data_fingerprint(settings) == name
    shards = load_and_partition(settings, 7, tmp_path, DataDirs()).shards
    assert shards.digest.startswith(begins)
    assert not set(OMITTED_IF_DEFAULT) & (shards.manifest["settings"].keys() | shards.manifest["parameters"].keys())


def test_manifest_with_a_default_setting_is_read(shards):
    manifest = read_checksummed_json(shards.path / "manifest.json")
    assert "share" not in manifest["settings"]
    manifest["settings"]["share"] = 1.0
    manifest["digest"] = manifest_digest(manifest)
    (shards.path / "manifest.json").write_bytes(to_checksummed_json(manifest))
    assert read_shards(shards.path).partition.settings == SETTINGS


def test_manifest_has_the_documented_keys(shards):
    manifest = json.loads((shards.path / "manifest.json").read_text())
    promised = {"schema", "dataset", "scheme", "parameters", "seed", "class_names", "source_fingerprint", "digest"}
    assert promised <= manifest.keys()
    assert [client["id"] for client in manifest["clients"]] == [0, 1, 2, 3]
    assert manifest["clients"][2]["labels_flipped"]
    total = manifest["public"]["size"] + sum(c[part]["size"] for c in manifest["clients"] for part in ("train", "test"))
    assert total + manifest["left_out"] == 1797
    with np.load(shards.path / "public.npz", allow_pickle=False) as public:
        assert public.files == ["index"], "no labels beside the public set"


def test_class_counts_use_flipped_labels(shards, tmp_path):
    straight = load_and_partition(
        SETTINGS.model_copy(update={"flip_labels": ()}), 3, tmp_path / "straight", DataDirs()
    ).save()
    flipped, plain = (s.manifest["clients"][2]["train"]["class_counts"] for s in (shards, straight))
    assert flipped == plain[::-1] != plain


def test_existing_shards_must_be_the_same(shards):
    assert load_and_partition(SETTINGS, 3, shards.path, DataDirs()).save().digest == shards.digest
    with pytest.raises(RequestError, match="the directory contains other shards"):
        load_and_partition(SETTINGS, 4, shards.path, DataDirs()).save()


def test_writing_shards_reports_progress(tmp_path):
    heard = []
    load_and_partition(SETTINGS, 3, tmp_path / "s", DataDirs(on_progress=lambda *words: heard.append(words))).save()
    assert heard == [("writing shards", number, 4) for number in (1, 2, 3, 4)]


def test_shards_consist_of_the_documented_files(shards):
    names = {path.name for path in shards.path.iterdir()}
    assert names == {"manifest.json", "public.npz", "distribution.csv", *(f"client-00{n}.npz" for n in range(4))}


def test_plots_of_a_partition_are_written_once(shards, monkeypatch):
    files = set(shards.path.iterdir())
    write_partition_plots(shards)
    plots = {path: path.read_bytes() for path in set(shards.path.iterdir()) - files}
    assert {path.name for path in plots} == {
        f"{name}.{ending}" for name in ("distribution", "public") for ending in ("png", "pdf")
    }
    next(iter(plots)).unlink()
    write_partition_plots(shards)
    assert {path: path.read_bytes() for path in plots} == plots
    monkeypatch.setattr("fedmosaic_cli.runner.prepare.partition_plots", None)  # complete plots are not drawn again
    write_partition_plots(shards)
    assert read_shards(shards.path).digest == shards.digest


@pytest.mark.parametrize("name", ["manifest.json", "client-000.npz", "client-003.npz", "public.npz"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty"])
def test_damaged_file_is_named(shards, name, damage):
    path = shards.path / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        # The middle of an index file is payload; a flipped bit of padding would be harmless.
        data[len(data) // 3] ^= 0x10
        path.write_bytes({"truncate": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    with pytest.raises(RequestError) as refused:
        read_shards(shards.path)
    assert name in str(refused.value) or (name == "manifest.json" and damage == "remove")


def test_swapped_files_are_detected(shards):
    first, second = shards.path / "client-000.npz", shards.path / "client-001.npz"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(RequestError, match="shard file is damaged"):
        read_shards(shards.path)


ODD = SETTINGS.model_copy(update={"val_fraction": 0.2, "label_noise": 0.25, "label_noise_kind": "asymmetric"})


def test_validation_split_and_noisy_labels_are_read_back(tmp_path):
    written = load_and_partition(ODD, 3, tmp_path / "odd", DataDirs()).save()
    again = read_shards(written.path)
    for ours, theirs in zip(again.partition.shards, written.partition.shards, strict=True):
        assert np.array_equal(ours.validation, theirs.validation)
        assert np.array_equal(ours.noisy_labels, theirs.noisy_labels)
    entry = written.manifest["clients"][1]
    assert entry["noisy_labels"] == round(0.25 * entry["train"]["size"])
    assert entry["val"]["size"] == len(written.partition.shards[1].validation)
    assert written.manifest["parameters"]["label_noise_kind"] == "asymmetric"


def rewrite(shards, name, digest_of, **changes):
    """Replace arrays of a file and update the digests in the manifest."""
    with np.load(shards.path / name) as content:
        arrays = {key: content[key] for key in content.files} | changes
    np.savez(shards.path / name, **arrays)
    manifest = read_checksummed_json(shards.path / "manifest.json")
    digest_of(manifest)["sha256"] = arrays_digest(arrays)
    manifest["files"][name] = sha256((shards.path / name).read_bytes())
    manifest["digest"] = manifest_digest(manifest)
    (shards.path / "manifest.json").write_bytes(to_checksummed_json(manifest))


def test_duplicate_example_is_named_with_both_files(shards):
    theirs = shards.partition.shards[3].test
    rewrite(shards, "client-000.npz", lambda m: m["clients"][0], train=np.sort(theirs[:5]))
    with pytest.raises(RequestError, match=rf"example {theirs[0]} is in both client-000\.npz \(train\) and client-003"):
        read_shards(shards.path)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (np.array([5, 3]), "not sorted"),
        (np.array([3, 3]), "not sorted"),
        (np.array([0, 99_999]), "index 99999 .*not one of 1797"),
        (np.array([-1, 5]), "index -1 "),
        (np.array([0.5, 1.5]), "not sorted whole numbers"),
    ],
)
def test_invalid_indices_of_the_public_set_are_refused(shards, index, words):
    rewrite(shards, "public.npz", lambda m: m["public"], index=index)
    with pytest.raises(RequestError, match=words):
        read_shards(shards.path)


@pytest.mark.parametrize("settings", [SETTINGS, ODD])
def test_exported_shards_contain_the_examples(tmp_path, settings):
    plain = load_and_partition(settings, 3, tmp_path / "plain", DataDirs())
    exported = load_and_partition(settings, 3, tmp_path / "exported", DataDirs()).save(export=True)
    assert exported.digest == plain.shards.digest, "the same partition, whether or not it carries its examples"
    again = read_shards(exported.path)
    assert again.has_examples
    dataset, dealt = load_exported_shards(again)
    source = plain.dataset
    for ours, theirs in zip(dealt.shards, plain.shards.partition.shards, strict=True):
        assert ours.splits().keys() == theirs.splits().keys()
        for part in ours.splits():
            assert np.array_equal(dataset.images[ours.splits()[part]], source.images[theirs.splits()[part]])
            assert np.array_equal(ours.split_labels(part, dataset), theirs.split_labels(part, source))
    assert np.array_equal(dataset.images[dealt.public], source.images[plain.shards.partition.public])
    assert set(dataset.labels[dealt.public].tolist()) == {-1}, "nobody knows them"
    with np.load(exported.path / "public.npz") as public:
        assert set(public.files) == {"index", "images"}


@pytest.mark.parametrize("name", ["client-001.npz", "public.npz"])
def test_damaged_examples_are_detected(tmp_path, name):
    exported = load_and_partition(SETTINGS, 3, tmp_path / "exported", DataDirs()).save(export=True)
    with np.load(exported.path / name) as content:
        arrays = {key: content[key].copy() for key in content.files}
    key = next(key for key in arrays if key.endswith("images"))
    arrays[key][0, 0, 0, 0] ^= 1
    np.savez(exported.path / name, **arrays)
    with pytest.raises(RequestError, match=f"shard file is damaged .*{name}"):
        load_shard_data(read_shards(exported.path), DataDirs())


def test_export_refuses_shards_without_examples(shards):
    with pytest.raises(RequestError, match="the same shards without examples"):
        load_and_partition(SETTINGS, 3, shards.path, DataDirs()).save(export=True)


def test_other_data_under_the_same_name_is_refused(shards, monkeypatch):
    from fedmosaic_cli.data.datasets import digits

    real = digits.load_digits()
    real.images[0, 0, 0, 0] ^= 1
    monkeypatch.setattr(digits, "load_digits", lambda: real)
    with pytest.raises(RequestError, match="not the data these shards were made from"):
        load_shard_data(shards, DataDirs())


def test_user_data_is_found_at_its_original_path(tmp_path, monkeypatch):
    source = load_and_partition(SETTINGS, 3, tmp_path / "x", DataDirs()).dataset
    np.savez(tmp_path / "mine.npz", x=source.images, y=source.labels)
    place = DataDirs(tmp_path / "mine.npz")
    settings = resolve_data_settings(DataSettings(dataset="npz", scheme="iid", clients=3), place)
    made = load_and_partition(settings, 0, tmp_path / "shards", place).save()
    monkeypatch.chdir(tmp_path / "shards")
    dataset, dealt = load_shard_data(read_shards(made.path), DataDirs())
    assert len(dataset) == len(source)
    assert len(partition_dataset(dataset, settings, 0).public) == len(dealt.public) == 179
    (tmp_path / "mine.npz").rename(tmp_path / "moved.npz")
    with pytest.raises(RequestError, match=r"data of these shards is missing .*mine\.npz"):
        load_shard_data(read_shards(made.path), DataDirs(tmp_path / "elsewhere"))
    assert len(load_shard_data(read_shards(made.path), DataDirs(tmp_path / "moved.npz"))[0]) == len(source)
