"""Office-Caltech10: ten things of an office in four domains, with FedBN's lists where they are there.

Gong, Shi, Sha, Grauman: Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
Lists and sizes: Li et al., FedBN, ICLR 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.dataset_source import Facts, Source, Wanted
from fedmosaic_cli.data.datasets.image_lists import Catalogue, find_domains, load_domains

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
CATALOGUE = Catalogue("office10", DOMAINS, CLASSES, {"backpack": "back_pack", "laptop": "laptop_computer"})


def find(data_dir: Path) -> Path | None:
    folders = (data_dir / "office10", data_dir / "office_caltech_10", data_dir / "office", data_dir)
    return find_domains(folders, DOMAINS)


def load(path: Path, wanted: Wanted) -> Dataset:
    return load_domains(CATALOGUE, path, wanted)


SOURCE = Source(
    about="2,533 photographs of office things in 4 domains",
    find=find,
    load=load,
    how_to_get="put FedBN's office_caltech_10 (github.com/med-air/FedBN) into the data directory: "
    "<domain>/<class>/*.jpg and the lists <domain>_{train,test}.pkl",
    public_size=80,
    domains=DOMAINS,
    facts=Facts(classes=10, channels=3, side=None),
    resizable=True,
    image_size=256,
    fedbn=(0.5, 0.4),
)
