"""Office-Caltech10: ten things of an office in four domains, with FedBN's lists where they are there.

Gong, Shi, Sha, Grauman: Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
Lists and sizes: Li et al., FedBN, ICLR 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.data.datasets.image_lists import DomainLayout, find_domain_root, load_domain_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
LAYOUT = DomainLayout("office10", DOMAINS, CLASSES, {"backpack": "back_pack", "laptop": "laptop_computer"})


def find_office10(data_dir: Path) -> Path | None:
    folders = (data_dir / "office10", data_dir / "office_caltech_10", data_dir / "office", data_dir)
    return find_domain_root(folders, DOMAINS)


def load_office10(path: Path, options: LoadOptions) -> Dataset:
    return load_domain_dataset(LAYOUT, path, options)


SOURCE = DatasetSource(
    description="2,533 photographs of office things in 4 domains",
    find=find_office10,
    load=load_office10,
    setup_hint="put FedBN's office_caltech_10 (github.com/med-air/FedBN) into the data directory: "
    "<domain>/<class>/*.jpg and the lists <domain>_{train,test}.pkl",
    default_public_size=80,
    domains=DOMAINS,
    info=DatasetInfo(num_classes=10, num_channels=3, image_size=None),
    is_resizable=True,
    default_image_size=256,
    fedbn_fractions=(0.5, 0.4),
)
