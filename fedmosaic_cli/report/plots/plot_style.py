"""Style of the figures: fonts, lines of methods and clients, axes, and notes on seeds."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.registry import method_info
from fedmosaic_cli.report.method_styles import CurveStyle, method_styles, text_color
from fedmosaic_cli.report.plots.canvas import available_fonts, suppress_matplotlib_warnings
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from fedmosaic_cli.report.comparison import MethodKey
    from fedmosaic_cli.report.plots.figure_options import FigureOptions

DashPattern = str | tuple[int, tuple[float, ...]]
LINE_WIDTH = 1.2
"""The width of every line of a method, in points."""
MAX_BANDS = 3
"""With more lines than this, bands would hide each other and are not drawn."""
BAND_OPACITY = 0.15
SHADE_COLOR = "0.93"
AXIS_MARGIN = 0.06
"""Space for markers at 0, as a fraction of the axis."""


@dataclass(frozen=True)
class LineStyle:
    """Style of a line; lines with a higher `zorder` are drawn on top."""

    color: str
    marker: str = ""
    dash: DashPattern = "-"
    width: float = LINE_WIDTH
    zorder: float = 3
    is_hollow: bool = False
    number: int = 0

    def plot_kwargs(self, num_points: int = 2) -> dict[str, Any]:
        """Keyword arguments of `plot`.

        Long lines have few markers, at other points than the lines before them. A single point always has one.
        """
        step = max(1, num_points // 5)
        return {
            "color": self.color,
            "marker": self.marker or ("o" if num_points == 1 else None),
            "linestyle": self.dash,
            "linewidth": self.width,
            "markersize": 3.6,
            "markerfacecolor": "white" if self.is_hollow else self.color,
            "markeredgewidth": 0.7,
            "markevery": (2 * self.number % step, step),
            "zorder": self.zorder,
        }

    @property
    def text_color(self) -> str:
        """The colour of a name beside the line."""
        return text_color(self.color)


def method_line_styles(keys: Sequence[MethodKey]) -> dict[MethodKey, LineStyle]:
    """A distinct style for each row of a table. Dashed lines are on top, so that equal lines below remain visible."""
    return {key: line_style(style, number) for number, (key, style) in enumerate(method_styles(keys).items())}


def line_style(style: CurveStyle, number: int = 0, width: float = LINE_WIDTH) -> LineStyle:
    """The line of a curve style on a white background."""
    dash: DashPattern = (0, style.dash) if style.dash else "-"
    return LineStyle(style.color.light, style.marker, dash, width, 4 if style.dash else 3, number=number)


def is_federated(key: MethodKey) -> bool:
    """Whether clients and server communicate in each round (neither local nor centralized training)."""
    return method_info(key[0]).family != "baseline"


@contextmanager
def use_plot_style(options: FigureOptions = DEFAULT_OPTIONS) -> Iterator[None]:
    """Draw in this style, independent of the matplotlibrc of the user."""
    from matplotlib import rc, rc_context, rcdefaults

    size = options.font_size
    # Grouped, because the type stubs of matplotlib versions differ in the names of single parameters.
    groups: Any = {
        "font": {"size": size, "family": available_fonts(options.is_serif)},
        "figure": {"titlesize": size + 1},
        "axes": {
            "titlesize": size,
            "labelsize": size,
            "linewidth": 0.6,
            "spines.top": False,
            "spines.right": False,
        },
        "xtick": {"labelsize": size, "major.width": 0.6, "major.size": 2.5},
        "ytick": {"labelsize": size, "major.width": 0.6, "major.size": 2.5, "minor.size": 1.5},
        "legend": {"fontsize": size, "title_fontsize": size},
        "hatch": {"linewidth": 0.5},
    }
    with rc_context(), suppress_matplotlib_warnings():
        rcdefaults()
        for group, values in groups.items():
            rc(group, **values)
        yield


def set_percent_axis(axes: Axes, low: float, high: float, label: str = "accuracy (%)") -> None:
    """Show fractions from `low` to `high` as percent, never beyond 100 and with ticks from 0 to 100."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    margin = AXIS_MARGIN * (high - low)
    low, high = max(low, -margin), min(high, 1.0)
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(max(low, 0), high)
    axes.set_yticks([tick for tick in ticks if max(low, -1e-9) <= tick <= high + 1e-9])
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
