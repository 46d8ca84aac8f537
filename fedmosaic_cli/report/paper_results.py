"""The numbers that the paper prints, to be laid beside ours."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmosaic_cli.report.comparison import MethodKey


@dataclass(frozen=True)
class PublishedResult:
    """A mean and a standard deviation of the paper, as fractions. It does not say which standard deviation."""

    mean: float
    std: float


@lru_cache
def load_published_results() -> dict[tuple[str, str, str], PublishedResult]:
    """All of them, by preset, domain ("" where the column is a whole data set) and variant of a method.

    Under feature shift the paper does not say which expertise FedMosaic used; the numbers stand with `entropy`, which
    our presets use there.
    """
    text = (files("fedmosaic_cli.report") / "paper_results.csv").read_text(encoding="utf-8")
    return {
        (line["preset"], line["domain"], line["variant"]): PublishedResult(
            float(line["mean"]) / 100, float(line["std"]) / 100
        )
        for line in csv.DictReader(text.splitlines())
    }


QUICK_SUFFIX = "-quick"


def full_scale_preset(preset: str) -> str:
    """The preset whose numbers belong beside a setting's: a quick one stands in for that of the paper's own scale."""
    return preset.removesuffix(QUICK_SUFFIX)


def published_result(preset: str, domain: str, key: MethodKey) -> PublishedResult | None:
    """What the paper has for a row of ours; nothing for hyper-parameters that are not its own."""
    return load_published_results().get((preset, domain, "-".join(filter(None, key))))


def published_domains(preset: str) -> list[str]:
    """The domains that the paper has a column each for, in its order."""
    return list(dict.fromkeys(domain for name, domain, _ in load_published_results() if name == preset and domain))
