"""Figures of single clients: their trust, their losses, and what they hold."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from fedmosaic_cli.report.comparison import title_of
from fedmosaic_cli.report.plots.canvas import blank, entitle
from fedmosaic_cli.report.plots.figure_data import NoFigureError
from fedmosaic_cli.report.plots.line_labels import End, key_below, key_inches, label_ends
from fedmosaic_cli.report.plots.partition_plots import distribution_figure, public_figure
from fedmosaic_cli.report.plots.plot_style import (
    CLIENTS,
    FLIPPED,
    PAGE_INCHES,
    SHADE,
    Look,
    base_of,
    grid_lines,
    round_axis,
)
from fedmosaic_cli.storage.shard_manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from fedmosaic_cli.report.comparison import Key, Setting
    from fedmosaic_cli.report.plots.figure_data import CloseUp, Evidence

    Matrix = NDArray[np.float64]

MOST_LINES = 15
"""Of more clients than these, a median and a band are drawn."""
NAMED, NAMED_IN_A_CROWD = 6, 3
THIN = Look("0.65", width=0.6, order=2)
MEDIAN = Look("black", width=1.8, order=7)
COLUMNS = 3
MOST_VARIANTS, MOST_PANELS = 3, 12
LETTERS = 80
"""Of a title, in a line."""


def trust_figure(setting: Setting, evidence: Evidence) -> Figure:
    """Lambda of each client over rounds, a panel for each variant of FedMosaic."""
    known = {key: run for key, run in close_ups(evidence).items() if np.isfinite(run.trust).any()}
    if not known:
        raise NoFigureError("no run of FedMosaic logged a trust λ")
    runs = dict(list(known.items())[:MOST_PANELS])
    across = min(len(runs), COLUMNS)
    down = -(-len(runs) // across)
    figure = blank(PAGE_INCHES, 0.9 + 2.1 * down)
    panels = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
    ends: dict[Axes, list[End]] = {}
    for axes, (key, run) in zip(panels, runs.items(), strict=False):
        ends[axes] = draw_trust(axes, run, flipped_clients(setting, run.digest))
        axes.set_title(fill(title_of(key), LETTERS // across) + f"\nseed {run.seed}", loc="left")
    for axes in panels[len(ends) :]:
        axes.remove()
    for axes in panels[::across]:
        axes.set_ylabel("λ", rotation=0)
    for axes in ends:
        # Trust of a millionth should look like none; 1 is as much as in one's own labels.
        axes.set_ylim(-0.03, max(1.05, axes.get_ylim()[1]))
    clients = next(iter(runs.values())).trust.shape[1]
    crowd = "Black: median of all clients; band: 10th to 90th percentile. " if clients > MOST_LINES else ""
    most = max(float(np.nanmax(run.trust, initial=0)) for run in runs.values())
    little = f" λ is at most {most:.0e} here." if 0 < most < 0.01 else ""
    alone = "Shaded: rounds before the first consensus." if any(run.alone for run in runs.values()) else ""
    some = some_of(len(runs), len(known), "variants")
    title = f"{setting.label}: trust λ of {counted(clients)} in the consensus{some}"
    entitle(figure, title, f"{crowd}{alone}{little}")
    label_ends(ends)
    return figure


def close_ups(evidence: Evidence) -> dict[Key, CloseUp]:
    """Those of FedMosaic, if there are any."""
    if not evidence.close_ups:
        raise NoFigureError("no run of FedMosaic has a log that can be read")
    return evidence.close_ups


def draw_trust(axes: Axes, run: CloseUp, flipped: set[int]) -> list[End]:
    """The lines of one panel, and where those with a name end."""
    rounds, clients = run.trust.shape
    crowd = clients > MOST_LINES
    named = chosen_clients(clients, flipped, NAMED_IN_A_CROWD if crowd else NAMED)
    if crowd:
        draw_crowd(axes, run.trust)
    else:
        for client in set(range(clients)) - set(named):
            draw_line(axes, run.trust[:, client], THIN)
    ends = []
    for number, client in enumerate(named):
        look = FLIPPED if client in flipped else CLIENTS[number % len(CLIENTS)]
        last = draw_line(axes, run.trust[:, client], look)
        name = f"client {client}" + (", flipped" if client in flipped else "")
        ends += [End(*last, name, look.colour, client in flipped)] if last else []
    round_axis(axes, rounds)
    if run.alone:
        axes.axvspan(axes.get_xlim()[0], run.alone + 0.5, color=SHADE, linewidth=0, zorder=0)
    return ends


def some_of(shown: int, there_are: int, what: str) -> str:
    """For a title: how many are shown, if not all are."""
    return f", {shown} of {there_are} {what}" if shown < there_are else ""


def counted(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def chosen_clients(clients: int, flipped: set[int], most: int) -> list[int]:
    """The first ones, among them as many of those with flipped labels as there is room for."""
    special = sorted(flipped)[:most]
    others = [client for client in range(clients) if client not in flipped]
    return sorted([*special, *others[: most - len(special)]])


def draw_line(axes: Axes, values: NDArray[np.float64], look: Look) -> tuple[float, float] | None:
    """A client's line through the rounds that it took part in, and the last point of it."""
    rounds = np.flatnonzero(np.isfinite(values))
    if not len(rounds):
        return None
    axes.plot(rounds + 1, values[rounds], **look.line(len(rounds)))
    return float(rounds[-1] + 1), float(values[rounds[-1]])


