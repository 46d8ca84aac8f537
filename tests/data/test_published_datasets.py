"""MNIST, EMNIST, CIFAR-100 and Tiny-ImageNet on small files of their layouts, and on damaged ones."""

from __future__ import annotations

import gzip
import pickle

import numpy as np
import pytest

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import DATASETS, cifar100, emnist, load_dataset
from fedmosaic_cli.data.io.idx_files import read_idx
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from tests.data.files import (
    TINY_CLASSES,
    save_images,
    write_cifar100,
    write_emnist,
    write_fashion,
    write_idx,
    write_tiny_imagenet,
)

FIRST_LABELS = {"letters": 1}


@pytest.fixture
def data_dirs(tmp_path):
    (tmp_path / "data").mkdir()
    return DataDirs(tmp_path / "data", cache_dir=tmp_path / "cache")


def load(data_dirs, name, **options):
    data_dirs.dataset_cache.clear()
    return load_dataset(resolve_data_settings(DataSettings(dataset=name, **options), data_dirs), data_dirs)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["MNIST/raw", "mnist"])
def test_mnist(data_dirs, folder, packed):
    write_fashion(data_dirs.data_dir / folder, packed)
    dataset = load(data_dirs, "mnist")
    assert dataset.images.shape == (80, 28, 28, 1)
    assert dataset.test_mask.tolist() == [False] * 60 + [True] * 20
    assert dataset.labels[:12].tolist() == [*range(10), 0, 1]
    assert dataset.class_names == tuple("0123456789")


@pytest.mark.parametrize("folder", ["FashionMNIST/raw", "fashion-mnist", "."])
def test_files_of_fashion_mnist_are_not_taken_for_mnist(data_dirs, folder):
    write_fashion(data_dirs.data_dir / folder)
    assert DATASETS["mnist"].find(data_dirs.data_dir) is None


def emnist_labels(split):
    first = FIRST_LABELS.get(split, 0)
    return np.arange(first, first + len(emnist.SPLITS[split].classes))


@pytest.mark.parametrize("split", emnist.SPLITS)
@pytest.mark.parametrize("folder", ["EMNIST/raw", "EMNIST/raw/gzip", "gzip", "."])
def test_emnist(data_dirs, split, folder):
    labels = emnist_labels(split)
    stored = write_emnist(data_dirs.data_dir / folder, split, labels, packed=folder != ".", examples=130)
    dataset = load(data_dirs, f"emnist-{split}")
    assert dataset.images.shape == (195, 28, 28, 1)
    assert np.array_equal(dataset.images[7, :, :, 0], stored[7].T), "images are stored column by column"
    assert dataset.images.flags.c_contiguous
    assert dataset.labels[: len(labels)].tolist() == list(range(len(labels))), "classes are numbered from 0"
    assert dataset.test_mask.sum() == 65


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("letters", "abcdefghijklmnopqrstuvwxyz"),
        ("digits", "0123456789"),
        ("balanced", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"),
        ("byclass", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
    ],
)
def test_classes_of_emnist(split, names):
    source = DATASETS[f"emnist-{split}"]
    assert emnist.SPLITS[split].classes == tuple(names)
    assert source.info.num_classes == len(names)
    assert list(names) == sorted(names), "in the order of the published mapping, which is that of ASCII"


@pytest.mark.parametrize(("split", "wrong"), [("letters", 0), ("letters", 27), ("digits", 10), ("balanced", 47)])
def test_label_of_another_split_is_refused(data_dirs, split, wrong):
    write_emnist(data_dirs.data_dir, split, np.array([1, wrong]))
    with pytest.raises(RequestError, match=rf"labels from .* not . to .*emnist-{split}-train-labels") as raised:
        load(data_dirs, f"emnist-{split}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an idx file"),
        (b"not an idx file", "not an idx file"),
        (b"\0\0\x0d\x03" + bytes(12), "not an idx file of bytes"),
        (b"\0\0\x08\x03\0\0", "bytes expected by the header"),
        (b"\0\0\x08\x01\0\0\0\x09ab", "9 bytes expected by the header, 2 found"),
        (b"\0\0\x08\x01\0\0\0\x01ab", "1 bytes expected by the header, more found"),
        (b"\0\0\x08\x02" + b"\xff" * 8, "the header announces"),
        (b"\0\0\x08\x00", "bytes expected"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_idx_file_is_refused(tmp_path, content, words, packed):
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(RequestError, match=words):
        read_idx(path)


def test_truncated_gzip_file_is_refused(tmp_path):
    write_idx(tmp_path / "file.gz", np.arange(1000) % 256, packed=True)
    whole = (tmp_path / "file.gz").read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 4):
        (tmp_path / "file.gz").write_bytes(whole[:length])
        with pytest.raises(RequestError, match=r"file\.gz.*download the file again"):
            read_idx(tmp_path / "file.gz")


def test_splits_of_different_image_sizes_are_refused(data_dirs):
    folder = data_dirs.data_dir / "mnist"
    write_fashion(folder, packed=False)
    write_idx(folder / "t10k-images-idx3-ubyte", np.zeros((20, 32, 32)), packed=False)
    with pytest.raises(RequestError, match="both splits differ in shape"):
        load(data_dirs, "mnist")
    write_idx(folder / "t10k-images-idx3-ubyte", np.zeros((19, 28, 28)), packed=False)
    with pytest.raises(RequestError, match=r"labels \(20,\) do not match"):
        load(data_dirs, "mnist")


