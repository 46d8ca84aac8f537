"""What everybody is measured on: images of noise in the shape of CIFAR-10, dealt to clients. Needs numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]

CLASSES = 10
LR = 0.005


@dataclass(frozen=True)
class Sizes:
    """How much data there is, and how much of it a client holds."""

    images: int = 60_000
    clients: int = 15
    train: int = 3_000
    test: int = 1_000
    public: int = 3_000


@dataclass(frozen=True)
class Plan:
    """How much is measured. Costly parts play `few` clients, or one, and give their figures per client."""

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
    fluke_python: str = ""
    flower_python: str = ""


QUICK_SIZES = Sizes(images=1_200, train=60, test=20, public=60)
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
)


@dataclass(frozen=True)
class Share:
    """What one client holds, as sorted indices."""

    train: Index
    test: Index


@dataclass(frozen=True)
class Task:
    """Images [examples, height, width, channels] and who holds which; all parts are disjoint."""

    images: NDArray[np.uint8]
    labels: Index
    shares: tuple[Share, ...]
    public: Index


@dataclass(frozen=True)
class Job:
    """What a peer is asked to play, handed to its process as JSON."""

    directory: str
    clients: int
    train: int
    test: int
    batch: int
    rounds: int


def make_images(count: int, side: int = 32, channels: int = 3) -> tuple[NDArray[np.uint8], Index]:
    """Noise whose brightness tells the class, the same at every call."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    images = rng.integers(0, 176, (count, side, side, channels), dtype=np.uint8)
    images += (8 * labels).astype(np.uint8)[:, None, None, None]
    return images, labels


def deal(
    data: tuple[NDArray[np.uint8], Index], clients: int, train: int, test: int, public: int = 0, classes: int = CLASSES
) -> Task:
    """So many examples for each client and for the public set, drawn at random."""
    images, labels = data
    order = np.random.default_rng(1).permutation(len(labels))
    if (wanted := clients * (train + test) + public) > len(order):
        raise ValueError(f"{wanted} examples are asked for, there are {len(order)}: deal fewer")
    held = order[public:wanted].reshape(clients, train + test)
    shares = tuple(Share(np.sort(row[:train]), np.sort(row[train:])) for row in held)
    return Task(images, labels % classes, shares, np.sort(order[:public]))


def cifar_task(sizes: Sizes, clients: int | None = None, public: int | None = None) -> Task:
    """The usual task, with fewer clients or another public set if asked."""
    return deal(
        make_images(sizes.images),
        clients or sizes.clients,
        sizes.train,
        sizes.test,
        sizes.public if public is None else public,
    )


def store(task: Task, directory: Path) -> None:
    """Write the examples for a process that is to play the same task."""
    np.save(directory / "images.npy", task.images)
    np.save(directory / "labels.npy", task.labels)


def stored_task(job: Job) -> Task:
    """The task of a job, from its files."""
    directory = Path(job.directory)
    data = np.load(directory / "images.npy", mmap_mode="r"), np.load(directory / "labels.npy")
    return deal(data, job.clients, job.train, job.test)
