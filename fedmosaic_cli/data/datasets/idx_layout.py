"""Data sets stored as four idx files: images and labels of a training and a test split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.io.idx_files import find_idx_file, read_idx
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.datasets.dataset_source import LoadOptions

# Images and labels of the training and the test split, as MNIST names them.
MNIST_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


@dataclass(frozen=True)
class IdxLayout:
    """Files and classes of a data set.

    Attributes:
        name: Name of the data set.
        directories: Where its files may be, below a data directory, in the order of the search.
        class_names: Names of the classes in the order of their labels.
        files: Names of images and labels, of the training and of the test split.
        first_label: Label of the first class in the files.
        is_transposed: Whether the files store images column by column.
    """

    name: str
    directories: tuple[str, ...]
    class_names: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = MNIST_FILES
    first_label: int = 0
    is_transposed: bool = False

    def find(self, data_dir: Path, *other_directories: Path) -> Path | None:
        """Return the first directory with all files."""
        folders = (*(data_dir / directory for directory in self.directories), *other_directories)
        return next((folder for folder in folders if self._is_complete(folder)), None)

    def load(self, path: Path, options: LoadOptions) -> Dataset:
        """Load the training split, followed by the test split.

        Raises:
            RequestError: A file is damaged, or images and labels do not match.
        """
        parts = [self._read_split(path, *names) for names in self.files]
        if len({images.shape[1:] for images, _ in parts}) > 1:
            raise RequestError(f"the images of both splits differ in shape ({path}): download them again")
        sizes = [len(labels) for _, labels in parts]
        pixels = np.empty((sum(sizes), *parts[0][0].shape[1:], 1), dtype=np.uint8)
        pixels[: sizes[0], ..., 0], pixels[sizes[0] :, ..., 0] = (images for images, _ in parts)
        return Dataset(
            name=self.name,
            images=pixels,
            labels=np.concatenate([labels for _, labels in parts]),
            class_names=self.class_names,
            test_mask=np.repeat([False, True], sizes),
        )

    def _is_complete(self, folder: Path) -> bool:
        return all(find_idx_file(folder, name) for names in self.files for name in names)

    def _read_split(
        self, folder: Path, images_name: str, labels_name: str
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Read images [examples, height, width] and the class numbers of a split."""
        images, values = (read_idx(find_idx_file(folder, name) or folder / name) for name in (images_name, labels_name))
        if images.ndim != 3 or values.shape != images.shape[:1]:
            raise RequestError(
                f"images {images.shape} and labels {values.shape} do not match ({folder / images_name}): "
                "download them again"
            )
        labels = values.astype(np.int64) - self.first_label
        last_label = self.first_label + len(self.class_names) - 1
        if not np.isin(labels, range(len(self.class_names))).all():
            raise RequestError(
                f"labels from {values.min()} to {values.max()}, not {self.first_label} to {last_label} "
                f"({folder / labels_name}): download the file again"
            )
        return images.transpose(0, 2, 1) if self.is_transposed else images, labels
