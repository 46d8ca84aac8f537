"""The numbers that the paper prints, to be laid beside ours."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmosaic_cli.report.comparison import Key


@dataclass(frozen=True)
class Published:
    """A mean and a standard deviation of the paper, as fractions. It does not say which standard deviation."""

    mean: float
    std: float


@lru_cache
def published() -> dict[tuple[str, str, str], Published]:
    """All of them, by preset, domain ("" where the column is a whole data set) and variant of a method.

    Under feature shift the paper does not say which expertise FedMosaic used; the numbers stand with `entropy`, which
    our presets use there.
    """
    text = (files("fedmosaic_cli.report") / "paper_results.csv").read_text(encoding="utf-8")
    return {
        (line["preset"], line["domain"], line["variant"]): Published(
            float(line["mean"]) / 100, float(line["std"]) / 100
        )
        for line in csv.DictReader(text.splitlines())
    }


QUICK = "-quick"


def stands_for(preset: str) -> str:
    """The preset whose numbers belong beside a setting's: a quick one stands in for that of the paper's own scale."""
    return preset.removesuffix(QUICK)


def published_of(preset: str, domain: str, key: Key) -> Published | None:
    """What the paper has for a row of ours; nothing for hyper-parameters that are not its own."""
    return published().get((preset, domain, "-".join(filter(None, key))))


def published_domains(preset: str) -> list[str]:
    """The domains that the paper has a column each for, in its order."""
    return list(dict.fromkeys(domain for name, domain, _ in published() if name == preset and domain))
