"""All figures that a set of runs allows, one after the other, and what is missing for the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count
from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import shares_labels
from fedmosaic_cli.report.plots.canvas import render_png_and_pdf
from fedmosaic_cli.report.plots.client_plots import (
    client_class_counts_figure,
    losses_figure,
    public_set_figure,
    trust_figure,
)
from fedmosaic_cli.report.plots.communication_plot import communication_figure
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, read_figure_data
from fedmosaic_cli.report.plots.plot_style import FIGURE_DPI, is_federated, is_highlighted_method, use_plot_style
from fedmosaic_cli.report.plots.public_set_groups import find_public_set_groups
from fedmosaic_cli.report.plots.public_set_plots import public_size_figure, public_skew_figure
from fedmosaic_cli.report.plots.rank_diagram import critical_difference_figure
from fedmosaic_cli.report.plots.round_curves import accuracy_figure, consensus_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.plots.figure_data import FigureData
    from fedmosaic_cli.report.plots.public_set_groups import PublicSetGroup
    from fedmosaic_cli.report.statistics import MethodRanking

FigureFiles = dict[str, bytes]
"""A figure by file ending."""
MAX_SLUG_CHARS = 100
MAX_GROUPS_PER_SIZE_FIGURE, MAX_GROUPS_PER_SKEW_FIGURE = 6, 3


@dataclass(frozen=True)
class MissingFigure:
    """A figure that cannot be made, or a part of it, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class FigureSpec:
    """A kind of figure that a setting may have: how it is drawn, and what the setting lacks for it, "" if nothing."""

    draw: Callable[[ComparisonGroup, FigureData], Figure]
    missing_reason: Callable[[ComparisonGroup], str]


def missing_fedmosaic_reason(group: ComparisonGroup) -> str:
    if any(map(is_highlighted_method, group.runs_by_method)):
        return ""
    return "needs a run of FedMosaic; make one with 'fedmosaic train'"


def missing_consensus_reason(group: ComparisonGroup) -> str:
    if any(map(shares_labels, group.runs_by_method)):
        return ""
    return "needs a run of FedMosaic or FedCT; make one with 'fedmosaic train'"


def missing_communication_reason(group: ComparisonGroup) -> str:
    if any(map(is_federated, group.runs_by_method)):
        return ""
    return "needs a run of a method that sends anything; make some with 'fedmosaic baseline all'"


LOG_FIGURES = {
    "accuracy": FigureSpec(accuracy_figure, lambda setting: ""),
    "lambda": FigureSpec(trust_figure, missing_fedmosaic_reason),
    "losses": FigureSpec(losses_figure, missing_fedmosaic_reason),
    "consensus": FigureSpec(consensus_figure, missing_consensus_reason),
    "communication": FigureSpec(communication_figure, missing_communication_reason),
}
MANIFEST_FIGURES = {"clients": client_class_counts_figure, "public": public_set_figure}


def build_figure_set(
    groups: Sequence[ComparisonGroup], ranking: MethodRanking | None = None, kinds: Collection[str] | None = None
) -> FigureSet:
    """All figures of these settings, or those of some kinds; `ranking` is for the critical-difference diagram."""
    return FigureSet(groups, ranking, kinds)


