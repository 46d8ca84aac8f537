"""How figures look: sizes for a printed page, and for every method a colour, a line and a marker of its own."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.comparison import weighs_trust
from fedmosaic_cli.report.plots.canvas import unworried

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from fedmosaic_cli.report.comparison import Key

PAGE_INCHES = 7.0
"""As wide as the text of a page in two columns: there, letters are printed in the size they have here."""
TEXT_POINTS = 8.0
DOTS_PER_INCH = 200
# By matplotlib's groups of settings, whose names are not the same in every version's types.
HOUSE: Any = {
    "font": {"size": TEXT_POINTS},
    "figure": {"titlesize": TEXT_POINTS + 1},
    "axes": {
        "titlesize": TEXT_POINTS,
        "labelsize": TEXT_POINTS,
        "linewidth": 0.6,
        "spines.top": False,
        "spines.right": False,
    },
    "xtick": {"labelsize": TEXT_POINTS, "major.width": 0.6},
    "ytick": {"labelsize": TEXT_POINTS, "major.width": 0.6},
    "legend": {"fontsize": TEXT_POINTS},
    "hatch": {"linewidth": 0.5},
}

Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Look:
    """How a line is drawn. What matters lies on top."""

    colour: str
    marker: str = ""
    dash: Dash = "-"
    width: float = 1.0
    order: int = 3
    hollow: bool = False

    def line(self, rounds: int = 2) -> dict[str, Any]:
        """What `plot` takes; of many points, some carry a marker, and one alone always does."""
        return {
            "color": self.colour,
            "marker": self.marker or ("o" if rounds == 1 else None),
            "linestyle": self.dash,
            "linewidth": self.width,
            "markersize": 2.4 + 0.8 * self.width,
            "markerfacecolor": "white" if self.hollow else self.colour,
            "markevery": max(1, rounds // 6),
            "zorder": self.order,
        }


DASHES: tuple[Dash, ...] = ("-", (0, (4, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (1, 1)))
# Local lies above all, so thin that whatever equals it is seen below it.
REFERENCES = {
    "local": Look("black", dash=(0, (5, 3)), width=1.0, order=10),
    "centralized": Look("0.45", dash=(0, (1.5, 1.2)), width=1.6, order=5),
}
# Dark enough for letters on white; told apart by red-green blind readers as far as so many can be, by marker else.
OTHERS = {
    "fedavg": Look("#332288", "p"),
    "fedprox": Look("#663300", "d"),
    "fedct": Look("#117733", "*", width=1.4, order=4),
    "fedbn": Look("#0B4F3A", "v"),
    "perfedavg": Look("#777710", "D"),
    "ditto": Look("#AA4499", "P"),
    "pfedme": Look("#882255", "X"),
    "apfl": Look("#B5495B", "<"),
    "fedphp": Look("#8C6D31", ">"),
    "perfedckt": Look("#5F6A7A", "h"),
}
# FedMosaic is drawn strongest: a colour for each kind of expertise, and for methods that are made of it. What lies on
# top has gaps, so that equals are seen.
STRONG = {
    "frequency": Look("#C45500", "o", DASHES[1], width=2.4, order=9),
    "entropy": Look("#0072B2", "s", width=2.4, order=8),
    "uniform": Look("#A8507F", "^", width=2.4, order=7),
    "gated": Look("#6A0DAD", "H", DASHES[2], width=2.4, order=9),
}
CLIENTS = (
    Look("#0072B2", "o", width=1.4),
    Look("#663300", "s", width=1.4),
    Look("#007A5A", "^", width=1.4),
    Look("#A8507F", "D", width=1.4),
    Look("#551A8B", "v", width=1.4),
    Look("black", "P", width=1.4),
)
FLIPPED = Look("#C45500", "X", (0, (3, 1)), width=2.0, order=8)
SHADE = "0.93"
ROOM = 0.06
"""Beyond 0 and 100 %, for markers, as a part of the axis."""
MOST_STRONG = 4
"""More rows of FedMosaic than these cannot all stand out."""


def looks_of(keys: Sequence[Key]) -> dict[Key, Look]:
    """A look for each. Rows that differ in hyper-parameters share a colour, not a line; very many get other colours
    too, and where FedMosaic alone has many rows, they are thinner."""
    looks: dict[Key, Look] = {}
    seen: Counter[Look] = Counter()
    crowded = sum(map(is_strong, keys)) > MOST_STRONG
    for key in keys:
        base = base_of(key)
        number = seen[base]
        seen[base] += 1
        colours = list(dict.fromkeys([base.colour, *(look.colour for look in CLIENTS)]))
        colour = colours[number // len(DASHES) % len(colours)]
        dash = list(dict.fromkeys([base.dash, *DASHES]))[number % len(DASHES)]
        width = min(base.width, 1.4) if crowded else base.width
        looks[key] = Look(colour, base.marker, dash, width, base.order)
    return looks


def base_of(key: Key) -> Look:
    """The look of a method, or of FedMosaic with one kind of expertise; a method that was added since is grey until it
    gets its own, or looks like FedMosaic if it is made of it."""
    method, detail = key
    if is_strong(key):
        return STRONG.get(method) or STRONG.get(detail.partition(",")[0]) or STRONG["frequency"]
    return REFERENCES.get(method) or OTHERS.get(method) or Look("0.3", "8")


def is_strong(key: Key) -> bool:
    """Whether it is FedMosaic, or made of it: these are what all others are compared with."""
    return weighs_trust(key)


STRONG_TITLES = tuple(method.title for name, method in METHODS.items() if is_strong((name, "")))


def is_federated(key: Key) -> bool:
    """Whether anything is sent in rounds: neither alone nor on everybody's data."""
    return METHODS[key[0]].family != "baseline"


@contextmanager
def house_style() -> Iterator[None]:
    """Everything inside is drawn in this style, whatever the user's own matplotlibrc says."""
    from matplotlib import rc, rc_context, rcdefaults

    with rc_context(), unworried():
        rcdefaults()
        for group, values in HOUSE.items():
            rc(group, **values)
        yield


def percent_axis(axes: Axes, low: float, high: float, label: str = "accuracy (%)") -> None:
    """Fractions from `low` to `high`, written as percent: a little room beyond 0 and 100, but no number there."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    room = ROOM * (high - low)
    low, high = max(low, -room), min(high, 1 + room)
    ticks = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(max(low, 0), min(high, 1))
    axes.set_yticks([tick for tick in ticks if max(low, -1e-9) <= tick <= min(high, 1 + 1e-9)])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))
    axes.set_ylabel(label)


def round_axis(axes: Axes, last: int, first: int = 1) -> None:
    """Whole rounds, the first and the last in sight with the whole of their markers; a single one in the middle."""
    from matplotlib.ticker import MaxNLocator

    margin = 0.5 if first == last else 0.025 * (last - first)
    axes.set_xlim(first - margin, last + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("round")


def grid_lines(axes: Axes) -> None:
    """Faint levels to read values by."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
