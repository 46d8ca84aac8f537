"""Sites with private data: packed at the site, merged from descriptions, and used like any shards."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.data.site_data import to_grayscale
from fedmosaic_cli.federation.site import Site
from fedmosaic_cli.federation.site_package import INDEX_BLOCK_SIZE, numbered_shard, read_package_description
from fedmosaic_cli.federation.site_shards import load_site_shard, read_exported_manifest
from fedmosaic_cli.runner.cost_estimates import dimensions_from_shards
from fedmosaic_cli.storage import shards as records
from fedmosaic_cli.storage.files import to_checksummed_json
from fedmosaic_cli.storage.shard_manifest import ShardManifest
from tests.conftest import fedmosaic
from tests.federation.sites import ALLOW_MODELS, CPU, DataDirs, Sites, make_config, run

CLASSES = ("cat", "dog", "newt")
SIDE = 6


def save_image(path: Path, seed: int, label: int = 0, side: int = SIDE, mode: str = "RGB") -> None:
    """Write a random image whose colour depends on its class."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 200, size=(side, side, 3))
    pixels[..., label] += 55
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(path)


def save_classes(folder: Path, counts: dict[str, int], first: int, **how: Any) -> None:
    for name, count in counts.items():
        for number in range(count):
            seed = first + 100 * CLASSES.index(name) + number
            save_image(folder / name / f"{number:03d}.png", seed, CLASSES.index(name), **how)


def save_public(folder: Path, size: int = 30, **how: Any) -> None:
    for number in range(size):
        save_image(folder / f"batch-{number % 2}" / f"{number:03d}.png", 90_000 + number, number % 3, **how)


def site_data(folder: Path, client: int) -> None:
    """Write a site's images: the second site has validation images, the third has no newts."""
    counts = {"cat": 6 + client, "dog": 9, "newt": 5}
    if client == 2:
        del counts["newt"]
    save_classes(folder / "train", counts, 1_000 * (client + 1))
    save_classes(folder / "test", dict.fromkeys(counts, 3), 1_000 * (client + 1) + 500)
    if client == 1:
        save_classes(folder / "val", {"dog": 2}, 1_000 * (client + 1) + 800)


def call(*arguments: str | Path) -> tuple[int, str]:
    """Return exit code and output of a command."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def pack(site: Path, client: int, public: Path, *more: str | Path) -> tuple[int, str]:
    val = ("--val", site / "val") if (site / "val").exists() else ()
    given = ("--client", str(client), "--train", site / "train", "--test", site / "test", *val)
    named = ("--classes", ",".join(CLASSES), "--public", public, "--out", site / "shard")
    return call("site", "pack", *given, *named, *more)


def output_of(done: tuple[int, str]) -> str:
    assert done[0] == 0, done[1]
    return done[1]


def assert_refused(done: tuple[int, str], words: str) -> None:
    code, text = done
    assert code == 2, text
    assert words in text
    assert text.startswith("error: ")
    assert text.count("\n") == 1


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMOSAIC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def three_sites(tmp_path_factory) -> Path:
    """Three packed sites, the merged shards, and the shards' manifest at each site."""
    folder = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMOSAIC_CACHE", str(folder / "cache"))
        save_public(folder / "open")
        public = folder / "public.npz"
        output_of(call("federation", "public", "--images", folder / "open", "--out", public))
        descriptions = []
        for client in range(3):
            site_data(folder / f"site-{client}", client)
            output_of(pack(folder / f"site-{client}", client, public))
            descriptions.append(folder / f"site-{client}" / "shard" / f"client-00{client}.json")
        gathered = folder / "ours"
        # in any order
        output_of(call("federation", "gather", *reversed(descriptions), "--public", public, "--out", gathered))
        for client in range(3):
            for name in ("manifest.json", "public.npz"):
                shutil.copy(gathered / name, folder / f"site-{client}" / "shard")
    return folder


def descriptions_of(folder: Path) -> list[Path]:
    return [folder / f"site-{client}" / "shard" / f"client-00{client}.json" for client in range(3)]


