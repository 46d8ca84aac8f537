"""EMNIST: handwritten digits and letters, 28x28, in six splits, each a separate data set.

Cohen, Afshar, Tapson, van Schaik: EMNIST: an Extension of MNIST to Handwritten Letters, IJCNN 2017. The files store
images column by column; they are turned upright here. Labels of `letters` start at 1 in the files.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource
from fedmosaic_cli.data.datasets.idx_layout import IdxLayout
from fedmosaic_cli.data.io.download import Download

TORCHVISION_DIR = "EMNIST/raw"
ARCHIVE_DIR = "gzip"
# Lower-case letters that remain a separate class where similar upper- and lower-case letters are merged.
UNMERGED_LETTERS = "abdefghnqrt"
ALL_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
MERGED_CLASSES = tuple(string.digits + string.ascii_uppercase + UNMERGED_LETTERS)
DIGIT_CLASSES = tuple(string.digits)


@dataclass(frozen=True)
class Split:
    """The classes and sizes of a split."""

    classes: tuple[str, ...]
    num_train: int
    num_test: int
    description: str
    first_label: int = 0


SPLITS = {
    "balanced": Split(MERGED_CLASSES, 112_800, 18_800, "handwritten digits and letters, equally many per class"),
    "byclass": Split(ALL_CLASSES, 697_932, 116_323, "handwritten digits, upper- and lower-case letters"),
    "bymerge": Split(MERGED_CLASSES, 697_932, 116_323, "handwritten digits and letters, similar cases merged"),
    "digits": Split(DIGIT_CLASSES, 240_000, 40_000, "handwritten digits, equally many per class"),
    "letters": Split(tuple(string.ascii_lowercase), 124_800, 20_800, "handwritten letters, cases merged", 1),
    "mnist": Split(DIGIT_CLASSES, 60_000, 10_000, "handwritten digits, as many as MNIST has"),
}
# Size and SHA-256 as in TensorFlow Datasets (url_checksums/emnist.txt). torchvision (datasets/mnist.py) names this
# address with the MD5 58c8d27c78d21e728a6bc7b3cc06412e. The archive holds all splits.
ARCHIVE = Download(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    TORCHVISION_DIR,
    561_753_746,
    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
    extracted_directories=(ARCHIVE_DIR,),
)


def emnist_source(name: str, split: Split) -> DatasetSource:
    """Return the source of a split, e.g. `balanced`."""
    layout = IdxLayout(
        name=f"emnist-{name}",
        directories=(TORCHVISION_DIR, f"{TORCHVISION_DIR}/{ARCHIVE_DIR}", "emnist", ARCHIVE_DIR, "."),
        class_names=split.classes,
        files=tuple(
            (f"emnist-{name}-{part}-images-idx3-ubyte", f"emnist-{name}-{part}-labels-idx1-ubyte")
            for part in ("train", "test")
        ),
        first_label=split.first_label,
        is_transposed=True,
    )
    return DatasetSource(
        description=f"{split.num_train + split.num_test:,} {split.description}, 28x28",
        find=layout.find,
        load=layout.load,
        setup_hint=f"'fedmosaic fetch emnist-{name}' downloads all splits (562 MB), or put emnist-{name}-*-ubyte.gz "
        f"into {TORCHVISION_DIR} below the data directory",
        default_public_size=3000,
        info=DatasetInfo(len(split.classes), 1, image_size=28, num_train=split.num_train, num_test=split.num_test),
        downloads=(ARCHIVE,),
    )


SOURCES = {f"emnist-{name}": emnist_source(name, split) for name, split in SPLITS.items()}
