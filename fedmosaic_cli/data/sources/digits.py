"""The handwritten digits that ship with scikit-learn: real images (UCI ML, E. Alpaydin and C. Kaynak), no download."""

from __future__ import annotations

import numpy as np

from fedmosaic_cli.data.dataset import Dataset

BRIGHTEST = 16


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
