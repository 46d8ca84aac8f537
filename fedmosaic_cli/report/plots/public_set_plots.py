"""What the size and the skew of the public set mean for accuracy."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.comparison import title_of
from fedmosaic_cli.report.plots.canvas import blank, entitle
from fedmosaic_cli.report.plots.client_plots import first_manifest
from fedmosaic_cli.report.plots.figure_data import NoFigureError
from fedmosaic_cli.report.plots.line_labels import End, any_long, key_below, key_inches, label_ends
from fedmosaic_cli.report.plots.partition_plots import short, thinning
from fedmosaic_cli.report.plots.plot_style import PAGE_INCHES, grid_lines, is_strong, percent_axis
from fedmosaic_cli.report.plots.round_curves import names_of, widened
from fedmosaic_cli.report.round_logs import curves_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import Key
    from fedmosaic_cli.report.plots.plot_style import Look
    from fedmosaic_cli.report.plots.public_set_groups import Family

POINTS = "Points: mean accuracy of the last round over seeds; bars: lowest to highest seed."
DIFFERENT = (
    "Clients give up what the public set takes, so their data differ from point to point: compare FedMosaic with local "
    "training at the same point."
)
ALIKE = "The public set is drawn from examples that are set aside for it, so clients hold the same data at every point."
SILENT = "lambda is zero: this curve is Local training and shows nothing of U"
NEXT_TO_NOTHING = 1e-6
"""Below this, lambda is none."""
MOST_CLASSES = 24
MOST_NUMBERS = 20
DODGE = 0.012
"""How far apart, as a part of the axis, the bars of two methods at the same point stand."""
LETTER_INCHES, LINE_INCHES = 0.075, 0.16


def size_figure(families: Sequence[Family]) -> Figure:
    """Accuracy against the size of the public set, a panel a family."""
    names = names_of(keys_in(families))
    across = 1 if len(families) == 1 else 2
    below = across > 1 or any_long(names)
    down = -(-len(families) // across)
    width = PAGE_INCHES if below else 0.75 * PAGE_INCHES
    letters = 40 if across > 1 else 64
    titles = [panel_title(family, letters) for family in families]
    height = 1.0 + down * (2.3 + LINE_INCHES * max(title.count("\n") for title in titles))
    figure = blank(width, height + below * key_inches(names))
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    ends = {}
    for axes, family, title in zip(panels, families, titles, strict=False):
        sizes = [float(size) for size in family.members]
        if min(sizes) > 0 and max(sizes) > 10 * min(sizes):
            axes.set_xscale("log")
        ends[axes] = draw_methods(axes, family, dict(zip(family.members, sizes, strict=True)), names)
        scaled = np.log(sizes) if axes.get_xscale() == "log" else np.array(sizes)
        axes.set_xticks(sizes, with_room(scaled, [str(size) for size in family.members], 0.6 * width / across))
        axes.minorticks_off()
        axes.set_xlabel("examples in the public set" + (" (log scale)" if axes.get_xscale() == "log" else ""))
        axes.set_title(title, loc="left")
    for axes in panels[len(families) :]:
        axes.remove()
    if below:
        key_below(figure, names)
    entitle(figure, "Accuracy and the size of the public set", note_on(families))
    label_ends(ends, only_values=below)
    return figure


def skew_figure(families: Sequence[Family]) -> Figure:
    """Accuracy against the skew of the public set's classes, and beside it these classes; a row a family."""
    names = names_of(keys_in(families))
    titles = [panel_title(family, 40) for family in families]
    height = 1.0 + sum(map(row_height, families)) + LINE_INCHES * sum(title.count("\n") for title in titles)
    figure = blank(PAGE_INCHES, height + key_inches(names))
    rows = figure.subplots(len(families), 2, squeeze=False, width_ratios=(1, 1))
    ends = {}
    for (axes, classes), family, title in zip(rows, families, titles, strict=True):
        positions = {alpha: float(number) for number, alpha in enumerate(family.members)}
        ends[axes] = draw_methods(axes, family, positions, names)
        slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(positions) > 4 else {}
        for panel in (axes, classes):
            panel.set_xticks(list(positions.values()), [alpha_text(alpha) for alpha in positions], **slant)
            panel.set_xlabel("Dirichlet alpha of the public set")
        axes.set_xlim(-0.3, len(positions) - 0.7)
        axes.set_title(title, loc="left")
        draw_classes(classes, family)
    key_below(figure, names)
    entitle(figure, "Accuracy and the skew of the public set", note_on(families))
    label_ends(ends, only_values=True)
    return figure


def note_on(families: Sequence[Family]) -> str:
    """What points and bars are, and whether clients hold the same at all of them."""
    alike = {family.same_clients for family in families}
    words = [text for same, text in ((True, ALIKE), (False, DIFFERENT)) if same in alike]
    if len(words) > 1:
        labels = [family.label for family in families if family.same_clients]
        words = [f"{ALIKE.removesuffix('.')} of {'; '.join(labels)}.", f"Elsewhere: {DIFFERENT}"]
    return " ".join([POINTS, *words])


def panel_title(family: Family, letters: int) -> str:
    """The family, and which of its curves say nothing of the public set."""
    silent = [f"{title_of(key)}: {SILENT}" for key in family.methods if trusts_nobody(family.methods[key].values())]
    return "\n".join(fill(text, letters) for text in (family.label, *silent))


def trusts_nobody(points: Iterable[pd.DataFrame]) -> bool:
    """Whether at every point more than half of all clients ended with next to no lambda."""
    return all(share is not None and share > 0.5 for share in map(share_without_trust, points))


