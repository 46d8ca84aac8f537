"""Accuracy against what was sent for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.report.comparison import CENTRALIZED, LOCAL, title_of
from fedmosaic_cli.report.plots.canvas import canvas, entitle
from fedmosaic_cli.report.plots.figure_data import NoFigureError, mean_over, over_seeds
from fedmosaic_cli.report.plots.line_labels import End, any_long, key_below, key_inches, label_ends
from fedmosaic_cli.report.plots.plot_style import (
    PAGE_INCHES,
    grid_lines,
    is_federated,
    is_strong,
    looks_of,
    percent_axis,
)
from fedmosaic_cli.report.plots.round_curves import height_for, widened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import Key, Setting
    from fedmosaic_cli.report.plots.figure_data import Course, Evidence

    Vector = NDArray[np.float64]

NOTHING_SENT = {LOCAL: "sends nothing", CENTRALIZED: "moves raw data"}
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def communication_figure(setting: Setting, evidence: Evidence) -> Figure:
    """A curve for each method that sends anything: bytes so far, and the accuracy they have led to."""
    paths = {key: path for key, runs in evidence.courses.items() if (path := sent_and_reached(runs)) is not None}
    if not paths:
        read = any(map(is_federated, evidence.courses))
        raise NoFigureError("nothing was sent in any round" if read else "no run that sends has a log that can be read")
    levels = {key: evidence.courses[key] for key in (CENTRALIZED, LOCAL) if key in evidence.courses}
    looks = looks_of([*levels, *paths])
    names = {key: f"{title_of(key)} ({NOTHING_SENT[key]})" if key in levels else title_of(key) for key in looks}
    below = any_long(map(title_of, looks))
    figure, axes = canvas(PAGE_INCHES, height_for(len(names), least=3.6) + below * key_inches(names.values()))
    ends = []
    for key, (sent, accuracy) in paths.items():
        axes.plot(sent, accuracy, **{**looks[key].line(), "marker": None})
        axes.plot(sent[-1:], accuracy[-1:], **{**looks[key].line(), "markersize": 4 + looks[key].width})
        ends.append(end_of(key, float(sent[-1]), float(accuracy[-1]), names[key], looks[key].colour))
    frame(axes)
    for key, runs in levels.items():
        level = float(over_seeds([run.accuracy for run in runs]).mean[-1])
        axes.axhline(level, **{**looks[key].line(), "marker": None})
        ends.append(end_of(key, axes.get_xlim()[1], level, names[key], looks[key].colour))
    percent_axis(axes, *widened(*axes.dataLim.intervaly))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.07 * (high - low))  # room for a name above the highest
    if below:
        key_below(figure, {names[key]: look for key, look in looks.items()})
    note = "Means over seeds, round by round; a marker is the last round. Horizontal lines: accuracy in the last round."
    entitle(figure, f"{setting.label}: accuracy and communication", note)
    label_ends({axes: ends}, below)
    return figure


def end_of(key: Key, sent: float, accuracy: float, name: str, colour: str) -> End:
    return End(sent, accuracy, name, colour, is_strong(key), f"{100 * accuracy:.1f}")


def sent_and_reached(runs: list[Course]) -> tuple[Vector, Vector] | None:
    """Bytes that all clients together have sent and received after each round, and their accuracy, as means over
    seeds, from the first round in which anything was sent; None where nothing ever is."""
    counted = [run.bits for run in runs if run.bits is not None]
    if not counted:
        return None
    sent = mean_over(np.stack(counted), axis=0) / 8
    accuracy = over_seeds([run.accuracy for run in runs]).mean
    return (sent[sent > 0], accuracy[sent > 0]) if sent[-1] > 0 else None


def frame(axes: Axes) -> None:
    """Bytes by powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
    axes.set_xlabel("sent and received by all clients so far (log scale)")
    low, high = axes.get_xlim()
    if np.floor(np.log10(high)) <= np.ceil(np.log10(low)):  # so that two powers of ten are in sight
        axes.set_xlim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    grid_lines(axes)


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that leaves few digits."""
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {UNITS[unit]}"
