"""Small files in the layouts of the published data sets."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def make_image(seed: int, side: int = 12) -> Image.Image:
    """Return a colour image that JPEG compression hardly changes."""
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 256, size=(2, 2, 3), dtype=np.uint8)
    return Image.fromarray(corners).resize((side, side), Image.Resampling.BILINEAR)


def save_images(folder: Path, count: int, first: int = 0, side: int = 12, ending: str = "jpg") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        make_image(number, side).save(folder / f"{number:04d}.{ending}")


def write_idx(path: Path, array: np.ndarray, packed: bool) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">i4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if packed else content)


def write_fashion(folder: Path, packed: bool = True, train: int = 60, test: int = 20) -> None:
    """Write the four files of MNIST or Fashion-MNIST."""
    write_idx_splits(folder, {"train": train, "t10k": test}, np.arange(10), packed)


def write_emnist(folder: Path, split: str, labels: np.ndarray, packed: bool = True, examples: int = 60) -> np.ndarray:
    """Write the four files of a split, with these labels in turn; return its training images as they are stored."""
    sizes = {f"emnist-{split}-train": examples, f"emnist-{split}-test": examples // 2}
    return write_idx_splits(folder, sizes, labels, packed)


def write_idx_splits(folder: Path, sizes: dict[str, int], labels: np.ndarray, packed: bool) -> np.ndarray:
    """Write random images and the labels in turn for each split; return the images of the first split."""
    rng, ending, written = np.random.default_rng(0), ".gz" if packed else "", []
    for part, size in sizes.items():
        written.append(rng.integers(0, 256, size=(size, 28, 28)))
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", written[-1], packed)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", np.resize(labels, size), packed)
    return written[0]


def write_cifar(folder: Path, each: int = 20) -> None:
    """Write six batches; red, green and blue of the first pixel are batch, index and 7."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        planes = np.zeros((each, 3, 32, 32), dtype=np.uint8)
        planes[:, 0, 0, 0], planes[:, 1, 0, 0], planes[:, 2, 0, 0] = number, np.arange(each), 7
        content = {
            b"batch_label": b"made",
            b"labels": (np.arange(each) % 10).tolist(),
            b"data": planes.reshape(each, -1),
            b"filenames": [b"x.png"] * each,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_cifar100(folder: Path, train: int = 200, test: int = 100) -> None:
    """Write both files with all labels in turn; red, green and blue of the first pixel are file, index and 7."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, size) in enumerate({"train": train, "test": test}.items()):
        planes = np.zeros((size, 3, 32, 32), dtype=np.uint8)
        planes[:, 0, 0, 0], planes[:, 1, 0, 0], planes[:, 2, 0, 0] = number, np.arange(size), 7
        content = {
            b"filenames": [b"x.png"] * size,
            b"batch_label": b"made",
            b"fine_labels": (np.arange(size) % 100).tolist(),
            b"coarse_labels": (np.arange(size) % 20).tolist(),
            b"data": planes.reshape(size, -1),
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


TINY_CLASSES = ("n01443537", "n01629819", "n02124075")


def write_tiny_imagenet(folder: Path, train: int = 12, val: int = 6) -> None:
    """Write images of three classes with bounding boxes. Labels of `val` alternate; one training image is grey."""
    for label in TINY_CLASSES:
        save_images(folder / "train" / label / "images", train, side=64, ending="JPEG")
        boxes = "".join(f"{number:04d}.JPEG\t0\t0\t63\t63\n" for number in range(train))
        (folder / "train" / label / f"{label}_boxes.txt").write_text(boxes)
    make_image(0, 64).convert("L").save(folder / "train" / TINY_CLASSES[0] / "images" / "0000.JPEG")
    save_images(folder / "val" / "images", val, side=64, ending="JPEG")
    save_images(folder / "test" / "images", 2, side=64, ending="JPEG")
    lines = [f"{number:04d}.JPEG\t{TINY_CLASSES[number % 3]}\t0\t0\t63\t63\n" for number in range(val)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))


def write_pfllib(folder: Path, clients: int = 3, each: int = 24) -> np.ndarray:
    """Write a split in PFLlib's format and return all images as bytes, training split first."""
    rng = np.random.default_rng(0)
    made = []
    for part, size in (("train", each), ("test", each // 3)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for client in range(clients):
            pixels = rng.integers(0, 256, size=(size, 3, 8, 8))
            made.append(pixels.transpose(0, 2, 3, 1))
            x = ((pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).astype(np.float32)
            data = {"x": x, "y": (np.arange(size) + client) % 4}
            with (folder / part / f"{client}.npz").open("wb") as file:
                np.savez_compressed(file, data=data)
    return np.concatenate(made).astype(np.uint8)
