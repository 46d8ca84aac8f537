"""The handwritten digits that ship with scikit-learn: real images (UCI ML, E. Alpaydin and C. Kaynak), no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import Facts, Source, Wanted
from fedmosaic_cli.errors import ResourceError

BRIGHTEST = 16
SIDE = 8
EMBEDDED = Path("embedded")


def load_digits() -> Dataset:
    """1,797 grey images of 8x8 pixels in 10 classes."""
    table = np.loadtxt(bundled_file(), delimiter=",", dtype=np.int64)
    pixels = np.rint(table[:, :-1] * (255 / BRIGHTEST)).astype(np.uint8)
    return Dataset(
        name="digits",
        images=pixels.reshape(-1, SIDE, SIDE, 1),
        labels=np.ascontiguousarray(table[:, -1]),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def bundled_file() -> Path:
    """Where scikit-learn keeps them: to load the library for one of its files takes longer than to read the file."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ResourceError("no digits without scikit-learn (sklearn): install it again")
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def embedded(data_dir: Path) -> Path:
    """Wherever the data directory is, this data is there."""
    return EMBEDDED


def load(path: Path, wanted: Wanted) -> Dataset:
    return load_digits()


SOURCE = Source(
    about="1,797 handwritten digits, 8x8",
    find=embedded,
    load=load,
    how_to_get="it is embedded",
    public_size=300,
    facts=Facts(classes=10, channels=1, side=8, train=1797),
)
