"""All figures that a set of runs allows, one after the other, and what is missing for the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import shares_labels
from fedmosaic_cli.report.plots.canvas import rendered
from fedmosaic_cli.report.plots.client_plots import clients_figure, losses_figure, public_set_figure, trust_figure
from fedmosaic_cli.report.plots.communication_plot import communication_figure
from fedmosaic_cli.report.plots.figure_data import NoFigureError, read
from fedmosaic_cli.report.plots.plot_style import DOTS_PER_INCH, house_style, is_federated, is_strong
from fedmosaic_cli.report.plots.public_set_groups import families
from fedmosaic_cli.report.plots.public_set_plots import size_figure, skew_figure
from fedmosaic_cli.report.plots.rank_diagram import critical_difference
from fedmosaic_cli.report.plots.round_curves import accuracy_figure, consensus_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from fedmosaic_cli.report.collect import Skipped
    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.plots.figure_data import Evidence
    from fedmosaic_cli.report.plots.public_set_groups import Family
    from fedmosaic_cli.report.statistics import Ranking

Files = dict[str, bytes]
"""A figure by file ending."""
LONGEST_SLUG = 100
SIZES_A_FIGURE, SKEWS_A_FIGURE = 6, 3


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be made, or a part of it, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plate:
    """A kind of figure that a setting may have: how it is drawn, and what the setting lacks for it, "" if nothing."""

    draw: Callable[[Setting, Evidence], Figure]
    lacks: Callable[[Setting], str]


def lacks_fedmosaic(setting: Setting) -> str:
    if any(map(is_strong, setting.methods)):
        return ""
    return "needs a run of FedMosaic; make one with 'fedmosaic train'"


def lacks_consensus(setting: Setting) -> str:
    if any(map(shares_labels, setting.methods)):
        return ""
    return "needs a run of FedMosaic or FedCT; make one with 'fedmosaic train'"


def lacks_messages(setting: Setting) -> str:
    if any(map(is_federated, setting.methods)):
        return ""
    return "needs a run of a method that sends anything; make some with 'fedmosaic baseline all'"


FROM_LOGS = {
    "accuracy": Plate(accuracy_figure, lambda setting: ""),
    "lambda": Plate(trust_figure, lacks_fedmosaic),
    "losses": Plate(losses_figure, lacks_fedmosaic),
    "consensus": Plate(consensus_figure, lacks_consensus),
    "communication": Plate(communication_figure, lacks_messages),
}
FROM_MANIFESTS = {"clients": clients_figure, "public": public_set_figure}


def figures(settings: Sequence[Setting], ranking: Ranking | None = None, kinds: Collection[str] | None = None) -> Album:
    """All figures of these settings, or those of some kinds; `ranking` is for the critical-difference diagram."""
    return Album(settings, ranking, kinds)


class Album:
    """Names of figures, each with a function that draws it; nothing is read or drawn before it is called.

    A setting's logs are read when the first of its figures is drawn, and forgotten when the iteration goes on to the
    next setting. `missing` and `skipped` (runs whose logs are of no use) may grow while figures are drawn.
    """

    def __init__(
        self, settings: Sequence[Setting], ranking: Ranking | None = None, kinds: Collection[str] | None = None
    ) -> None:
        self.ranking = ranking
        self.kinds = kinds
        self.missing: list[Missing] = []
        self.sizes = self.find_families(settings, "public-size", "public_size", "sizes", "--public-size N")
        self.skews = self.find_families(settings, "public-skew", "public_alpha", "skews", "--public-alpha A")
        taken = {name.removeprefix("public-") for name, _ in self.across_settings()}
        self.settings = dict(zip(unlike_slugs(settings, taken), settings, strict=True))
        self.missing += [
            Missing(f"{kind}-{slug}", reason)
            for slug, setting in self.settings.items()
            for kind, plate in FROM_LOGS.items()
            if self.wants(kind) and (reason := plate.lacks(setting))
        ]
        if ranking is None and self.wants("critical-difference"):
            self.missing.append(Missing("critical-difference", "needs runs of several methods in several settings"))
        self.unusable: dict[Path, Skipped] = {}

    def wants(self, kind: str) -> bool:
        """Whether figures of a kind are asked for."""
        return self.kinds is None or kind in self.kinds

    @property
    def skipped(self) -> list[Skipped]:
        """Runs that figures leave out, as far as they have been drawn."""
        return list(self.unusable.values())

    def __len__(self) -> int:
        """How many names there are."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[tuple[str, Callable[[], Files]]]:
        """Each name with a function that gives PNG and PDF; nothing, and a line in `missing`, where all logs that the
        figure needs are of no use."""
        for slug, setting in self.settings.items():
            evidence = cache(partial(self.read, setting))
            for kind, plate in FROM_LOGS.items():
                if self.wants(kind) and not plate.lacks(setting):
                    yield self.entry(f"{kind}-{slug}", partial(from_logs, plate.draw, setting, evidence))
            for kind, of_manifest in FROM_MANIFESTS.items():
                if self.wants(kind):
                    yield self.entry(f"{kind}-{slug}", partial(printed, of_manifest, setting))
        for name, draw in self.across_settings():
            yield self.entry(name, draw)

    def across_settings(self) -> Iterator[tuple[str, Callable[[], Files]]]:
        """The figures that compare settings, several of a kind where there are many families."""
        for kind, found, most, draw in (
            ("public-size", self.sizes, SIZES_A_FIGURE, size_figure),
            ("public-skew", self.skews, SKEWS_A_FIGURE, skew_figure),
        ):
            for start in range(0, len(found), most):
                name = f"{kind}-{start // most + 1}" if start else kind
                yield name, partial(printed, draw, found[start : start + most])
        if self.ranking is not None and self.wants("critical-difference"):
            yield "critical-difference", partial(printed, critical_difference, self.ranking)

    def entry(self, name: str, draw: Callable[[], Files]) -> tuple[str, Callable[[], Files]]:
        return name, partial(self.drawn, name, draw)

    def drawn(self, name: str, draw: Callable[[], Files]) -> Files:
        """The figure, or nothing and a reason."""
        try:
            with house_style():
                return draw()
        except NoFigureError as error:
            self.missing.append(Missing(name, str(error)))
            return {}

    def read(self, setting: Setting) -> Evidence:
        evidence = read(setting)
        self.unusable |= {run.path: run for run in evidence.skipped}
        return evidence

    def find_families(
        self, settings: Sequence[Setting], name: str, varied: str, what: str, option: str
    ) -> list[Family]:
        """The families for a figure; where there are none, how to get one."""
        if not self.wants(name):
            return []
        found, remarks = families(settings, varied)
        self.missing += [Missing(name, remark) for remark in remarks if found]
        if not found:
            way = f"'fedmosaic partition {option} --out DIR' and 'fedmosaic train --shards DIR'"
            reason = f"needs runs of FedMosaic with at least two {what} of the public set; make them with {way}"
            self.missing.append(Missing(name, reason))
        return found


def from_logs(draw: Callable[[Setting, Evidence], Figure], setting: Setting, evidence: Callable[[], Evidence]) -> Files:
    """A figure's files; the logs are read now, if they have not been yet."""
    return printed(draw, setting, evidence())


def printed(draw: Callable[..., Figure], *arguments: object) -> Files:
    """A figure's files."""
    return rendered(draw(*arguments), DOTS_PER_INCH)


def unlike_slugs(settings: Sequence[Setting], taken: set[str]) -> list[str]:
    """A part of a file's name for each setting; no two are alike, on a disk that knows no capital letters either, and
    none is one of those that are `taken`."""
    slugs: list[str] = []
    taken = set(taken)
    for setting in settings:
        base = setting.slug[:LONGEST_SLUG]
        choices = chain([base], (f"{base}-{number}" for number in count(2)))
        slugs.append(next(slug for slug in choices if slug.lower() not in taken))
        taken.add(slugs[-1].lower())
    return slugs
