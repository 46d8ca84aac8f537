"""Image files: what becomes of odd ones, and a cache that is never wrong."""

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
from tests.data.files import picture, save_pictures


@pytest.fixture
def place(tmp_path):
    return DataDirs(cache_dir=tmp_path / "cache")


@pytest.fixture
def root(tmp_path):
    save_pictures(tmp_path / "images" / "a", 5, ending="png")
    save_pictures(tmp_path / "images" / "b", 4, first=5, ending="png")
    return tmp_path / "images"


def load(root, place, side=None):
    return load_images(root, list_images(root), side, place)


def decoded(image: Image.Image, tmp_path, name: str, side=None, **options):
    path = tmp_path / name
    image.save(path, **options)
    result = DecodeResult()
    return decode_image(path.read_bytes(), side, result), dict(result.conversion_counts)


def test_images_come_back_as_they_are(root, place):
    found = load(root, place)
    expected = [np.asarray(Image.open(path)) for path in sorted(root.rglob("*.png"))]
    assert np.array_equal(found.images, np.stack(expected))
    assert found.images.dtype == np.uint8
    assert found.warnings == ()


def test_odd_images_get_a_defined_treatment(tmp_path):
    colour = picture(1)
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

    pixels, odd = decoded(colour, tmp_path, "frames.gif", save_all=True, append_images=[picture(2)])
    assert odd["animated"] == 1

    pixels, _ = decoded(Image.new("RGB", (40, 20), (9, 8, 7)), tmp_path, "big.png", side=10)
    assert pixels.shape == (10, 10, 3)


def test_grey_images_alone_keep_one_channel(tmp_path, place):
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for number in range(3):
        picture(number).convert("L").save(folder / f"{number}.png")
    found = load(tmp_path / "images", place)
    assert found.images.shape == (3, 12, 12, 1)
    picture(9).save(folder / "9.png")
    assert load(tmp_path / "images", place).images.shape == (4, 12, 12, 3)


def test_what_cannot_be_read_is_left_out_and_named(root, place):
    whole = (root / "a" / "0001.png").read_bytes()
    (root / "a" / "0001.png").write_bytes(whole[: len(whole) // 2])
    (root / "b" / "0006.png").write_bytes(b"")
    found = load(root, place)
    assert len(found.images) == 7
    assert found.kept_positions.tolist() == [0, 2, 3, 4, 5, 7, 8]
    assert np.array_equal(found.images[1], np.asarray(picture(2)))
    assert found.warnings == (
        "left out, cannot be read: a/0001.png (truncated)",
        "left out, cannot be read: b/0006.png (not an image)",
    )
    again = load(root, place)
    assert again.warnings == found.warnings
    assert np.array_equal(again.images, found.images)


def test_remarks_are_the_same_each_time(root, tmp_path):
    (root / "a" / "0001.png").write_bytes(b"nonsense")
    first, second = (load(root, DataDirs(cache_dir=tmp_path / name)) for name in ("one", "two"))
    assert first.warnings == second.warnings
    assert "0x" not in first.warnings[0]


def test_a_file_that_the_machine_refuses_is_an_error_not_a_bad_image(root, place):
    (root / "a" / "0009.png").symlink_to(root / "nowhere.png")
    with pytest.raises(OSError, match=r"0009\.png"):
        load(root, place)
    (root / "a" / "0009.png").unlink()
    files = list_images(root)
    (root / "a" / "0001.png").unlink()
    with pytest.raises(RequestError, match=r"cannot read an image: No such file .*0001\.png"):
        load_images(root, files, None, place)
    assert not list(place.cache_dir.rglob("seen-*")), "and it is not remembered"


def test_nothing_that_can_be_read(root, place):
    for path in root.rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.raises(RequestError, match="none of 9 images can be read"):
        load(root, place)
    with pytest.raises(RequestError, match="none of 9 images can be read"):
        load(root, place, side=8)


def test_different_sizes_need_a_size(root, place):
    picture(1, side=20).save(root / "b" / "large.png")
    with pytest.raises(RequestError, match=r"large\.png is 20x20, another one 12x12 \(data\.image_size\)"):
        load(root, place)
    assert load(root, place, side=8).images.shape == (10, 8, 8, 3)
    assert not list(place.cache_dir.rglob("*.part")), "nothing half-made stays"


def test_a_second_look_reads_no_image(root, place, monkeypatch):
    first = load(root, place)
    monkeypatch.setattr(image_cache, "run_decode_task", None)
    monkeypatch.setattr(image_cache, "decode_image", None)
    second = load(root, place)
    assert isinstance(second.images, np.memmap)
    assert np.array_equal(first.images, second.images)
    assert second.content_digest == first.content_digest


def test_whatever_changes_is_decoded_again(root, place):
    before = load(root, place)
    same = root.parent / "copy"
    root.rename(same)
    assert load(same, place).content_digest == before.content_digest, "the same files elsewhere are the same content"
    picture(77).save(same / "a" / "0000.png")
    os.utime(same / "a" / "0000.png", ns=(1, 1))
    after = load(same, place)
    assert after.content_digest != before.content_digest
    assert np.array_equal(after.images[0], np.asarray(picture(77)))
    assert load(same, place, side=6).content_digest != after.content_digest


@pytest.mark.parametrize("damage", ["remove", "truncate", "nonsense", "blank", "note"])
def test_a_damaged_cache_is_made_anew(root, place, damage):
    before = load(root, place)
    pixels, content = np.array(before.images), before.content_digest
    del before
    array = place.cache_dir / "images" / f"{content}.npy"
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
        for note in place.cache_dir.rglob("seen-*.json"):
            note.write_text(json.dumps({"files": 3}))
    assert np.array_equal(load(root, place).images, pixels)


def test_writing_to_the_images_does_not_reach_the_cache(root, place):
    first = load(root, place)
    pixels = first.images.copy()
    first.images[:] = 0
    assert np.array_equal(load(root, place).images, pixels)


def test_many_processes_give_what_one_gives(root, tmp_path, monkeypatch):
    alone = load(root, DataDirs(cache_dir=tmp_path / "one"))
    monkeypatch.setattr(image_cache, "MIN_FILES_FOR_PROCESSES", 0)
    monkeypatch.setattr(image_cache, "MAX_FILES_PER_TASK", 2)
    heard = []
    together = load(root, DataDirs(cache_dir=tmp_path / "two", on_progress=lambda *words: heard.append(words)))
    assert together.content_digest == alone.content_digest
    assert np.array_equal(together.images, alone.images)
    assert heard[-1] == ("decoding images", 9, 9)


def test_no_room_for_the_cache_is_said_before_anything_is_decoded(root, place, monkeypatch):
    usage = image_cache.shutil.disk_usage(".")
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(ResourceError, match=r"decoded images need .* FEDMOSAIC_CACHE"):
        load(root, place)


def test_a_cache_that_cannot_be_written(root, tmp_path):
    (tmp_path / "cache").write_text("a file, not a directory")
    with pytest.raises(ResourceError, match=r"cannot write the image cache: .*FEDMOSAIC_CACHE"):
        load(root, DataDirs(cache_dir=tmp_path / "cache"))


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDMOSAIC_CACHE", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here"
    monkeypatch.delenv("FEDMOSAIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "fedmosaic"
