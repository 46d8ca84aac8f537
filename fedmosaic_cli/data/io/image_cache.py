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
    DECODER_VERSION,
    DecodeResult,
    DecodeTask,
    ImageSizeMismatchError,
    UnreadableFileError,
    decode_image,
    exit_with_parent,
    run_decode_task,
)
from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.machine import num_available_cores
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    locked_temporaries,
    make_directories,
    remove_path,
    remove_stale_temporaries,
    to_json_bytes,
    write_atomic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.io.image_folders import ImageFile

MAX_FILES_PER_TASK = 256
# Below this, starting processes takes longer than decoding.
MIN_BYTES_FOR_PROCESSES = 8_000_000
MIN_FILES_FOR_PROCESSES = 2_000
COPY_BLOCK_ROWS = 4_096
NUM_CHECKED_ROWS = 256


@dataclass(frozen=True)
class DecodedImages:
    """`images` are the files at the positions `kept`; `content` stands for all that they were decoded from."""

    images: NDArray[np.uint8]
    kept_positions: NDArray[np.int64]
    content_digest: str
    warnings: tuple[str, ...]


def load_images(root: Path, files: Sequence[ImageFile], image_size: int | None, data_dirs: DataDirs) -> DecodedImages:
    """The images of `files`, from the cache or decoded now."""
    folder = data_dirs.cache_dir / "images"
    seen = folder / f"seen-{file_list_key(root, files, image_size)}.json"
    return read_cache_entry(seen) or decode_and_cache(root, files, image_size, folder, seen, data_dirs)


def file_list_key(root: Path, files: Sequence[ImageFile], image_size: int | None) -> str:
    """Stands for a list of files as they lie on disk."""
    lines = [
        f"{DECODER_VERSION} {image_size} {root.resolve()}",
        *(f"{f.relative_path}\0{f.size_bytes}\0{f.mtime_ns}" for f in files),
    ]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:32]