class OwnSites(Sites):
    """Sites with separate directories that contain no file of another client."""

    def __init__(self, shards: records.ShardSet, home: Path, folder: Path) -> None:
        self.home = home
        super().__init__(shards, folder)

    def site(self, client: int) -> Site:
        shard = load_site_shard(self.home / f"site-{client}" / "shard" / f"client-00{client}.npz")
        return Site(shard, self.folder / f"site-{client}", CPU, DataDirs(self.folder), ALLOW_MODELS)


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg"])
def test_a_run_with_sites_equals_the_run_with_all_files(method, three_sites, tmp_path):
    assert sorted(path.name for path in (three_sites / "ours").iterdir()) == ["manifest.json", "public.npz"]
    described = read_exported_manifest(three_sites / "ours")
    shutil.copytree(three_sites / "ours", tmp_path / "ours")
    for client in range(3):
        shutil.copy(three_sites / f"site-{client}" / "shard" / f"client-00{client}.npz", tmp_path / "ours")
    whole = records.read_shards(tmp_path / "ours")
    assert whole.digest == described.digest
    config = make_config(described, method, tmp_path)
    local = run(config, whole, tmp_path / "local")
    remote = run(config, described, tmp_path / "remote", OwnSites(described, three_sites, tmp_path))
    assert (remote.path / "rounds.jsonl").read_bytes() == (local.path / "rounds.jsonl").read_bytes()
    assert remote.read_summary()["models"] == local.read_summary()["models"]
    assert {row["client"] for row in local.read_rounds() if "val_accuracy" in row} == {1}


def test_a_description_contains_counts_and_no_example(three_sites):
    for client, path in enumerate(descriptions_of(three_sites)):
        content = json.loads(path.read_text())
        packed = read_package_description(path)
        assert content.keys() - {"val"} == {
            *("schema", "client", "class_names", "image_shape", "train", "test"),
            *("sha256", "file_sha256", "public_sha256", "checksum"),
        }
        assert packed.class_names == list(CLASSES)
        assert packed.image_shape == [SIDE, SIDE, 3]
        assert packed.train.class_counts == [6 + client, 9, 0 if client == 2 else 5]
        assert path.stat().st_size < 2_000
        assert "site-" not in path.read_text(), "no path of the data"
    assert packed.val is None


def test_the_gathered_manifest_is_valid(three_sites):
    described = read_exported_manifest(three_sites / "ours")
    manifest = described.manifest
    ShardManifest.model_validate(manifest)
    assert manifest["dataset"] == "ours"
    assert manifest["public"]["class_counts"] is None
    assert manifest["tested_on"] == "each client's own test part"
    assert manifest["parameters"]["test_fraction"] is None
    assert [client["id"] for client in manifest["clients"]] == [0, 1, 2]
    held = 30 + sum(client[part]["size"] for client in manifest["clients"] for part in ("train", "test"))
    assert dimensions_from_shards(described).data_mb == pytest.approx((held + 2) * SIDE * SIDE * 3 / 1e6)


def test_examples_are_those_of_the_files(three_sites):
    shard = load_site_shard(three_sites / "site-2" / "shard" / "client-002.npz")
    [own] = shard.partition.shards
    for part in ("train", "test"):
        index = own.splits()[part]
        files = sorted((three_sites / "site-2" / part).rglob("*.png"))
        images = [np.asarray(Image.open(file)) for file in files]
        assert np.array_equal(shard.dataset.images[index], images)
        labels = [CLASSES.index(file.parent.name) for file in files]
        assert shard.dataset.labels[index].tolist() == labels
    public = [np.asarray(Image.open(file)) for file in sorted((three_sites / "open").rglob("*.png"))]
    assert np.array_equal(shard.dataset.images[shard.partition.public], public)