def draw_crowd(axes: Axes, table: Matrix) -> None:
    """Median and a band from the 10th to the 90th percentile, of those who took part in a round."""
    rounds = np.flatnonzero(np.isfinite(table).any(axis=1))
    low, median, high = np.nanquantile(table[rounds], (0.1, 0.5, 0.9), axis=1)
    axes.fill_between(rounds + 1, low, high, color="0.8", linewidth=0)
    axes.plot(rounds + 1, median, **MEDIAN.line())


def losses_figure(setting: Setting, evidence: Evidence) -> Figure:
    """The private and the public loss of some clients over rounds, a panel a client."""
    known = {
        key: run
        for key, run in close_ups(evidence).items()
        if np.isfinite(run.loss_private).any() or np.isfinite(run.loss_public).any()
    }
    if not known:
        raise NoFigureError("no run of FedMosaic logged a loss")
    runs = dict(list(known.items())[:MOST_VARIANTS])
    looks = loss_looks(runs)
    first = next(iter(runs.values()))
    clients = first.trust.shape[1]
    flipped = flipped_clients(setting, first.digest)
    shown = chosen_clients(clients, flipped, 9 if clients <= 9 else 6)
    down = -(-len(shown) // COLUMNS)
    across = min(len(shown), COLUMNS)
    names = {f"{title_of(key)}, {which}": look for key, pair in looks.items() for which, look in pair.items()}
    figure = blank(PAGE_INCHES, 0.8 + 1.45 * down + key_inches(names))
    panels = list(figure.subplots(down, across, squeeze=False, sharey=True, sharex=True).flat)
    for axes, client in zip(panels, shown, strict=False):
        draw_losses(axes, runs, client, looks)
        special: dict[str, Any] = {"color": FLIPPED.colour, "fontweight": "bold"} if client in flipped else {}
        axes.set_title(f"client {client}" + (", labels flipped" if special else ""), loc="left", **special)
        axes.label_outer()
    for number, axes in enumerate(panels[len(shown) :], start=len(shown)):
        panels[number - across].xaxis.set_tick_params(labelbottom=True)
        panels[number - across].set_xlabel("round")
        axes.remove()
    highest = panels[0].get_ylim()[1]
    panels[0].set_ylim(-0.04 * highest, highest)  # room for markers at 0
    key_below(figure, names)
    some = some_of(len(shown), clients, "clients") + some_of(len(runs), len(known), "variants")
    seeds = ", ".join(map(str, dict.fromkeys(run.seed for run in runs.values())))
    why = ", from which λ follows" if all(key[0] == "fedmosaic" for key in runs) else ""
    entitle(figure, f"{setting.label}: private and public loss{why}{some}, seed {seeds}")
    return figure


def draw_losses(axes: Axes, runs: Mapping[Key, CloseUp], client: int, looks: Mapping[Key, Mapping[str, Look]]) -> None:
    """The two losses of each variant."""
    for key, run in runs.items():
        if client < run.trust.shape[1]:
            draw_line(axes, run.loss_private[:, client], looks[key]["private"])
            draw_line(axes, run.loss_public[:, client], looks[key]["public"])
    round_axis(axes, len(run.trust))
    axes.set_ylabel("loss")
    grid_lines(axes)


def loss_looks(keys: Iterable[Key]) -> dict[Key, dict[str, Look]]:
    """A colour for each variant: solid lines and full markers for private losses, dashes and hollow markers for public
    ones. The later, the thinner, so that equals are both seen."""
    looks: dict[Key, dict[str, Look]] = {}
    taken: set[str] = set()
    for number, key in enumerate(keys):
        base, width = base_of(key), 2.2 - 0.6 * number
        free = (look for look in (base, *CLIENTS) if look.colour not in taken)
        colour = next(free).colour
        taken.add(colour)
        looks[key] = {
            "private": Look(colour, base.marker, "-", width),
            "public": Look(colour, base.marker, (0, (3, 1.2)), width, hollow=True),
        }
    return looks


def flipped_clients(setting: Setting, digest: str) -> set[int]:
    """The clients whose labels are flipped, as far as a manifest tells."""
    clients: Iterable[Any] = setting.manifests.get(digest, {}).get("clients", ())
    return {
        number for number, client in enumerate(clients) if isinstance(client, dict) and client.get("labels_flipped")
    }


def clients_figure(setting: Setting) -> Figure:
    """What the clients of the first seed train on."""
    manifest = first_manifest(setting)
    counts = [client["train"]["class_counts"] for client in manifest["clients"]]
    title = f"{setting.label}, shards of seed {manifest['seed']}: training examples of {counted(len(counts))}"
    domains = [client["domain"] for client in manifest["clients"]]
    return distribution_figure(counts, manifest["class_names"], title, domains, PAGE_INCHES)


def public_set_figure(setting: Setting) -> Figure:
    """What the public set of the first seed is made of."""
    manifest = first_manifest(setting)
    public = manifest["public"]
    if not public["size"]:
        raise NoFigureError("there is no public set")
    if public["class_counts"] is None:
        raise NoFigureError("nobody has counted the classes of the public set")
    title = f"{setting.label}, shards of seed {manifest['seed']}: public set, {public['size']} examples"
    return public_figure(public["class_counts"], manifest["class_names"], title, PAGE_INCHES)


def first_manifest(setting: Setting) -> dict[str, Any]:
    """The manifest of the first seed whose runs kept one."""
    for digest in dict.fromkeys(setting.runs.sort_values("seed", kind="stable").digest):
        manifest = setting.manifests.get(digest)
        if manifest is not None and makes_sense(manifest):
            return manifest
    raise NoFigureError("no run kept the manifest of its shards; make the runs again, older ones have none")


def makes_sense(manifest: dict[str, Any]) -> bool:
    """Whether everything that a picture needs is there, and of the right length."""
    try:
        checked = Manifest.model_validate(manifest)
    except ValidationError:
        return False
    parts = [part for client in checked.clients for part in (client.train, client.test, client.val) if part]
    counts = [part.class_counts for part in parts]
    if checked.public.class_counts is not None:
        counts.append(checked.public.class_counts)
    lengths = {len(part) for part in counts}
    return bool(checked.clients) and lengths == {len(checked.class_names)}
