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
    rng = np.random.default_rng(0)
    for part, size in (("train", train), ("t10k", test)):
        ending = ".gz" if packed else ""
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", rng.integers(0, 256, size=(size, 28, 28)), packed)
        write_idx(folder / f"{part}-labels-idx1-ubyte{ending}", np.arange(size) % 10, packed)


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