def share_without_trust(runs: pd.DataFrame) -> float | None:
    """Of the clients of these runs that have a lambda in the last round, the part in which it is none."""
    last = []
    for path in runs.path:
        try:
            trust = curves_of(path).get("lambda")
        except (RequestError, OSError):
            continue
        last += [] if trust is None or not len(trust) else list(trust[-1][~np.isnan(trust[-1])])
    return float(np.mean(np.array(last) < NEXT_TO_NOTHING)) if last else None


def keys_in(families: Sequence[Family]) -> list[Key]:
    """All methods of these families."""
    return list(dict.fromkeys(key for family in families for key in family.methods))


def with_room(places: NDArray[np.float64], texts: Sequence[str], inches: float) -> list[str]:
    """The texts below an axis of so many inches; "" where the next one to be written leaves no room."""
    span = max(float(np.ptp(places)), 1e-9)
    written: list[str] = []
    edge = np.inf
    for place, text in zip((inches * places / span)[::-1], texts[::-1], strict=True):
        reach = LETTER_INCHES * (len(text) + 1) / 2
        written.append(text if place + reach <= edge else "")
        edge = place - reach if written[-1] else edge
    return written[::-1]


def row_height(family: Family) -> float:
    """Inches for the classes one above the other."""
    classes = max((len(manifest["class_names"]) for manifest in manifests_of(family).values()), default=0)
    return max(2.5, 0.8 + 0.17 * min(classes, MOST_CLASSES))


def alpha_text(alpha: float | None) -> str:
    return "balanced" if alpha is None else f"{alpha:g}"


def draw_methods(axes: Axes, family: Family, positions: dict[Any, float], names: Mapping[str, Look]) -> list[End]:
    """A line for each method with a bar at each point, and where the lines end."""
    ends = []
    for number, (key, by_value) in enumerate(family.methods.items()):
        look = names[title_of(key)]
        moved = dodged(axes, list(positions.values()), number - (len(family.methods) - 1) / 2)
        values = [value for value in positions if value in by_value]
        places = [place for value, place in zip(positions, moved, strict=True) if value in by_value]
        mean, bars = mean_and_bars([by_value[value] for value in values])
        style = {**look.line(), "marker": look.marker or "o", "clip_on": False}
        axes.errorbar(places, mean, yerr=bars, **style, capsize=2, elinewidth=0.8)
        name, last = title_of(key), float(mean[-1])
        ends.append(End(places[-1], last, name, look.colour, is_strong(key), f"{100 * last:.1f}"))
    percent_axis(axes, *widened(*axes.dataLim.intervaly))
    grid_lines(axes)
    return ends


def dodged(axes: Axes, places: Sequence[float], steps: float) -> list[float]:
    """These places, a little to the side: so many steps of what separates two methods' bars at the same point."""
    if axes.get_xscale() == "log":
        factor = (max(places) / min(places)) ** (DODGE * steps)
        return [place * factor for place in places]
    return [place + DODGE * steps * (max(places) - min(places)) for place in places]


def mean_and_bars(groups: Sequence[pd.DataFrame]) -> tuple[Any, Any]:
    """The mean over seeds of each group, and how far the lowest and the highest lie away."""
    mean = np.array([group.accuracy.mean() for group in groups])
    low, high = (np.array([pick(group.accuracy) for group in groups]) for pick in (min, max))
    return mean, np.clip([mean - low, high - mean], 0, None)


def draw_classes(axes: Axes, family: Family) -> None:
    """A column for each public set, a cell for each class: the darker, the more; with numbers where they fit, else with
    a scale."""
    from matplotlib.ticker import MaxNLocator

    manifests = manifests_of(family)
    if not manifests:
        axes.text(0.5, 0.5, "no run kept\nthe manifest of its shards", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    names = next(iter(manifests.values()))["class_names"]
    table = np.full((len(names), len(family.members)), np.nan)
    for column, manifest in manifests.items():
        table[:, column] = manifest["public"]["class_counts"]
    most = max(np.nanmax(table), 1)
    edges = [np.arange(count + 1) - 0.5 for count in table.shape[::-1]]
    cells = axes.pcolormesh(
        *edges, np.ma.masked_invalid(table), cmap="Greys", vmin=0, vmax=1.15 * most, edgecolor="white"
    )
    step = thinning(len(names), MOST_CLASSES)
    axes.set_yticks(np.arange(0, len(names), step), [short(name) for name in names[::step]])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    seeds = ", ".join(sorted({str(manifest["seed"]) for manifest in manifests.values()}))
    axes.set_title(fill(f"examples by class, shards of seed {seeds}", 40), loc="left")
    if len(names) <= MOST_NUMBERS and len(family.members) <= MOST_NUMBERS // 2:
        write_numbers(axes, table, dark=0.6 * most)
    else:
        axes.figure.colorbar(cells, ax=axes, ticks=MaxNLocator(5, integer=True))


def write_numbers(axes: Axes, table: Any, dark: float) -> None:
    """The number of examples in each cell."""
    for (row, column), count in np.ndenumerate(table):
        if np.isfinite(count):
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", color="white" if count > dark else "black")


def manifests_of(family: Family) -> dict[int, dict[str, Any]]:
    """The manifest of each member's first seed, by the member's place, as far as one counts these classes."""
    found: dict[int, dict[str, Any]] = {}
    for number, setting in enumerate(family.members.values()):
        try:
            manifest = first_manifest(setting)
        except NoFigureError:
            continue
        if manifest["public"]["class_counts"] is None:
            continue
        if not found or len(manifest["class_names"]) == len(next(iter(found.values()))["class_names"]):
            found[number] = manifest
    return found
