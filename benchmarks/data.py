"""How fast data is decoded and partitioned, measured side by side in one run.

python benchmarks/data.py decode DIRECTORY      # images as in DIRECTORY/train/<class>/*.jpg, e.g. CIFAR-10
python benchmarks/data.py scale                 # 1,000,000 labels over 10,000 clients
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.io.image_cache import load_images
from fedmosaic_cli.data.io.image_folders import list_images
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.runner.prepare import load_and_partition

REPETITIONS = 5


def plain_decode(path: str) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def plain_loop(root: Path) -> np.ndarray:
    """What one would write by hand: a pool of processes that open file after file."""
    paths = sorted(str(path) for path in root.rglob("*.jpg"))
    with multiprocessing.Pool() as pool:
        return np.stack(pool.map(plain_decode, paths, chunksize=256))


def seconds(work: object, *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)  # type: ignore[operator]
    return time.perf_counter() - started


def decode(root: Path) -> None:
    """Our first look at a directory of images against the plain loop, interleaved repetitions; then a second look."""
    files = list_images(root)
    side = Image.open(root / files[0].relative_path).size[0]
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(REPETITIONS):
            place = DataDirs(root, cache_dir=Path(scratch) / str(number))
            plain.append(seconds(plain_loop, root))
            ours.append(seconds(lambda place=place: load_images(root, list_images(root), side, place)))
        print(f"{len(files)} images: plain loop {median(plain):.2f} s, ours {median(ours):.2f} s")
        ratios = sorted(b / a for a, b in zip(ours, plain, strict=True))
        print(f"speed against the plain loop: {median(ratios):.2f} (from {ratios[0]:.2f} to {ratios[-1]:.2f})")
        settings = resolve_data_settings(DataSettings(dataset="folder", clients=15, alpha=0.1, public_size=3000), place)
        load_and_partition(
            settings, 1, Path(scratch) / "imports", place
        ).save()  # what is imported on the way is start-up
        started = time.process_time()
        load_and_partition(settings, 0, Path(scratch) / "shards", place).save()
        print(f"a partition with a warm cache: {time.process_time() - started:.2f} s of CPU")


def scale() -> None:
    """Time and memory of large partitions, files and pictures included."""
    labels = np.random.default_rng(0).integers(0, 10, size=1_000_000)
    with tempfile.TemporaryDirectory() as scratch:
        np.savez(Path(scratch) / "large.npz", x=np.zeros((len(labels), 1, 1), dtype=np.uint8), y=labels)
        place = DataDirs(Path(scratch) / "large.npz")
        for scheme, more in (("iid", {}), ("pathological", {}), ("dirichlet", {"alpha": 0.5, "min_size": 2})):
            asked = DataSettings(dataset="npz", scheme=scheme, clients=10_000, public_size=1000, **more)
            settings = resolve_data_settings(asked, place)
            taken = seconds(lambda s=settings: load_and_partition(s, 0, Path(scratch) / s.scheme, place).save())
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(f"{scheme}: {taken:.1f} s, peak memory so far {peak:.2f} GB")


if __name__ == "__main__":
    if sys.argv[1:] == ["scale"]:
        scale()
    elif sys.argv[1:2] == ["decode"] and len(sys.argv) == 3:
        decode(Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
