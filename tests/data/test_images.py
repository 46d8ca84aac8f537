"""Decoding of unusual image files, and the image cache."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from PIL import Image

from fedmosaic_cli.data.data_dirs import DataDirs, default_cache_dir
from fedmosaic_cli.data.io import image_cache
from fedmosaic_cli.data.io.image_cache import load_images
from fedmosaic_cli.data.io.image_decoding import DecodeResult, decode_image
from fedmosaic_cli.data.io.image_folders import list_images
from fedmosaic_cli.errors import RequestError, ResourceError
from tests.data.files import make_image, save_images


@pytest.fixture
def data_dirs(tmp_path):
    return DataDirs(cache_dir=tmp_path / "cache")


@pytest.fixture
def root(tmp_path):
    save_images(tmp_path / "images" / "a", 5, ending="png")
    save_images(tmp_path / "images" / "b", 4, first=5, ending="png")
    return tmp_path / "images"


def load(root, data_dirs, side=None):
    return load_images(root, list_images(root), side, data_dirs)


def decoded(image: Image.Image, tmp_path, name: str, side=None, **options):
    path = tmp_path / name
    image.save(path, **options)
    result = DecodeResult()
    return decode_image(path.read_bytes(), side, result), dict(result.conversion_counts)


def test_images_are_decoded_unchanged(root, data_dirs):
    found = load(root, data_dirs)
    expected = [np.asarray(Image.open(path)) for path in sorted(root.rglob("*.png"))]
    assert np.array_equal(found.images, np.stack(expected))
    assert found.images.dtype == np.uint8
    assert found.warnings == ()


def test_conversion_of_unusual_images(tmp_path):
    colour = make_image(1)
    grey = colour.convert("L")
    pixels, odd = decoded(grey, tmp_path, "grey.png")
    assert np.array_equal(pixels, np.stack([np.asarray(grey)] * 3, axis=-1))
    assert odd == {"grey": 1}

    see_through = colour.copy()
    see_through.putalpha(Image.new("L", colour.size, 0))
    pixels, odd = decoded(see_through, tmp_path, "alpha.png")
    assert (pixels == 255).all(), "what is not there is white"
    assert odd == {"transparent": 1}

    palette = colour.quantize(16)
    pixels, odd = decoded(palette, tmp_path, "palette.png")
    assert np.array_equal(pixels, np.asarray(palette.convert("RGB")))
    assert odd == {"palette": 1}
    pixels, odd = decoded(palette, tmp_path, "clear.gif", transparency=palette.getpixel((0, 0)))
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert odd == {"transparent": 1}

    pixels, odd = decoded(colour.convert("CMYK"), tmp_path, "cmyk.jpg", quality=100)
    assert np.abs(pixels.astype(int) - np.asarray(colour)).mean() < 8
    assert odd == {"CMYK": 1}

    deep = Image.fromarray(np.arange(144, dtype=np.uint16).reshape(12, 12) * 256)
    pixels, odd = decoded(deep, tmp_path, "deep.png")
    assert pixels[..., 0].ravel().tolist() == list(range(144))
    assert odd == {"16-bit": 1}

    dark = Image.fromarray(np.full((4, 4), 200, dtype=np.uint16))
    assert decoded(dark, tmp_path, "dark.png")[0].max() == 0, "by depth, not by what is in it"
    wide_range = Image.fromarray(np.full((4, 4), 70_000, dtype=np.int32))
    assert decoded(wide_range, tmp_path, "wide.tif")[0].min() == 255
    with pytest.raises(ValueError, match="floats"):
        decoded(Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)), tmp_path, "float.tif")

    turned = Image.Exif()
    turned[0x0112] = 6
    wide = Image.new("RGB", (8, 4))
    wide.paste((255, 0, 0), (0, 0, 4, 4))
    pixels, odd = decoded(wide, tmp_path, "turned.jpg", exif=turned, quality=100)
    assert pixels.shape == (8, 4, 3)
    assert pixels[0, :, 0].min() > 200, "red is on top now"
    assert odd == {"rotated": 1}

    pixels, odd = decoded(colour, tmp_path, "frames.gif", save_all=True, append_images=[make_image(2)])
    assert odd["animated"] == 1

    pixels, _ = decoded(Image.new("RGB", (40, 20), (9, 8, 7)), tmp_path, "big.png", side=10)
    assert pixels.shape == (10, 10, 3)


def test_grey_images_alone_keep_one_channel(tmp_path, data_dirs):
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for number in range(3):
        make_image(number).convert("L").save(folder / f"{number}.png")
    found = load(tmp_path / "images", data_dirs)
    assert found.images.shape == (3, 12, 12, 1)
    make_image(9).save(folder / "9.png")
    assert load(tmp_path / "images", data_dirs).images.shape == (4, 12, 12, 3)


def test_unreadable_images_are_left_out_and_named(root, data_dirs):
    whole = (root / "a" / "0001.png").read_bytes()
    (root / "a" / "0001.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "0006.png").write_bytes(b"")
    found = load(root, data_dirs)
    assert len(found.images) == 7
    assert found.kept_positions.tolist() == [0, 2, 3, 4, 5, 7, 8]
    assert np.array_equal(found.images[1], np.asarray(make_image(2)))
    assert found.warnings == (
        "left out, cannot be read: a/0001.png (truncated)",
        "left out, cannot be read: b/0006.png (not an image)",
    )
    again = load(root, data_dirs)
    assert again.warnings == found.warnings
    assert np.array_equal(again.images, found.images)


def test_warnings_are_reproducible(root, tmp_path):
    (root / "a" / "0001.png").write_bytes(b"nonsense")
    first, second = (load(root, DataDirs(cache_dir=tmp_path / name)) for name in ("one", "two"))
    assert first.warnings == second.warnings
    assert "0x" not in first.warnings[0]


def test_missing_file_is_an_error(root, data_dirs):
    (root / "a" / "0009.png").symlink_to(root / "nowhere.png")
    with pytest.raises(OSError, match=r"0009\.png"):
        load(root, data_dirs)
    (root / "a" / "0009.png").unlink()
    files = list_images(root)
    (root / "a" / "0001.png").unlink()
    with pytest.raises(RequestError, match=r"cannot read an image: No such file .*0001\.png"):
        load_images(root, files, None, data_dirs)
    assert not list(data_dirs.cache_dir.rglob("seen-*")), "and it is not remembered"


def test_no_readable_image_is_an_error(root, data_dirs):
    for path in root.rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.raises(RequestError, match="none of 9 images can be read"):
        load(root, data_dirs)
    with pytest.raises(RequestError, match="none of 9 images can be read"):
        load(root, data_dirs, side=8)


def test_different_sizes_need_a_size(root, data_dirs):
    make_image(1, side=20).save(root / "b" / "large.png")
    with pytest.raises(RequestError, match=r"large\.png is 20x20, another one 12x12 \(data\.image_size\)"):
        load(root, data_dirs)
    assert load(root, data_dirs, side=8).images.shape == (10, 8, 8, 3)
    assert not list(data_dirs.cache_dir.rglob("*.part")), "nothing half-made stays"


def test_cached_images_are_not_decoded_again(root, data_dirs, monkeypatch):
    first = load(root, data_dirs)
    monkeypatch.setattr(image_cache, "run_decode_task", None)
    monkeypatch.setattr(image_cache, "decode_image", None)
    second = load(root, data_dirs)
    assert isinstance(second.images, np.memmap)
    assert np.array_equal(first.images, second.images)
    assert second.content_digest == first.content_digest


def test_changed_files_are_decoded_again(root, data_dirs):
    before = load(root, data_dirs)
    same = root.parent / "copy"
    root.rename(same)
    assert load(same, data_dirs).content_digest == before.content_digest, (
        "the same files elsewhere are the same content"
    )
    make_image(77).save(same / "a" / "0000.png")
    os.utime(same / "a" / "0000.png", ns=(1, 1))
    after = load(same, data_dirs)
    assert after.content_digest != before.content_digest
    assert np.array_equal(after.images[0], np.asarray(make_image(77)))
    assert load(same, data_dirs, side=6).content_digest != after.content_digest


@pytest.mark.parametrize("damage", ["remove", "truncate", "nonsense", "blank", "note"])
def test_damaged_cache_is_recreated(root, data_dirs, damage):
    before = load(root, data_dirs)
    pixels, content = np.array(before.images), before.content_digest
    del before
    array = data_dirs.cache_dir / "images" / f"{content}.npy"
    if damage == "remove":
        array.unlink()
    elif damage == "truncate":
        array.write_bytes(array.read_bytes()[:200])
    elif damage == "blank":
        whole = array.read_bytes()
        array.write_bytes(whole[:128] + bytes(len(whole) - 128))
    elif damage == "nonsense":
        array.write_bytes(b"nonsense")
    else:
        for note in data_dirs.cache_dir.rglob("seen-*.json"):
            note.write_text(json.dumps({"files": 3}))
    assert np.array_equal(load(root, data_dirs).images, pixels)


def test_writing_to_the_images_does_not_reach_the_cache(root, data_dirs):
    first = load(root, data_dirs)
    pixels = first.images.copy()
    first.images[:] = 0
    assert np.array_equal(load(root, data_dirs).images, pixels)


def test_several_processes_give_the_same_result_as_one(root, tmp_path, monkeypatch):
    alone = load(root, DataDirs(cache_dir=tmp_path / "one"))
    monkeypatch.setattr(image_cache, "MIN_FILES_FOR_PROCESSES", 0)
    monkeypatch.setattr(image_cache, "MAX_FILES_PER_TASK", 2)
    progress = []
    together = load(root, DataDirs(cache_dir=tmp_path / "two", on_progress=lambda *message: progress.append(message)))
    assert together.content_digest == alone.content_digest
    assert np.array_equal(together.images, alone.images)
    assert progress[-1] == ("decoding images", 9, 9)


def test_cache_checks_disk_space_first(root, data_dirs, monkeypatch):
    usage = image_cache.shutil.disk_usage(".")
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(ResourceError, match=r"decoded images need .* FEDMOSAIC_CACHE"):
        load(root, data_dirs)


def test_unwritable_cache_is_an_error(root, tmp_path):
    (tmp_path / "cache").write_text("a file, not a directory")
    with pytest.raises(ResourceError, match=r"cannot write the image cache: .*FEDMOSAIC_CACHE"):
        load(root, DataDirs(cache_dir=tmp_path / "cache"))


def test_cache_directory_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDMOSAIC_CACHE", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here"
    monkeypatch.delenv("FEDMOSAIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "fedmosaic"
