"""Figures of single clients: their trust, their losses, and what they hold."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.plots.canvas import add_title_and_note, new_figure
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError
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
from fedmosaic_cli.storage.shard_manifest import ShardManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import ClientCurves, FigureData

    Matrix = NDArray[np.float64]

MAX_CLIENT_LINES = 15
"""Of more clients than these, a median and a band are drawn."""
NUM_ANNOTATED_CLIENTS, NUM_ANNOTATED_CLIENTS_WITH_BAND = 6, 3
BACKGROUND_STYLE = LineStyle("0.65", width=0.6, zorder=2)
MEDIAN_STYLE = LineStyle("black", width=1.8, zorder=7)
MAX_PANEL_COLUMNS = 3
MAX_VARIANTS, MAX_PANELS = 3, 12
TITLE_WIDTH_CHARS = 80
"""Of a title, in a line."""


def trust_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """Lambda of each client over rounds, a panel for each variant of FedMosaic."""
    known = {key: run for key, run in require_client_curves(figure_data).items() if np.isfinite(run.trust).any()}
    if not known:
        raise FigureUnavailableError("no run of FedMosaic logged a trust λ")
    runs = dict(list(known.items())[:MAX_PANELS])
    across = min(len(runs), MAX_PANEL_COLUMNS)
    down = -(-len(runs) // across)
    figure = new_figure(PAGE_WIDTH_INCHES, 0.9 + 2.1 * down)
    panels = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
    ends: dict[Axes, list[LineLabel]] = {}
    for axes, (key, run) in zip(panels, runs.items(), strict=False):
        ends[axes] = draw_trust(axes, run, clients_with_flipped_labels(group, run.digest))
        axes.set_title(fill(method_title(key), TITLE_WIDTH_CHARS // across) + f"\nseed {run.seed}", loc="left")
    for axes in panels[len(ends) :]:
        axes.remove()
    for axes in panels[::across]:
        axes.set_ylabel("λ", rotation=0)
    for axes in ends:
        # Trust of a millionth should look like none; 1 is as much as in one's own labels.
        axes.set_ylim(-0.03, max(1.05, axes.get_ylim()[1]))
    clients = next(iter(runs.values())).trust.shape[1]
    crowd = "Black: median of all clients; band: 10th to 90th percentile. " if clients > MAX_CLIENT_LINES else ""
    most = max(float(np.nanmax(run.trust, initial=0)) for run in runs.values())
    little = f" λ is at most {most:.0e} here." if 0 < most < 0.01 else ""
    alone = (
        "Shaded: rounds before the first consensus."
        if any(run.num_rounds_before_consensus for run in runs.values())
        else ""
    )
    some = shown_of_total(len(runs), len(known), "variants")
    title = f"{group.label}: trust λ of {pluralize_clients(clients)} in the consensus{some}"
    add_title_and_note(figure, title, f"{crowd}{alone}{little}")
    draw_line_labels(ends)
    return figure


def require_client_curves(figure_data: FigureData) -> dict[MethodKey, ClientCurves]:
    """Those of FedMosaic, if there are any."""
    if not figure_data.client_curves_by_method:
        raise FigureUnavailableError("no run of FedMosaic has a log that can be read")
    return figure_data.client_curves_by_method


def draw_trust(axes: Axes, curves: ClientCurves, flipped: set[int]) -> list[LineLabel]:
    """The lines of one panel, and where those with a name end."""
    rounds, clients = curves.trust.shape
    crowd = clients > MAX_CLIENT_LINES
    named = clients_to_plot(clients, flipped, NUM_ANNOTATED_CLIENTS_WITH_BAND if crowd else NUM_ANNOTATED_CLIENTS)
    if crowd:
        draw_quantile_band(axes, curves.trust)
    else:
        for client in set(range(clients)) - set(named):
            draw_client_line(axes, curves.trust[:, client], BACKGROUND_STYLE)
    ends = []
    for number, client in enumerate(named):
        look = FLIPPED_CLIENT_STYLE if client in flipped else CLIENT_STYLES[number % len(CLIENT_STYLES)]
        last = draw_client_line(axes, curves.trust[:, client], look)
        name = f"client {client}" + (", flipped" if client in flipped else "")
        ends += [LineLabel(*last, name, look.color, client in flipped)] if last else []
    set_round_axis(axes, rounds)
    if curves.num_rounds_before_consensus:
        axes.axvspan(
            axes.get_xlim()[0], curves.num_rounds_before_consensus + 0.5, color=SHADE_COLOR, linewidth=0, zorder=0
        )
    return ends


def shown_of_total(num_shown: int, num_total: int, noun: str) -> str:
    """For a title: how many are shown, if not all are."""
    return f", {num_shown} of {num_total} {noun}" if num_shown < num_total else ""


def pluralize_clients(num_clients: int) -> str:
    return "1 client" if num_clients == 1 else f"{num_clients} clients"


def clients_to_plot(num_clients: int, flipped: set[int], max_clients: int) -> list[int]:
    """The first ones, among them as many of those with flipped labels as there is room for."""
    special = sorted(flipped)[:max_clients]
    others = [client for client in range(num_clients) if client not in flipped]
    return sorted([*special, *others[: max_clients - len(special)]])


def draw_client_line(axes: Axes, values: NDArray[np.float64], style: LineStyle) -> tuple[float, float] | None:
    """A client's line through the rounds that it took part in, and the last point of it."""
    rounds = np.flatnonzero(np.isfinite(values))
    if not len(rounds):
        return None
    axes.plot(rounds + 1, values[rounds], **style.plot_kwargs(len(rounds)))
    return float(rounds[-1] + 1), float(values[rounds[-1]])


