"""The handwritten digits that ship with scikit-learn: real images (UCI ML, E. Alpaydin and C. Kaynak), no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.sources.source import Facts, Source, Wanted

BRIGHTEST = 16
EMBEDDED = Path("embedded")


def load_digits() -> Dataset:
    """1,797 grey images of 8x8 pixels in 10 classes."""
    from sklearn.datasets import load_digits as load_bundled

    bundled = load_bundled()
    pixels = np.rint(bundled.images * (255 / BRIGHTEST)).astype(np.uint8)
    return Dataset(
        name="digits",
        images=pixels[..., None],
        labels=bundled.target.astype(np.int64),
        class_names=tuple(str(name) for name in bundled.target_names),
    )


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
