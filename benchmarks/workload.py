"""The common task of the benchmarks: random images in the shape of CIFAR-10, split between clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Index = NDArray[np.int64]

CLASSES = 10
LR = 0.005
NEVER = 1_000_000
"""An interval between evaluations that no run reaches."""


@dataclass(frozen=True)
class Sizes:
    """Number of images, clients, images per client, and public images."""

    images: int = 60_000
    clients: int = 15
    train: int = 3_000
    test: int = 1_000
    public: int = 3_000


@dataclass(frozen=True)
class Plan:
    """Sizes of the measurements. Slow parts run `few` clients, or one, and give their figures per client."""

    repetitions: int = 5
    quick: bool = False
    sizes: Sizes = Sizes()
    batches: tuple[int, ...] = (10, 64)
    few: int = 2
    tiny_rounds: int = 20
    client_counts: tuple[int, ...] = (15, 100, 1000)
    public_sizes: tuple[int, ...] = (250, 1_000, 3_000, 10_000)
    many: int = 1_000
    report_runs: int = 2_000
    report_rounds: int = 200
    report_clients: int = 30
    peer_clients: int = 5
    peer_rounds: int = 3
    peer_repetitions: int = 2
    pfllib_client_counts: tuple[int, ...] = (2, 4, 15)
    pfllib_detailed_clients: int = 4
    pfllib_eval_every: int = 5
    pfllib_repetitions: int = 3
    peer_pythons: Mapping[str, str] = field(default_factory=dict)
    """The Python that a tool is installed in, by the name of the tool."""
    peer_checkouts: Mapping[str, str] = field(default_factory=dict)
    """The directory of the source of a tool, by the name of the tool."""


# A client has a full batch of the largest size, because PFLlib drops incomplete batches.
QUICK_SIZES = Sizes(images=1_200, train=64, test=16, public=60)
QUICK = Plan(
    repetitions=2,
    quick=True,
    sizes=QUICK_SIZES,
    tiny_rounds=2,
    client_counts=(15, 30),
    public_sizes=(20, 60),
    many=50,
    report_runs=40,
    report_rounds=5,
    report_clients=6,
    peer_repetitions=1,
    pfllib_client_counts=(2, 3),
    pfllib_detailed_clients=3,
    pfllib_repetitions=1,
)


@dataclass(frozen=True)
class Share:
    """The examples of one client, as sorted indices."""

    train: Index
    test: Index


@dataclass(frozen=True)
class Task:
    """Images [examples, height, width, channels], and the disjoint shares of the clients and the public set."""

    images: NDArray[np.uint8]
    labels: Index
    shares: tuple[Share, ...]
    public: Index


@dataclass(frozen=True)
class Job:
    """The rounds that the process of a tool runs, passed to it as JSON.

    Attributes:
        directory: The stored task.
        clients: Number of clients.
        train: Training images per client.
        test: Test images per client.
        batch: Batch size.
        rounds: Number of rounds.
        workers: Worker threads of fedmosaic.
        eval_every: Rounds between two evaluations, for fedmosaic and PFLlib.
        like_pfllib: Let fedmosaic compute the numbers that PFLlib reports.
        cache_images: Let PFLlib read the files of a client once instead of in every pass.
        checkout: The source of a tool that is not an installed package.
    """

    directory: str
    clients: int
    train: int
    test: int
    batch: int
    rounds: int
    workers: int = 1
    eval_every: int = 1
    like_pfllib: bool = False
    cache_images: bool = False
    checkout: str = ""


def make_images(count: int, side: int = 32, channels: int = 3) -> tuple[NDArray[np.uint8], Index]:
    """Return random images whose brightness depends on the class; the same ones at every call."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    images = rng.integers(0, 176, (count, side, side, channels), dtype=np.uint8)
    images += (8 * labels).astype(np.uint8)[:, None, None, None]
    return images, labels


def split_task(
    data: tuple[NDArray[np.uint8], Index], clients: int, train: int, test: int, public: int = 0, classes: int = CLASSES
) -> Task:
    """Split the data at random: `train` and `test` examples per client, and `public` examples."""
    images, labels = data
    order = np.random.default_rng(1).permutation(len(labels))
    if (wanted := clients * (train + test) + public) > len(order):
        raise ValueError(f"{wanted} examples are requested, there are {len(order)}: request fewer")
    held = order[public:wanted].reshape(clients, train + test)
    shares = tuple(Share(np.sort(row[:train]), np.sort(row[train:])) for row in held)
    return Task(images, labels % classes, shares, np.sort(order[:public]))


def cifar_task(sizes: Sizes, clients: int | None = None, public: int | None = None) -> Task:
    """Return the usual task; `clients` and `public` override the number of clients and public images."""
    return split_task(
        make_images(sizes.images),
        clients or sizes.clients,
        sizes.train,
        sizes.test,
        sizes.public if public is None else public,
    )


def store(task: Task, directory: Path) -> None:
    """Write the examples for the processes of other tools."""
    np.save(directory / "images.npy", task.images)
    np.save(directory / "labels.npy", task.labels)


def stored_task(job: Job) -> Task:
    """Read the task of a job."""
    directory = Path(job.directory)
    data = np.load(directory / "images.npy", mmap_mode="r"), np.load(directory / "labels.npy")
    return split_task(data, job.clients, job.train, job.test)
