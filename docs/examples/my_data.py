"""Data of your own: a function that returns images (uint8) and labels, or a torch data set of pairs.

Try it: fedmosaic train --preset quickstart --dataset docs/examples/my_data.py:my_data
"""

import numpy as np


def my_data():
    """Return 2,000 noisy images of 8x8 pixels, whose brightness depends on their class."""
    labels = np.arange(2000) % 4
    noise = np.random.default_rng(0).integers(0, 60, (2000, 8, 8))
    return (noise + 50 * labels[:, None, None]).astype(np.uint8), labels
