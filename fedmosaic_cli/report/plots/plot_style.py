"""How figures look: sizes for a printed page, and for every method a colour, a line and a marker of its own."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.comparison import has_client_trust
from fedmosaic_cli.report.plots.canvas import suppress_matplotlib_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from fedmosaic_cli.report.comparison import MethodKey

PAGE_WIDTH_INCHES = 7.0
"""As wide as the text of a page in two columns: there, letters are printed in the size they have here."""
FONT_SIZE_POINTS = 8.0
FIGURE_DPI = 200
# By matplotlib's groups of settings, whose names are not the same in every version's types.
RC_PARAMS: Any = {
    "font": {"size": FONT_SIZE_POINTS},
    "figure": {"titlesize": FONT_SIZE_POINTS + 1},
    "axes": {
        "titlesize": FONT_SIZE_POINTS,
        "labelsize": FONT_SIZE_POINTS,
        "linewidth": 0.6,
        "spines.top": False,
        "spines.right": False,
    },
    "xtick": {"labelsize": FONT_SIZE_POINTS, "major.width": 0.6},
    "ytick": {"labelsize": FONT_SIZE_POINTS, "major.width": 0.6},
    "legend": {"fontsize": FONT_SIZE_POINTS},
    "hatch": {"linewidth": 0.5},
}

DashPattern = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class LineStyle:
    """How a line is drawn. What matters lies on top."""

    color: str
    marker: str = ""
    dash: DashPattern = "-"
    width: float = 1.0
    zorder: int = 3
    is_hollow: bool = False

    def plot_kwargs(self, num_points: int = 2) -> dict[str, Any]:
        """What `plot` takes; of many points, some carry a marker, and one alone always does."""
        return {
            "color": self.color,
            "marker": self.marker or ("o" if num_points == 1 else None),
            "linestyle": self.dash,
            "linewidth": self.width,
            "markersize": 2.4 + 0.8 * self.width,
            "markerfacecolor": "white" if self.is_hollow else self.color,
            "markevery": max(1, num_points // 6),
            "zorder": self.zorder,
        }


DASH_PATTERNS: tuple[DashPattern, ...] = ("-", (0, (4, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (1, 1)))
# Local lies above all, so thin that whatever equals it is seen below it.
REFERENCE_STYLES = {
    "local": LineStyle("black", dash=(0, (5, 3)), width=1.0, zorder=10),
    "centralized": LineStyle("0.45", dash=(0, (1.5, 1.2)), width=1.6, zorder=5),
}
# Dark enough for letters on white; told apart by red-green blind readers as far as so many can be, by marker else.
METHOD_STYLES = {
    "fedavg": LineStyle("#332288", "p"),
    "fedprox": LineStyle("#663300", "d"),
    "fedct": LineStyle("#117733", "*", width=1.4, zorder=4),
    "fedbn": LineStyle("#0B4F3A", "v"),
    "perfedavg": LineStyle("#777710", "D"),
    "ditto": LineStyle("#AA4499", "P"),
    "pfedme": LineStyle("#882255", "X"),
    "apfl": LineStyle("#B5495B", "<"),
    "fedphp": LineStyle("#8C6D31", ">"),
    "perfedckt": LineStyle("#5F6A7A", "h"),
}
# FedMosaic is drawn strongest: a colour for each kind of expertise, and for methods that are made of it. What lies on
# top has gaps, so that equals are seen.
HIGHLIGHT_STYLES = {
    "frequency": LineStyle("#C45500", "o", DASH_PATTERNS[1], width=2.4, zorder=9),
    "entropy": LineStyle("#0072B2", "s", width=2.4, zorder=8),
    "uniform": LineStyle("#A8507F", "^", width=2.4, zorder=7),
    "gated": LineStyle("#6A0DAD", "H", DASH_PATTERNS[2], width=2.4, zorder=9),
}
CLIENT_STYLES = (
    LineStyle("#0072B2", "o", width=1.4),
    LineStyle("#663300", "s", width=1.4),
    LineStyle("#007A5A", "^", width=1.4),
    LineStyle("#A8507F", "D", width=1.4),
    LineStyle("#551A8B", "v", width=1.4),
    LineStyle("black", "P", width=1.4),
)
FLIPPED_CLIENT_STYLE = LineStyle("#C45500", "X", (0, (3, 1)), width=2.0, zorder=8)
SHADE_COLOR = "0.93"
AXIS_MARGIN = 0.06
"""Beyond 0 and 100 %, for markers, as a part of the axis."""
MAX_HIGHLIGHTED = 4
"""More rows of FedMosaic than these cannot all stand out."""


def method_line_styles(keys: Sequence[MethodKey]) -> dict[MethodKey, LineStyle]:
    """A look for each. Rows that differ in hyper-parameters share a colour, not a line; very many get other colours
    too, and where FedMosaic alone has many rows, they are thinner."""
    looks: dict[MethodKey, LineStyle] = {}
    seen: Counter[LineStyle] = Counter()
    crowded = sum(map(is_highlighted_method, keys)) > MAX_HIGHLIGHTED
    for key in keys:
        base = base_line_style(key)
        number = seen[base]
        seen[base] += 1
        colours = list(dict.fromkeys([base.color, *(look.color for look in CLIENT_STYLES)]))
        colour = colours[number // len(DASH_PATTERNS) % len(colours)]
        dash = list(dict.fromkeys([base.dash, *DASH_PATTERNS]))[number % len(DASH_PATTERNS)]
        width = min(base.width, 1.4) if crowded else base.width
        looks[key] = LineStyle(colour, base.marker, dash, width, base.zorder)
    return looks


def base_line_style(key: MethodKey) -> LineStyle:
    """The look of a method, or of FedMosaic with one kind of expertise; a method that was added since is grey until it
    gets its own, or looks like FedMosaic if it is made of it."""
    method, detail = key
    if is_highlighted_method(key):
        return (
            HIGHLIGHT_STYLES.get(method)
            or HIGHLIGHT_STYLES.get(detail.partition(",")[0])
            or HIGHLIGHT_STYLES["frequency"]
        )
    return REFERENCE_STYLES.get(method) or METHOD_STYLES.get(method) or LineStyle("0.3", "8")


def is_highlighted_method(key: MethodKey) -> bool:
    """Whether it is FedMosaic, or made of it: these are what all others are compared with."""
    return has_client_trust(key)


HIGHLIGHTED_TITLES = tuple(method.title for name, method in METHODS.items() if is_highlighted_method((name, "")))


def is_federated(key: MethodKey) -> bool:
    """Whether anything is sent in rounds: neither alone nor on everybody's data."""
    return METHODS[key[0]].family != "baseline"