def test_numbers_of_the_last_client_fit_into_a_manifest():
    last = numbered_shard(MAX_CLIENTS - 1, {"train": 2, "test": 3, "val": 1})
    assert last.train.tolist() == [MAX_CLIENTS * INDEX_BLOCK_SIZE, MAX_CLIENTS * INDEX_BLOCK_SIZE + 1]
    assert last.validation.tolist() == [MAX_CLIENTS * INDEX_BLOCK_SIZE + 5]
    assert (MAX_CLIENTS + 1) * INDEX_BLOCK_SIZE <= 10**12


def test_site_init_needs_manifest_and_public_set_beside_the_shard(three_sites, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.federation.flower.keys.create_node_key", lambda path: path)
    shutil.copytree(three_sites / "site-0" / "shard", tmp_path / "shard")
    shard = tmp_path / "shard" / "client-000.npz"
    init = ("site", "init", "--shard", shard, "--site-dir", tmp_path / "site", "--allow-root")
    for name in ("public.npz", "manifest.json"):
        (tmp_path / "shard" / name).rename(tmp_path / name)
        assert_refused(call(*init), f"no {name} next to the shard")
        assert not (tmp_path / "site").exists()
    for name in ("public.npz", "manifest.json"):
        (tmp_path / name).rename(tmp_path / "shard" / name)
    assert "examples: 20 train, 9 test" in output_of(call(*init))


def test_identical_files_are_accepted_and_others_not_overwritten(three_sites, tmp_path):
    folder = tmp_path / "all"
    shutil.copytree(three_sites, folder)
    public, gathered = folder / "public.npz", folder / "ours"
    make_public = ("federation", "public", "--images", folder / "open", "--out", public)
    gather = ("federation", "gather", *descriptions_of(folder), "--public", public, "--out", gathered)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    output_of(call(*make_public))
    output_of(pack(folder / "site-0", 0, public))
    output_of(call(*gather))
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before
    save_image(folder / "site-0" / "train" / "cat" / "new.png", 7)
    save_image(folder / "open" / "new.png", 8)
    assert_refused(call(*make_public), "another file exists here")
    assert_refused(pack(folder / "site-0", 0, public), "another file exists here")
    output_of(pack(folder / "site-0", 0, public, "--out", folder / "again"))
    others = [folder / "again" / "client-000.json", *descriptions_of(folder)[1:]]
    assert_refused(
        call("federation", "gather", *others, "--public", public, "--out", gathered), "other shards exist here"
    )


@pytest.fixture
def one_site(tmp_path) -> tuple[Path, Path]:
    """A site without packed data, and a public set."""
    save_public(tmp_path / "open")
    output_of(call("federation", "public", "--images", tmp_path / "open", "--out", tmp_path / "public.npz"))
    site_data(tmp_path / "site", 0)
    return tmp_path / "site", tmp_path / "public.npz"


def save_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_arrays_and_image_files_give_the_same_package(one_site):
    site, public = one_site
    output_of(pack(site, 0, public))
    files = {part: sorted((site / part).rglob("*.png")) for part in ("train", "test")}
    for number, kind in enumerate((str, CLASSES.index)):
        paths = {
            part: save_npz(
                site / f"{part}-{number}.npz",
                images=[np.asarray(Image.open(file)) for file in found],
                labels=[kind(file.parent.name) for file in found],
            )
            for part, found in files.items()
        }
        given = ("--train", paths["train"], "--test", paths["test"], "--out", site / f"arrays-{number}")
        output_of(pack(site, 0, public, *given))
        for name in ("client-000.npz", "client-000.json"):
            assert (site / f"arrays-{number}" / name).read_bytes() == (site / "shard" / name).read_bytes()


IMAGES = np.random.default_rng(0).integers(0, 256, size=(4, SIDE, SIDE, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": IMAGES, "labels": ["cat", "dog", "newt", "fox"]}, "unknown class 'fox'"),
        ({"images": IMAGES, "labels": [0, 1, 2, 3]}, "labels range from 0 to 3 for 3 classes"),
        ({"images": IMAGES, "labels": [0, -1, 2, 0]}, "labels range from -1 to 2"),
        ({"images": IMAGES, "labels": [0.0, 1.0, 2.0, 0.0]}, "labels is float64"),
        ({"images": IMAGES, "labels": [0, 1]}, "save one value per example"),
        ({"images": IMAGES}, "no array 'labels'"),
        ({"x": IMAGES, "labels": [0, 1, 2, 0]}, "unknown array 'x'"),
        ({"images": IMAGES / 255, "labels": [0, 1, 2, 0]}, "images is float64, not uint8"),
        ({"images": IMAGES[:0], "labels": np.zeros(0, int)}, "images has no examples"),
        ({"images": np.uint8(7), "labels": [0]}, "images has shape ()"),
        ({"images": IMAGES[:, :4], "labels": [0, 1, 2, 0]}, "images are 6x4 and the public set's 6x6"),
    ],
)
def test_invalid_arrays_are_refused(arrays, words, one_site, tmp_path):
    site, public = one_site
    path = save_npz(tmp_path / "own.npz", **arrays)
    for part in ("--train", "--test", "--val"):
        assert_refused(pack(site, 0, public, part, path), words)
    assert not (site / "shard").exists()


def test_a_size_for_arrays_is_refused(one_site, tmp_path):
    site, public = one_site
    path = save_npz(tmp_path / "own.npz", images=IMAGES, labels=[0, 1, 2, 0])
    assert_refused(pack(site, 0, public, "--train", path, "--image-size", "6"), "leave --image-size out")


def test_invalid_image_directories_are_refused(one_site, tmp_path):
    site, public = one_site
    save_classes(tmp_path / "foxes" / "fox", {"cat": 1}, 5)
    assert_refused(pack(site, 0, public, "--train", tmp_path / "foxes"), "unknown class 'fox'")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    for part in ("--train", "--test"):
        assert_refused(pack(site, 0, public, part, tmp_path / "empty"), "no images found")
        assert_refused(pack(site, 0, public, part, tmp_path / "nowhere"), "No such file or directory")
    save_classes(tmp_path / "large", {"cat": 2, "dog": 2}, 5, side=9)
    assert_refused(pack(site, 0, public, "--test", tmp_path / "large"), "public set's 6x6")
    assert_refused(pack(site, 0, public, "--test", tmp_path / "large"), "add --image-size 6")
    save_image(tmp_path / "large" / "cat" / "odd.png", 1, side=4)
    assert_refused(pack(site, 0, public, "--test", tmp_path / "large"), "images differ in size")
    for classes in ("cat", "cat,cat,dog", "cat,,dog", ""):
        assert_refused(pack(site, 0, public, "--classes", classes), "(--classes)")
    assert not (site / "shard").exists()
    output_of(pack(site, 0, public, "--test", tmp_path / "large", "--image-size", "6"))


def test_packing_refuses_images_of_the_public_set(one_site):
    site, public = one_site
    for number, file in enumerate(sorted((site.parent / "open").rglob("*.png"))[:3]):
        shutil.copy(file, site / "test" / "dog" / f"public-{number}.png")
    done = pack(site, 0, public)
    assert_refused(done, "3 of 12 images are in the public set as well, such as dog/public-0.png")
    assert not (site / "shard").exists()


def test_packing_notes_test_images_that_are_also_training_images(one_site):
    site, public = one_site
    shutil.copy(site / "train" / "cat" / "001.png", site / "test" / "cat" / "seen.png")
    assert "note: 1 images are in the training part too, such as cat/seen.png" in output_of(pack(site, 0, public))


def test_grey_images_become_colour_where_the_public_set_is(one_site, tmp_path):
    site, public = one_site
    save_classes(tmp_path / "grey", {"cat": 2, "newt": 2}, 5, mode="L")
    output_of(pack(site, 0, public, "--train", tmp_path / "grey"))
    with np.load(site / "shard" / "client-000.npz") as arrays:
        images = arrays["train_images"]
    assert images.shape == (4, SIDE, SIDE, 3)
    assert np.array_equal(images[0], np.asarray(Image.open(tmp_path / "grey" / "cat" / "000.png").convert("RGB")))


def test_colour_images_become_grey_where_the_public_set_is(one_site, tmp_path):
    site, _ = one_site
    save_public(tmp_path / "grey", mode="L")
    public = tmp_path / "grey.npz"
    output_of(call("federation", "public", "--images", tmp_path / "grey", "--out", public))
    assert "note: 20 colour images were made grey, as the public set is" in output_of(pack(site, 0, public))
    with np.load(site / "shard" / "client-000.npz") as arrays:
        images = arrays["train_images"]
    assert images.shape == (20, SIDE, SIDE, 1)
    assert np.array_equal(images[0, ..., 0], np.asarray(Image.open(site / "train" / "cat" / "000.png").convert("L")))


def test_grayscale_conversion_equals_that_of_pillow():
    every = np.random.default_rng(0).integers(0, 256, size=(20, 16, 16, 3), dtype=np.uint8)
    assert np.array_equal(
        to_grayscale(every)[..., 0], [np.asarray(Image.fromarray(image).convert("L")) for image in every]
    )


def test_decoding_shows_progress(one_site, monkeypatch):
    site, public = one_site
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", 0.0)
    assert "decoding images  100%" in output_of(pack(site, 0, public))
    open_images = ("federation", "public", "--images", site.parent / "open", "--image-size")
    assert "decoding images  100%" in output_of(call(*open_images, "7", "--out", site / "public.npz"))
    assert "decoding images" not in output_of(call(*open_images, "8", "--out", site / "quiet.npz", "--quiet"))


def test_images_that_cannot_be_read_are_left_out_and_noted(one_site):
    site, public = one_site
    for number in range(12):
        (site / "train" / "cat" / f"broken-{number:02d}.png").write_bytes(b"no image")
    text = output_of(pack(site, 0, public))
    assert "note: left out, cannot be read: cat/broken-00.png (not an image)" in text
    assert "note: ... and 2 more, see --json" in text
    assert read_package_description(site / "shard" / "client-000.json").train.class_counts == [6, 9, 5]
    assert "broken" not in (site / "shard" / "client-000.json").read_text()


def test_a_public_set_from_anywhere(tmp_path):
    save_image(tmp_path / "open" / "b.png", 1)
    save_image(tmp_path / "open" / "deep" / "deeper" / "a.png", 2)
    save_image(tmp_path / "open" / "c" / "d.png", 3, side=9)
    (tmp_path / "open" / "c" / "back").symlink_to(tmp_path / "open")
    make = ("federation", "public", "--images", tmp_path / "open", "--out", tmp_path / "new" / "public.npz")
    assert_refused(call(*make), "images differ in size")
    assert not (tmp_path / "new").exists()
    output_of(call(*make, "--image-size", "6"))
    with np.load(tmp_path / "new" / "public.npz") as arrays:
        assert sorted(arrays) == ["images", "index"]
        assert arrays["index"].tolist() == [0, 1, 2]
        images = arrays["images"]
    assert np.array_equal(images[0], np.asarray(Image.open(tmp_path / "open" / "b.png")))
    assert np.array_equal(images[2], np.asarray(Image.open(tmp_path / "open" / "deep" / "deeper" / "a.png")))
    save_npz(tmp_path / "open.npz", images=images, labels=[0, 1, 2])
    output_of(call("federation", "public", "--images", tmp_path / "open.npz", "--out", tmp_path / "same.npz"))
    assert (tmp_path / "same.npz").read_bytes() == (tmp_path / "new" / "public.npz").read_bytes()
    (tmp_path / "none").mkdir()
    for name, words in (("none", "no images found"), ("nowhere", "No such file or directory")):
        assert_refused(call("federation", "public", "--images", tmp_path / name, "--out", tmp_path / "no.npz"), words)
    assert not (tmp_path / "no.npz").exists()


@pytest.mark.parametrize("how", ["missing", "text", "cut", "numbers", "floats", "folder"])
def test_an_invalid_public_set_is_refused(how, one_site, three_sites, tmp_path):
    site, public = one_site
    path = tmp_path / "other.npz"
    if how == "text":
        path.write_text("not an archive")
    elif how == "cut":
        path.write_bytes(public.read_bytes()[:-100])
    elif how == "numbers":
        save_npz(path, index=np.arange(4) + 1, images=IMAGES)
    elif how == "floats":
        save_npz(path, index=np.arange(4), images=IMAGES / 255)
    elif how == "folder":
        path.mkdir()
    words = "file is missing" if how == "missing" else "not a public set"
    assert_refused(pack(site, 0, path), words)
    found = descriptions_of(three_sites)
    assert_refused(call("federation", "gather", *found, "--public", path, "--out", tmp_path / "out"), words)
    assert not (site / "shard").exists()
    assert not (tmp_path / "out").exists()


def changed(path: Path, target: Path, **values: Any) -> Path:
    """Write a changed description with a correct checksum."""
    content = {**json.loads(path.read_text()), **values}
    del content["checksum"]
    target.write_bytes(to_checksummed_json({key: value for key, value in content.items() if value != "gone"}))
    return target


KEYS = ("schema", "client", "class_names", "image_shape", "train", "test", "sha256", "file_sha256", "public_sha256")


@pytest.mark.parametrize(
    "values",
    [
        *({key: wrong} for key in KEYS for wrong in ("gone", "text", None, [], {}, -1, 1.5)),
        {"val": {"size": 0, "class_counts": [0, 0, 0]}},
        {"train": {"size": 21, "class_counts": [6, 9, 5]}},
        {"train": {"size": 20, "class_counts": [6, 9, 5, 0]}},
        {"train": {"size": 21, "class_counts": [7, 9, 5]}},
        {"train": {"size": 20, "class_counts": [21, -6, 5]}},
        {"train": {"size": 10**30, "class_counts": [10**30, 0, 0]}},
        {"class_names": ["cat", "cat", "newt"]},
        {"class_names": ["cat", "d\x1bog", "newt"]},
        {"client": True},
        {"client": 10**30},
        {"client": 1},
        {"examples": [1, 2, 3]},
        {"file_sha256": "0" * 63 + "G"},
    ],
    ids=lambda values: "-".join(f"{key}={value!s:.12}" for key, value in values.items()),
)
def test_inconsistent_descriptions_are_refused(values, three_sites, tmp_path):
    first, *others = descriptions_of(three_sites)
    path = changed(first, tmp_path / "odd.json", **values)
    out = ("--public", three_sites / "public.npz", "--out", tmp_path / "out")
    done = call("federation", "gather", path, *others, *out)
    assert_refused(done, "schema -1 is not 1" if values == {"schema": -1} else "not the description of a packed shard")
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"schema": 1}', b"\xff\xfe", b"[" * 100_000])
def test_damaged_descriptions_are_refused(content, three_sites, tmp_path):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    out = ("--public", three_sites / "public.npz", "--out", tmp_path / "out")
    code, text = call("federation", "gather", path, *out)
    assert (code, text.count("\n")) == (2, 1)
    first = descriptions_of(three_sites)[0].read_bytes()
    path.write_bytes(first.replace(b'"client": 0', b'"client": 1'))
    assert_refused(call("federation", "gather", path, *out), "does not match its checksum")
    assert sorted(tmp_path.iterdir()) == [path]


