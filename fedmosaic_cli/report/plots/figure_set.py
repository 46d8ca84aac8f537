"""All figures that a set of runs supports, and the reasons why others are missing."""

from __future__ import annotations

from functools import cache, partial
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple

from fedmosaic_cli.report.comparison import has_client_trust, shares_labels
from fedmosaic_cli.report.plots.canvas import caption_of, render_figure
from fedmosaic_cli.report.plots.client_plots import (
    client_class_counts_figure,
    losses_figure,
    public_set_figure,
    trust_figure,
)
from fedmosaic_cli.report.plots.communication_plot import communication_figure
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, read_figure_data
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.plots.plot_style import is_federated, use_plot_style
from fedmosaic_cli.report.plots.public_set_groups import find_public_set_groups
from fedmosaic_cli.report.plots.public_set_plots import public_size_figure, public_skew_figure
from fedmosaic_cli.report.plots.rank_diagram import critical_difference_figure
from fedmosaic_cli.report.plots.regime_map import regime_map_figure
from fedmosaic_cli.report.plots.round_curves import accuracy_figure, consensus_figure
from fedmosaic_cli.report.regimes import find_regime_maps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.plots.figure_data import FigureData
    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.plots.public_set_groups import PublicSetGroup
    from fedmosaic_cli.report.regimes import RegimeMap
    from fedmosaic_cli.report.statistics import MethodRanking

FigureFiles = dict[str, bytes]
"""The files of a figure by file ending."""
MAX_SLUG_CHARS = 100
MAX_GROUPS_PER_SIZE_FIGURE, MAX_GROUPS_PER_SKEW_FIGURE = 6, 3


class MissingFigure(NamedTuple):
    """A figure, or a part of one, that cannot be drawn, and the reason."""

    name: str
    reason: str


class FigureSpec(NamedTuple):
    """A figure of a comparison group: how to draw it, and which methods it needs."""

    draw: Callable[[ComparisonGroup, FigureData, FigureOptions], Figure]
    supports: Callable[[MethodKey], bool] = lambda key: True
    missing_reason: str = ""

    def is_available(self, group: ComparisonGroup) -> bool:
        return any(map(self.supports, group.runs_by_method))


NEEDS_FEDMOSAIC = "needs a run of FedMosaic; create one with 'fedmosaic train'"
NEEDS_CONSENSUS = "needs a run of FedMosaic or FedCT; create one with 'fedmosaic train'"
NEEDS_REGIMES = (
    "needs runs of Local and another method with several values of data.examples_per_client; create them with "
    "'fedmosaic reproduce regimes'"
)
NEEDS_COMMUNICATION = "needs a run of a method that communicates; create some with 'fedmosaic baseline all'"
LOG_FIGURES = {
    "accuracy": FigureSpec(accuracy_figure),
    "lambda": FigureSpec(trust_figure, has_client_trust, NEEDS_FEDMOSAIC),
    "losses": FigureSpec(losses_figure, has_client_trust, NEEDS_FEDMOSAIC),
    "consensus": FigureSpec(consensus_figure, shares_labels, NEEDS_CONSENSUS),
    "communication": FigureSpec(communication_figure, is_federated, NEEDS_COMMUNICATION),
}
MANIFEST_FIGURES = {"clients": client_class_counts_figure, "public": public_set_figure}


