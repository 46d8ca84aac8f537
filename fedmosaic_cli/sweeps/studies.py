"""The studies of `fedmosaic reproduce`: scenarios at two scales, and the rows of each table and figure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fedmosaic_cli.methods.registry import BASELINES, EXTENDED_METHODS

if TYPE_CHECKING:
    from collections.abc import Sequence


class Scale(StrEnum):
    quick = "quick"
    paper = "paper"


@dataclass(frozen=True)
class Scenario:
    """A named setting: a preset and the values that differ from it."""

    name: str
    preset: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyRow:
    """A method and the hyper-parameters that the study sets; the preset determines all others."""

    method: str
    hyperparameters: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        parts = [value if name == "expertise" else f"{name}={value}" for name, value in self.hyperparameters]
        return " ".join([self.method, *parts])

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(f"methods.{self.method}.{name}={value}" for name, value in self.hyperparameters)


@dataclass(frozen=True)
class Study:
    """The runs behind one table or figure.

    Attributes:
        table: The paper's table that the runs fill, or "".
        figures: The kinds of figures that the study draws.
        shown_hyperparameters: Hyper-parameters that follow the method's name in every setting.
    """

    description: str
    scenarios: dict[Scale, tuple[Scenario, ...]]
    rows: tuple[StudyRow, ...]
    table: str = ""
    figures: tuple[str, ...] = ("accuracy", "clients", "lambda", "consensus", "critical-difference")
    shown_hyperparameters: tuple[str, ...] = ()

    def select_rows(self, methods: Sequence[str], extended: bool = False) -> tuple[StudyRow, ...]:
        """Return the rows of these methods (default: all), preceded by Local, with which all are compared.

        With `extended`, methods that the paper does not compare are rows too.
        """
        present = {row.method for row in self.rows}
        more = method_rows(*(name for name in EXTENDED_METHODS if name not in present)) if extended else ()
        chosen = [row for row in (*self.rows, *more) if not methods or row.method in (*methods, "local")]
        return tuple(sorted(chosen, key=lambda row: row.method != "local"))


def preset_scenarios(*presets: str) -> tuple[Scenario, ...]:
    return tuple(Scenario(preset, preset) for preset in presets)


def fedmosaic_row(**hyperparameters: str) -> StudyRow:
    return StudyRow("fedmosaic", tuple(hyperparameters.items()))


def method_rows(*methods: str) -> tuple[StudyRow, ...]:
    return tuple(map(StudyRow, methods))


def public_size_scenarios(preset: str, pool_size: int, sizes: Sequence[int]) -> tuple[Scenario, ...]:
    """Public sets of several sizes from one pool, so clients have the same data at every size."""
    return tuple(
        Scenario(f"{preset}-public-{size}", preset, (f"data.public_pool_size={pool_size}", f"data.public_size={size}"))
        for size in sizes
    )


def public_skew_scenarios(preset: str, pool_size: int, size: int) -> tuple[Scenario, ...]:
    """Public sets of one size with increasing class skew, from a pool so large that one class can nearly fill them."""
    base = (f"data.public_pool_size={pool_size}", f"data.public_size={size}")
    return (
        Scenario(f"{preset}-skew-balanced", preset, (*base, "data.public_alpha=null")),
        *(Scenario(f"{preset}-skew-{alpha}", preset, (*base, f"data.public_alpha={alpha}")) for alpha in PUBLIC_ALPHAS),
    )


def regime_scenarios(preset: str) -> tuple[Scenario, ...]:
    """Every number of training examples per client with every heterogeneity and every size of the public set."""
    return tuple(
        Scenario(
            f"regimes-n{num_examples}-{heterogeneity}-u{public_size}",
            preset,
            (
                *data_overrides,
                f"data.examples_per_client={num_examples}",
                f"data.public_size={public_size}",
                f"train.local_steps={local_steps}",
            ),
        )
        for public_size in REGIME_PUBLIC_SIZES
        for heterogeneity, data_overrides in REGIME_HETEROGENEITIES.items()
        for num_examples, local_steps in REGIME_LOCAL_STEPS.items()
    )


PUBLIC_ALPHAS = ("1", "0.7", "0.5", "0.3", "0.1")
REGIME_PUBLIC_SIZES = (500, 2000)
REGIME_LOCAL_STEPS = {25: 10, 100: 10, 250: 20, 1000: 40}
"""Local steps per round by number of training examples per client: more data needs more steps."""
REGIME_HETEROGENEITIES = {
    **{f"dir{alpha}": ("data.scheme=dirichlet", f"data.alpha={alpha}") for alpha in ("0.1", "0.5", "5")},
    "path2": ("data.scheme=pathological", "data.classes_per_client=2"),
    "domains": ("data.dataset=fashion-mnist-domains", "data.scheme=domain", "data.clients_per_domain=5"),
}
FREQUENCY_ROW, ENTROPY_ROW = fedmosaic_row(expertise="frequency"), fedmosaic_row(expertise="entropy")
ENTROPY_PAPER_ROW = fedmosaic_row(expertise="entropy", trust="paper")
ENTROPY_STABILISED_ROW = fedmosaic_row(expertise="entropy", trust="stabilised")
ALL_METHOD_ROWS = (
    *method_rows(*BASELINES),
    FREQUENCY_ROW,
    ENTROPY_ROW,
    StudyRow("gated"),
)
# Equal to the method keys of the report's "compact" table.
COMPACT_ROWS = (
    *method_rows("centralized", "fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "fedphp", "local"),
    FREQUENCY_ROW,
    StudyRow("gated"),
)
PUBLIC_SET_ROWS = (StudyRow("local"), ENTROPY_STABILISED_ROW, ENTROPY_PAPER_ROW, StudyRow("gated"))
LABEL_SKEW_PRESETS = (
    "pathological-fashion-mnist",
    "pathological-cifar10",
    "practical-fashion-mnist",
    "practical-cifar10",
)
DIGITS_PRESET = "quickstart-label-skew"
LOW_DATA_SCENARIOS = preset_scenarios(
    *("quickstart", "lowdata-fashion-mnist", "lowdata-fashion-mnist-domains", "lowdata-office10"),
    *("lowdata-cifar10", "lowdata-cifar10-dir01"),
)
HYBRID_QUICK_SCENARIOS = preset_scenarios("hybrid-office10-quick", "quickstart-hybrid")
REGIME_SCENARIOS = regime_scenarios("regimes-fashion-mnist")
MISLEADING_OVERRIDES = ("data.scheme=iid", "data.clients=5", "data.flip_labels=[0]")

STUDIES = {
    "label-skew": Study(
        "table on label skew: every method, clients with few classes",
        {
            Scale.quick: preset_scenarios(*(f"{preset}-quick" for preset in LABEL_SKEW_PRESETS), DIGITS_PRESET),
            Scale.paper: preset_scenarios(*LABEL_SKEW_PRESETS),
        },
        ALL_METHOD_ROWS,
        table="label-skew",
    ),
    "feature-shift": Study(
        "table on feature shift, one column per domain: every method",
        {
            Scale.quick: preset_scenarios("feature-shift-office10-quick", "quickstart-feature-shift"),
            Scale.paper: preset_scenarios("feature-shift-office10", "feature-shift-domainnet"),
        },
        ALL_METHOD_ROWS,
        table="feature-shift",
    ),
    "hybrid": Study(
        "table on label skew and feature shift combined: every method",
        {
            Scale.quick: HYBRID_QUICK_SCENARIOS,
            Scale.paper: preset_scenarios("hybrid-office10", "hybrid-domainnet", "hybrid-domainnet-vit"),
        },
        ALL_METHOD_ROWS,
        table="hybrid",
    ),
    "compact": Study(
        "compact version of the hybrid table",
        {Scale.quick: HYBRID_QUICK_SCENARIOS, Scale.paper: preset_scenarios("hybrid-office10", "hybrid-domainnet")},
        COMPACT_ROWS,
        table="compact",
        figures=("accuracy", "critical-difference"),
    ),
    "public-size": Study(
        "figure on the size of the public set; clients have the same data at every size",
        {
            Scale.quick: (
                *public_size_scenarios("practical-cifar10-quick", 1000, (1000, 500, 250, 100, 50)),
                *public_size_scenarios(DIGITS_PRESET, 600, (600, 300, 100, 50, 25)),
            ),
            Scale.paper: public_size_scenarios("public-size-cifar10", 3000, (3000, 2000, 1000, 500, 250)),
        },
        PUBLIC_SET_ROWS,
        figures=("public-size",),
        shown_hyperparameters=("trust",),
    ),
    "public-skew": Study(
        "figure on the skew of the public set; clients have the same data at every skew",
        {
            Scale.quick: (
                *public_skew_scenarios("practical-cifar10-quick", 1000, 100),
                *public_skew_scenarios(DIGITS_PRESET, 1000, 100),
            ),
            Scale.paper: public_skew_scenarios("public-skew-cifar10", 9000, 1000),
        },
        PUBLIC_SET_ROWS,
        figures=("public-skew",),
        shown_hyperparameters=("trust",),
    ),
    "misleading": Study(
        "figures on misleading knowledge: one client has reversed labels",
        {
            Scale.quick: (
                *preset_scenarios("misleading-cifar10-quick"),
                Scenario("quickstart-misleading", DIGITS_PRESET, MISLEADING_OVERRIDES),
            ),
            Scale.paper: preset_scenarios("misleading-cifar10"),
        },
        (*method_rows("local", "fedct"), ENTROPY_PAPER_ROW, StudyRow("gated")),
        figures=("losses", "lambda"),
        shown_hyperparameters=("trust",),
    ),
    "communication": Study(
        "figure on communication: accuracy against transmitted bits",
        {
            Scale.quick: preset_scenarios("practical-fashion-mnist-quick"),
            Scale.paper: preset_scenarios("practical-fashion-mnist"),
        },
        (*method_rows("local", "fedavg", "ditto", "fedct", "perfedckt"), FREQUENCY_ROW, StudyRow("gated")),
        figures=("communication",),
    ),
    "trust-rules": Study(
        "ablation that is not in the paper: rules for trust and expertise",
        {
            Scale.quick: preset_scenarios(
                DIGITS_PRESET, "practical-fashion-mnist-quick", "feature-shift-office10-quick"
            ),
            Scale.paper: preset_scenarios("practical-fashion-mnist", "feature-shift-office10"),
        },
        (
            StudyRow("local"),
            *(
                fedmosaic_row(expertise="entropy", trust=trust)
                for trust in ("paper", "stabilised", "agreement", "0.1", "0.3", "1.0")
            ),
            fedmosaic_row(expertise="entropy", trust="paper", warmup_rounds="1"),
            *(
                fedmosaic_row(expertise=expertise, trust="0.3")
                for expertise in ("frequency", "count", "count-confidence", "uniform")
            ),
            StudyRow("gated"),
        ),
        figures=("accuracy", "lambda", "consensus"),
        shown_hyperparameters=("trust",),
    ),
    "low-data": Study(
        "table that is not in the paper: clients with few examples; both scales are the same",
        {Scale.quick: LOW_DATA_SCENARIOS, Scale.paper: LOW_DATA_SCENARIOS},
        (*method_rows("local", "fedavgft", "ditto"), ENTROPY_ROW, *method_rows("student", "oracle")),
        figures=("accuracy", "clients", "communication"),
    ),
    "regimes": Study(
        "map that is not in the paper: who should collaborate, and by what; both scales are the same",
        {Scale.quick: REGIME_SCENARIOS, Scale.paper: REGIME_SCENARIOS},
        (
            *method_rows("local", "centralized", "fedavg", "fedavgft", "ditto"),
            ENTROPY_ROW,
            *method_rows("student", "oracle"),
        ),
        figures=("regimes",),
    ),
}