def draw_quantile_band(axes: Axes, values: Matrix) -> None:
    """Median and a band from the 10th to the 90th percentile, of those who took part in a round."""
    rounds = np.flatnonzero(np.isfinite(values).any(axis=1))
    low, median, high = np.nanquantile(values[rounds], (0.1, 0.5, 0.9), axis=1)
    axes.fill_between(rounds + 1, low, high, color="0.8", linewidth=0)
    axes.plot(rounds + 1, median, **MEDIAN_STYLE.plot_kwargs())


def losses_figure(group: ComparisonGroup, figure_data: FigureData) -> Figure:
    """The private and the public loss of some clients over rounds, a panel a client."""
    known = {
        key: run
        for key, run in require_client_curves(figure_data).items()
        if np.isfinite(run.loss_private).any() or np.isfinite(run.loss_public).any()
    }
    if not known:
        raise FigureUnavailableError("no run of FedMosaic logged a loss")
    runs = dict(list(known.items())[:MAX_VARIANTS])
    looks = loss_line_styles(runs)
    first = next(iter(runs.values()))
    clients = first.trust.shape[1]
    flipped = clients_with_flipped_labels(group, first.digest)
    shown = clients_to_plot(clients, flipped, 9 if clients <= 9 else 6)
    down = -(-len(shown) // MAX_PANEL_COLUMNS)
    across = min(len(shown), MAX_PANEL_COLUMNS)
    names = {f"{method_title(key)}, {which}": look for key, pair in looks.items() for which, look in pair.items()}
    figure = new_figure(PAGE_WIDTH_INCHES, 0.8 + 1.45 * down + legend_height_inches(names))
    panels = list(figure.subplots(down, across, squeeze=False, sharey=True, sharex=True).flat)
    for axes, client in zip(panels, shown, strict=False):
        draw_losses(axes, runs, client, looks)
        special: dict[str, Any] = (
            {"color": FLIPPED_CLIENT_STYLE.color, "fontweight": "bold"} if client in flipped else {}
        )
        axes.set_title(f"client {client}" + (", labels flipped" if special else ""), loc="left", **special)
        axes.label_outer()
    for number, axes in enumerate(panels[len(shown) :], start=len(shown)):
        panels[number - across].xaxis.set_tick_params(labelbottom=True)
        panels[number - across].set_xlabel("round")
        axes.remove()
    highest = panels[0].get_ylim()[1]
    panels[0].set_ylim(-0.04 * highest, highest)  # room for markers at 0
    add_legend_below(figure, names)
    some = shown_of_total(len(shown), clients, "clients") + shown_of_total(len(runs), len(known), "variants")
    seeds = ", ".join(map(str, dict.fromkeys(run.seed for run in runs.values())))
    why = ", from which λ follows" if all(key[0] == "fedmosaic" for key in runs) else ""
    add_title_and_note(figure, f"{group.label}: private and public loss{why}{some}, seed {seeds}")
    return figure


def draw_losses(
    axes: Axes,
    curves_by_method: Mapping[MethodKey, ClientCurves],
    client: int,
    styles: Mapping[MethodKey, Mapping[str, LineStyle]],
) -> None:
    """The two losses of each variant."""
    for key, run in curves_by_method.items():
        if client < run.trust.shape[1]:
            draw_client_line(axes, run.loss_private[:, client], styles[key]["private"])
            draw_client_line(axes, run.loss_public[:, client], styles[key]["public"])
    set_round_axis(axes, len(run.trust))
    axes.set_ylabel("loss")
    add_grid_lines(axes)


def loss_line_styles(keys: Iterable[MethodKey]) -> dict[MethodKey, dict[str, LineStyle]]:
    """A colour for each variant: solid lines and full markers for private losses, dashes and hollow markers for public
    ones. The later, the thinner, so that equals are both seen."""
    looks: dict[MethodKey, dict[str, LineStyle]] = {}
    taken: set[str] = set()
    for number, key in enumerate(keys):
        base, width = base_line_style(key), 2.2 - 0.6 * number
        free = (look for look in (base, *CLIENT_STYLES) if look.color not in taken)
        colour = next(free).color
        taken.add(colour)
        looks[key] = {
            "private": LineStyle(colour, base.marker, "-", width),
            "public": LineStyle(colour, base.marker, (0, (3, 1.2)), width, is_hollow=True),
        }
    return looks


def clients_with_flipped_labels(group: ComparisonGroup, digest: str) -> set[int]:
    """The clients whose labels are flipped, as far as a manifest tells."""
    clients: Iterable[Any] = group.manifests_by_digest.get(digest, {}).get("clients", ())
    return {
        number for number, client in enumerate(clients) if isinstance(client, dict) and client.get("labels_flipped")
    }


def client_class_counts_figure(group: ComparisonGroup) -> Figure:
    """What the clients of the first seed train on."""
    manifest = first_valid_manifest(group)
    counts = [client["train"]["class_counts"] for client in manifest["clients"]]
    title = f"{group.label}, shards of seed {manifest['seed']}: training examples of {pluralize_clients(len(counts))}"
    domains = [client["domain"] for client in manifest["clients"]]
    return class_counts_figure(counts, manifest["class_names"], title, domains, PAGE_WIDTH_INCHES)


def public_set_figure(group: ComparisonGroup) -> Figure:
    """What the public set of the first seed is made of."""
    manifest = first_valid_manifest(group)
    public = manifest["public"]
    if not public["size"]:
        raise FigureUnavailableError("there is no public set")
    if public["class_counts"] is None:
        raise FigureUnavailableError("nobody has counted the classes of the public set")
    title = f"{group.label}, shards of seed {manifest['seed']}: public set, {public['size']} examples"
    return public_class_counts_figure(public["class_counts"], manifest["class_names"], title, PAGE_WIDTH_INCHES)


def first_valid_manifest(group: ComparisonGroup) -> dict[str, Any]:
    """The manifest of the first seed whose runs kept one."""
    for digest in dict.fromkeys(group.runs.sort_values("seed", kind="stable").digest):
        manifest = group.manifests_by_digest.get(digest)
        if manifest is not None and is_plottable_manifest(manifest):
            return manifest
    raise FigureUnavailableError("no run kept the manifest of its shards; make the runs again, older ones have none")


def is_plottable_manifest(manifest: dict[str, Any]) -> bool:
    """Whether everything that a picture needs is there, and of the right length."""
    try:
        checked = ShardManifest.model_validate(manifest)
    except ValidationError:
        return False
    parts = [part for client in checked.clients for part in (client.train, client.test, client.val) if part]
    counts = [part.class_counts for part in parts]
    if checked.public.class_counts is not None:
        counts.append(checked.public.class_counts)
    lengths = {len(part) for part in counts}
    return bool(checked.clients) and lengths == {len(checked.class_names)}