@pytest.mark.parametrize("folder", ["cifar-100-python", "cifar100/cifar-100-python"])
def test_cifar100_has_fine_and_coarse_labels(data_dirs, folder):
    write_cifar100(data_dirs.data_dir / folder)
    fine, coarse = load(data_dirs, "cifar100"), load(data_dirs, "cifar100-coarse")
    assert fine.images.shape == (300, 32, 32, 3)
    assert fine.images[250, 0, 0].tolist() == [1, 50, 7], "planes turned into pixels"
    assert fine.labels[:102].tolist() == [*range(100), 0, 1]
    assert coarse.labels[:22].tolist() == [*range(20), 0, 1]
    assert np.array_equal(fine.images, coarse.images)
    assert fine.test_mask.tolist() == [False] * 200 + [True] * 100
    assert (fine.num_classes, coarse.num_classes) == (100, 20)


def test_classes_of_cifar100_are_complete():
    for names, number in ((cifar100.FINE_CLASSES, 100), (cifar100.COARSE_CLASSES, 20)):
        assert len(set(names)) == number
        assert list(names) == sorted(names), "labels are alphabetical"
    assert (cifar100.FINE_CLASSES[0], cifar100.FINE_CLASSES[49], cifar100.FINE_CLASSES[99]) == (
        "apple",
        "mountain",
        "worm",
    )


class Evil:
    def __reduce__(self):
        return print, ("owned",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({b"fine_labels": [100] * 100}, "images and labels do not match"),
        ({b"fine_labels": [-1] * 100}, "images and labels do not match"),
        ({b"fine_labels": [1] * 99}, "images and labels do not match"),
        ({b"fine_labels": ["cat"] * 100}, "not a batch of CIFAR images"),
        ({b"fine_labels": [10**30] * 100}, "not a batch of CIFAR images"),
        ({b"data": np.zeros((100, 3071), dtype=np.uint8)}, "not a batch of CIFAR images"),
        ({b"data": np.zeros((100, 3072))}, "images and labels do not match"),
        ({b"data": Evil()}, r"it asks for builtins\.print"),
        (None, "not a batch of CIFAR images"),
    ],
)
def test_invalid_batch_is_refused(data_dirs, change, words, capsys):
    folder = data_dirs.data_dir / "cifar-100-python"
    write_cifar100(folder)
    content = pickle.loads((folder / "test").read_bytes(), encoding="bytes")
    (folder / "test").write_bytes(pickle.dumps(7 if change is None else {**content, **change}))
    with pytest.raises(RequestError, match=rf"{words}.*cifar-100-python/test"):
        load(data_dirs, "cifar100")
    assert capsys.readouterr().out == ""


def test_truncated_batch_is_refused(data_dirs):
    folder = data_dirs.data_dir / "cifar-100-python"
    write_cifar100(folder)
    (folder / "train").write_bytes((folder / "train").read_bytes()[:-100])
    with pytest.raises(RequestError, match=r"not a safe pickle: .*cifar-100-python/train"):
        load(data_dirs, "cifar100")


def test_tiny_imagenet(data_dirs):
    write_tiny_imagenet(data_dirs.data_dir / "tiny-imagenet-200")
    dataset = load(data_dirs, "tiny-imagenet")
    assert dataset.images.shape == (42, 64, 64, 3)
    assert dataset.class_names == TINY_CLASSES
    assert np.bincount(dataset.labels[:36]).tolist() == [12, 12, 12]
    assert dataset.labels[36:].tolist() == [0, 1, 2, 0, 1, 2], "labels of the validation images"
    assert dataset.test_mask.tolist() == [False] * 36 + [True] * 6
    assert dataset.warnings == ("1 grey images were converted",)


def append(text):
    def damage(root):
        path = root / "val" / "val_annotations.txt"
        path.write_text(path.read_text() + text)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (append("0006.JPEG\tn01443537\t0\t0\t9\t9\n"), "0006.JPEG and 0 others lack an image"),
        (append("0001.JPEG\tn99999999\t0\t0\t9\t9\n"), "'n99999999' is not a class in train .*line 7"),
        (append("one word\n"), "'' is not a class in train .*line 7"),
        (lambda root: save_images(root / "val" / "images", 1, 9, 64, "JPEG"), "0009.JPEG and 0 others lack a label"),
        (lambda root: (root / "train" / "empty").mkdir(), "no directory 'images'"),
        (lambda root: (root / "val" / "images").rename(root / "elsewhere"), "no directory 'images'"),
    ],
)
def test_invalid_tiny_imagenet_is_refused(data_dirs, damage, words):
    root = data_dirs.data_dir / "tiny-imagenet-200"
    write_tiny_imagenet(root)
    damage(root)
    with pytest.raises(RequestError, match=words) as raised:
        load(data_dirs, "tiny-imagenet")
    assert "\n" not in str(raised.value)


def test_data_sets_know_their_sizes_before_they_are_loaded():
    images = {name: source.info.image_size for name, source in DATASETS.items() if source.info}
    assert images["tiny-imagenet"] == 64
    examples = {name: (source.info.num_train, source.info.num_test) for name, source in DATASETS.items() if source.info}
    assert examples["emnist-byclass"] == (697_932, 116_323)
    assert examples["cifar100"] == (50_000, 10_000)
    assert examples["tiny-imagenet"] == (100_000, 10_000)