class FigureSet:
    """An iterable of figure names, each with a function that draws the figure.

    The logs of a group are read when its first figure is drawn, and released when the iteration reaches the next
    group. `missing` and `skipped` grow while figures are drawn.

    Args:
        groups: The comparison groups.
        ranking: The ranking for the critical-difference diagram, if there is one.
        kinds: The requested kinds of figures; all if None.
        options: How to draw the figures.

    Attributes:
        captions: The captions of the figures drawn so far, by name.
    """

    def __init__(
        self,
        groups: Sequence[ComparisonGroup],
        ranking: MethodRanking | None = None,
        kinds: Collection[str] | None = None,
        options: FigureOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.options = options
        self.captions: dict[str, str] = {}
        self.ranking = ranking
        self.kinds = kinds
        self.missing: list[MissingFigure] = []
        self.skipped_by_path: dict[Path, SkippedRun] = {}
        self.size_groups = self.public_set_groups_or_missing(
            groups, "public-size", "public_size", "sizes", "--public-size N"
        )
        self.skew_groups = self.public_set_groups_or_missing(
            groups, "public-skew", "public_alpha", "skews", "--public-alpha A"
        )
        self.regime_maps = self.regime_maps_or_missing(groups)
        reserved = {name.removeprefix("public-") for name, _ in self.cross_group_figures()}
        self.groups_by_slug = dict(zip(unique_slugs(groups, reserved), groups, strict=True))
        self.missing += [
            MissingFigure(f"{kind}-{slug}", spec.missing_reason)
            for slug, group in self.groups_by_slug.items()
            for kind, spec in LOG_FIGURES.items()
            if self.is_requested(kind) and not spec.is_available(group)
        ]
        if ranking is None and self.is_requested("critical-difference"):
            reason = "needs runs of several methods in several settings"
            self.missing.append(MissingFigure("critical-difference", reason))

    def is_requested(self, kind: str) -> bool:
        return self.kinds is None or kind in self.kinds

    @property
    def skipped(self) -> list[SkippedRun]:
        """Runs with unusable logs that the figures drawn so far leave out."""
        return list(self.skipped_by_path.values())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[tuple[str, Callable[[], FigureFiles]]]:
        """Each name with a function that returns the files by ending.

        The function returns no files and adds to `missing` if the data for the figure is unusable.
        """
        for name, draw in chain(self.group_figures(), self.cross_group_figures()):
            yield name, partial(self.render_or_record_missing, name, draw)

    def group_figures(self) -> Iterator[tuple[str, Callable[[], Figure]]]:
        """The figures of single groups."""
        for slug, group in self.groups_by_slug.items():
            read_data = cache(partial(self.read_and_record_skipped, group))
            for kind, spec in LOG_FIGURES.items():
                if self.is_requested(kind) and spec.is_available(group):
                    yield f"{kind}-{slug}", partial(draw_log_figure, spec, group, read_data, self.options)
            for kind, draw in MANIFEST_FIGURES.items():
                if self.is_requested(kind):
                    yield f"{kind}-{slug}", partial(draw, group, self.options)

    def cross_group_figures(self) -> Iterator[tuple[str, Callable[[], Figure]]]:
        """The figures that compare groups; many public set groups are split over several figures."""
        for kind, groups, max_groups, draw in (
            ("public-size", self.size_groups, MAX_GROUPS_PER_SIZE_FIGURE, public_size_figure),
            ("public-skew", self.skew_groups, MAX_GROUPS_PER_SKEW_FIGURE, public_skew_figure),
        ):
            for start in range(0, len(groups), max_groups):
                name = f"{kind}-{start // max_groups + 1}" if start else kind
                yield name, partial(draw, groups[start : start + max_groups], self.options)
        for number, regime_map in enumerate(self.regime_maps, start=1):
            yield (
                "regimes" if number == 1 else f"regimes-{number}",
                partial(regime_map_figure, regime_map, self.options),
            )
        if self.ranking is not None and self.is_requested("critical-difference"):
            yield "critical-difference", partial(critical_difference_figure, self.ranking, self.options)

    def render_or_record_missing(self, name: str, draw: Callable[[], Figure]) -> FigureFiles:
        try:
            with use_plot_style(self.options):
                figure = draw()
                self.captions[name] = caption_of(figure)
                return render_figure(figure, self.options.formats)
        except FigureUnavailableError as error:
            self.missing.append(MissingFigure(name, str(error)))
            return {}

    def read_and_record_skipped(self, group: ComparisonGroup) -> FigureData:
        data = read_figure_data(group)
        self.skipped_by_path |= {run.path: run for run in data.skipped}
        return data

    def public_set_groups_or_missing(
        self, groups: Sequence[ComparisonGroup], name: str, varied_key: str, value_name: str, option: str
    ) -> list[PublicSetGroup]:
        """The public set groups for a figure; records what is missing."""
        if not self.is_requested(name):
            return []
        public_set_groups, notes = find_public_set_groups(groups, varied_key)
        if not public_set_groups:
            commands = f"'fedmosaic partition {option} --out DIR' and 'fedmosaic train --shards DIR'"
            needs = f"needs runs of FedMosaic with at least two {value_name} of the public set"
            notes = [f"{needs}; create them with {commands}"]
        self.missing += [MissingFigure(name, note) for note in notes]
        return public_set_groups

    def regime_maps_or_missing(self, groups: Sequence[ComparisonGroup]) -> list[RegimeMap]:
        """The maps of regimes. What is missing is recorded only for a study that asks for a map."""
        if not self.is_requested("regimes"):
            return []
        regime_maps, notes = find_regime_maps(groups)
        if regime_maps:
            self.missing += [MissingFigure("regimes", note) for note in notes]
        elif self.kinds is not None:
            self.missing.append(MissingFigure("regimes", NEEDS_REGIMES))
        return regime_maps


def draw_log_figure(
    spec: FigureSpec, group: ComparisonGroup, read_data: Callable[[], FigureData], options: FigureOptions
) -> Figure:
    """Draw a figure from the logs, which are read now unless an earlier figure has read them."""
    return spec.draw(group, read_data(), options)


def unique_slugs(groups: Sequence[ComparisonGroup], reserved: set[str]) -> list[str]:
    """A file name part for each group, unique on case-insensitive file systems and not in `reserved`."""
    slugs: list[str] = []
    used = set(reserved)
    for group in groups:
        base = group.slug[:MAX_SLUG_CHARS]
        choices = chain([base], (f"{base}-{number}" for number in count(2)))
        slugs.append(next(slug for slug in choices if slug.lower() not in used))
        used.add(slugs[-1].lower())
    return slugs
