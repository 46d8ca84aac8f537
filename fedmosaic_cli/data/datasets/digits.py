"""The handwritten digits that ship with scikit-learn: real images (UCI ML, E. Alpaydin and C. Kaynak), no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.errors import ResourceError

MAX_PIXEL_VALUE = 16
IMAGE_SIZE = 8
EMBEDDED_PATH = Path("embedded")


def load_digits() -> Dataset:
    """1,797 grey images of 8x8 pixels in 10 classes."""
    table = np.loadtxt(digits_csv_path(), delimiter=",", dtype=np.int64)
    pixels = np.rint(table[:, :-1] * (255 / MAX_PIXEL_VALUE)).astype(np.uint8)
    return Dataset(
        name="digits",
        images=pixels.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 1),
        labels=np.ascontiguousarray(table[:, -1]),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def digits_csv_path() -> Path:
    """Where scikit-learn keeps them: to load the library for one of its files takes longer than to read the file."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ResourceError("no digits without scikit-learn (sklearn): install it again")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def find_embedded(data_dir: Path) -> Path:
    """Wherever the data directory is, this data is there."""
    return EMBEDDED_PATH


def load_digits_dataset(path: Path, options: LoadOptions) -> Dataset:
    return load_digits()


SOURCE = DatasetSource(
    description="1,797 handwritten digits, 8x8",
    find=find_embedded,
    load=load_digits_dataset,
    setup_hint="it is embedded",
    default_public_size=300,
    info=DatasetInfo(num_classes=10, num_channels=1, image_size=8, num_train=1797),
)
