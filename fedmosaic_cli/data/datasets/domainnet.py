"""DomainNet: ten of its 345 classes, as in the paper, in six domains with the official training and test lists.

Peng et al.: Moment Matching for Multi-Source Domain Adaptation, ICCV 2019 (the cleaned version).
Sizes under protocol fedbn: Li et al., FedBN, ICLR 2021.
"""

from __future__ import annotations

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource
from fedmosaic_cli.data.datasets.image_lists import DomainLayout
from fedmosaic_cli.data.io.download import Download

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
CLASSES = tuple("bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split())  # noqa: SIM905
LAYOUT = DomainLayout("domainnet", ("domainnet", "DomainNet", "."), DOMAINS, CLASSES)
BASE_URL = "http://csr.bu.edu/ftp/visda/2019/multi-source"
# Path below BASE_URL, bytes, SHA-256.
ARCHIVES = (
    ("groundtruth/clipart.zip", 1_270_909_081, "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d"),
    ("infograph.zip", 4_338_659_804, "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa"),
    ("groundtruth/painting.zip", 3_679_366_174, "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015"),
    ("quickdraw.zip", 459_920_701, "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84"),
    ("real.zip", 6_062_039_589, "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63"),
    ("sketch.zip", 2_633_992_926, "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc"),
)
LIST_FILES = (
    ("clipart_train.txt", 1_443_819, "affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312"),
    ("clipart_test.txt", 628_917, "62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b"),
    ("infograph_train.txt", 1_683_098, "36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda"),
    ("infograph_test.txt", 728_028, "413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136"),
    ("painting_train.txt", 2_241_901, "f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b"),
    ("painting_test.txt", 971_888, "11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97"),
    ("quickdraw_train.txt", 5_164_600, "3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f"),
    ("quickdraw_test.txt", 2_213_400, "2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf"),
    ("real_train.txt", 4_440_944, "19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289"),
    ("real_test.txt", 1_911_327, "2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c"),
    ("sketch_train.txt", 1_960_222, "72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f"),
    ("sketch_test.txt", 850_581, "3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840"),
)


def domain_archive(path: str, size_bytes: int, sha256: str) -> Download:
    """Return the archive of a domain, of which ten classes are extracted."""
    domain = path.rpartition("/")[2].removesuffix(".zip")
    members = tuple(f"{domain}/{name}" for name in CLASSES)
    return Download(f"{BASE_URL}/{path}", "domainnet", size_bytes, sha256, members)


SOURCE = DatasetSource(
    description="ten classes of DomainNet in 6 domains",
    find=LAYOUT.find,
    load=LAYOUT.load,
    setup_hint="'fedmosaic fetch domainnet' downloads it (18 GB), or put <domain>/<class>/*.jpg and "
    "<domain>_{train,test}.txt into domainnet below the data directory",
    default_public_size=300,
    domains=DOMAINS,
    info=DatasetInfo(num_classes=10, num_channels=3, image_size=None),
    is_resizable=True,
    default_image_size=256,
    fedbn_fractions=(0.05, 0.05),
    downloads=(
        *(Download(f"{BASE_URL}/domainnet/txt/{name}", "domainnet", size, sha256) for name, size, sha256 in LIST_FILES),
        *(domain_archive(*archive) for archive in ARCHIVES),
    ),
)