@contextmanager
def use_plot_style() -> Iterator[None]:
    """Everything inside is drawn in this style, whatever the user's own matplotlibrc says."""
    from matplotlib import rc, rc_context, rcdefaults

    with rc_context(), suppress_matplotlib_warnings():
        rcdefaults()
        for group, values in RC_PARAMS.items():
            rc(group, **values)
        yield


def set_percent_axis(axes: Axes, low: float, high: float, label: str = "accuracy (%)") -> None:
    """Fractions from `low` to `high`, written as percent: a little room beyond 0 and 100, but no number there."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    room = AXIS_MARGIN * (high - low)
    low, high = max(low, -room), min(high, 1 + room)
    ticks = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(max(low, 0), min(high, 1))
    axes.set_yticks([tick for tick in ticks if max(low, -1e-9) <= tick <= min(high, 1 + 1e-9)])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))
    axes.set_ylabel(label)


def set_round_axis(axes: Axes, last_round: int, first_round: int = 1) -> None:
    """Whole rounds, the first and the last in sight with the whole of their markers; a single one in the middle."""
    from matplotlib.ticker import MaxNLocator

    margin = 0.5 if first_round == last_round else 0.025 * (last_round - first_round)
    axes.set_xlim(first_round - margin, last_round + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("round")


def add_grid_lines(axes: Axes) -> None:
    """Faint levels to read values by."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
