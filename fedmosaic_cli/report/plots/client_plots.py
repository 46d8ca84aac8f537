"""Figures of clients: trust and losses over rounds, and the class counts of their data."""

from __future__ import annotations

import json
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.method_styles import (
    BACKGROUND_CLIENT_COLOR,
    FLIPPED_CLIENT_STYLE,
    METHOD_COLORS,
    client_style,
)
from fedmosaic_cli.report.plots.canvas import Caption, add_caption, new_figure, note_height_inches
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, first_valid_manifest, joined_titles
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.plots.line_labels import add_legend_below, legend_height_inches
from fedmosaic_cli.report.plots.partition_plots import (
    COUNTED_EXAMPLES_NOTE,
    class_counts_figure,
    public_class_counts_figure,
)
from fedmosaic_cli.report.plots.plot_style import (
    SHADE_COLOR,
    DashPattern,
    LineStyle,
    add_grid_lines,
    line_style,
    method_line_styles,
    set_round_axis,
)
from fedmosaic_cli.storage.shard_manifest import class_counts_by_client

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import ClientCurves, FigureData
    from fedmosaic_cli.report.plots.figure_options import FigureOptions

MAX_CLIENT_LINES = 15
"""With more clients than this, the others are drawn as a median and a quantile band."""
NUM_SHOWN_CLIENTS, NUM_SHOWN_CLIENTS_WITH_BAND = 6, 3
BACKGROUND_STYLE = LineStyle(BACKGROUND_CLIENT_COLOR.light, width=0.6, zorder=2)
MEDIAN_STYLE = LineStyle("black", width=1.6, zorder=7)
BAND_COLOR = "0.85"
MAX_VARIANTS, MAX_PANELS = 3, 12
TITLE_WIDTH_CHARS = 80
EN_DASH = "\N{EN DASH}"
FLAT_TRUST = 0.005
"""A smaller lambda cannot be told from 0 on an axis up to 1."""
DECADE = 10.0
LOSS_TRUST_RULES = ("paper", "stabilised")
"""The values of the hyperparameter `trust` with which lambda is computed from the private and the public loss."""
PUBLIC_DASH: DashPattern = (0, (3.0, 1.2))