class FigureSet:
    """Names of figures, each with a function that draws it; nothing is read or drawn before it is called.

    A setting's logs are read when the first of its figures is drawn, and forgotten when the iteration goes on to the
    next setting. `missing` and `skipped` (runs whose logs are of no use) may grow while figures are drawn.
    """

    def __init__(
        self,
        groups: Sequence[ComparisonGroup],
        ranking: MethodRanking | None = None,
        kinds: Collection[str] | None = None,
    ) -> None:
        self.ranking = ranking
        self.kinds = kinds
        self.missing: list[MissingFigure] = []
        self.size_groups = self.public_set_groups_or_missing(
            groups, "public-size", "public_size", "sizes", "--public-size N"
        )
        self.skew_groups = self.public_set_groups_or_missing(
            groups, "public-skew", "public_alpha", "skews", "--public-alpha A"
        )
        taken = {name.removeprefix("public-") for name, _ in self.cross_group_figures()}
        self.groups_by_slug = dict(zip(unique_slugs(groups, taken), groups, strict=True))
        self.missing += [
            MissingFigure(f"{kind}-{slug}", reason)
            for slug, setting in self.groups_by_slug.items()
            for kind, plate in LOG_FIGURES.items()
            if self.is_requested(kind) and (reason := plate.missing_reason(setting))
        ]
        if ranking is None and self.is_requested("critical-difference"):
            self.missing.append(
                MissingFigure("critical-difference", "needs runs of several methods in several settings")
            )
        self.skipped_by_path: dict[Path, SkippedRun] = {}

    def is_requested(self, kind: str) -> bool:
        """Whether figures of a kind are asked for."""
        return self.kinds is None or kind in self.kinds

    @property
    def skipped(self) -> list[SkippedRun]:
        """Runs that figures leave out, as far as they have been drawn."""
        return list(self.skipped_by_path.values())

    def __len__(self) -> int:
        """How many names there are."""
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[tuple[str, Callable[[], FigureFiles]]]:
        """Each name with a function that gives PNG and PDF; nothing, and a line in `missing`, where all logs that the
        figure needs are of no use."""
        for slug, setting in self.groups_by_slug.items():
            evidence = cache(partial(self.read_and_record_skipped, setting))
            for kind, plate in LOG_FIGURES.items():
                if self.is_requested(kind) and not plate.missing_reason(setting):
                    yield self.named_figure(f"{kind}-{slug}", partial(render_log_figure, plate.draw, setting, evidence))
            for kind, of_manifest in MANIFEST_FIGURES.items():
                if self.is_requested(kind):
                    yield self.named_figure(f"{kind}-{slug}", partial(render_figure, of_manifest, setting))
        for name, draw in self.cross_group_figures():
            yield self.named_figure(name, draw)

    def cross_group_figures(self) -> Iterator[tuple[str, Callable[[], FigureFiles]]]:
        """The figures that compare settings, several of a kind where there are many families."""
        for kind, found, most, draw in (
            ("public-size", self.size_groups, MAX_GROUPS_PER_SIZE_FIGURE, public_size_figure),
            ("public-skew", self.skew_groups, MAX_GROUPS_PER_SKEW_FIGURE, public_skew_figure),
        ):
            for start in range(0, len(found), most):
                name = f"{kind}-{start // most + 1}" if start else kind
                yield name, partial(render_figure, draw, found[start : start + most])
        if self.ranking is not None and self.is_requested("critical-difference"):
            yield "critical-difference", partial(render_figure, critical_difference_figure, self.ranking)

    def named_figure(self, name: str, draw: Callable[[], FigureFiles]) -> tuple[str, Callable[[], FigureFiles]]:
        return name, partial(self.draw_or_record_missing, name, draw)

    def draw_or_record_missing(self, name: str, draw: Callable[[], FigureFiles]) -> FigureFiles:
        """The figure, or nothing and a reason."""
        try:
            with use_plot_style():
                return draw()
        except FigureUnavailableError as error:
            self.missing.append(MissingFigure(name, str(error)))
            return {}

    def read_and_record_skipped(self, group: ComparisonGroup) -> FigureData:
        evidence = read_figure_data(group)
        self.skipped_by_path |= {run.path: run for run in evidence.skipped}
        return evidence

    def public_set_groups_or_missing(
        self, groups: Sequence[ComparisonGroup], name: str, varied_key: str, value_name: str, option: str
    ) -> list[PublicSetGroup]:
        """The families for a figure; where there are none, how to get one."""
        if not self.is_requested(name):
            return []
        found, remarks = find_public_set_groups(groups, varied_key)
        self.missing += [MissingFigure(name, remark) for remark in remarks if found]
        if not found:
            way = f"'fedmosaic partition {option} --out DIR' and 'fedmosaic train --shards DIR'"
            reason = f"needs runs of FedMosaic with at least two {value_name} of the public set; make them with {way}"
            self.missing.append(MissingFigure(name, reason))
        return found


def render_log_figure(
    draw: Callable[[ComparisonGroup, FigureData], Figure], group: ComparisonGroup, read_data: Callable[[], FigureData]
) -> FigureFiles:
    """A figure's files; the logs are read now, if they have not been yet."""
    return render_figure(draw, group, read_data())


def render_figure(draw: Callable[..., Figure], *arguments: object) -> FigureFiles:
    """A figure's files."""
    return render_png_and_pdf(draw(*arguments), FIGURE_DPI)


def unique_slugs(groups: Sequence[ComparisonGroup], reserved: set[str]) -> list[str]:
    """A part of a file's name for each setting; no two are alike, on a disk that knows no capital letters either, and
    none is one of those that are `taken`."""
    slugs: list[str] = []
    reserved = set(reserved)
    for setting in groups:
        base = setting.slug[:MAX_SLUG_CHARS]
        choices = chain([base], (f"{base}-{number}" for number in count(2)))
        slugs.append(next(slug for slug in choices if slug.lower() not in reserved))
        reserved.add(slugs[-1].lower())
    return slugs
