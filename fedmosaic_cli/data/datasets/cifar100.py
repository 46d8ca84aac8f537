"""CIFAR-100: 60,000 colour images with 100 classes (`cifar100`) or their 20 superclasses (`cifar100-coarse`).

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. As the files that torchvision downloads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.cifar_batches import IMAGE_SIZE, load_cifar_batches
from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource
from fedmosaic_cli.data.io.download import Download

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.datasets.dataset_source import LoadOptions

COARSE_NAME = "cifar100-coarse"
FILES_DIR = "cifar-100-python"
TRAIN_FILE, TEST_FILE = "train", "test"
# Both in the order of their labels, which is alphabetical.
FINE_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)
COARSE_CLASSES = tuple(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
    insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
    medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
    """.split()  # noqa: SIM905
)


def find_cifar100(data_dir: Path) -> Path | None:
    """Return the directory of the two files."""
    folders = (data_dir / FILES_DIR, data_dir / "cifar100" / FILES_DIR)
    return next((path for path in folders if all((path / name).is_file() for name in (TRAIN_FILE, TEST_FILE))), None)


def load_cifar100(path: Path, options: LoadOptions) -> Dataset:
    """Load 50,000 training and 10,000 test images with fine labels."""
    return load_cifar_batches("cifar100", [path / TRAIN_FILE], path / TEST_FILE, FINE_CLASSES, b"fine_labels")


def load_cifar100_coarse(path: Path, options: LoadOptions) -> Dataset:
    """Load the same images with coarse labels."""
    return load_cifar_batches(COARSE_NAME, [path / TRAIN_FILE], path / TEST_FILE, COARSE_CLASSES, b"coarse_labels")


SOURCE = DatasetSource(
    description="60,000 photographs of 100 classes, 32x32",
    find=find_cifar100,
    load=load_cifar100,
    setup_hint=f"'fedmosaic fetch cifar100' downloads it, or put {FILES_DIR} into the data directory",
    default_public_size=3000,
    info=DatasetInfo(len(FINE_CLASSES), num_channels=3, image_size=IMAGE_SIZE, num_train=50_000, num_test=10_000),
    downloads=(
        # SHA-256 as in torchvision (prototype/datasets/_builtin/cifar.py) and Keras (datasets/cifar100.py); torchvision
        # (datasets/cifar.py) has the MD5 eb9058c3a382ffc7106e4002c42a8d85. The size is that of Keras' download log.
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "",
            169_001_437,
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            extracted_directories=(FILES_DIR,),
        ),
    ),
)
COARSE_SOURCE = replace(
    SOURCE,
    description="the same photographs with 20 superclasses, 32x32",
    load=load_cifar100_coarse,
    info=DatasetInfo(len(COARSE_CLASSES), num_channels=3, image_size=IMAGE_SIZE, num_train=50_000, num_test=10_000),
)
