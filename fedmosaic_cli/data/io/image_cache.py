"""Image files, decoded once: all processors fill one array on disk, which is mapped into memory ever after.

An array is named by what it was decoded from (the contents of the files, their order, the treatment). Beside it lies,
for each list of files seen (paths, sizes, times), which array is theirs; so a second look reads no image. All of it may
be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.io.image_decoding import (
    TREATMENT,
    Chunk,
    Decoded,
    OtherSizeError,
    UnreadableFileError,
    decode,
    decode_chunk,
    follow_parent,
)
from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.machine import available_cores
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import claimed_files, make_directories, remove, sweep, to_json, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.io.image_folders import ImageFile

CHUNK = 256
# Below this, starting processes takes longer than decoding.
WORTH_PROCESSES_BYTES = 8_000_000
WORTH_PROCESSES_FILES = 2_000
BLOCK_ROWS = 4_096
SAMPLED_ROWS = 256


@dataclass(frozen=True)
class Pictures:
    """`images` are the files at the positions `kept`; `content` stands for all that they were decoded from."""

    images: NDArray[np.uint8]
    kept: NDArray[np.int64]
    content: str
    remarks: tuple[str, ...]


def load_images(root: Path, files: Sequence[ImageFile], side: int | None, place: Place) -> Pictures:
    """The images of `files`, from the cache or decoded now."""
    folder = place.cache_dir / "images"
    seen = folder / f"seen-{listing_key(root, files, side)}.json"
    return recall(seen) or decode_all(root, files, side, folder, seen, place)


def listing_key(root: Path, files: Sequence[ImageFile], side: int | None) -> str:
    """Stands for a list of files as they lie on disk."""
    lines = [f"{TREATMENT} {side} {root.resolve()}", *(f"{f.name}\0{f.size}\0{f.modified}" for f in files)]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:32]


def recall(seen: Path) -> Pictures | None:
    """What was decoded before, if all of it is still there."""
    try:
        note = json.loads(seen.read_bytes())
        images = np.load(seen.with_name(f"{note['content']}.npy"), mmap_mode="c", allow_pickle=False)
        kept = np.delete(np.arange(note["files"]), note["left_out"])
        if images.dtype != np.uint8 or len(images) != len(kept) or sample(images) != note["sample"]:
            return None
        return Pictures(images, kept, note["content"], tuple(note["remarks"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError):
        return None


def sample(images: NDArray[np.uint8]) -> str:
    """Stands for the pixels of some rows from all over the array: enough to notice a disk that kept nothing."""
    rows = np.linspace(0, len(images) - 1, min(len(images), SAMPLED_ROWS)).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(images[rows]).data).hexdigest()[:32]


def decode_all(
    root: Path, files: Sequence[ImageFile], side: int | None, folder: Path, seen: Path, place: Place
) -> Pictures:
    """Decode everything and remember it."""
    shape = (len(files), *image_shape(root, files, side))
    try:
        make_directories(folder)
        sweep(folder)
        with scratch_array(folder / f"{seen.stem}.npy", shape) as scratch:
            outcome = fill(scratch, root, files, side, place)
            left_out = sorted(outcome.failures)
            about = repr((TREATMENT, side, outcome.all_grey, left_out)).encode()
            content = hashlib.sha256(about + outcome.digests).hexdigest()[:40]
            if len(left_out) == len(files):
                raise RequestError(f"none of {len(files)} images can be read ({root}): the first is {files[0].name}")
            settle(scratch, folder / f"{content}.npy", left_out, channels=1 if outcome.all_grey else 3)
    except OSError as error:
        raise ResourceError(
            f"cannot write the image cache: {error.strerror or error} ({folder}): make room, or set FEDMOSAIC_CACHE"
        ) from None
    names = {row: files[row].name for row in left_out}
    note = {
        "files": len(files),
        "left_out": left_out,
        "content": content,
        "sample": sample(np.load(folder / f"{content}.npy", mmap_mode="r")),
        "remarks": remarks_of(outcome, names),
    }
    write(seen, to_json(note))
    found = recall(seen)
    if found is None:
        raise ResourceError(f"the image cache does not keep what is written to it ({folder}): set FEDMOSAIC_CACHE")
    return found


def image_shape(root: Path, files: Sequence[ImageFile], side: int | None) -> tuple[int, int, int]:
    """The shape of a decoded image: as asked for, or that of the first one that can be read."""
    if not files:
        raise RequestError(f"no images here ({root}): put them into a directory a class")
    if side is not None:
        return side, side, 3
    for file in files:
        try:
            height, width, channels = decode((root / file.name).read_bytes(), None, Decoded()).shape
        except Exception:  # named later, with the other unreadable ones
            continue
        return height, width, channels
    raise RequestError(f"none of {len(files)} images can be read ({root}): the first is {files[0].name}")


@contextmanager
def scratch_array(path: Path, shape: tuple[int, ...]) -> Iterator[Path]:
    """A file that holds an array of this shape, gone afterwards if nobody moved it away."""
    need, free = int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if need > free:
        raise ResourceError(
            f"decoded images need {need / 1e9:.2f} GB and there are {free / 1e9:.2f} GB free ({path.parent}): "
            "make room, set FEDMOSAIC_CACHE, or choose a smaller --image-size"
        )
    with claimed_files([path]) as [(handle, scratch)]:
        try:
            np.lib.format.open_memmap(scratch, mode="w+", dtype=np.uint8, shape=shape)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash in the middle
                os.posix_fallocate(handle, 0, scratch.stat().st_size)
            yield scratch
        finally:
            remove(scratch)


def fill(scratch: Path, root: Path, files: Sequence[ImageFile], side: int | None, place: Place) -> Decoded:
    """Decode all files into the array, on all processors where that pays."""
    paths = [os.path.join(root, file.name) for file in files]  # noqa: PTH118 - for so many, plain texts
    # Small enough to show progress, large enough that handing them out costs nothing.
    length = min(CHUNK, max(16, len(paths) // 32))
    chunks = [Chunk(str(scratch), at, paths[at : at + length], side) for at in range(0, len(paths), length)]
    worth_it = len(files) >= WORTH_PROCESSES_FILES or sum(file.size for file in files) >= WORTH_PROCESSES_BYTES
    total, digests, done = Decoded(), [], 0
    try:
        for part, chunk in zip(spread(chunks, available_cores() if worth_it else 1), chunks, strict=True):
            digests.append(part.digests)
            total.oddities += part.oddities
            total.failures |= part.failures
            total.all_grey &= part.all_grey
            done += len(chunk.paths)
            place.watch("decoding images", done, len(paths))
    except OtherSizeError as error:
        raise RequestError(f"images differ in size: {error} (data.image_size): add --image-size 64, say") from None
    except UnreadableFileError as error:
        raise RequestError(f"cannot read an image: {error}: change its permissions or remove it") from None
    except BrokenProcessPool:
        raise ResourceError(f"a decoding process was killed ({root}): there may not be enough memory") from None
    total.digests = b"".join(digests)
    return total


def spread(chunks: list[Chunk], processes: int) -> Iterator[Decoded]:
    """The chunks, decoded, in order."""
    processes = min(processes, len(chunks))
    if processes < 2:
        yield from map(decode_chunk, chunks)
        return
    # A fresh process is safe to start whatever threads this one has.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh, initializer=follow_parent, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(decode_chunk, chunks)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def settle(scratch: Path, target: Path, left_out: list[int], channels: int) -> None:
    """Give the array its name, without the rows that failed and the channels that say nothing."""
    array: Any = np.load(scratch, mmap_mode="r")
    if not left_out and channels == array.shape[-1]:
        syscalls.keep(scratch)
        syscalls.rename(scratch, target)
        return
    kept = np.delete(np.arange(len(array)), left_out)
    with claimed_files([target]) as [(_, smaller)]:
        shape = (len(kept), *array.shape[1:-1], channels)
        out = np.lib.format.open_memmap(smaller, mode="w+", dtype=np.uint8, shape=shape)
        for start in range(0, len(kept), BLOCK_ROWS):
            rows = kept[start : start + BLOCK_ROWS]
            out[start : start + len(rows)] = array[rows][..., :channels]
        out.flush()
        syscalls.keep(smaller)
        syscalls.rename(smaller, target)


def remarks_of(outcome: Decoded, names: dict[int, str]) -> list[str]:
    """What was odd, in words."""
    counts = Counter(outcome.oddities)
    if outcome.all_grey:
        counts.pop("grey", None)
    remarks = [f"{count} {kind} images were converted" for kind, count in sorted(counts.items())]
    remarks += [
        f"left out, cannot be read: {names[row]} ({reason})" for row, reason in sorted(outcome.failures.items())
    ]
    return remarks
