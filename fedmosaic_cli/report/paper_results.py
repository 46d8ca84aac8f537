"""The results that the paper publishes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmosaic_cli.report.comparison import MethodKey

QUICK_SUFFIX = "-quick"


@dataclass(frozen=True)
class PublishedResult:
    """A mean and a standard deviation, as fractions. The paper does not state the kind of standard deviation."""

    mean: float
    std: float


@lru_cache
def load_published_results() -> dict[tuple[str, str, str], PublishedResult]:
    """Load all results by preset, domain ("" for a whole data set) and method variant.

    For feature shift the paper does not state FedMosaic's expertise; its results are filed under `entropy`, as in the
    presets.
    """
    text = (files("fedmosaic_cli.report") / "paper_results.csv").read_text(encoding="utf-8")
    return {
        (row["preset"], row["domain"], row["variant"]): PublishedResult(
            float(row["mean"]) / 100, float(row["std"]) / 100
        )
        for row in csv.DictReader(text.splitlines())
    }


def full_scale_preset(preset: str) -> str:
    """Return the full-scale preset that a quick preset stands for."""
    return preset.removesuffix(QUICK_SUFFIX)


def published_result(preset: str, domain: str, key: MethodKey) -> PublishedResult | None:
    """Return the published result of a table row; None for other hyper-parameters than the paper's."""
    return load_published_results().get((preset, domain, "-".join(filter(None, key))))


def published_domains(preset: str) -> list[str]:
    """Return the domains with a column in the paper, in its order."""
    return list(dict.fromkeys(domain for name, domain, _ in load_published_results() if name == preset and domain))
