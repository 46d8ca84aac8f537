"""Where examples come from. One file a data set; SOURCES is the table of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.data.sources.digits import load_digits
from fedmosaic_cli.data.sources.digits_domains import DOMAINS, load_digits_domains
from fedmosaic_cli.errors import unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedmosaic_cli.data.dataset import Dataset


@dataclass(frozen=True)
class Source:
    """`public_size` is the size of the public set when nobody asks for another."""

    load: Callable[[], Dataset]
    about: str
    public_size: int
    domains: tuple[str, ...] = ()


SOURCES = {
    "digits": Source(load_digits, "1,797 handwritten digits, 8x8 (embedded)", public_size=300),
    "digits-domains": Source(
        load_digits_domains,
        "the same digits, each seen in one of five synthetic domains (embedded)",
        public_size=300,
        domains=tuple(DOMAINS),
    ),
}


def find_source(name: str) -> Source:
    """The source called `name`."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES, "data.dataset", "'fedmosaic doctor' lists them")
    return SOURCES[name]
