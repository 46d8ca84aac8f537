"""The paper's tables: which settings are their columns, which methods their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.captions import caption_of, notes_of
from fedmosaic_cli.report.commands import commands_for
from fedmosaic_cli.report.published import published, published_domains
from fedmosaic_cli.report.table import Column, Table, rows_of

if TYPE_CHECKING:
    from fedmosaic_cli.report.settings import Key, Setting

DATASETS = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "office10": "Office-10",
    "domainnet": "DomainNet",
}
SCHEMES = {"pathological": "Pathological non-IID", "dirichlet": "Practical non-IID", "iid": "IID"}
# The heading and the label of what the paper has a column for.
PAPER = {
    "pathological-fashion-mnist": ("Pathological non-IID", "Fashion-MNIST"),
    "pathological-cifar10": ("Pathological non-IID", "CIFAR-10"),
    "practical-fashion-mnist": ("Practical non-IID", "Fashion-MNIST"),
    "practical-cifar10": ("Practical non-IID", "CIFAR-10"),
    "feature-shift-office10": ("Office-10", ""),
    "feature-shift-domainnet": ("DomainNet", ""),
    "hybrid-domainnet": ("", "DomainNet"),
    "hybrid-domainnet-vit": ("", "DomainNet (ViT)"),
    "hybrid-office10": ("", "Office-10"),
}

FEDMOSAIC_W, FEDMOSAIC_U = ("fedmosaic", "frequency"), ("fedmosaic", "entropy")
EVERYBODY: tuple[Key, ...] = tuple((name, "") for name in METHODS if name != "fedmosaic")
FEW = ("centralized", "fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "fedphp", "local")


@dataclass(frozen=True)
class Form:
    """One of the paper's tables: what stands above it, the presets of its columns, whose runs fit in beside them, and
    its rows. With `only`, nothing but these rows."""

    title: str
    presets: tuple[str, ...]
    schemes: tuple[str, ...]
    rows: tuple[Key, ...]
    by_domain: bool = False
    only: bool = False


FORMS = {
    "label-skew": Form(
        "label skew",
        ("pathological-fashion-mnist", "pathological-cifar10", "practical-fashion-mnist", "practical-cifar10"),
        ("pathological", "dirichlet", "iid"),
        (*EVERYBODY, FEDMOSAIC_W),
    ),
    "feature-shift": Form(
        "feature shift, by domain",
        ("feature-shift-office10", "feature-shift-domainnet"),
        ("domain",),
        (*EVERYBODY, FEDMOSAIC_U),
        by_domain=True,
    ),
    "hybrid": Form(
        "label skew and feature shift at once",
        ("hybrid-domainnet", "hybrid-domainnet-vit", "hybrid-office10"),
        ("hybrid",),
        (*EVERYBODY, FEDMOSAIC_W, FEDMOSAIC_U),
    ),
    "compact": Form(
        "label skew and feature shift at once, in brief",
        ("hybrid-domainnet", "hybrid-office10"),
        ("hybrid",),
        (*((name, "") for name in FEW), FEDMOSAIC_W),
        only=True,
    ),
}