def trust_figure(group: ComparisonGroup, figure_data: FigureData, options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Lambda of the clients over rounds, one panel per variant of FedMosaic in which lambda is visible."""
    available = {key: run for key, run in require_client_curves(figure_data).items() if np.isfinite(run.trust).any()}
    if not available:
        raise FigureUnavailableError("no run of FedMosaic logged the trust λ")
    visible = {key: run for key, run in available.items() if np.nanmax(run.trust) >= FLAT_TRUST}
    flat = {key: run for key, run in available.items() if key not in visible}
    if not visible:
        raise FigureUnavailableError(flat_trust_sentence(flat).removesuffix("."))
    runs = dict(list(visible.items())[:MAX_PANELS])
    num_clients = next(iter(runs.values())).trust.shape[1]
    has_band = num_clients > MAX_CLIENT_LINES
    flipped = clients_with_flipped_labels(group, next(iter(runs.values())).digest)
    shown = chosen_clients(num_clients, flipped, options, NUM_SHOWN_CLIENTS_WITH_BAND if has_band else None)
    styles = client_line_styles(shown, flipped)
    legend = {client_name(client, flipped): style for client, style in styles.items()}
    if has_band:
        legend["median of all clients"] = MEDIAN_STYLE
    elif len(shown) < num_clients:
        legend["other clients"] = BACKGROUND_STYLE
    subset = clients_of_total(shown, num_clients)
    shown_lines = f"Coloured lines: {subset}" if len(shown) < num_clients else subset.capitalize()
    notes = [f"{shown_lines}; seed {joined_seeds(runs)}."]
    if any(run.num_rounds_before_consensus for run in runs.values()):
        notes.append("Shaded: rounds trained without a consensus.")
    if flat:
        notes.append(flat_trust_sentence(flat))
    if len(runs) < len(visible):
        notes.append(f"{len(runs)} of {len(visible)} variants are shown.")
    note = " ".join(notes)
    columns = min(len(runs), 2 if options.is_narrow else 3)
    rows = -(-len(runs) // columns)
    names = [*legend, *["10th to 90th percentile"] * has_band]
    height = 0.25 + rows * (1.45 if options.is_narrow else 1.75) + legend_height_inches(names, options)
    figure = new_figure(options.width_inches, height + note_height_inches(options, note))
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=True).flat)
    for axes, (key, run) in zip(panels, runs.items(), strict=False):
        draw_trust(axes, run, styles, has_band)
        width_chars = int(options.width_inches / columns / options.char_inches)
        axes.set_title(fill(method_title(key), width_chars), loc="left")
    remove_unused_panels(panels, len(runs), columns)
    for axes in panels[::columns]:
        axes.set_ylabel("λ", rotation=0, labelpad=6)
    # The axis reaches at least to 1, full trust.
    highest = max(1.0, *(float(np.nanmax(run.trust)) for run in runs.values()))
    panels[0].set_ylim(-0.03 * highest, 1.05 * highest)
    add_legend_below(figure, legend, options, band_handles() if has_band else ())
    add_caption(figure, options, f"trust λ of {pluralize_clients(num_clients)} in the consensus", group.label, note)
    return figure


def require_client_curves(figure_data: FigureData) -> dict[MethodKey, ClientCurves]:
    if not figure_data.client_curves_by_method:
        raise FigureUnavailableError("no run of FedMosaic has a readable log")
    return figure_data.client_curves_by_method


def flat_trust_sentence(runs: Mapping[MethodKey, ClientCurves]) -> str:
    """The sentences on variants whose lambda is always about 0."""
    warmup = [key for key, run in runs.items() if run.num_rounds_before_consensus >= len(run.trust)]
    others = [key for key in runs if key not in warmup]
    sentences = []
    if others:
        titles = ", ".join(map(method_title, others))
        sentences.append(f"λ of all clients is below {FLAT_TRUST} in every round: {titles}.")
    if warmup:
        sentences.append(f"{joined_titles(warmup)} did not train on pseudo-labels in any round (warm-up).")
    return " ".join(sentences)


def draw_trust(axes: Axes, curves: ClientCurves, styles: Mapping[int, LineStyle], has_band: bool) -> None:
    """Draw one panel: lines of the shown clients, and the others in grey or as median and quantiles of all."""
    num_rounds, num_clients = curves.trust.shape
    if has_band:
        rounds = np.flatnonzero(np.isfinite(curves.trust).any(axis=1))
        low, median, high = np.nanquantile(curves.trust[rounds], (0.1, 0.5, 0.9), axis=1)
        axes.fill_between(rounds + 1, low, high, color=BAND_COLOR, linewidth=0)
        axes.plot(rounds + 1, median, **MEDIAN_STYLE.plot_kwargs())
    else:
        for client in sorted(set(range(num_clients)) - styles.keys()):
            draw_client_line(axes, curves.trust[:, client], BACKGROUND_STYLE)
    for client, style in styles.items():
        if client < num_clients:
            draw_client_line(axes, curves.trust[:, client], style)
    set_round_axis(axes, num_rounds)
    if curves.num_rounds_before_consensus:
        last = curves.num_rounds_before_consensus + 0.5
        axes.axvspan(axes.get_xlim()[0], last, color=SHADE_COLOR, linewidth=0, zorder=0)


def band_handles() -> list[Any]:
    """Legend handles of the quantile band."""
    from matplotlib.patches import Patch

    return [Patch(color=BAND_COLOR, label="10th to 90th percentile")]


def client_line_styles(clients: Sequence[int], flipped: set[int]) -> dict[int, LineStyle]:
    """A style per client; all clients with flipped labels are red."""
    return {
        client: line_style(FLIPPED_CLIENT_STYLE if client in flipped else client_style(number), number)
        for number, client in enumerate(clients)
    }


def client_name(client: int, flipped: set[int]) -> str:
    return f"client {client}" + (" (labels flipped)" if client in flipped else "")


def pluralize_clients(num_clients: int) -> str:
    return "1 client" if num_clients == 1 else f"{num_clients} clients"


def clients_of_total(clients: Sequence[int], num_clients: int) -> str:
    """Which clients are shown, such as `clients 0–5 of 15`; `all 5 clients` if all are."""
    if len(clients) == num_clients:
        return f"all {pluralize_clients(num_clients)}" if num_clients > 1 else "the only client"
    return f"client{'s' * (len(clients) > 1)} {format_ranges(clients)} of {num_clients}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers with ranges, such as `0–3, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}{EN_DASH}{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def joined_seeds(runs: Mapping[MethodKey, ClientCurves]) -> str:
    return ", ".join(map(str, dict.fromkeys(run.seed for run in runs.values())))


def chosen_clients(num_clients: int, flipped: set[int], options: FigureOptions, max_clients: int | None) -> list[int]:
    """The clients of the option `--clients`; by default those with flipped labels and the first of the others."""
    if options.clients is not None:
        chosen = [client for client in options.clients if client < num_clients]
        if not chosen:
            raise FigureUnavailableError(
                f"there are {pluralize_clients(num_clients)}, numbered from 0: choose other --clients"
            )
        return sorted(chosen)
    limit = max_clients or NUM_SHOWN_CLIENTS
    special = sorted(flipped)[:limit]
    others = [client for client in range(num_clients) if client not in flipped]
    return sorted([*special, *others[: limit - len(special)]])


def draw_client_line(axes: Axes, values: NDArray[np.float64], style: LineStyle) -> None:
    """Draw a line through the rounds in which the client took part."""
    rounds = np.flatnonzero(np.isfinite(values))
    if len(rounds):
        axes.plot(rounds + 1, values[rounds], **style.plot_kwargs(len(rounds)))


def remove_unused_panels(panels: Sequence[Axes], num_used: int, columns: int) -> None:
    """Remove panels without a plot, and label the round axes above them and of the last row."""
    for number, axes in enumerate(panels):
        if number >= num_used:
            axes.remove()
            continue
        is_lowest = number + columns >= num_used
        axes.xaxis.set_tick_params(labelbottom=is_lowest)
        axes.set_xlabel("round" if is_lowest else "")


def losses_figure(group: ComparisonGroup, figure_data: FigureData, options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
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
    shown = chosen_clients(num_clients, flipped, options, None)
    columns = min(len(shown), 2 if options.is_narrow else 3)
    rows = -(-len(shown) // columns)
    legend = {method_title(key): pair["private"] for key, pair in styles.items()}
    kinds = {"private loss": LineStyle("0.3")}
    has_public = any(np.isfinite(run.loss_public[:, clients_in(run, shown)]).any() for run in runs.values())
    if has_public:
        kinds["public loss"] = LineStyle("0.3", dash=PUBLIC_DASH)
    is_log = spans_a_decade(losses_of(runs.values(), shown))
    notes = [
        f"{clients_of_total(shown, num_clients)}, seed {joined_seeds(runs)}.".capitalize(),
        private_loss_sentence({key: computes_trust_from_losses(group, key) for key in runs}),
        *([f"{len(runs)} of {len(available)} variants are shown."] if len(runs) < len(available) else []),
    ]
    note = " ".join(notes)
    height = 0.2 + rows * (1.05 if options.is_narrow else 1.3) + legend_height_inches([*legend, *kinds], options)
    figure = new_figure(options.width_inches, height + note_height_inches(options, note))
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=True).flat)
    for axes, client in zip(panels, shown, strict=False):
        if is_log:
            axes.set_yscale("log")
        draw_losses(axes, runs, client, styles)
        emphasis: dict[str, Any] = {"color": FLIPPED_CLIENT_STYLE.color.light} if client in flipped else {}
        axes.set_title(client_name(client, flipped), loc="left", **emphasis)
    remove_unused_panels(panels, len(shown), columns)
    for axes in panels[::columns]:
        axes.set_ylabel("loss (log scale)" if is_log else "loss")
    if is_log:
        limit_decades(panels[0])
    else:
        highest = panels[0].get_ylim()[1]
        panels[0].set_ylim(-0.04 * highest, highest)  # space for markers at 0
    add_legend_below(figure, {**legend, **kinds}, options)
    add_caption(figure, options, f"private {'and public ' * has_public}loss of single clients", group.label, note)
    return figure


def computes_trust_from_losses(group: ComparisonGroup, key: MethodKey) -> bool:
    """Whether the runs of a row log the losses from which they compute lambda."""
    hyperparameters = json.loads(group.runs_by_method[key].hyperparameters.iloc[0])
    return hyperparameters.get("trust", "paper" if key[0] == "fedmosaic" else None) in LOSS_TRUST_RULES


def private_loss_sentence(computes_trust: Mapping[MethodKey, bool]) -> str:
    """The sentence on what the private loss of each row is; `computes_trust`: lambda is computed from it."""
    definitions = {True: "the loss from which λ was computed", False: "mean over the training batches of the round"}
    keys_by_kind = {kind: [key for key, value in computes_trust.items() if value == kind] for kind in definitions}
    used = {kind: keys for kind, keys in keys_by_kind.items() if keys}
    if len(used) == 1:
        return f"Private loss: {definitions[next(iter(used))]}."
    return f"Private loss: {'; '.join(f'{definitions[kind]} ({joined_titles(keys)})' for kind, keys in used.items())}."


def losses_of(runs: Iterable[ClientCurves], clients: Sequence[int]) -> NDArray[np.float64]:
    """All losses of some clients."""
    return np.concatenate(
        [matrix[:, clients_in(run, clients)].ravel() for run in runs for matrix in (run.loss_private, run.loss_public)]
    )


def clients_in(run: ClientCurves, clients: Sequence[int]) -> list[int]:
    """Those of the clients that the run has."""
    return [client for client in clients if client < run.trust.shape[1]]


def spans_a_decade(values: NDArray[np.float64]) -> bool:
    """Whether the largest of the positive values is more than ten times the smallest."""
    positive = values[np.isfinite(values) & (values > 0)]
    return bool(len(positive)) and float(positive.max()) > DECADE * float(positive.min())


def limit_decades(axes: Axes) -> None:
    """Show at most six decades, with ticks at powers of ten; at 1, 2 and 5 times these in less than two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 1e-6 * high), high)
    low, high = axes.get_ylim()
    few_decades = high < DECADE**2 * low
    locator = LogLocator(10, (1, 2, 5), numticks=12) if few_decades else LogLocator(10, numticks=5)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


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
    set_round_axis(axes, len(next(iter(curves_by_method.values())).trust))
    add_grid_lines(axes)


