"""Curves over rounds, a line a method and a band over seeds: accuracy, and how good the consensus was."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import shares_labels, title_of
from fedmosaic_cli.report.plots.canvas import blank, entitle
from fedmosaic_cli.report.plots.figure_data import Band, NoFigureError, over_how_many, over_seeds
from fedmosaic_cli.report.plots.line_labels import LINE_POINTS, End, any_long, key_below, key_inches, label_ends
from fedmosaic_cli.report.plots.plot_style import (
    MOST_STRONG,
    PAGE_INCHES,
    grid_lines,
    is_strong,
    looks_of,
    percent_axis,
    round_axis,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import Key, Setting
    from fedmosaic_cli.report.plots.figure_data import Evidence
    from fedmosaic_cli.report.plots.plot_style import Look

    Vector = NDArray[np.float64]

LEAST_SPAN = 0.04
ORACLE = "oracle view: uses labels that nobody in the federation has"


def accuracy_figure(setting: Setting, evidence: Evidence) -> Figure:
    """Mean accuracy of all clients over rounds, for each method: the whole course, and its end from near by."""
    bands = {key: over_seeds([run.accuracy for run in runs]) for key, runs in evidence.courses.items()}
    if not bands:
        raise NoFigureError("no run has a log that can be read")
    rounds = len(next(iter(bands.values())).mean)
    names = names_of(bands)
    below = any_long(names)
    figure = blank(PAGE_INCHES, height_for(len(bands)) + below * key_inches(names))
    near = rounds // 2 if rounds >= 6 else 0
    note = over_how_many(evidence.courses)
    if near:
        whole, end = figure.subplots(1, 2, width_ratios=(2, 3))
        draw_bands(whole, bands, bands)
        frame_rounds(whole, rounds, "accuracy (%)")
        whole.set_title("all rounds", loc="left")
        shaded = keys_with_bands(bands)
        look_closer(end, bands, shaded, near)
        if "bands" in note:
            bands_of = listed(list(dict.fromkeys((method, "") for method, _ in shaded))) if shaded else ""
            note += f" On the right, bands of {bands_of} only." if shaded else " Bands on the left only."
        note += out_of_sight(bands, *end.get_ylim())
    else:
        end = figure.subplots()
        draw_bands(end, bands, bands)
        frame_rounds(end, rounds, "accuracy (%)")
    if below:
        key_below(figure, names)
    entitle(figure, f"{setting.label}: mean test accuracy of the clients", note)
    label_ends({end: ends_of(bands, *end.get_ylim())}, below)
    return figure


def consensus_figure(setting: Setting, evidence: Evidence) -> Figure:
    """How far clients agree with the consensus, and how often it is right, over rounds."""
    courses = {key: runs for key, runs in evidence.courses.items() if shares_labels(key)}
    agreement = known_bands({key: [run.agreement for run in runs] for key, runs in courses.items()})
    right = known_bands({key: [run.right_labels for run in runs] for key, runs in courses.items()})
    panels = [
        ("agreement of clients with the consensus", "agreement (%)", agreement),
        (fill(f"accuracy of pseudo-labels ({ORACLE})", 48), "right pseudo-labels (%)", right),
    ]
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        raise NoFigureError("no run logged a consensus")
    every = [band.mean for _, _, bands in panels for band in bands.values()]
    first = min(int(np.isfinite(mean).argmax()) for mean in every) + 1
    names = names_of(courses)
    figure = blank(PAGE_INCHES, height_for(len(names), least=2.6) + key_inches(names))
    ends = {}
    for axes, (title, label, bands) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        draw_bands(axes, bands, bands, looks_of(list(courses)))
        frame_rounds(axes, len(every[0]), label, first)
        axes.set_title(title, loc="left")
        ends[axes] = ends_of(bands, *axes.get_ylim())
    key_below(figure, names)
    silent = [key for key in courses if agreement and key not in agreement]
    note = over_how_many(courses) + (f" {listed(silent)} logged no agreement." if silent else "")
    entitle(figure, f"{setting.label}: the consensus on the public set", note)
    label_ends(ends, only_values=True)
    return figure


def known_bands(curves: Mapping[Key, Sequence[Vector]]) -> dict[Key, Band]:
    """The bands over seeds, of those with any value."""
    bands = {key: over_seeds(same) for key, same in curves.items()}
    return {key: band for key, band in bands.items() if np.isfinite(band.mean).any()}


def names_of(keys: Iterable[Key]) -> dict[str, Look]:
    """Titles, and how their lines look."""
    return {title_of(key): look for key, look in looks_of(list(keys)).items()}


def listed(keys: Sequence[Key]) -> str:
    """Their titles, as a sentence has them."""
    *before, last = map(title_of, keys)
    return f"{', '.join(before)} and {last}" if before else last


def height_for(names: int, least: float = 3.2) -> float:
    """Inches that leave room for so many names one above the other."""
    return max(least, 1.3 + names * LINE_POINTS / 72)


def keys_with_bands(bands: Mapping[Key, Band]) -> list[Key]:
    """Those whose bands can be seen from near by: FedMosaic's, if they are few."""
    strong = [key for key in bands if is_strong(key)]
    return strong if len(strong) <= MOST_STRONG else []


