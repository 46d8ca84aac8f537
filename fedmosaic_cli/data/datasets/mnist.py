"""MNIST: 70,000 grey images of handwritten digits in four idx files.

LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE, 1998.
Fashion-MNIST has files of the same names, so they are searched only in directories that are named after MNIST.
"""

from __future__ import annotations

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource
from fedmosaic_cli.data.datasets.idx_layout import IdxLayout
from fedmosaic_cli.data.io.download import Download

TORCHVISION_DIR = "MNIST/raw"
LAYOUT = IdxLayout("mnist", (TORCHVISION_DIR, "mnist"), tuple(str(digit) for digit in range(10)))
MIRROR_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
# Name, bytes, SHA-256, as in TensorFlow Datasets (url_checksums/mnist.txt); the checksums also in torchvision
# (prototype/datasets/_builtin/mnist.py), which names this mirror.
ARCHIVES = (
    ("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
SOURCE = DatasetSource(
    description="70,000 handwritten digits, 28x28",
    find=LAYOUT.find,
    load=LAYOUT.load,
    setup_hint=f"'fedmosaic fetch mnist' downloads it, or put its four idx files into {TORCHVISION_DIR} below the data "
    "directory",
    default_public_size=2250,
    info=DatasetInfo(num_classes=10, num_channels=1, image_size=28, num_train=60_000, num_test=10_000),
    downloads=tuple(Download(f"{MIRROR_URL}/{name}", TORCHVISION_DIR, size, sha256) for name, size, sha256 in ARCHIVES),
)
