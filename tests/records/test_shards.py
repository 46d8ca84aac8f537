"""Shards on disk: the same bytes each time, and damage is found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedmosaic_cli.data.settings import DataSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.experiment.plan import deal
from fedmosaic_cli.records.shards import load

SETTINGS = DataSettings(clients=4, alpha=1.0, public_size=50, flip_labels=(2,))


@pytest.fixture
def shards(tmp_path):
    return deal(SETTINGS, seed=3, path=tmp_path / "shards").written()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_written_comes_back(shards):
    again = load(shards.path)
    assert again.digest == shards.digest
    assert again.partition.settings == SETTINGS
    for ours, theirs in zip(again.partition.shards, shards.partition.shards, strict=True):
        assert np.array_equal(ours.train, theirs.train)
        assert (ours.client, ours.flipped) == (theirs.client, theirs.flipped)


def test_the_same_request_gives_the_same_bytes(shards, tmp_path):
    again = deal(SETTINGS, seed=3, path=tmp_path / "again").written()
    assert contents(again.path) == contents(shards.path)
    other = deal(SETTINGS, seed=4, path=tmp_path / "other").written()
    assert other.digest != shards.digest


def test_the_manifest_tells_what_cli_md_promises(shards):
    manifest = json.loads((shards.path / "manifest.json").read_text())
    promised = {"schema", "dataset", "scheme", "parameters", "seed", "class_names", "source_fingerprint", "digest"}
    assert promised <= manifest.keys()
    assert [client["id"] for client in manifest["clients"]] == [0, 1, 2, 3]
    assert manifest["clients"][2]["labels_flipped"]
    total = manifest["public"]["size"] + sum(c[part]["size"] for c in manifest["clients"] for part in ("train", "test"))
    assert total + manifest["left_out"] == 1797
    with np.load(shards.path / "public.npz", allow_pickle=False) as public:
        assert public.files == ["index"], "no labels beside the public set"


def test_counts_of_a_flipped_client_are_those_of_its_flipped_labels(shards, tmp_path):
    straight = deal(SETTINGS.model_copy(update={"flip_labels": ()}), seed=3, path=tmp_path / "straight").written()
    flipped, plain = (s.manifest["clients"][2]["train"]["class_counts"] for s in (shards, straight))
    assert flipped == plain[::-1] != plain


def test_writing_the_same_shards_twice_is_fine_and_others_are_refused(shards):
    assert deal(SETTINGS, seed=3, path=shards.path).written().digest == shards.digest
    with pytest.raises(RequestError, match="other shards are here"):
        deal(SETTINGS, seed=4, path=shards.path).written()


@pytest.mark.parametrize("name", ["manifest.json", "client-000.npz", "client-003.npz", "public.npz"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "empty"])
def test_damage_is_found_and_the_file_is_named(shards, name, damage):
    path = shards.path / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        # The middle of an index file is payload; a flipped bit of padding would be harmless.
        data[len(data) // 3] ^= 0x10
        path.write_bytes({"truncate": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    with pytest.raises(RequestError) as refused:
        load(shards.path)
    assert name in str(refused.value) or (name == "manifest.json" and damage == "remove")


def test_swapped_files_are_found(shards):
    first, second = shards.path / "client-000.npz", shards.path / "client-001.npz"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(RequestError, match="does not match the manifest"):
        load(shards.path)