def draw_bands(
    axes: Axes, bands: Mapping[Key, Band], shaded: Collection[Key], looks: Mapping[Key, Look] | None = None
) -> None:
    """A line for each mean, and around those that are to be `shaded` a band; FedMosaic's can be seen best."""
    looks = looks or looks_of(list(bands))
    for key, band in bands.items():
        rounds = np.arange(1, len(band.mean) + 1)
        axes.plot(rounds, band.mean, **looks[key].line(len(rounds)))
        if key in shaded:
            shade = 0.22 if is_strong(key) else 0.09
            axes.fill_between(rounds, band.low, band.high, color=looks[key].colour, alpha=shade, linewidth=0)


def frame_rounds(axes: Axes, rounds: int, label: str, first: int = 1) -> None:
    """Axes around all that is drawn."""
    round_axis(axes, rounds, first)
    percent_axis(axes, *widened(*axes.dataLim.intervaly), label)
    grid_lines(axes)


def widened(low: float, high: float) -> tuple[float, float]:
    """Limits around these, which do not make a mountain out of half a percent."""
    margin = max(0.05 * (high - low), (LEAST_SPAN - (high - low)) / 2)
    return low - margin, high + margin


def look_closer(axes: Axes, bands: Mapping[Key, Band], shaded: Collection[Key], near: int) -> None:
    """The rounds after `near`, in which most methods differ by little."""
    draw_bands(axes, bands, shaded)
    round_axis(axes, len(next(iter(bands.values())).mean), near + 1)
    percent_axis(axes, *widened(*near_by(bands, shaded, near)), "")
    axes.set_title(f"from round {near + 1} on", loc="left")
    grid_lines(axes)


def near_by(bands: Mapping[Key, Band], shaded: Collection[Key], near: int) -> tuple[float, float]:
    """From the lowest to the highest mean, and edge of a `shaded` band, after `near` rounds, without methods far off.

    Far off is what ends further from the narrowest range in which more than two thirds of all methods end than this
    range (or `LEAST_SPAN`) is wide: a few methods would else squeeze all others into one line.
    """
    ends = np.sort([band.mean[-1] for band in bands.values()])
    most = 2 * len(ends) // 3 + 1
    widths = ends[most - 1 :] - ends[: len(ends) - most + 1]
    start = int(widths.argmin())
    reach = max(widths[start], LEAST_SPAN)
    low, high = ends[start] - reach, ends[start + most - 1] + reach
    means = [band.mean for band in bands.values() if low <= band.mean[-1] <= high]
    edges = [edge for key in shaded for edge in (bands[key].low, bands[key].high)]
    values = np.stack([*means, *edges])[:, near:]
    return float(values.min()), float(values.max())


def out_of_sight(bands: Mapping[Key, Band], low: float, high: float) -> str:
    """For the note: who ends outside of these limits, "" if nobody."""
    below = [key for key, band in bands.items() if band.mean[-1] < low]
    above = [key for key, band in bands.items() if band.mean[-1] > high]
    return "".join(
        f" {listed(keys)} {'lie' if len(keys) > 1 else 'lies'} {where} the right panel."
        for keys, where in ((below, "below"), (above, "above"))
        if keys
    )


def ends_of(bands: Mapping[Key, Band], low: float, high: float) -> list[End]:
    """The names of all lines and the last of their values in percent; at the edge, with an arrow, where it is beyond
    the limits."""
    looks, ends = looks_of(list(bands)), []
    for key, band in bands.items():
        last = int(np.flatnonzero(np.isfinite(band.mean))[-1])
        level = float(band.mean[last])
        value = f"{100 * level:.1f}" + (" ↓" if level < low else " ↑" if level > high else "")
        place = last + 1, min(max(level, low), high)
        ends.append(End(*place, f"{value}  {title_of(key)}", looks[key].colour, is_strong(key), value))
    return sorted(ends, key=lambda end: float(end.value.split()[0]))  # those at the edge in their order