def test_descriptions_that_do_not_match_each_other_are_refused(three_sites, tmp_path):
    first, second, third = descriptions_of(three_sites)
    public = three_sites / "public.npz"

    def gather(*paths: Path, public: Path = public, out: str = "out") -> tuple[int, str]:
        return call("federation", "gather", *paths, "--public", public, "--out", tmp_path / out)

    assert_refused(gather(first, third), "clients are 0, 2, without client 1")
    shutil.copy(second, tmp_path / "twice.json")
    assert_refused(gather(first, second, tmp_path / "twice.json"), "two descriptions of client 1")
    other = changed(second, tmp_path / "classes.json", class_names=["dog", "cat", "newt"])
    assert_refused(gather(first, other, third), "other classes than")
    other = changed(second, tmp_path / "shape.json", image_shape=[SIDE, SIDE, 1])
    assert_refused(gather(first, other, third), "images of another shape than the public set")
    save_public(tmp_path / "open", size=7)
    output_of(call("federation", "public", "--images", tmp_path / "open", "--out", tmp_path / "public.npz"))
    assert_refused(gather(first, second, third, public=tmp_path / "public.npz"), "packed with another public set")
    assert_refused(gather(first, second, third, out="a name"), "'a name' is not a valid name for runs (--out)")
    assert not (tmp_path / "out").exists()


