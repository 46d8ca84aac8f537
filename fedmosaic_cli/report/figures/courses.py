"""Curves over rounds, a line a method and a band over seeds: accuracy, and how good the consensus was."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.picture import blank
from fedmosaic_cli.report.figures.evidence import Band, NoFigureError, over_how_many, over_seeds
from fedmosaic_cli.report.figures.labels import LINE_POINTS, End, any_long, label_ends
from fedmosaic_cli.report.figures.style import (
    MOST_STRONG,
    PAGE_INCHES,
    entitle,
    grid_lines,
    is_strong,
    looks_of,
    percent_axis,
    round_axis,
)
from fedmosaic_cli.report.settings import title_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedmosaic_cli.report.figures.evidence import Evidence
    from fedmosaic_cli.report.settings import Key, Setting

LEAST_SPAN = 0.04
ORACLE = "oracle view: uses labels that nobody in the federation has"


def accuracy_figure(setting: Setting, evidence: Evidence) -> Figure:
    """Mean accuracy of all clients over rounds, for each method: the whole course, and its end from near by."""
    bands = {key: over_seeds([run.accuracy for run in runs]) for key, runs in evidence.courses.items()}
    if not bands:
        raise NoFigureError("no run has a log that can be read")
    rounds = len(next(iter(bands.values())).mean)
    figure = blank(PAGE_INCHES, height_for(len(bands)))
    near = rounds // 2 if rounds >= 6 else 0
    if near:
        whole, end = figure.subplots(1, 2, width_ratios=(2, 3))
        draw_bands(whole, bands, bands)
        frame_rounds(whole, rounds, "accuracy (%)")
        whole.set_title("all rounds", loc="left")
        end.set_title(f"from round {near + 1} on", loc="left")
    else:
        end = figure.subplots()
    draw_bands(end, bands, keys_with_bands(bands) if near else bands)
    frame_rounds(end, rounds, "" if near else "accuracy (%)")
    if near:
        end.set_xlim(near + 1, rounds + 0.01 * rounds)
        look_closer(end, [band.mean[near:] for band in bands.values()])
    label_ends({end: ends_of(bands, values=True)})
    note = over_how_many(evidence.courses)
    if near and "bands" in note:
        note += " On the right, only FedMosaic has its bands." if keys_with_bands(bands) else " Bands on the left only."
    entitle(figure, f"{setting.label}: mean test accuracy of the clients", note)
    return figure


def consensus_figure(setting: Setting, evidence: Evidence) -> Figure:
    """How far clients agree with the consensus, and how often it is right, over rounds."""
    panels: list[tuple[str, str, dict[Key, Band]]] = [
        ("agreement of clients with the consensus", "agreement (%)", {}),
        (fill(f"accuracy of pseudo-labels ({ORACLE})", 44), "right pseudo-labels (%)", {}),
    ]
    courses = {key: runs for key, runs in evidence.courses.items() if key[0] in ("fedmosaic", "fedct")}
    for key, runs in courses.items():
        for panel, curves in zip(
            panels, ([run.agreement for run in runs], [run.right_labels for run in runs]), strict=True
        ):
            band = over_seeds(curves)
            if np.isfinite(band.mean).any():
                panel[2][key] = band
    panels = [panel for panel in panels if panel[2]]
    if not panels:
        raise NoFigureError("no run logged a consensus")
    rounds = len(next(iter(panels[0][2].values())).mean)
    down = len(panels) if any_long(map(title_of, courses)) else 1
    figure = blank(PAGE_INCHES, down * height_for(max(len(bands) for _, _, bands in panels), least=2.6))
    grid = figure.subplots(down, len(panels) // down, squeeze=False).flat
    ends = {}
    for axes, (title, label, bands) in zip(grid, panels, strict=True):
        draw_bands(axes, bands, bands)
        frame_rounds(axes, rounds, label)
        axes.set_title(title, loc="left")
        ends[axes] = ends_of(bands, values=False)
    label_ends(ends)
    entitle(figure, f"{setting.label}: the consensus on the public set", over_how_many(courses))
    return figure


def height_for(names: int, least: float = 3.2) -> float:
    """Inches that leave room for so many names one above the other."""
    return max(least, 1.3 + names * LINE_POINTS / 72)


def keys_with_bands(bands: Mapping[Key, Band]) -> list[Key]:
    """Those whose bands can be seen from near by: FedMosaic's, if they are few."""
    strong = [key for key in bands if is_strong(key)]
    return strong if len(strong) <= MOST_STRONG else []


def draw_bands(axes: Axes, bands: Mapping[Key, Band], shaded: Collection[Key]) -> None:
    """A line for each mean, and around those that are to be `shaded` a band; FedMosaic's can be seen best."""
    looks = looks_of(list(bands))
    for key, band in bands.items():
        rounds = np.arange(1, len(band.mean) + 1)
        axes.plot(rounds, band.mean, **looks[key].line(len(rounds)))
        if key in shaded:
            shade = 0.22 if is_strong(key) else 0.09
            axes.fill_between(rounds, band.low, band.high, color=looks[key].colour, alpha=shade, linewidth=0)


def frame_rounds(axes: Axes, rounds: int, label: str) -> None:
    round_axis(axes, rounds)
    percent_axis(axes, label)
    grid_lines(axes)
    # Limits that do not make a mountain out of half a percent.
    low, high = axes.get_ylim()
    spare = max(0.0, LEAST_SPAN - (high - low)) / 2
    axes.set_ylim(max(low - spare, -0.02), min(high + spare, 1.02))


def look_closer(axes: Axes, means: Sequence[np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> None:
    """Limits around these means; bands may go beyond."""
    low, high = min(np.nanmin(mean) for mean in means), max(np.nanmax(mean) for mean in means)
    margin = max(0.06 * (high - low), 0.005)
    axes.set_ylim(max(low - margin, -0.02), min(high + margin, 1.01))


def ends_of(bands: Mapping[Key, Band], values: bool) -> list[End]:
    """The names of all lines, where the last of their values is; with `values`, these in percent."""
    looks, ends = looks_of(list(bands)), []
    for key, band in bands.items():
        last = int(np.flatnonzero(np.isfinite(band.mean))[-1])
        text = f"{100 * band.mean[last]:.1f}  {title_of(key)}" if values else title_of(key)
        ends.append(End(last + 1, float(band.mean[last]), text, looks[key].colour, is_strong(key)))
    return ends
