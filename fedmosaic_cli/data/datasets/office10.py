"""Office-Caltech10: ten object classes in four domains, with FedBN's lists if available.

Gong, Shi, Sha, Grauman: Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012.
Lists and sizes: Li et al., FedBN, ICLR 2021.
"""

from __future__ import annotations

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource
from fedmosaic_cli.data.datasets.image_lists import DomainLayout

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
CLASSES = tuple(
    "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector".split()  # noqa: SIM905
)
LAYOUT = DomainLayout(
    name="office10",
    directories=("office10", "office_caltech_10", "office", "."),
    domains=DOMAINS,
    classes=CLASSES,
    aliases={"backpack": "back_pack", "laptop": "laptop_computer"},
)
SOURCE = DatasetSource(
    description="2,533 photographs of office things in 4 domains",
    find=LAYOUT.find,
    load=LAYOUT.load,
    setup_hint="put FedBN's office_caltech_10 (github.com/med-air/FedBN) into the data directory: "
    "<domain>/<class>/*.jpg and the lists <domain>_{train,test}.pkl",
    default_public_size=80,
    domains=DOMAINS,
    info=DatasetInfo(num_classes=10, num_channels=3, image_size=None),
    is_resizable=True,
    default_image_size=256,
    fedbn_fractions=(0.5, 0.4),
)