def read_cache_entry(entry_path: Path) -> DecodedImages | None:
    """What was decoded before, if all of it is still there."""
    try:
        note = json.loads(entry_path.read_bytes())
        images = np.load(entry_path.with_name(f"{note['content']}.npy"), mmap_mode="c", allow_pickle=False)
        kept = np.delete(np.arange(note["files"]), note["left_out"])
        if images.dtype != np.uint8 or len(images) != len(kept) or spot_check_digest(images) != note["sample"]:
            return None
        return DecodedImages(images, kept, note["content"], tuple(note["remarks"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError):
        return None


def spot_check_digest(images: NDArray[np.uint8]) -> str:
    """Stands for the pixels of some rows from all over the array: enough to notice a disk that kept nothing."""
    rows = np.linspace(0, len(images) - 1, min(len(images), NUM_CHECKED_ROWS)).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(images[rows]).data).hexdigest()[:32]


def decode_and_cache(
    root: Path, files: Sequence[ImageFile], image_size: int | None, folder: Path, entry_path: Path, data_dirs: DataDirs
) -> DecodedImages:
    """Decode everything and remember it."""
    shape = (len(files), *decoded_image_shape(root, files, image_size))
    try:
        make_directories(folder)
        remove_stale_temporaries(folder)
        with temporary_array(folder / f"{entry_path.stem}.npy", shape) as scratch:
            outcome = decode_into_array(scratch, root, files, image_size, data_dirs)
            left_out = sorted(outcome.failures)
            about = repr((DECODER_VERSION, image_size, outcome.all_grey, left_out)).encode()
            content = hashlib.sha256(about + outcome.digests).hexdigest()[:40]
            if len(left_out) == len(files):
                raise RequestError(
                    f"none of {len(files)} images can be read ({root}): the first is {files[0].relative_path}"
                )
            finalize_array(scratch, folder / f"{content}.npy", left_out, num_channels=1 if outcome.all_grey else 3)
    except OSError as error:
        raise ResourceError(
            f"cannot write the image cache: {error.strerror or error} ({folder}): make room, or set FEDMOSAIC_CACHE"
        ) from None
    names = {row: files[row].relative_path for row in left_out}
    note = {
        "files": len(files),
        "left_out": left_out,
        "content": content,
        "sample": spot_check_digest(np.load(folder / f"{content}.npy", mmap_mode="r")),
        "remarks": decoding_warnings(outcome, names),
    }
    write_atomic(entry_path, to_json_bytes(note))
    found = read_cache_entry(entry_path)
    if found is None:
        raise ResourceError(f"the image cache does not keep what is written to it ({folder}): set FEDMOSAIC_CACHE")
    return found


def decoded_image_shape(root: Path, files: Sequence[ImageFile], image_size: int | None) -> tuple[int, int, int]:
    """The shape of a decoded image: as asked for, or that of the first one that can be read."""
    if not files:
        raise RequestError(f"no images here ({root}): put them into a directory a class")
    if image_size is not None:
        return image_size, image_size, 3
    for file in files:
        try:
            height, width, channels = decode_image((root / file.relative_path).read_bytes(), None, DecodeResult()).shape
        except Exception:  # named later, with the other unreadable ones
            continue
        return height, width, channels
    raise RequestError(f"none of {len(files)} images can be read ({root}): the first is {files[0].relative_path}")


@contextmanager
def temporary_array(path: Path, shape: tuple[int, ...]) -> Iterator[Path]:
    """A file that holds an array of this shape, gone afterwards if nobody moved it away."""
    need, free = int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if need > free:
        raise ResourceError(
            f"decoded images need {need / 1e9:.2f} GB and there are {free / 1e9:.2f} GB free ({path.parent}): "
            "make room, set FEDMOSAIC_CACHE, or choose a smaller --image-size"
        )
    with locked_temporaries([path]) as [(handle, scratch)]:
        try:
            np.lib.format.open_memmap(scratch, mode="w+", dtype=np.uint8, shape=shape)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash in the middle
                os.posix_fallocate(handle, 0, scratch.stat().st_size)
            yield scratch
        finally:
            remove_path(scratch)


def decode_into_array(
    array_path: Path, root: Path, files: Sequence[ImageFile], image_size: int | None, data_dirs: DataDirs
) -> DecodeResult:
    """Decode all files into the array, on all processors where that pays."""
    paths = [os.path.join(root, file.relative_path) for file in files]  # noqa: PTH118 - for so many, plain texts
    # Small enough to show progress, large enough that handing them out costs nothing.
    length = min(MAX_FILES_PER_TASK, max(16, len(paths) // 32))
    chunks = [
        DecodeTask(str(array_path), at, paths[at : at + length], image_size) for at in range(0, len(paths), length)
    ]
    worth_it = (
        len(files) >= MIN_FILES_FOR_PROCESSES or sum(file.size_bytes for file in files) >= MIN_BYTES_FOR_PROCESSES
    )
    total, digests, done = DecodeResult(), [], 0
    try:
        for part, chunk in zip(run_decode_tasks(chunks, num_available_cores() if worth_it else 1), chunks, strict=True):
            digests.append(part.digests)
            total.conversion_counts += part.conversion_counts
            total.failures |= part.failures
            total.all_grey &= part.all_grey
            done += len(chunk.paths)
            data_dirs.on_progress("decoding images", done, len(paths))
    except ImageSizeMismatchError as error:
        raise RequestError(f"images differ in size: {error} (data.image_size): add --image-size 64, say") from None
    except UnreadableFileError as error:
        raise RequestError(f"cannot read an image: {error}: change its permissions or remove it") from None
    except BrokenProcessPool:
        raise ResourceError(f"a decoding process was killed ({root}): there may not be enough memory") from None
    total.digests = b"".join(digests)
    return total


def run_decode_tasks(tasks: list[DecodeTask], num_processes: int) -> Iterator[DecodeResult]:
    """The chunks, decoded, in order."""
    num_processes = min(num_processes, len(tasks))
    if num_processes < 2:
        yield from map(run_decode_task, tasks)
        return
    # A fresh process is safe to start whatever threads this one has.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        num_processes, mp_context=fresh, initializer=exit_with_parent, initargs=(os.getpid(),)
    ) as pool:
        try:
            yield from pool.map(run_decode_task, tasks)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def finalize_array(source: Path, target: Path, failed_rows: list[int], num_channels: int) -> None:
    """Give the array its name, without the rows that failed and the channels that say nothing."""
    array: Any = np.load(source, mmap_mode="r")
    if not failed_rows and num_channels == array.shape[-1]:
        syscalls.fsync(source)
        syscalls.rename(source, target)
        return
    kept = np.delete(np.arange(len(array)), failed_rows)
    with locked_temporaries([target]) as [(_, smaller)]:
        shape = (len(kept), *array.shape[1:-1], num_channels)
        out = np.lib.format.open_memmap(smaller, mode="w+", dtype=np.uint8, shape=shape)
        for start in range(0, len(kept), COPY_BLOCK_ROWS):
            rows = kept[start : start + COPY_BLOCK_ROWS]
            out[start : start + len(rows)] = array[rows][..., :num_channels]
        out.flush()
        syscalls.fsync(smaller)
        syscalls.rename(smaller, target)


def decoding_warnings(result: DecodeResult, names: dict[int, str]) -> list[str]:
    """What was odd, in words."""
    counts = Counter(result.conversion_counts)
    if result.all_grey:
        counts.pop("grey", None)
    remarks = [f"{count} {kind} images were converted" for kind, count in sorted(counts.items())]
    remarks += [f"left out, cannot be read: {names[row]} ({reason})" for row, reason in sorted(result.failures.items())]
    return remarks
