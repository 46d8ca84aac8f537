"""What `fedmosaic reproduce` makes: the settings, at two scales, and the rows of each table and figure of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from fedmosaic_cli.methods import METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Scale(StrEnum):
    quick = "quick"
    paper = "paper"


@dataclass(frozen=True)
class Scenario:
    """A setting: what it is called, the preset it comes from, and what is other than there."""

    name: str
    preset: str
    assignments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A method and the hyper-parameters that a study fixes for it; all others are the preset's."""

    method: str
    hyperparameters: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The row in a few words."""
        words = [value if name == "expertise" else f"{name}={value}" for name, value in self.hyperparameters]
        return " ".join([self.method, *words])

    @property
    def assignments(self) -> tuple[str, ...]:
        return tuple(f"methods.{self.method}.{name}={value}" for name, value in self.hyperparameters)


@dataclass(frozen=True)
class Study:
    """One table or figure. `table` is the paper's that its runs fill, "" where it has none; `figures` are the kinds
    that belong to it; hyper-parameters that are to be `spelled` stand beside a method's name in all settings."""

    line: str
    scenarios: dict[Scale, tuple[Scenario, ...]]
    rows: tuple[Row, ...]
    table: str = ""
    figures: tuple[str, ...] = ("accuracy", "clients", "lambda", "consensus", "critical-difference")
    spelled: tuple[str, ...] = field(default=())

    def rows_of(self, methods: Sequence[str]) -> tuple[Row, ...]:
        """The rows of these methods, Local first: all others are compared with it. Without methods, all rows."""
        chosen = [row for row in self.rows if not methods or row.method in (*methods, "local")]
        return tuple(sorted(chosen, key=lambda row: row.method != "local"))


def plain(*presets: str) -> tuple[Scenario, ...]:
    """Presets as they are."""
    return tuple(Scenario(preset, preset) for preset in presets)


def fedmosaic(**hyperparameters: str) -> Row:
    return Row("fedmosaic", tuple(hyperparameters.items()))


def rows(*methods: str) -> tuple[Row, ...]:
    return tuple(map(Row, methods))


def public_sizes(preset: str, aside: int, sizes: Sequence[int]) -> tuple[Scenario, ...]:
    """Public sets of these sizes, drawn from examples that are set aside: clients hold the same at every size."""
    return tuple(
        Scenario(f"{preset}-public-{size}", preset, (f"data.public_from={aside}", f"data.public_size={size}"))
        for size in sizes
    )


def public_skews(preset: str, aside: int, size: int) -> tuple[Scenario, ...]:
    """Public sets of one size, balanced and more and more skewed: so small a part of what is set aside that one class
    can make up nearly all of them."""
    base = (f"data.public_from={aside}", f"data.public_size={size}")
    return (
        Scenario(f"{preset}-skew-balanced", preset, (*base, "data.public_alpha=null")),
        *(Scenario(f"{preset}-skew-{alpha}", preset, (*base, f"data.public_alpha={alpha}")) for alpha in SKEWS),
    )