def test_a_class_without_training_examples_is_noted(one_site, tmp_path):
    site, public = one_site
    classes = ("--classes", "cat,dog,newt,fox")
    output_of(pack(site, 0, public, *classes))
    gather = ("federation", "gather", site / "shard" / "client-000.json", "--public", public)
    assert "note: no client has a training example of 'fox'" in output_of(call(*gather, "--out", tmp_path / "out"))


def documented(*words: str) -> list[str]:
    """Return the command of docs/data.md with this beginning."""
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    section = text.partition("## A site's own data")[2].partition("\n## ")[0]
    start = f"    fedmosaic {' '.join(words)} "
    [line] = [line for line in section.splitlines() if line.startswith(start)]
    return shlex.split(line)[1:]


def test_the_documented_commands_work(tmp_path):
    """From images to a run on the shards, each command in its own process."""

    def run_command(arguments: list[str], cwd: Path = tmp_path) -> str:
        done = fedmosaic(*arguments, cwd=cwd, FEDMOSAIC_CACHE=str(tmp_path / "cache"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    save_public(tmp_path / "open-images")
    made = json.loads(run_command([*documented("federation", "public"), "--json"]))
    assert (made["public"], made["images"], made["image_shape"]) == ("public.npz", 30, [64, 64, 3])
    for client in range(4):
        site = tmp_path / f"site-{client}"
        for part, first in (("train", 0), ("test", 500)):
            save_classes(site / "scans" / part, {"cat": 3 + client, "dog": 3}, 1_000 * (client + 1) + first)
            (site / "scans" / part / "cat").rename(site / "scans" / part / "benign")
            (site / "scans" / part / "dog").rename(site / "scans" / part / "malignant")
        shutil.copy(tmp_path / "public.npz", site)
        command = documented("site", "pack", "--client", "3")
        command[command.index("3")] = str(client)
        assert f"next: send shard/client-00{client}.json to the coordinator" in run_command(command, site)
        shutil.copy(site / "shard" / f"client-00{client}.json", tmp_path)
    text = run_command([*documented("federation", "gather"), "--name", "scans"])
    assert "client 3: 9 train, 9 test" in text
    assert "next: send shards/ours/manifest.json and shards/ours/public.npz to every site" in text
    assert json.loads((tmp_path / "shards" / "ours" / "manifest.json").read_text())["dataset"] == "scans"
    for client in range(4):
        shutil.copy(tmp_path / f"site-{client}" / "shard" / f"client-00{client}.npz", tmp_path / "shards" / "ours")
    short = ("--rounds", "2", "--set", "train.local_steps=1", "--set", "model.name=mlp", "--name", "ours", "--quiet")
    run_command([*documented("train", "--shards"), *short])
    [rounds] = (tmp_path / "runs" / "ours").glob("*/seed-0/rounds.jsonl")
    rows = [json.loads(line) for line in rounds.read_text().splitlines()]
    assert [(row["round"], row["client"]) for row in rows] == [(number, who) for number in (1, 2) for who in range(4)]


@pytest.mark.parametrize("command", [("site", "pack"), ("federation", "public"), ("federation", "gather")])
def test_help_has_examples_and_refers_to_the_privacy_docs(command):
    text = output_of(call(*command, "--help"))
    assert f"fedmosaic {' '.join(command)} " in text
    if command != ("federation", "public"):
        assert "docs/privacy.md" in text
