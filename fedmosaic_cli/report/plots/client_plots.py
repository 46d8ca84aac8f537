"""Figures of clients: trust and losses over rounds, and the class counts of their data."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, first_valid_manifest
from fedmosaic_cli.report.plots.line_labels import LineLabel, add_legend_below, draw_line_labels, legend_height_inches
from fedmosaic_cli.report.plots.partition_plots import class_counts_figure, public_class_counts_figure
from fedmosaic_cli.report.plots.plot_style import (
    CLIENT_STYLES,
    FLIPPED_CLIENT_STYLE,
    PAGE_WIDTH_INCHES,
    SHADE_COLOR,
    LineStyle,
    add_grid_lines,
    base_line_style,
    set_round_axis,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import ClientCurves, FigureData

MAX_CLIENT_LINES = 15
"""With more clients than this, the median and a quantile band are drawn."""
NUM_ANNOTATED_CLIENTS, NUM_ANNOTATED_CLIENTS_WITH_BAND = 6, 3
BACKGROUND_STYLE = LineStyle("0.65", width=0.6, zorder=2)
MEDIAN_STYLE = LineStyle("black", width=1.8, zorder=7)
MAX_PANEL_COLUMNS = 3
MAX_VARIANTS, MAX_PANELS = 3, 12
TITLE_WIDTH_CHARS = 80


def trust_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Lambda of the clients over rounds, one panel per variant of FedMosaic."""
    available = {key: run for key, run in require_client_curves(figure_data).items() if np.isfinite(run.trust).any()}
    if not available:
        raise FigureUnavailableError("no run of FedMosaic logged the trust λ")
    runs = dict(list(available.items())[:MAX_PANELS])
    columns = min(len(runs), MAX_PANEL_COLUMNS)
    rows = -(-len(runs) // columns)
    figure = new_figure(PAGE_WIDTH_INCHES, 0.9 + 2.1 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    labels: dict[Axes, list[LineLabel]] = {}
    for axes, (key, run) in zip(panels, runs.items(), strict=False):
        labels[axes] = draw_trust(axes, run, clients_with_flipped_labels(group, run.digest))
        axes.set_title(fill(method_title(key), TITLE_WIDTH_CHARS // columns) + f"\nseed {run.seed}", loc="left")
    for axes in panels[len(labels) :]:
        axes.remove()
    for axes in panels[::columns]:
        axes.set_ylabel("λ", rotation=0)
    for axes in labels:
        # The axis reaches at least to 1, full trust, so that tiny values look like 0.
        axes.set_ylim(-0.03, max(1.05, axes.get_ylim()[1]))
    num_clients = next(iter(runs.values())).trust.shape[1]
    notes = []
    if num_clients > MAX_CLIENT_LINES:
        notes.append("Black: median of all clients; band: 10th to 90th percentile.")
    if any(run.num_rounds_before_consensus for run in runs.values()):
        notes.append("Shaded: rounds before the first consensus.")
    highest = max(float(np.nanmax(run.trust, initial=0)) for run in runs.values())
    if 0 < highest < 0.01:
        notes.append(f"The largest λ is {highest:.0e}.")
    subset = shown_of_total(len(runs), len(available), "variants")
    title = f"{group.label}: trust λ of {pluralize_clients(num_clients)} in the consensus{subset}"
    add_title_and_note(figure, title, " ".join(notes))
    draw_line_labels(labels)
    return figure


def require_client_curves(figure_data: FigureData) -> dict[MethodKey, ClientCurves]:
    if not figure_data.client_curves_by_method:
        raise FigureUnavailableError("no run of FedMosaic has a readable log")
    return figure_data.client_curves_by_method


def draw_trust(axes: Axes, curves: ClientCurves, flipped: set[int]) -> list[LineLabel]:
    """Draw one panel and return the labels of its lines."""
    num_rounds, num_clients = curves.trust.shape
    has_band = num_clients > MAX_CLIENT_LINES
    max_annotated = NUM_ANNOTATED_CLIENTS_WITH_BAND if has_band else NUM_ANNOTATED_CLIENTS
    annotated = clients_to_plot(num_clients, flipped, max_annotated)
    if has_band:
        rounds = np.flatnonzero(np.isfinite(curves.trust).any(axis=1))
        low, median, high = np.nanquantile(curves.trust[rounds], (0.1, 0.5, 0.9), axis=1)
        axes.fill_between(rounds + 1, low, high, color="0.8", linewidth=0)
        axes.plot(rounds + 1, median, **MEDIAN_STYLE.plot_kwargs())
    else:
        for client in set(range(num_clients)) - set(annotated):
            draw_client_line(axes, curves.trust[:, client], BACKGROUND_STYLE)
    labels = []
    for number, client in enumerate(annotated):
        style = FLIPPED_CLIENT_STYLE if client in flipped else CLIENT_STYLES[number % len(CLIENT_STYLES)]
        end = draw_client_line(axes, curves.trust[:, client], style)
        name = f"client {client}" + (", flipped" if client in flipped else "")
        labels += [LineLabel(*end, name, style.color, client in flipped)] if end else []
    set_round_axis(axes, num_rounds)
    if curves.num_rounds_before_consensus:
        last = curves.num_rounds_before_consensus + 0.5
        axes.axvspan(axes.get_xlim()[0], last, color=SHADE_COLOR, linewidth=0, zorder=0)
    return labels


def shown_of_total(num_shown: int, num_total: int, noun: str) -> str:
    """The part of a title that says how many are shown; empty if all are."""
    return f", {num_shown} of {num_total} {noun}" if num_shown < num_total else ""


def pluralize_clients(num_clients: int) -> str:
    return "1 client" if num_clients == 1 else f"{num_clients} clients"


def clients_to_plot(num_clients: int, flipped: set[int], max_clients: int) -> list[int]:
    """The clients with flipped labels and the first of the others, at most `max_clients`."""
    special = sorted(flipped)[:max_clients]
    others = [client for client in range(num_clients) if client not in flipped]
    return sorted([*special, *others[: max_clients - len(special)]])


def draw_client_line(axes: Axes, values: NDArray[np.float64], style: LineStyle) -> tuple[float, float] | None:
    """Draw a line through the rounds in which the client took part, and return its last point."""
    rounds = np.flatnonzero(np.isfinite(values))
    if not len(rounds):
        return None
    axes.plot(rounds + 1, values[rounds], **style.plot_kwargs(len(rounds)))
    return float(rounds[-1] + 1), float(values[rounds[-1]])


def losses_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Private and public loss over rounds, one panel per client."""
    available = {
        key: run
        for key, run in require_client_curves(figure_data).items()
        if np.isfinite(run.loss_private).any() or np.isfinite(run.loss_public).any()
    }
    if not available:
        raise FigureUnavailableError("no run of FedMosaic logged a loss")
    runs = dict(list(available.items())[:MAX_VARIANTS])
    styles = loss_line_styles(runs)
    first = next(iter(runs.values()))
    num_clients = first.trust.shape[1]
    flipped = clients_with_flipped_labels(group, first.digest)
    shown = clients_to_plot(num_clients, flipped, 9 if num_clients <= 9 else 6)
    rows, columns = -(-len(shown) // MAX_PANEL_COLUMNS), min(len(shown), MAX_PANEL_COLUMNS)
    legend = {f"{method_title(key)}, {loss}": style for key, pair in styles.items() for loss, style in pair.items()}
    figure = new_figure(PAGE_WIDTH_INCHES, 0.8 + 1.45 * rows + legend_height_inches(legend))
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=True).flat)
    for axes, client in zip(panels, shown, strict=False):
        draw_losses(axes, runs, client, styles)
        is_flipped = client in flipped
        emphasis: dict[str, Any] = {"color": FLIPPED_CLIENT_STYLE.color, "fontweight": "bold"} if is_flipped else {}
        axes.set_title(f"client {client}" + (", labels flipped" if is_flipped else ""), loc="left", **emphasis)
        axes.label_outer()
    for number, axes in enumerate(panels[len(shown) :], start=len(shown)):
        panels[number - columns].xaxis.set_tick_params(labelbottom=True)
        panels[number - columns].set_xlabel("round")
        axes.remove()
    highest = panels[0].get_ylim()[1]
    panels[0].set_ylim(-0.04 * highest, highest)  # space for markers at 0
    add_legend_below(figure, legend)
    subset = shown_of_total(len(shown), num_clients, "clients") + shown_of_total(len(runs), len(available), "variants")
    seeds = ", ".join(map(str, dict.fromkeys(run.seed for run in runs.values())))
    reason = ", which determine λ" if all(key[0] == "fedmosaic" for key in runs) else ""
    add_title_and_note(figure, f"{group.label}: private and public loss{reason}{subset}, seed {seeds}")
    return figure


def draw_losses(
    axes: Axes,
    curves_by_method: Mapping[MethodKey, ClientCurves],
    client: int,
    styles: Mapping[MethodKey, Mapping[str, LineStyle]],
) -> None:
    """Draw the private and the public loss of a client for each variant."""
    for key, run in curves_by_method.items():
        if client < run.trust.shape[1]:
            draw_client_line(axes, run.loss_private[:, client], styles[key]["private"])
            draw_client_line(axes, run.loss_public[:, client], styles[key]["public"])
    set_round_axis(axes, len(run.trust))
    axes.set_ylabel("loss")
    add_grid_lines(axes)


def loss_line_styles(keys: Iterable[MethodKey]) -> dict[MethodKey, dict[str, LineStyle]]:
    """Styles with one colour per variant: solid lines for private losses, dashed lines for public losses.

    Later variants are thinner, so that equal lines are both visible.
    """
    styles: dict[MethodKey, dict[str, LineStyle]] = {}
    used: set[str] = set()
    for number, key in enumerate(keys):
        base, width = base_line_style(key), 2.2 - 0.6 * number
        color = next(style.color for style in (base, *CLIENT_STYLES) if style.color not in used)
        used.add(color)
        styles[key] = {
            "private": LineStyle(color, base.marker, "-", width),
            "public": LineStyle(color, base.marker, (0, (3, 1.2)), width, is_hollow=True),
        }
    return styles


def clients_with_flipped_labels(group: ComparisonGroup, digest: str) -> set[int]:
    """The clients with flipped labels according to the shard manifest, if there is one."""
    clients: Iterable[Any] = group.manifests_by_digest.get(digest, {}).get("clients", ())
    return {
        number for number, client in enumerate(clients) if isinstance(client, dict) and client.get("labels_flipped")
    }


def client_class_counts_figure(group: ComparisonGroup) -> Figure:
    """Training examples per client and class, for the first seed."""
    manifest = first_valid_manifest(group)
    counts = [client.train.class_counts for client in manifest.clients]
    title = f"{group.label}, shards of seed {manifest.seed}: training examples of {pluralize_clients(len(counts))}"
    domains = [client.domain for client in manifest.clients]
    return class_counts_figure(counts, manifest.class_names, title, domains, PAGE_WIDTH_INCHES)


def public_set_figure(group: ComparisonGroup) -> Figure:
    """Class counts of the public set, for the first seed."""
    manifest = first_valid_manifest(group)
    public = manifest.public
    if not public.size:
        raise FigureUnavailableError("there is no public set")
    if public.class_counts is None:
        raise FigureUnavailableError("the classes of the public set are unknown")
    title = f"{group.label}, shards of seed {manifest.seed}: public set, {public.size} examples"
    return public_class_counts_figure(public.class_counts, manifest.class_names, title, PAGE_WIDTH_INCHES)