def loss_line_styles(keys: Iterable[MethodKey]) -> dict[MethodKey, dict[str, LineStyle]]:
    """Styles with the colour and the marker of each variant: solid private losses, dashed hollow public losses.

    Rows of one method share a colour, so further rows take the colour of another method.
    """
    styles: dict[MethodKey, dict[str, LineStyle]] = {}
    used: set[str] = set()
    for key, base in method_line_styles(list(keys)).items():
        color = next(color for color in (base.color, *(color.light for color in METHOD_COLORS)) if color not in used)
        used.add(color)
        common: dict[str, Any] = {"color": color, "marker": base.marker, "width": 1.0, "number": base.number}
        styles[key] = {
            "private": LineStyle(**common),
            "public": LineStyle(**common, dash=PUBLIC_DASH, is_hollow=True),
        }
    return styles


def clients_with_flipped_labels(group: ComparisonGroup, digest: str) -> set[int]:
    """The clients with flipped labels according to the shard manifest, if there is one."""
    clients: Iterable[Any] = group.manifests_by_digest.get(digest, {}).get("clients", ())
    return {
        number for number, client in enumerate(clients) if isinstance(client, dict) and client.get("labels_flipped")
    }


def client_class_counts_figure(group: ComparisonGroup, options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Examples per client and class, for the first seed."""
    manifest = first_valid_manifest(group)
    counts = class_counts_by_client(manifest.model_dump(exclude_none=True))
    place = f"{group.label}, {pluralize_clients(len(counts))}, shards of seed {manifest.seed}"
    domains = [client.domain for client in manifest.clients]
    caption = Caption("examples per client and class", place, COUNTED_EXAMPLES_NOTE)
    return class_counts_figure(counts, manifest.class_names, caption, domains, options)


def public_set_figure(group: ComparisonGroup, options: FigureOptions = DEFAULT_OPTIONS) -> Figure:
    """Class counts of the public set, for the first seed."""
    manifest = first_valid_manifest(group)
    public = manifest.public
    if not public.size:
        raise FigureUnavailableError("there is no public set")
    if public.class_counts is None:
        raise FigureUnavailableError("the classes of the public set are unknown")
    place = f"{group.label}, shards of seed {manifest.seed}"
    subject = f"classes of the {public.size} examples of the public set"
    return public_class_counts_figure(public.class_counts, manifest.class_names, Caption(subject, place), options)
