"""Style of the figures: page sizes, axes, and a colour, dash pattern and marker for each method."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.registry import METHODS, method_info
from fedmosaic_cli.report.comparison import has_client_trust
from fedmosaic_cli.report.plots.canvas import suppress_matplotlib_warnings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from fedmosaic_cli.report.comparison import MethodKey

PAGE_WIDTH_INCHES = 7.0
"""Text width of a two-column page, so that fonts print in their nominal size."""
FONT_SIZE_POINTS = 8.0
FIGURE_DPI = 200
# Grouped, because the type stubs of matplotlib versions differ in the names of single parameters.
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
    """Style of a line; lines with a higher `zorder` are drawn on top."""

    color: str
    marker: str = ""
    dash: DashPattern = "-"
    width: float = 1.0
    zorder: int = 3
    is_hollow: bool = False

    def plot_kwargs(self, num_points: int = 2) -> dict[str, Any]:
        """Keyword arguments of `plot`. Long lines have few markers; a single point always has one."""
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
# Local is on top and thin, so that lines equal to it remain visible.
REFERENCE_STYLES = {
    "local": LineStyle("black", dash=(0, (5, 3)), width=1.0, zorder=10),
    "centralized": LineStyle("0.45", dash=(0, (1.5, 1.2)), width=1.6, zorder=5),
}
# Dark enough for text on white. Colours are chosen for red-green colour blindness; markers distinguish the rest.
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
# FedMosaic is highlighted: one colour per expertise and per derived method. Upper lines are dashed, so that equal
# lines below remain visible.
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
"""Space for markers beyond 0 and 100 %, as a fraction of the axis."""
MAX_HIGHLIGHTED = 4
"""With more rows of FedMosaic than this, highlighted lines are thinner."""


def method_line_styles(keys: Sequence[MethodKey]) -> dict[MethodKey, LineStyle]:
    """A distinct style for each row of a table.

    Rows of one method share a colour and differ in the dash pattern, until the patterns run out.
    """
    styles: dict[MethodKey, LineStyle] = {}
    seen: Counter[LineStyle] = Counter()
    crowded = sum(map(is_highlighted_method, keys)) > MAX_HIGHLIGHTED
    for key in keys:
        base = base_line_style(key)
        number = seen[base]
        seen[base] += 1
        colors = list(dict.fromkeys([base.color, *(style.color for style in CLIENT_STYLES)]))
        color = colors[number // len(DASH_PATTERNS) % len(colors)]
        dash = list(dict.fromkeys([base.dash, *DASH_PATTERNS]))[number % len(DASH_PATTERNS)]
        width = min(base.width, 1.4) if crowded else base.width
        styles[key] = LineStyle(color, base.marker, dash, width, base.zorder)
    return styles


def base_line_style(key: MethodKey) -> LineStyle:
    """The style of a method, or of FedMosaic with a given expertise; grey for methods without a style."""
    method, detail = key
    if is_highlighted_method(key):
        expertise = detail.partition(",")[0]
        return HIGHLIGHT_STYLES.get(method) or HIGHLIGHT_STYLES.get(expertise) or HIGHLIGHT_STYLES["frequency"]
    return REFERENCE_STYLES.get(method) or METHOD_STYLES.get(method) or LineStyle("0.3", "8")


def is_highlighted_method(key: MethodKey) -> bool:
    """Whether a method is FedMosaic or derived from it."""
    return has_client_trust(key)


HIGHLIGHTED_TITLES = tuple(method.info.title for name, method in METHODS.items() if is_highlighted_method((name, "")))


def is_federated(key: MethodKey) -> bool:
    """Whether clients and server communicate in each round (neither local nor centralized training)."""
    return method_info(key[0]).family != "baseline"


@contextmanager
def use_plot_style() -> Iterator[None]:
    """Draw in this style, independent of the matplotlibrc of the user."""
    from matplotlib import rc, rc_context, rcdefaults

    with rc_context(), suppress_matplotlib_warnings():
        rcdefaults()
        for group, values in RC_PARAMS.items():
            rc(group, **values)
        yield


def set_percent_axis(axes: Axes, low: float, high: float, label: str = "accuracy (%)") -> None:
    """Show fractions from `low` to `high` as percent, with a margin but no ticks beyond 0 and 100."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    margin = AXIS_MARGIN * (high - low)
    low, high = max(low, -margin), min(high, 1 + margin)
    ticks = MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]).tick_values(max(low, 0), min(high, 1))
    axes.set_yticks([tick for tick in ticks if max(low, -1e-9) <= tick <= min(high, 1 + 1e-9)])
    axes.set_ylim(low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g}"))
    axes.set_ylabel(label)


def set_round_axis(axes: Axes, last_round: int, first_round: int = 1) -> None:
    """Show integer rounds, with space for the markers of the first and the last."""
    from matplotlib.ticker import MaxNLocator

    margin = 0.5 if first_round == last_round else 0.025 * (last_round - first_round)
    axes.set_xlim(first_round - margin, last_round + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("round")


def add_grid_lines(axes: Axes) -> None:
    """Add light horizontal grid lines."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="0.9", linewidth=0.5)
