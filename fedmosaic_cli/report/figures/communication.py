"""Accuracy against what was sent for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.picture import canvas
from fedmosaic_cli.report.figures.courses import height_for
from fedmosaic_cli.report.figures.evidence import NoFigureError, mean_over, over_seeds
from fedmosaic_cli.report.figures.labels import End, label_ends
from fedmosaic_cli.report.figures.style import PAGE_INCHES, entitle, grid_lines, is_strong, looks_of, percent_axis
from fedmosaic_cli.report.settings import CENTRALIZED, LOCAL, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.figures.evidence import Course, Evidence
    from fedmosaic_cli.report.settings import Setting

    Vector = NDArray[np.float64]

NOTHING_SENT = {LOCAL: "sends nothing", CENTRALIZED: "moves raw data"}
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def communication_figure(setting: Setting, evidence: Evidence) -> Figure:
    """A curve for each method that sends anything: bytes so far, and the accuracy they have led to."""
    paths = {key: path for key, runs in evidence.courses.items() if (path := sent_and_reached(runs)) is not None}
    if not paths:
        raise NoFigureError("no run that sends anything has a log that can be read")
    levels = {key: evidence.courses[key] for key in (CENTRALIZED, LOCAL) if key in evidence.courses}
    figure, axes = canvas(PAGE_INCHES, height_for(len(paths) + len(levels), least=3.6))
    looks = looks_of([*levels, *paths])
    ends = []
    for key, (sent, accuracy) in paths.items():
        axes.plot(sent, accuracy, **{**looks[key].line(), "marker": None})
        axes.plot(sent[-1:], accuracy[-1:], **{**looks[key].line(), "markersize": 4 + looks[key].width})
        ends.append(End(float(sent[-1]), float(accuracy[-1]), title_of(key), looks[key].colour, is_strong(key)))
    frame(axes)
    for key, runs in levels.items():
        level = float(over_seeds([run.accuracy for run in runs]).mean[-1])
        axes.axhline(level, **{**looks[key].line(), "marker": None, "zorder": 1})
        ends.append(End(axes.get_xlim()[1], level, f"{title_of(key)} ({NOTHING_SENT[key]})", looks[key].colour))
    include(axes, [end.y for end in ends])
    label_ends({axes: ends})
    note = "Means over seeds, round by round; a marker is the last round. Horizontal lines: accuracy in the last round."
    entitle(figure, f"{setting.label}: accuracy and communication", note)
    return figure


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
    """Bytes by powers of ten, accuracies in percent."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
    axes.set_xlabel("sent and received by all clients so far (log scale)")
    low, high = axes.get_xlim()
    if high < 20 * low:  # so that two powers of ten are in sight
        axes.set_xlim(10 ** np.floor(np.log10(low)), 10 ** np.ceil(np.log10(high)))
    percent_axis(axes)
    grid_lines(axes)


def include(axes: Axes, values: list[float]) -> None:
    """Wide enough limits for these as well, and for a name above the highest."""
    low, high = axes.get_ylim()
    margin = 0.06 * (max([high, *values]) - min([low, *values]))
    axes.set_ylim(max(min([low, *values]) - margin / 2, -0.02), min(max([high, *values]) + margin, 1.06))


def in_bytes(count: float) -> str:
    """A number of bytes in the unit that leaves few digits."""
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {UNITS[unit]}"
