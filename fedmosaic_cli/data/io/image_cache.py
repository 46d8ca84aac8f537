"""Cache of decoded images: all processors fill one array on disk, which later runs map into memory.

An array is named by its content: the bytes of the files, their order and the decoding. For each list of files (paths,
sizes, times) an entry names its array, so that a second load reads no image. The cache may be deleted at any time.
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
    """Decoded images of the files at `kept_positions`, with a digest of the file contents."""

    images: NDArray[np.uint8]
    kept_positions: NDArray[np.int64]
    content_digest: str
    warnings: tuple[str, ...]


def load_images(root: Path, files: Sequence[ImageFile], image_size: int | None, data_dirs: DataDirs) -> DecodedImages:
    """Return the images of `files` from the cache, or decode and cache them."""
    folder = data_dirs.cache_dir / "images"
    entry_path = folder / f"seen-{file_list_key(root, files, image_size)}.json"
    return read_cache_entry(entry_path) or decode_and_cache(root, files, image_size, folder, entry_path, data_dirs)


def file_list_key(root: Path, files: Sequence[ImageFile], image_size: int | None) -> str:
    """Return a digest of paths, sizes and modification times."""
    lines = [
        f"{DECODER_VERSION} {image_size} {root.resolve()}",
        *(f"{f.relative_path}\0{f.size_bytes}\0{f.mtime_ns}" for f in files),
    ]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:32]


def read_cache_entry(entry_path: Path) -> DecodedImages | None:
    """Return cached images if the cache is complete."""
    try:
        entry = json.loads(entry_path.read_bytes())
        images = np.load(entry_path.with_name(f"{entry['content']}.npy"), mmap_mode="c", allow_pickle=False)
        kept = np.delete(np.arange(entry["files"]), entry["left_out"])
        if images.dtype != np.uint8 or len(images) != len(kept) or spot_check_digest(images) != entry["sample"]:
            return None
        return DecodedImages(images, kept, entry["content"], tuple(entry["remarks"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError):
        return None


def spot_check_digest(images: NDArray[np.uint8]) -> str:
    """Return a digest of some rows of the array, which detects a disk that lost the content."""
    rows = np.linspace(0, len(images) - 1, min(len(images), NUM_CHECKED_ROWS)).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(images[rows]).data).hexdigest()[:32]


def decode_and_cache(
    root: Path, files: Sequence[ImageFile], image_size: int | None, folder: Path, entry_path: Path, data_dirs: DataDirs
) -> DecodedImages:
    """Decode all files and write the array and its entry to the cache."""
    shape = (len(files), *decoded_image_shape(root, files, image_size))
    try:
        make_directories(folder)
        remove_stale_temporaries(folder)
        with temporary_array(folder / f"{entry_path.stem}.npy", shape) as temporary:
            result = decode_into_array(temporary, root, files, image_size, data_dirs)
            failed = sorted(result.failures)
            if len(failed) == len(files):
                raise no_readable_image_error(root, files)
            decoding = repr((DECODER_VERSION, image_size, result.all_grey, failed)).encode()
            content = hashlib.sha256(decoding + result.digests).hexdigest()[:40]
            finalize_array(temporary, folder / f"{content}.npy", failed, num_channels=1 if result.all_grey else 3)
    except OSError as error:
        raise ResourceError(
            f"cannot write the image cache: {error.strerror or error} ({folder}): free space, or set FEDMOSAIC_CACHE"
        ) from None
    entry = {
        "files": len(files),
        "left_out": failed,
        "content": content,
        "sample": spot_check_digest(np.load(folder / f"{content}.npy", mmap_mode="r")),
        "remarks": decoding_warnings(result, files),
    }
    write_atomic(entry_path, to_json_bytes(entry))
    cached = read_cache_entry(entry_path)
    if cached is None:
        raise ResourceError(f"the image cache loses what was written ({folder}): set FEDMOSAIC_CACHE")
    return cached


def decoded_image_shape(root: Path, files: Sequence[ImageFile], image_size: int | None) -> tuple[int, int, int]:
    """Return the configured shape of a decoded image, or that of the first readable one."""
    if not files:
        raise RequestError(f"no images found ({root}): put them into one directory per class")
    if image_size is not None:
        return image_size, image_size, 3
    for file in files:
        try:
            height, width, channels = decode_image((root / file.relative_path).read_bytes(), None, DecodeResult()).shape
        except Exception:  # reported later with the other unreadable files
            continue
        return height, width, channels
    raise no_readable_image_error(root, files)


def no_readable_image_error(root: Path, files: Sequence[ImageFile]) -> RequestError:
    return RequestError(f"none of {len(files)} images can be read ({root}): the first is {files[0].relative_path}")


@contextmanager
def temporary_array(path: Path, shape: tuple[int, ...]) -> Iterator[Path]:
    """Yield a temporary file with an array of this shape; it is removed afterwards unless renamed."""
    needed, free = int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if needed > free:
        raise ResourceError(
            f"decoded images need {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free ({path.parent}): "
            "free some space, set FEDMOSAIC_CACHE, or choose a smaller --image-size"
        )
    with locked_temporaries([path]) as [(fd, temporary)]:
        try:
            np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            if hasattr(os, "posix_fallocate"):  # a full disk is an error here, and would be a crash later
                os.posix_fallocate(fd, 0, temporary.stat().st_size)
            yield temporary
        finally:
            remove_path(temporary)


def decode_into_array(
    array_path: Path, root: Path, files: Sequence[ImageFile], image_size: int | None, data_dirs: DataDirs
) -> DecodeResult:
    """Decode all files into the array, on all processors if that is faster."""
    paths = [os.path.join(root, file.relative_path) for file in files]  # noqa: PTH118 - strings are faster
    # Small enough to show progress, large enough to make the overhead negligible.
    length = min(MAX_FILES_PER_TASK, max(16, len(paths) // 32))
    starts = range(0, len(paths), length)
    tasks = [DecodeTask(str(array_path), start, paths[start : start + length], image_size) for start in starts]
    num_bytes = sum(file.size_bytes for file in files)
    is_large = len(files) >= MIN_FILES_FOR_PROCESSES or num_bytes >= MIN_BYTES_FOR_PROCESSES
    total, digests, done = DecodeResult(), [], 0
    try:
        for result, task in zip(run_decode_tasks(tasks, num_available_cores() if is_large else 1), tasks, strict=True):
            digests.append(result.digests)
            total.conversion_counts += result.conversion_counts
            total.failures |= result.failures
            total.all_grey &= result.all_grey
            done += len(task.paths)
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
    """Yield the results of the tasks in order."""
    num_processes = min(num_processes, len(tasks))
    if num_processes < 2:
        yield from map(run_decode_task, tasks)
        return
    # Unlike fork, spawn is safe in a process with threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, context, initializer=exit_with_parent, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(run_decode_task, tasks)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def finalize_array(source: Path, target: Path, failed_rows: list[int], num_channels: int) -> None:
    """Rename the array without failed rows and redundant channels."""
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


def decoding_warnings(result: DecodeResult, files: Sequence[ImageFile]) -> list[str]:
    """Describe conversions and failures. The texts are stored in shard manifests and must not change."""
    counts = Counter(result.conversion_counts)
    if result.all_grey:
        counts.pop("grey", None)
    return [
        *(f"{count} {kind} images were converted" for kind, count in sorted(counts.items())),
        *(
            f"left out, cannot be read: {files[row].relative_path} ({reason})"
            for row, reason in sorted(result.failures.items())
        ),
    ]