SKEWS = ("1", "0.7", "0.5", "0.3", "0.1")
FREQUENCY, ENTROPY = fedmosaic(expertise="frequency"), fedmosaic(expertise="entropy")
ENTROPY_PAPER = fedmosaic(expertise="entropy", trust="paper")
ENTROPY_STABILISED = fedmosaic(expertise="entropy", trust="stabilised")
EVERYBODY = (*rows(*(name for name in METHODS if name not in ("fedmosaic", "gated"))), FREQUENCY, ENTROPY, Row("gated"))
# The rows of the paper's compact table; the report's form of it says the same.
FEW = (
    *rows("centralized", "fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "fedphp", "local"),
    FREQUENCY,
    Row("gated"),
)
ON_THE_PUBLIC_SET = (Row("local"), ENTROPY_STABILISED, ENTROPY_PAPER, Row("gated"))
LABEL_SKEW = ("pathological-fashion-mnist", "pathological-cifar10", "practical-fashion-mnist", "practical-cifar10")
HYBRID_QUICK = plain("hybrid-office10-quick", "quickstart-hybrid")
MISLED = ("data.scheme=iid", "data.clients=5", "data.flip_labels=[0]")

STUDIES = {
    "label-skew": Study(
        "the table on label skew: every method, clients with few classes",
        {
            Scale.quick: plain(*(f"{preset}-quick" for preset in LABEL_SKEW), "quickstart"),
            Scale.paper: plain(*LABEL_SKEW),
        },
        EVERYBODY,
        table="label-skew",
    ),
    "feature-shift": Study(
        "the table on feature shift, a column a domain: every method",
        {
            Scale.quick: plain("feature-shift-office10-quick", "quickstart-feature-shift"),
            Scale.paper: plain("feature-shift-office10", "feature-shift-domainnet"),
        },
        EVERYBODY,
        table="feature-shift",
    ),
    "hybrid": Study(
        "the table on both at once: every method",
        {
            Scale.quick: HYBRID_QUICK,
            Scale.paper: plain("hybrid-office10", "hybrid-domainnet", "hybrid-domainnet-vit"),
        },
        EVERYBODY,
        table="hybrid",
    ),
    "compact": Study(
        "the same table in brief",
        {Scale.quick: HYBRID_QUICK, Scale.paper: plain("hybrid-office10", "hybrid-domainnet")},
        FEW,
        table="compact",
        figures=("accuracy", "critical-difference"),
    ),
    "public-size": Study(
        "the figure on the size of the public set; clients hold the same at every size",
        {
            Scale.quick: (
                *public_sizes("practical-cifar10-quick", 1000, (1000, 500, 250, 100, 50)),
                *public_sizes("quickstart", 600, (600, 300, 100, 50, 25)),
            ),
            Scale.paper: public_sizes("public-size-cifar10", 3000, (3000, 2000, 1000, 500, 250)),
        },
        ON_THE_PUBLIC_SET,
        figures=("public-size",),
        spelled=("trust",),
    ),
    "public-skew": Study(
        "the figure on the skew of the public set; clients hold the same at every skew",
        {
            Scale.quick: (
                *public_skews("practical-cifar10-quick", 1000, 100),
                *public_skews("quickstart", 1000, 100),
            ),
            Scale.paper: public_skews("public-skew-cifar10", 9000, 1000),
        },
        ON_THE_PUBLIC_SET,
        figures=("public-skew",),
        spelled=("trust",),
    ),
    "misleading": Study(
        "the figures on misleading knowledge: one client's labels are turned around",
        {
            Scale.quick: (
                *plain("misleading-cifar10-quick"),
                Scenario("quickstart-misleading", "quickstart", MISLED),
            ),
            Scale.paper: plain("misleading-cifar10"),
        },
        (*rows("local", "fedct"), ENTROPY_PAPER, Row("gated")),
        figures=("losses", "lambda"),
        spelled=("trust",),
    ),
    "communication": Study(
        "the figure on communication: accuracy against what travelled",
        {Scale.quick: plain("practical-fashion-mnist-quick"), Scale.paper: plain("practical-fashion-mnist")},
        (*rows("local", "fedavg", "ditto", "fedct", "perfedckt"), FREQUENCY, Row("gated")),
        figures=("communication",),
    ),
    "trust-rules": Study(
        "an ablation of ours: what follows from what the paper leaves open about trust and expertise",
        {
            Scale.quick: plain("quickstart", "practical-fashion-mnist-quick", "feature-shift-office10-quick"),
            Scale.paper: plain("practical-fashion-mnist", "feature-shift-office10"),
        },
        (
            Row("local"),
            *(
                fedmosaic(expertise="entropy", trust=trust)
                for trust in ("paper", "stabilised", "agreement", "0.1", "0.3", "1.0")
            ),
            fedmosaic(expertise="entropy", trust="paper", warmup_rounds="1"),
            *(
                fedmosaic(expertise=expertise, trust="0.3")
                for expertise in ("frequency", "count", "count-confidence", "uniform")
            ),
            Row("gated"),
        ),
        figures=("accuracy", "lambda", "consensus"),
        spelled=("trust",),
    ),
}
