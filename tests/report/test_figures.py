"""Test the figures drawn from hand-written run directories, and the reasons for missing figures."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np
import pytest

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups, method_title
from fedmosaic_cli.report.method_styles import FLIPPED_CLIENT_STYLE, STYLES_BY_METHOD, text_color
from fedmosaic_cli.report.plots import figure_data as figure_data_module
from fedmosaic_cli.report.plots import figure_set as figure_set_module
from fedmosaic_cli.report.plots.canvas import caption_of
from fedmosaic_cli.report.plots.client_plots import (
    FLAT_TRUST,
    chosen_clients,
    client_class_counts_figure,
    format_ranges,
    losses_figure,
    public_set_figure,
    trust_figure,
)
from fedmosaic_cli.report.plots.communication_plot import communication_figure, format_bytes
from fedmosaic_cli.report.plots.figure_captions import caption_files
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, read_figure_data
from fedmosaic_cli.report.plots.figure_options import (
    DEFAULT_OPTIONS,
    WIDTHS_INCHES,
    FigureOptions,
    FigureStyle,
    FigureWidth,
)
from fedmosaic_cli.report.plots.figure_set import FigureSet
from fedmosaic_cli.report.plots.line_labels import legend_label, num_legend_columns, spread_levels
from fedmosaic_cli.report.plots.plot_style import MAX_BANDS, method_line_styles, use_plot_style
from fedmosaic_cli.report.plots.public_set_groups import find_public_set_groups
from fedmosaic_cli.report.plots.public_set_plots import (
    DIFFERENT_CLIENTS_NOTE,
    SAME_CLIENTS_NOTE,
    ZERO_TRUST_NOTE,
    drop_overlapping_ticks,
    public_size_figure,
    public_skew_figure,
)
from fedmosaic_cli.report.plots.rank_diagram import cliques, critical_difference_figure
from fedmosaic_cli.report.plots.round_curves import ORACLE_NOTE, accuracy_figure, consensus_figure
from fedmosaic_cli.report.statistics import MethodRanking
from tests.report.runs_by_hand import Bench, few_each, manifest_of

ENTROPY, FREQUENCY = (method_title(("fedmosaic", expertise)) for expertise in ("entropy", "frequency"))
PAPER_COLUMN = FigureOptions(FigureStyle.paper, FigureWidth.column)
PAPER_TEXT = FigureOptions(FigureStyle.paper)
EXPLAINED_COLUMN = FigureOptions(width=FigureWidth.column)
ALL_OPTIONS = (DEFAULT_OPTIONS, EXPLAINED_COLUMN, PAPER_TEXT, PAPER_COLUMN)
LOG_FIGURES = (accuracy_figure, trust_figure, losses_figure, consensus_figure, communication_figure)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "runs")


@pytest.fixture
def without_rendering(monkeypatch):
    """Lay out the figures of a figure set without rendering them, which takes most of the time."""

    def sketch(figure, formats):
        figure.draw_without_rendering()
        return dict.fromkeys(formats, b"sketch")

    monkeypatch.setattr(figure_set_module, "render_figure", sketch)


def groups_in(bench):
    return comparison_groups(collect_runs(bench.folder)[0])


def draw(figure, bench, options=DEFAULT_OPTIONS):
    """The figure of the only comparison group."""
    (setting,) = groups_in(bench)
    with use_plot_style(options):
        return figure(setting, read_figure_data(setting), options)


def legend_names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def leaders(axes):
    """The lines from the ends of curves to their labels, as pairs of points in pixels."""
    axes.figure.draw_without_rendering()
    return [
        (axes.transData.transform(text.xy), axes.transAxes.transform(text.xyann)) for text in labels_in(axes).values()
    ]


def segments_cross(one, other):
    """Whether two line segments have a common point inside both."""

    def side(start, end, point):
        return np.sign((end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0]))

    (a, b), (c, d) = one, other
    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def texts(figure):
    """All visible texts of a figure."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def labels_in(axes):
    """The labels at the ends of lines, by text."""
    from matplotlib.text import Annotation

    return {text.get_text(): text for text in axes.texts if isinstance(text, Annotation)}


def text_boxes(figure, wanted):
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in figure.findobj(Text) if wanted(text.get_text())]


def assert_no_overlap(boxes):
    for number, box in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert not (box.x0 < other.x1 and other.x0 < box.x1 and box.y0 < other.y1 and other.y0 < box.y1)


def ticks(axis):
    axis.get_figure(root=True).draw_without_rendering()
    return [tick.get_text() for tick in axis.get_ticklabels()]


# Accuracy


def test_accuracy_is_the_mean_over_seeds_with_a_band_of_one_standard_deviation(bench):
    for seed, accuracy in enumerate((0.4, 0.5, 0.6)):
        bench.write("fedavg", seed, accuracy)
    figure = draw(accuracy_figure, bench)
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata() == pytest.approx([0.51, 0.52, 0.53])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.41, 0.63)), "the deviation of the sample is 0.1"
    assert "Mean over 3 seeds; bands: one standard deviation over seeds." in texts(figure)
    assert "53.0  FedAvg" in labels_in(axes)


def test_many_methods_have_no_bands_and_the_note_has_the_deviation(bench):
    for number, variant in enumerate(ALL[: MAX_BANDS + 1]):
        for seed in (0, 1):
            bench.write(variant, seed, 0.5 + number / 50 + seed / 10)
    figure = draw(accuracy_figure, bench)
    assert not figure.axes[0].collections
    note = " ".join(" ".join(texts(figure)).split())
    assert "Mean over 2 seeds; the standard deviation over seeds is at most 7.1 points in the last round." in note


def test_equal_curves_are_drawn_once_and_have_both_names(bench):
    for variant, accuracy in (("fedavg", 0.6), ("fedprox", 0.5), ("fedbn", 0.5), ("local", 0.4)):
        bench.write(variant, 0, accuracy)
    axes = draw(accuracy_figure, bench).axes[0]
    assert len(axes.lines) == 3
    assert set(labels_in(axes)) == {"63.0  FedAvg", "53.0  FedProx = FedBN", "43.0  Local training"}
    names = legend_names(draw(communication_figure, bench))
    assert names == ["Local training", "FedAvg", "FedProx = FedBN"]


def test_nearly_equal_curves_are_drawn_separately(bench):
    bench.write("fedprox", 0, 0.5)
    bench.write("fedbn", 0, 0.5, change=lambda row: {**row, "accuracy": row["accuracy"] + 1e-9 * (row["round"] == 2)})
    assert len(draw(accuracy_figure, bench).axes[0].lines) == 2


def test_accuracies_are_shown_in_percent(bench):
    bench.write("fedavg", 0, 0.4)
    axes = draw(accuracy_figure, bench).axes[0]
    assert axes.get_ylabel() == "accuracy (%)"
    shown = [float(text) for text in ticks(axes.yaxis)]
    assert min(shown) > 30
    assert max(shown) < 60


def test_the_axis_of_a_long_run_shows_the_final_rounds_well(bench):
    """Accuracies rise from 10 to 90 % in five rounds and to 96 % in the others."""

    def change(row):
        return {**row, "accuracy": min(0.1 + 0.16 * row["round"], 0.9) + row["round"] / 500 - row["client"] / 1000}

    bench.write("fedavg", rounds=30, change=change)
    bench.write("local", rounds=30, change=lambda row: {**change(row), "accuracy": change(row)["accuracy"] - 0.01})
    figure = draw(accuracy_figure, bench)
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert low > 0.8
    final = [line.get_ydata()[15:] for line in axes.lines]
    assert np.ptp(final) > 0.3 * (high - low), "the axis is not mostly empty"
    assert high > np.max(final)
    assert "The axis begins above the lowest value, 25.1 %." in " ".join(" ".join(texts(figure)).split())


def test_the_axis_shows_whole_bands(bench):
    for seed, accuracy in ((0, 0.5), (1, 0.6)):
        bench.write("fedmosaic-entropy", seed, accuracy, rounds=20)
    for variant, accuracy in {"local": 0.52, "fedct": 0.54}.items():
        bench.write(variant, 0, accuracy, rounds=20)
    (axes,) = draw(accuracy_figure, bench).axes
    low, high = axes.get_ylim()
    assert 0.4 < low < 0.6
    assert 0.82 < high < 0.86, "0.75 and one deviation of 0.07 in round 20"


def test_methods_below_the_axis_have_their_names_at_its_edge(bench):
    near = {"local": 0.52, "fedct": 0.54, "fedbn": 0.56, "ditto": 0.55, "pfedme": 0.5}
    for variant, accuracy in {**near, "fedprox": 0.05, "fedavg": 0.1}.items():
        bench.write(variant, 0, accuracy, rounds=20)
    figure = draw(accuracy_figure, bench)
    (axes,) = figure.axes
    assert axes.get_ylim()[0] > 0.4
    names = labels_in(axes)
    assert {"30.0 ↓  FedAvg", "25.0 ↓  FedProx"} < set(names)
    assert names["30.0 ↓  FedAvg"].xyann[1] > names["25.0 ↓  FedProx"].xyann[1], "sorted by value"
    assert "FedAvg and FedProx end below the axis." in caption_of(figure)


@pytest.mark.parametrize("accuracy", [0.0, 0.97])
@pytest.mark.parametrize("figure", [accuracy_figure, communication_figure])
def test_percent_axes_do_not_exceed_100(bench, figure, accuracy):
    for variant in ("fedavg", "local"):
        bench.write(variant, 0, accuracy, change=lambda row: {**row, "accuracy": round(row["accuracy"])})
    axes = draw(figure, bench).axes[0]
    assert axes.get_ylim()[1] <= 1
    shown = [float(text) for text in ticks(axes.yaxis)]
    assert min(shown) >= 0
    assert max(shown) <= 100
    assert round(accuracy) * 100 in shown


ALL = ["centralized", "local", "fedavg", "fedprox", "fedct", "fedbn", "perfedavg", "ditto", "pfedme", "apfl"]
ALL += ["fedphp", "perfedckt", "fedmosaic-entropy", "fedmosaic-frequency"]


@pytest.mark.parametrize("highest", [0.8, 0.5 + 1e-6])
def test_labels_of_all_methods_do_not_overlap_and_their_lines_do_not_cross(bench, highest):
    """Nearly equal accuracies of all methods but one are the worst case."""
    for number, variant in enumerate(ALL):
        accuracy = highest if number == 0 else 0.5 - 1e-6 * (number * 5 % len(ALL))
        bench.write(variant, 0, accuracy, rounds=20)
    figure = draw(accuracy_figure, bench)
    (axes,) = figure.axes
    names = labels_in(axes)
    assert len(names) == len(ALL)
    assert_no_overlap(text_boxes(figure, lambda text: text in names))
    lines = leaders(axes)
    assert not any(segments_cross(one, other) for number, one in enumerate(lines) for other in lines[:number])


def test_crossing_lines_are_recognised():
    assert segments_cross(((0, 0), (1, 1)), ((0, 1), (1, 0)))
    assert not segments_cross(((0, 0), (1, 1)), ((0, 1), (1, 2)))
    assert not segments_cross(((0, 0), (1, 1)), ((0, 0), (1, 2))), "a common end"


@pytest.mark.parametrize("figure", [accuracy_figure, communication_figure])
def test_all_methods_are_in_the_legend_of_a_narrow_figure(bench, figure):
    for number, variant in enumerate(ALL):
        bench.write(variant, 0, 0.5 + number / 100, rounds=20)
    drawn = draw(figure, bench, PAPER_COLUMN)
    assert not labels_in(drawn.axes[0])
    assert len(legend_names(drawn)) == len(ALL)
    drawn.draw_without_rendering()
    below = drawn.legends[0].get_window_extent()
    assert 0 <= below.x0 < below.x1 <= drawn.bbox.width + 1
    assert drawn.axes[0].get_tightbbox().y0 >= below.y1 - 1
    assert drawn.axes[0].get_window_extent().height > 1.2 * drawn.dpi


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=lambda options: f"{options.style}-{options.width}")
@pytest.mark.parametrize("figure", [accuracy_figure, communication_figure, consensus_figure])
def test_no_method_is_emphasised(bench, figure, options):
    for variant in ("fedmosaic-entropy", "fedmosaic-frequency", "fedct", "fedavg", "ditto"):
        bench.write(variant, 0, 0.4 + len(variant) / 50, rounds=9)
    drawn = draw(figure, bench, options)
    assert len({line.get_linewidth() for axes in drawn.axes for line in axes.lines}) == 1
    assert {text.get_fontweight() for axes in drawn.axes for text in axes.texts} <= {"normal"}


def test_lines_have_the_style_of_their_method(bench):
    for number, variant in enumerate(("ditto", "local", "fedmosaic-frequency")):
        bench.write(variant, 0, 0.4 + number / 10)
    axes = draw(accuracy_figure, bench).axes[0]
    drawn = {round(float(line.get_ydata()[-1]), 2): line for line in axes.lines}
    for level, name in ((0.43, "ditto"), (0.53, "local"), (0.63, "fedmosaic-frequency")):
        style = STYLES_BY_METHOD[name]
        assert drawn[level].get_color() == style.color.light
        assert drawn[level].get_marker() == style.marker or not style.marker
    label = next(text for name, text in labels_in(axes).items() if FREQUENCY in name)
    assert label.get_color() == text_color(STYLES_BY_METHOD["fedmosaic-frequency"].color.light)


def test_dashed_lines_are_above_equal_solid_ones():
    over, under = (method_line_styles([("fedmosaic", kind)])["fedmosaic", kind] for kind in ("frequency", "entropy"))
    assert over.zorder > under.zorder
    assert over.dash != "-" == under.dash


def test_markers_of_curves_are_at_different_rounds(bench):
    for number, variant in enumerate(("fedavg", "ditto", "apfl")):
        bench.write(variant, 0, 0.4 + number / 10, rounds=30)
    lines = draw(accuracy_figure, bench).axes[0].lines
    assert len({line.get_markevery() for line in lines}) == 3


# Single clients


def test_trust_figure_shows_all_clients_and_shades_rounds_before_the_consensus(bench):
    bench.write("fedmosaic-entropy", 4, clients=8, rounds=5)
    bench.write("fedmosaic-frequency", 4, clients=8, rounds=5)
    figure = draw(trust_figure, bench)
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert set(panels) == {ENTROPY, FREQUENCY}
    first = panels[ENTROPY]
    drawn = {round(line.get_ydata()[-1], 3): line for line in first.lines}
    assert sorted(drawn) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert drawn[0.3].get_ydata() == pytest.approx([0, 0.3, 0.3, 0.3, 0.3])
    assert legend_names(figure) == [*(f"client {number}" for number in range(6)), "other clients"]
    assert max(line.get_linewidth() for line in (drawn[0.7], drawn[0.8])) < drawn[0.1].get_linewidth()
    (shade,) = first.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (first.get_xlim()[0], 1.5)
    note = " ".join(texts(figure))
    assert "Coloured lines: clients 0\N{EN DASH}5 of 8; seed 4." in note
    assert "Shaded: rounds trained without a consensus." in note


def test_clients_do_not_have_the_colours_of_methods(bench):
    bench.write(clients=8)
    colors = {line.get_color() for line in draw(trust_figure, bench).axes[0].lines}
    assert len(colors) == 7
    assert not colors & {style.color.light for style in STYLES_BY_METHOD.values()}


def test_the_shown_clients_can_be_chosen(bench):
    bench.write(clients=8, rounds=5)
    options = FigureOptions(clients=(2, 5, 6, 7, 99))
    figure = draw(trust_figure, bench, options)
    assert legend_names(figure) == ["client 2", "client 5", "client 6", "client 7", "other clients"]
    assert "Coloured lines: clients 2, 5\N{EN DASH}7 of 8; seed 0." in " ".join(texts(figure))
    losses = draw(losses_figure, bench, options)
    assert [axes.get_title(loc="left") for axes in losses.axes] == [f"client {number}" for number in (2, 5, 6, 7)]
    assert "Clients 2, 5\N{EN DASH}7 of 8, seed 0." in caption_of(losses)
    for kind in (trust_figure, losses_figure):
        with pytest.raises(FigureUnavailableError, match="8 clients, numbered from 0: choose other --clients"):
            draw(kind, bench, FigureOptions(clients=(8, 9)))


def test_client_numbers_are_joined_to_ranges():
    assert format_ranges([0, 1, 2, 4, 6, 7]) == "0\N{EN DASH}2, 4, 6\N{EN DASH}7"
    assert format_ranges([3]) == "3"


def test_variants_without_visible_trust_are_a_sentence(bench):
    def without_trust(row):
        return {**row, "lambda": 0.9 * FLAT_TRUST}

    bench.write("fedmosaic-entropy")
    bench.write("fedmosaic-frequency", change=without_trust)
    figure = draw(trust_figure, bench)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [ENTROPY]
    sentence = f"λ of all clients is below 0.005 in every round: {FREQUENCY}."
    assert sentence in " ".join(" ".join(texts(figure)).split())
    bench.write("fedmosaic-frequency", setting="flat", change=without_trust)
    flat = next(group for group in groups_in(bench) if group.name == "flat")
    with pytest.raises(FigureUnavailableError, match="λ of all clients is below"):
        trust_figure(flat, read_figure_data(flat))


def test_variants_whose_rounds_are_all_warm_up_are_a_sentence(bench):
    def only_warm_up(row):
        return {**row, "lambda": 0.0, "bits_up": 0, "bits_down": 0}

    bench.write("fedmosaic-entropy")
    bench.write("fedmosaic-frequency", change=only_warm_up)
    caption = caption_of(draw(trust_figure, bench))
    assert f"{FREQUENCY} did not train on pseudo-labels in any round (warm-up)." in caption
    assert "below 0.005" not in caption


def test_trust_figure_shows_the_first_seed(bench):
    for seed in (2, 1):
        bench.write("fedmosaic-entropy", seed)
    assert caption_of(draw(trust_figure, bench)).partition("(quick). ")[2].startswith("All 2 clients; seed 1.")


def test_many_clients_are_drawn_as_median_and_quantiles(bench):
    bench.write(clients=30, manifest=manifest_of(few_each(30), flipped=[29]))
    figure = draw(trust_figure, bench)
    (axes,) = figure.axes
    names = ["client 0", "client 1", "client 29 (labels flipped)", "median of all clients", "10th to 90th percentile"]
    assert legend_names(figure) == names
    median = next(line for line in axes.lines if line.get_color() == "black")
    assert median.get_ydata() == pytest.approx([0, 1.55, 1.55])
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(np.quantile(np.arange(1, 31) / 10, 0.9))


def test_clients_with_flipped_labels_are_red(bench):
    from matplotlib.text import Text

    bench.write(clients=9, manifest=manifest_of(few_each(9), flipped=[8]))
    figure = draw(trust_figure, bench)
    flipped = "client 8 (labels flipped)"
    assert legend_names(figure) == [*(f"client {number}" for number in range(5)), flipped, "other clients"]
    red = [line for line in figure.axes[0].lines if line.get_color() == FLIPPED_CLIENT_STYLE.color.light]
    assert [line.get_ydata()[-1] for line in red] == pytest.approx([0.9])
    panels = draw(losses_figure, bench).axes
    assert panels[-1].get_title(loc="left") == flipped
    shown = {text.get_text(): text for panel in panels for text in panel.findobj(Text) if "client" in text.get_text()}
    assert shown[flipped].get_color() == FLIPPED_CLIENT_STYLE.color.light != shown["client 0"].get_color()


def test_selected_clients_include_those_with_flipped_labels():
    assert chosen_clients(20, {7, 19}, DEFAULT_OPTIONS, 6) == [0, 1, 2, 3, 7, 19]
    assert chosen_clients(2, set(), DEFAULT_OPTIONS, 6) == [0, 1]
    assert chosen_clients(20, set(range(20)), DEFAULT_OPTIONS, 3) == [0, 1, 2]
    assert chosen_clients(20, {7}, FigureOptions(clients=(4, 3)), 3) == [3, 4], "the choice of the user"


def test_notes_say_how_many_of_many_variants_are_shown(bench):
    for number in range(1, 14):
        bench.write(hyperparameters={"trust": number})
    figure = draw(trust_figure, bench)
    assert len(figure.axes) == 12
    assert "12 of 13 variants are shown." in caption_of(figure)
    assert "3 of 13 variants are shown." in caption_of(draw(losses_figure, bench))


def test_a_client_that_misses_a_round_has_no_gap_in_its_line(bench):
    def change(row):
        return {**row, "lambda": None} if row["round"] == 3 and row["client"] == 0 else row

    bench.write(rounds=4, change=change)
    (axes,) = draw(trust_figure, bench).axes
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 4]
    assert axes.lines[1].get_xdata().tolist() == [1, 2, 3, 4]


def test_private_losses_are_solid_and_public_losses_dashed(bench):
    bench.write(clients=2, rounds=4)
    first, second = draw(losses_figure, bench).axes
    private, public = second.lines
    assert private.get_linestyle() == "-" != public.get_linestyle()
    assert private.get_markerfacecolor() != "white" == public.get_markerfacecolor(), "distinct even for a single point"
    assert private.get_ydata() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert public.get_xdata().tolist() == [2, 3, 4]
    assert public.get_ydata() == pytest.approx([2, 1 + 2 / 3, 1.5])
    assert first.get_title(loc="left") == "client 0"
    assert legend_names(first.figure) == [ENTROPY, "private loss", "public loss"]
    assert "All 2 clients, seed 0." in caption_of(first.figure)


@pytest.mark.parametrize(("smallest", "scale"), [(0.11, "linear"), (0.09, "log"), (0.0, "linear"), (1e-9, "log")])
def test_losses_over_more_than_a_decade_have_a_log_scale(bench, smallest, scale):
    def change(row):
        return {**row, "loss_private": smallest if row["round"] == 4 else 1.0, "loss_public": 1.0}

    bench.write(clients=2, rounds=4, change=change)
    first, second = draw(losses_figure, bench).axes
    assert first.get_yscale() == second.get_yscale() == scale
    assert ("log scale" in first.get_ylabel()) == (scale == "log")
    low, high = first.get_ylim()
    assert scale == "linear" or low >= 0.99e-6 * high
    assert not any("$" in text for text in ticks(first.yaxis))


def test_loss_lines_of_variants_differ_in_colour(bench):
    for trust in (1, 2, 3):
        bench.write(hyperparameters={"trust": trust})
    lines = draw(losses_figure, bench).axes[0].lines
    assert len({line.get_color() for line in lines}) == 3


@pytest.mark.parametrize(
    ("kind", "keys", "reason"),
    [
        (trust_figure, ["lambda"], "no run of FedMosaic logged the trust λ"),
        (losses_figure, ["loss_private", "loss_public"], "no run of FedMosaic logged a loss"),
    ],
)
def test_a_figure_without_values_is_unavailable(bench, kind, keys, reason):
    bench.write(change=lambda row: {**row, **dict.fromkeys(keys)})
    with pytest.raises(FigureUnavailableError, match=reason):
        draw(kind, bench)


def test_a_run_without_public_losses_is_drawn(bench):
    bench.write(change=lambda row: {**row, "loss_public": None})
    figure = draw(losses_figure, bench)
    (private,) = figure.axes[0].lines
    assert private.get_linestyle() == "-"
    assert legend_names(figure) == [ENTROPY, "private loss"]
    assert caption_of(figure).startswith("Private loss of single clients")


@pytest.mark.parametrize(("trust", "is_computed"), [("paper", True), ("stabilised", True), (0.5, False)])
def test_the_caption_says_what_the_private_loss_is(bench, trust, is_computed):
    bench.write(hyperparameters={"trust": trust})
    caption = caption_of(draw(losses_figure, bench))
    assert ("Private loss: the loss from which λ was computed." in caption) == is_computed
    assert ("Private loss: mean over the training batches of the round." in caption) != is_computed


@pytest.mark.parametrize(("smallest", "labels"), [(0.03, {"0.05", "0.2", "1"}), (1e-3, {"0.01", "0.1", "1"})])
def test_log_axes_of_less_than_two_decades_have_more_ticks(bench, smallest, labels):
    def change(row):
        return {**row, "loss_private": smallest if row["round"] == 4 else 1.0, "loss_public": 1.0}

    bench.write(clients=2, rounds=4, change=change)
    axes = draw(losses_figure, bench).axes[0]
    assert labels <= set(ticks(axes.yaxis))
    assert ("0.2" in ticks(axes.yaxis)) == ("0.2" in labels)


def test_class_counts_of_clients_and_public_set(bench):
    bench.write(manifest=manifest_of(few_each(3), seed=7), clients=3)
    (setting,) = groups_in(bench)
    with use_plot_style():
        clients, public = client_class_counts_figure(setting), public_set_figure(setting)
    assert clients.get_suptitle() == "quick, 3 clients, shards of seed 7: examples per client and class"
    areas = clients.axes[0].collections[0].get_sizes().reshape(3, 2)
    assert areas / areas[0, 0] == pytest.approx(np.array([[2, 2], [3, 2], [4, 2]]) / 2), "with one test example each"
    assert "All examples of a client are counted" in caption_of(clients)
    assert public.get_suptitle() == "quick, shards of seed 7: classes of the 8 examples of the public set"
    assert [bar.get_height() for bar in public.axes[0].containers[0]] == [3, 5]
    assert ticks(public.axes[0].xaxis) == ["cat", "dog"]


def test_the_manifest_of_the_first_seed_is_shown(bench):
    low, high = sorted(
        (manifest_of(few_each(2), seed=seed) for seed in (7, 8)), key=lambda manifest: manifest["digest"]
    )
    bench.write(seed=4, manifest=low)
    bench.write(seed=3, manifest=high)
    (setting,) = groups_in(bench)
    with use_plot_style():
        assert f"shards of seed {high['seed']}" in client_class_counts_figure(setting).get_suptitle()


@pytest.mark.parametrize("clients", [30, 200])
def test_many_clients_fit_on_a_page(bench, clients):
    bench.write(clients=clients)
    (setting,) = groups_in(bench)
    with use_plot_style():
        assert client_class_counts_figure(setting).get_figwidth() <= 7


# Communication and consensus


def test_communication_figure_shows_accuracy_against_bytes(bench):
    bench.write("fedavg", 0, 0.4)
    bench.write("local", 0, 0.3)
    bench.write("centralized", 0, 0.7)
    (axes,) = draw(communication_figure, bench).axes
    curve, end, *levels = axes.lines
    # Two clients with 800 bits in each direction: 400 bytes per round, from round 2.
    assert curve.get_xdata() == pytest.approx([400, 800])
    assert curve.get_ydata() == pytest.approx([0.42, 0.43])
    assert (end.get_xdata()[0], end.get_ydata()[0], end.get_marker()) == (pytest.approx(800), pytest.approx(0.43), "^")
    assert [line.get_ydata()[0] for line in levels] == pytest.approx([0.73, 0.33])
    assert axes.get_xscale() == "log"
    names = set(legend_names(axes.figure))
    assert names == {"FedAvg", "Centralized", "Local training"}
    assert "Centralized (moves raw data) and Local training (sends nothing) in the last round" in caption_of(
        axes.figure
    )
    assert {"100 B", "1 kB"} <= set(ticks(axes.xaxis))
    assert axes.get_xlabel().startswith("cumulative")
    assert "One seed. Traffic: bytes sent and received." in caption_of(axes.figure)
    bench.write("fedavg", 1, 0.5)
    assert "Means over seeds per round." in caption_of(draw(communication_figure, bench))


def test_format_bytes_selects_a_readable_unit():
    assert [format_bytes(number) for number in (1, 999, 1000, 1e5, 2.5e9)] == [
        "1 B",
        "999 B",
        "1 kB",
        "100 kB",
        "2.5 GB",
    ]


def test_consensus_figure_shows_agreement_and_pseudo_label_accuracy(bench):
    bench.write("fedmosaic-entropy")
    bench.write("fedct", change=lambda row: {**row, **({"agreement": 0.5} if "agreement" in row else {})})
    bench.write("fedavg")
    agreement, oracle = draw(consensus_figure, bench).axes
    assert [line.get_ydata().tolist() for line in agreement.lines][1][1:] == pytest.approx([0.8, 1 - 0.4 / 3])
    assert np.isnan(agreement.lines[0].get_ydata()[0])
    assert legend_names(agreement.figure) == ["FedCT", ENTROPY]
    (shared,) = oracle.lines
    assert shared.get_ydata()[1:] == pytest.approx([0.5, 0.5])
    caption = caption_of(agreement.figure)
    assert f'Equal lines of the panel "correct pseudo-labels" are drawn once: FedCT = {ENTROPY}.' in caption
    assert "Equal lines are drawn once" not in caption, "they differ in the other panel"
    assert 1 < agreement.get_xlim()[0] < 2, "there is no value before the first consensus"
    assert "pseudo-labels" in oracle.get_ylabel()
    assert ORACLE_NOTE in caption_of(agreement.figure)


def test_lines_that_are_equal_in_all_panels_are_named_without_a_panel(bench):
    bench.write("fedmosaic-entropy")
    bench.write("fedct")
    figure = draw(consensus_figure, bench)
    assert [len(axes.lines) for axes in figure.axes] == [1, 1]
    assert caption_of(figure).endswith(f"Equal lines are drawn once: FedCT = {ENTROPY}.")


def test_methods_without_logged_agreement_are_named(bench):
    bench.write("fedmosaic-entropy")
    bench.write("fedct", change=lambda row: {key: value for key, value in row.items() if key != "agreement"})
    figure = draw(consensus_figure, bench)
    assert len(figure.axes[0].lines) == 1
    assert "One seed. FedCT logged no agreement." in caption_of(figure)


def test_methods_derived_from_fedmosaic_are_drawn_like_it(bench):
    bench.write("fedmosaic-entropy")
    bench.write("gated", change=lambda row: {**row, "lambda": 0.5, "vote_agreement": 0.25})
    figure = draw(consensus_figure, bench)
    assert legend_names(figure) == [ENTROPY, "Gated co-training"]
    assert figure.axes[0].lines[1].get_ydata().tolist() == [0.25, 0.25, 0.25]
    assert [axes.get_title(loc="left") for axes in draw(trust_figure, bench).axes] == [ENTROPY, "Gated co-training"]
    batches = "mean over the training batches of the round (Gated co-training)"
    private = f"Private loss: the loss from which λ was computed ({ENTROPY}); {batches}."
    assert private in caption_of(draw(losses_figure, bench))


def test_gated_runs_have_the_figures_of_fedmosaic(bench, without_rendering):
    bench.write("gated", change=lambda row: {**row, "lambda": 0.5, "vote_agreement": 0.25, "loss_public": 1.0})
    figure_set = FigureSet(groups_in(bench))
    assert {"lambda-quick", "losses-quick", "consensus-quick"} <= {name for name, _ in figure_set}
    bench.write("fedct", setting="other")
    lacking = {missing.name for missing in FigureSet(groups_in(bench)).missing}
    assert {"lambda-other", "losses-other"} <= lacking
    assert not {"consensus-other", "lambda-quick"} & lacking


def test_communication_figure_is_unavailable_if_nothing_is_sent(bench):
    bench.write("fedavg", rounds=1)
    with pytest.raises(FigureUnavailableError, match="nothing was sent in any round"):
        draw(communication_figure, bench)


def test_a_metric_that_no_run_logged_has_no_panel(bench):
    bench.write(change=lambda row: {key: value for key, value in row.items() if key != "pseudo_label_accuracy"})
    (axes,) = draw(consensus_figure, bench).axes
    assert axes.get_ylabel() == "agreement (%)"


# The public set


def write_runs_of_sizes(bench, sizes, **options):
    for size in sizes:
        for seed in (0, 1):
            data = {"public_size": size}
            kind = {
                "data": data,
                "setting": f"u-{size}",
                "manifest": manifest_of(few_each(2), parameters=data),
                **options,
            }
            bench.write("fedmosaic-entropy", seed, 0.5 + size / 1000 + seed / 10, **kind)
            bench.write("local", seed, 0.4, **kind)


def test_accuracy_against_the_size_of_the_public_set(bench):
    write_runs_of_sizes(bench, [200, 50, 100])
    found, remarks = find_public_set_groups(groups_in(bench), "public_size")
    assert remarks == []
    with use_plot_style():
        (axes,) = public_size_figure(found).axes
    local, ours = axes.lines
    for line in (ours, local):
        assert line.get_xdata() == pytest.approx([50, 100, 200]), "markers are on their ticks"
    assert ours.get_ydata() == pytest.approx([0.63, 0.68, 0.78])
    assert local.get_ydata() == pytest.approx([0.43, 0.43, 0.43])
    band = axes.collections[1].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx(0.63 - 0.05 * 2**0.5)
    assert axes.get_xscale() == "linear"
    assert ticks(axes.xaxis) == ["50", "100", "200"]
    assert set(labels_in(axes)) == {f"78.0  {ENTROPY}", "43.0  Local training"}


def test_two_variants_of_one_method_have_different_markers_and_dashes_and_names(bench):
    for trust in ("paper", "agreement"):
        for size in (50, 100):
            bench.write(setting=f"u-{size}", data={"public_size": size}, hyperparameters={"trust": trust})
    found, _ = find_public_set_groups(groups_in(bench), "public_size")
    with use_plot_style():
        figure, narrow = public_size_figure(found), public_size_figure(found, PAPER_COLUMN)
    one, other = figure.axes[0].lines
    assert one.get_color() == other.get_color()
    assert one.get_marker() != other.get_marker()
    assert one.get_linestyle() != other.get_linestyle()
    names = [method_title(("fedmosaic", f"entropy, trust={trust}")) for trust in ("agreement", "paper")]
    assert [name.split("  ")[1] for name in labels_in(figure.axes[0])] == names, "at the ends of their lines"
    assert legend_names(narrow) == names


def test_lines_that_end_at_different_sizes_have_a_legend(bench):
    write_runs_of_sizes(bench, [50, 100])
    data = {"public_size": 50}
    bench.write("fedct", setting="u-50", data=data, manifest=manifest_of(few_each(2), parameters=data))
    with use_plot_style():
        figure = public_size_figure(find_public_set_groups(groups_in(bench), "public_size")[0])
    assert not labels_in(figure.axes[0])
    assert legend_names(figure) == ["Local training", "FedCT", ENTROPY]


def test_sizes_over_more_than_a_decade_have_a_log_scale(bench):
    write_runs_of_sizes(bench, [10, 50, 200])
    with use_plot_style():
        (axes,) = public_size_figure(find_public_set_groups(groups_in(bench), "public_size")[0]).axes
    assert axes.get_xscale() == "log"
    assert ticks(axes.xaxis) == ["10", "50", "200"]


def test_overlapping_tick_labels_are_dropped():
    assert drop_overlapping_ticks(np.log([10.0, 9000.0, 10000.0]), ["10", "9000", "10000"], 3) == ["10", "", "10000"]
    assert drop_overlapping_ticks(np.array([10.0, 500.0, 10000.0]), ["10", "500", "10000"], 3) == ["", "500", "10000"]
    assert drop_overlapping_ticks(np.array([1.0]), ["1"], 3) == ["1"]


def test_the_note_says_that_client_data_differs_between_points(bench):
    write_runs_of_sizes(bench, [50, 100])
    with use_plot_style():
        figure = public_size_figure(find_public_set_groups(groups_in(bench), "public_size")[0])
    assert "compare FedMosaic with local training at the same point" in DIFFERENT_CLIENTS_NOTE
    assert any(DIFFERENT_CLIENTS_NOTE in " ".join(text.split()) for text in texts(figure))


def test_the_note_says_that_client_data_is_equal_with_a_separate_pool(bench):
    for size in (50, 100):
        bench.write(setting=f"u-{size}", data={"public_size": size, "public_from": 200})
    (family,), _ = find_public_set_groups(groups_in(bench), "public_size")
    with use_plot_style():
        written = " ".join(" ".join(texts(public_size_figure([family]))).split())
    assert SAME_CLIENTS_NOTE in written
    assert DIFFERENT_CLIENTS_NOTE not in written


def test_pools_of_different_size_are_different_public_set_groups(bench):
    for size, aside in ((50, 200), (100, 200), (25, 300)):
        bench.write(setting=f"u-{size}", data={"public_size": size, "public_from": aside})
    (family,), _ = find_public_set_groups(groups_in(bench), "public_size")
    assert list(family.groups_by_value) == [50, 100]


@pytest.mark.parametrize(
    ("figure", "varied"), [(public_size_figure, "public_size"), (public_skew_figure, "public_alpha")]
)
def test_curves_with_zero_trust_are_named_in_the_note(bench, figure, varied):
    for value, last in ((0.5, 1e-9), (0.7, 1e-7)):
        size = {varied: value if varied == "public_alpha" else int(100 * value)}
        silent = {"change": lambda row, last=last: {**row, "lambda": last}, "hyperparameters": {"trust": "paper"}}
        bench.write(setting=f"u-{value}", data=size, **silent)
        bench.write(setting=f"u-{value}", data=size, hyperparameters={"trust": "stabilised"})
    (family,), _ = find_public_set_groups(groups_in(bench), varied)
    with use_plot_style():
        note = caption_of(figure([family]))
    assert f"{method_title(('fedmosaic', 'entropy, trust=paper'))}: {ZERO_TRUST_NOTE}." in note
    assert "stabilised" not in note


def test_curves_with_trust_at_one_point_are_not_named_in_the_note(bench):
    for size, last in ((50, 0.0), (100, 0.2)):
        bench.write(
            setting=f"u-{size}", data={"public_size": size}, change=lambda row, last=last: {**row, "lambda": last}
        )
    with use_plot_style():
        figure = public_size_figure(find_public_set_groups(groups_in(bench), "public_size")[0])
    assert ZERO_TRUST_NOTE not in caption_of(figure)


def test_public_set_groups_differ_only_in_the_varied_key(bench):
    write_runs_of_sizes(bench, [10, 20])
    write_runs_of_sizes(bench, [30], setting="other")
    bench.write("fedmosaic-entropy", data={"public_size": 40, "alpha": 3}, setting="alone")
    bench.write("local", data={"public_size": 50}, setting="without FedMosaic")
    (family,), _ = find_public_set_groups(groups_in(bench), "public_size")
    assert list(family.groups_by_value) == [10, 20, 30]
    write_runs_of_sizes(bench, [60], setting="skewed", data={"public_size": 60, "public_alpha": 0.5})
    assert list(find_public_set_groups(groups_in(bench), "public_size")[0][0].groups_by_value) == [10, 20, 30]


def test_one_partition_per_seed_is_a_different_public_set_group(bench):
    write_runs_of_sizes(bench, [10, 20])
    for seed in (0, 1):
        data = {"public_size": 30}
        bench.write(seed=seed, setting="anew", data=data, manifest=manifest_of(few_each(2), parameters=data, seed=seed))
    (family,), _ = find_public_set_groups(groups_in(bench), "public_size")
    assert list(family.groups_by_value) == [10, 20]


@pytest.mark.parametrize(("protocol", "together"), [("pfllib", 1), ("official", 0)])
def test_min_size_may_differ_where_it_depends_on_the_public_size(bench, protocol, together):
    for size in (10, 20):
        bench.write(setting=f"u-{size}", data={"public_size": size, "min_size": 50 - size, "protocol": protocol})
    assert len(find_public_set_groups(groups_in(bench), "public_size")[0]) == together


def test_public_set_groups_are_sorted_by_label(bench):
    for noise in (0.7, 0.1):
        for size in (10, 20):
            bench.write(data={"public_size": size, "label_noise": noise})
    found, _ = find_public_set_groups(groups_in(bench), "public_size")
    assert [family.label for family in found] == ["quick, label_noise=0.1", "quick, label_noise=0.7"]
    with use_plot_style():
        panels = public_size_figure(found).axes
    assert [axes.get_title(loc="left") for axes in panels] == [family.label for family in found]


def test_of_two_groups_of_equal_size_the_one_with_more_seeds_is_kept(bench):
    write_runs_of_sizes(bench, [10, 20])
    bench.write("fedmosaic-entropy", setting="again", data={"public_size": 20})
    (family,), remarks = find_public_set_groups(groups_in(bench), "public_size")
    assert family.groups_by_value[20].name == "u-20"
    assert remarks == ["again is left out, because u-20 has the same public_size"]


def test_different_hyperparameters_are_separate_lines(bench):
    bench.write(data={"public_size": 10}, hyperparameters={"trust": "paper"})
    bench.write(data={"public_size": 20}, hyperparameters={"trust": "stabilised"})
    (family,), _ = find_public_set_groups(groups_in(bench), "public_size")
    assert {method_title(key): list(runs) for key, runs in family.runs_by_method.items()} == {
        method_title(("fedmosaic", "entropy, trust=paper")): [10],
        method_title(("fedmosaic", "entropy, trust=stabilised")): [20],
    }


def test_skew_figure_shows_accuracy_and_class_counts(bench):
    for alpha, public in ((None, (4, 4)), (1.0, (2, 6)), (0.1, (0, 8))):
        data = {"public_alpha": alpha}
        kind = {"data": data, "manifest": manifest_of(few_each(2), parameters=data, public=public)}
        bench.write("fedmosaic-entropy", 0, 0.5 + (alpha or 2) / 10, **kind)
        bench.write("local", 0, 0.3, **kind)
    with use_plot_style():
        axes, classes = public_skew_figure(find_public_set_groups(groups_in(bench), "public_alpha")[0]).axes
    for panel in (axes, classes):
        assert ticks(panel.xaxis) == ["0.1", "1", "balanced"]
    assert axes.lines[1].get_ydata() == pytest.approx([0.54, 0.63, 0.73])
    assert axes.lines[0].get_ydata() == pytest.approx([0.33] * 3)
    assert classes.collections[0].get_array().tolist() == [[0, 2, 4], [8, 6, 4]]
    assert ticks(classes.yaxis) == ["cat", "dog"]
    assert sorted(text.get_text() for text in classes.texts) == ["0", "2", "4", "4", "6", "8"]


def test_many_classes_of_the_public_set_have_a_colour_bar(bench):
    for alpha in (0.1, 0.25, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 100.0, None):
        data = {"public_alpha": alpha}
        classes = [f"class {number}" for number in range(40)]
        manifest = manifest_of([[1] * 40] * 2, classes=classes, parameters=data, public=range(40))
        bench.write("fedmosaic-entropy", data=data, manifest=manifest)
    with use_plot_style():
        figure = public_skew_figure(find_public_set_groups(groups_in(bench), "public_alpha")[0])
    _, classes, scale = figure.axes
    assert len(classes.texts) == 0
    assert next(text for text in ticks(scale.yaxis) if text) == "0"
    assert figure.get_figheight() < 8
    labels = [label for axes in figure.axes[:2] for label in axes.get_xticklabels()]
    assert {label.get_rotation() for label in labels} == {45}


# Ranks


def test_cliques_are_the_longest_groups_within_the_critical_difference():
    assert cliques([1, 2, 3, 5, 5.5], 2) == [(1, 3), (3, 5), (5, 5.5)]
    assert cliques([1, 2, 2.5, 3], 2) == [(1, 3)], "no group contains another"
    assert cliques([1.0, 4.0, 7.0], 1) == []
    assert cliques([1.0, 1.5, 2.0], 5) == [(1.0, 2.0)]


def test_rank_diagram_shows_every_rank_and_clique():
    with use_plot_style():
        figure = critical_difference_figure(ranking({"A": 1.25, "B": 2.0, "FedMosaic": 4.0, "D $_x$": 2.75}, 1.0, 4))
    (axes,) = figure.axes
    written = texts(figure)
    for text in ("1.25  A", "2.00  B", "D $_x$  2.75", "FedMosaic  4.00", "CD = 1.00"):
        assert text in written
    assert any("over 4 settings" in text for text in written)
    bars = [line for line in axes.lines if line.get_linewidth() == 3]
    assert [line.get_xdata() for line in bars] == [
        pytest.approx([1.25, 2.0], abs=0.05),
        pytest.approx([2.0, 2.75], abs=0.05),
    ]
    assert axes.get_xlim()[0] > axes.get_xlim()[1], "the best rank is on the right"
    scale = next(line for line in axes.lines if line.get_marker() == "|")
    assert abs(np.diff(scale.get_xdata())[0]) == 1.0


def test_names_in_the_rank_diagram_do_not_overlap():
    ranks = {f"method number {number}": 7 + number / 100 for number in range(14)}
    with use_plot_style():
        figure = critical_difference_figure(ranking(ranks, 3.0, 3))
    boxes = text_boxes(figure, lambda text: "method number" in text)
    assert len(boxes) == 14
    assert_no_overlap(boxes)
    width = figure.get_window_extent().width
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)


def test_a_narrow_rank_diagram_is_a_list_of_dots_with_bars():
    ranks = {"A": 1.25, "B": 2.0, "C": 4.0, "D": 2.75}
    with use_plot_style(PAPER_COLUMN):
        figure = critical_difference_figure(ranking(ranks, 1.0, 4), PAPER_COLUMN)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["A", "B", "D", "C"]
    dots, *bars = axes.lines
    assert dots.get_xdata() == pytest.approx([1.25, 2.0, 2.75, 4.0])
    rows = [[round(end) for end in line.get_ydata()] for line in bars]
    assert rows == [[0, 1], [1, 2]]
    assert "CD = 1.00" in axes.get_xlabel()


# Labels at the ends of lines


def test_labels_are_spread_to_the_minimum_distance():
    assert spread_levels([0.1, 0.9, 0.5], 0.1) == pytest.approx([0.1, 0.9, 0.5])
    assert spread_levels([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread_levels([1.0, 1.0, 0.0], 0.1) == pytest.approx([0.9, 1.0, 0.0])
    assert spread_levels([0.52, 0.5, 0.48], 0.1) == pytest.approx([0.6, 0.5, 0.4])
    assert np.diff(spread_levels(np.zeros(30), 0.1)) == pytest.approx(0.1), "more labels than fit"


# The figure set


def test_figures_are_named_and_drawn_on_demand(bench, monkeypatch, without_rendering):
    bench.write("fedmosaic-entropy")
    bench.write("local")
    reads, curves_of = [], figure_data_module.load_round_curves
    monkeypatch.setattr(figure_data_module, "load_round_curves", lambda path: reads.append(path) or curves_of(path))
    figure_set = FigureSet(groups_in(bench))
    kinds = ("accuracy", "lambda", "losses", "consensus", "communication", "clients", "public")
    assert [name for name, _ in figure_set] == [f"{kind}-quick" for kind in kinds]
    assert len(figure_set) == 7
    assert reads == []
    drawn = {name: draw() for name, draw in figure_set}
    assert all(set(files) == {"png", "pdf"} for files in drawn.values())
    assert len(reads) == 2, "each log is read once"
    assert figure_set.skipped == []
    assert {missing.name for missing in figure_set.missing} == {"public-size", "public-skew", "critical-difference"}
    reason = next(missing.reason for missing in figure_set.missing if missing.name == "public-size")
    assert "at least two sizes of the public set" in reason
    assert "fedmosaic partition --public-size N" in reason


def ranking(ranks, width, settings):
    return MethodRanking(tuple(f"setting {number}" for number in range(settings)), ranks, width, 0.5)


def render_figures(settings, names, ranks=None):
    found = dict(FigureSet(settings, ranks))
    return {name: found[name]() for name in names}


def test_the_same_runs_are_the_same_bytes(bench):
    write_runs_of_sizes(bench, [10, 20])
    ranks = ranking({"A": 1.0, "B": 2.0}, 1.5, 2)
    names = ["lambda-u-10", "communication-u-20", "clients-u-10", "public-size", "critical-difference"]
    first = render_figures(groups_in(bench), names, ranks)
    assert first == render_figures(groups_in(bench), names, ranks)
    assert all(files["png"].startswith(b"\x89PNG") for files in first.values())


def test_text_in_the_pdf_is_searchable(bench):
    bench.write("fedmosaic-entropy")
    names = ["accuracy-quick", "lambda-quick", "public-quick"]
    for name, files in render_figures(groups_in(bench), names).items():
        assert b"/Type3" not in files["pdf"], name
        assert b"/CIDFontType2" in files["pdf"], name
        streams = re.findall(rb"stream\r?\n(.*?)endstream", files["pdf"], re.S)
        content = b"".join(zlib.decompress(data) for data in streams if data[:1] == b"x")
        assert b" Tj" in content or b" TJ" in content, name
        assert b"CreationDate" not in files["pdf"]


def test_a_run_with_a_damaged_log_is_skipped_and_others_are_drawn(bench, without_rendering):
    bench.write("fedavg", 0)
    damaged = [bench.write("fedavg", 1), bench.write("fedmosaic-entropy", 0), bench.write("fedprox", 0)]
    (damaged[0] / "rounds.jsonl").write_text("{")
    (damaged[1] / "rounds.jsonl").unlink()
    lines = (damaged[2] / "rounds.jsonl").read_text().splitlines()
    (damaged[2] / "rounds.jsonl").write_text("\n".join(lines[:4]))  # one round is missing
    figure_set = FigureSet(groups_in(bench))
    drawn = {name: draw() for name, draw in figure_set}
    assert {run.path for run in figure_set.skipped} == set(damaged)
    assert len(figure_set.skipped) == 3
    assert all("rounds.jsonl" in run.reason for run in figure_set.skipped)
    assert drawn["accuracy-quick"]
    assert drawn["lambda-quick"] == drawn["losses-quick"] == drawn["consensus-quick"] == {}
    reasons = {missing.name: missing.reason for missing in figure_set.missing}
    assert reasons["lambda-quick"] == "no run of FedMosaic has a readable log"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.5, -0.1, "0.5x", None])
def test_invalid_accuracies_count_as_damage(bench, without_rendering, value):
    bench.write("fedavg", 0)
    path = bench.write("fedavg", 1)
    rows = [{**json.loads(line), "accuracy": value} for line in (path / "rounds.jsonl").read_text().splitlines()]
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure_set = FigureSet(groups_in(bench))
    assert dict(figure_set)["accuracy-quick"]()
    assert [run.path for run in figure_set.skipped] == [path]


@pytest.mark.parametrize("key", ["bits_up", "loss_public", "lambda"])
def test_implausibly_large_values_count_as_damage(bench, without_rendering, key):
    path = bench.write("fedmosaic-entropy", change=lambda row: {**row, key: 1e308})
    figure_set = FigureSet(groups_in(bench))
    assert dict(figure_set)["communication-quick"]() == {}
    assert [run.path for run in figure_set.skipped] == [path]


def test_a_run_without_manifest_has_no_client_figure(bench, without_rendering):
    path = bench.write("fedmosaic-entropy")
    (path / "shards.json").unlink()
    figure_set = FigureSet(groups_in(bench))
    assert dict(figure_set)["clients-quick"]() == {}
    assert dict(figure_set)["lambda-quick"]()
    assert any(
        missing.name == "clients-quick" and "no run contains a shard manifest" in missing.reason
        for missing in figure_set.missing
    )


def test_an_inconsistent_manifest_is_not_drawn(bench):
    manifest = manifest_of(few_each(2))
    manifest["clients"][0]["train"]["class_counts"] = [1, 2, 3]
    bench.write(manifest=manifest)
    figure_set = FigureSet(groups_in(bench))
    assert dict(figure_set)["clients-quick"]() == {}


def test_missing_figures_have_reasons(bench):
    bench.write("local")
    figure_set = FigureSet(groups_in(bench))
    assert [name for name, _ in figure_set] == ["accuracy-quick", "clients-quick", "public-quick"]
    reasons = {missing.name: missing.reason for missing in figure_set.missing}
    assert "needs a run of FedMosaic" in reasons["lambda-quick"]
    assert "fedmosaic baseline all" in reasons["communication-quick"]


def test_figure_names_are_unique_file_names(bench):
    for setting in ("a_$b", "a%&b", "A__B", "skew", "x" * 150):
        for alpha in (0.1, 1.0) if setting == "skew" else (None,):
            bench.write(setting=setting, data={"public_alpha": alpha}, name=setting.lower() + str(alpha))
    settings = groups_in(bench)
    backwards = [name.lower() for name, _ in FigureSet(settings[::-1])]
    assert len(backwards) == len(set(backwards))
    names = [name.lower() for name, _ in FigureSet(settings)]
    assert len(names) == len(set(names))
    assert "public-skew" in names
    assert max(map(len, names)) < 150
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)


def test_long_names_stay_inside_the_figure(bench):
    bench.write(setting="long words " * 12, hyperparameters={"a_very_long_name": 1})
    bench.write(setting="long words " * 12, hyperparameters={"a_very_long_name": 2})
    for kind in LOG_FIGURES:
        figure = draw(kind, bench)
        width, height = figure.get_window_extent().size
        for box in text_boxes(figure, lambda text: "long" in text):
            assert box.x0 >= 0, kind
            assert box.x1 <= width, kind
            assert box.y1 <= height, kind


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=lambda options: f"{options.style}-{options.width}")
def test_long_names_are_in_the_legend(bench, options):
    for trust in ("paper", "stabilised"):
        bench.write(hyperparameters={"trust": trust, "epsilon": 0.3 + len(trust)}, accuracy=len(trust) / 20, rounds=8)
    bench.write("local", 0, 0.7, rounds=8)
    for kind in (accuracy_figure, communication_figure, consensus_figure):
        figure = draw(kind, bench, options)
        assert sum("trust=stabilised" in name for name in legend_names(figure)) == 1, kind
        assert not any(labels_in(axes) for axes in figure.axes), kind
        figure.draw_without_rendering()
        below = figure.legends[0].get_window_extent()
        assert below.x0 >= 0, kind
        assert below.x1 <= figure.get_window_extent().width, kind
        assert all(axes.get_tightbbox().y0 >= below.y1 - 1 for axes in figure.axes), kind
        assert all(axes.get_window_extent().width > 200 for axes in figure.axes), kind


def test_shared_names_are_broken_at_equals_signs_in_the_legend():
    shared = "Local training = FedCT = FedMosaic-W = FedMosaic-U"
    label = legend_label(shared, PAPER_COLUMN)
    assert label.split("\n") == ["Local training = FedCT", "= FedMosaic-W", "= FedMosaic-U"]
    assert " ".join(label.split("\n")) == shared
    assert legend_label("FedBN = FedProx", PAPER_COLUMN) == "FedBN = FedProx"
    assert num_legend_columns([shared, "FedAvg", "FedProx"], PAPER_COLUMN) >= 2


def test_handles_of_the_legend_show_dashes_twice(bench):
    bench.write("local")
    bench.write("fedavg", 0, 0.7)
    (dashed,) = (
        line
        for line in draw(accuracy_figure, bench, PAPER_COLUMN).legends[0].get_lines()
        if line.get_color() == STYLES_BY_METHOD["local"].color.light
    )
    pattern = STYLES_BY_METHOD["local"].dash
    first, *_, last = dashed.get_xdata()
    assert last - first >= 2 * sum(pattern) * dashed.get_linewidth()


# The style of a paper


@pytest.mark.parametrize("options", [PAPER_COLUMN, PAPER_TEXT], ids=lambda options: f"{options.width}")
def test_figures_for_papers_have_captions_instead_of_titles_and_notes(bench, options):
    for seed in (0, 1):
        for variant in ("fedmosaic-entropy", "fedct", "local"):
            bench.write(variant, seed, rounds=8)
    for kind in LOG_FIGURES:
        figure, explained = draw(kind, bench, options), draw(kind, bench)
        assert figure.get_suptitle() == figure.get_supxlabel() == ""
        assert not any(legend.get_title().get_text() for legend in figure.legends)
        assert not any("seed" in text for text in texts(figure))
        caption = caption_of(figure)
        assert caption == caption_of(explained), "nothing is lost"
        assert "(quick)" in caption
        written = " ".join(" ".join(texts(explained)).split())
        assert caption.partition("(quick). ")[2] in written


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=lambda options: f"{options.style}-{options.width}")
def test_figures_have_the_chosen_width_and_font_sizes(bench, options):
    from matplotlib.text import Text

    for variant in ("fedmosaic-entropy", "fedct", "local"):
        bench.write(variant, rounds=8)
    (setting,) = groups_in(bench)
    width = WIDTHS_INCHES[options.width or ("text" if options.is_paper else "page")]
    kinds = [*(lambda k=kind: draw(k, bench, options) for kind in LOG_FIGURES)]
    with use_plot_style(options):
        counts = client_class_counts_figure(setting, options)
    for figure in (*(kind() for kind in kinds), counts):
        assert figure.get_figwidth() == width
        assert figure.get_figheight() <= width + 1.5
        texts_of_axes = [text for axes in figure.axes for text in axes.findobj(Text) if text.get_text()]
        assert {text.get_fontsize() for text in texts_of_axes} == {7.0 if options.is_narrow else 8.0}


@pytest.mark.parametrize("inches", [2.0, 4.5, 6.75, 12.0])
def test_figures_have_a_width_in_inches(bench, inches):
    for variant in ("fedmosaic-entropy", "fedct", "local"):
        bench.write(variant, rounds=8)
    for kind in LOG_FIGURES:
        figure = draw(kind, bench, FigureOptions(FigureStyle.paper, inches))
        figure.draw_without_rendering()
        assert figure.get_figwidth() == inches
        assert all(axes.get_window_extent().width > 0.25 * figure.dpi for axes in figure.axes), kind


def test_a_serif_font_is_part_of_matplotlib(bench):
    from matplotlib.font_manager import findfont

    bench.write("local")
    options = FigureOptions(is_serif=True, formats=("pdf", "svg"))
    files = dict(FigureSet(groups_in(bench), options=options))["accuracy-quick"]()
    assert b"STIXGeneral" in files["pdf"]
    assert b"STIXGeneral" in files["svg"]
    assert "matplotlib" in findfont("STIXGeneral")


def test_svg_files_contain_text_as_text(bench):
    bench.write("local")
    figure_set = FigureSet(groups_in(bench), options=FigureOptions(formats=("svg",)))
    first, second = (dict(figure_set)["accuracy-quick"]() for _ in range(2))
    assert set(first) == {"svg"}
    assert first == second, "the same bytes"
    assert b">accuracy (%)</text>" in first["svg"]
    assert b"<dc:date>" not in first["svg"]


def test_captions_are_markdown_and_latex_figures(bench, without_rendering):
    bench.write("fedmosaic-entropy", setting="a_b & 50%")
    figure_set = FigureSet(groups_in(bench), options=PAPER_COLUMN)
    drawn = [name for name, draw_figure in figure_set if draw_figure()]
    assert list(figure_set.captions) == drawn
    files = caption_files(figure_set.captions, PAPER_COLUMN)
    assert set(files) == {"captions.md", "captions.tex"}
    trust = next(name for name in drawn if name.startswith("lambda"))
    assert f"**{trust}**: Trust λ of 2 clients in the consensus (a_b & 50%)." in files["captions.md"]
    figure = next(text for text in files["captions.tex"].split("\n\n") if f"fig:{trust}" in text)
    graphics = "\\includegraphics[width=\\linewidth]{" + trust + "}"
    assert figure.startswith(f"% {trust}\n\\begin{{figure}}\n  \\centering\n  {graphics}\n")
    assert "Trust $\\lambda$ of 2 clients in the consensus (a\\_b \\& 50\\%)." in figure
    assert files["captions.tex"].startswith("% Write \\graphicspath{{figures/}} before ")
    for width, environment in ((3.6, "figure"), (3.7, "figure*"), (FigureWidth.page, "figure*")):
        latex = caption_files({"x": "y"}, FigureOptions(FigureStyle.paper, width))["captions.tex"]
        assert latex.split("\n")[2:4] == ["% x", f"\\begin{{{environment}}}"]


def test_ranges_in_latex_captions_have_en_dashes(bench):
    bench.write(clients=8)
    latex = caption_files({"x": caption_of(draw(trust_figure, bench))}, PAPER_COLUMN)["captions.tex"]
    assert "clients 0--5 of 8" in latex


def test_characters_missing_from_the_font_cause_no_warning(bench):
    bench.write(setting="数据")
    assert dict(FigureSet(groups_in(bench)))["accuracy-setting"]()


def test_special_characters_in_names_are_not_math_markup(bench):
    from matplotlib.text import Text

    bench.write(setting="a_$b^2$ 100%&_x", rounds=2)
    (setting,) = groups_in(bench)
    with use_plot_style():
        for figure in LOG_FIGURES:
            drawn = figure(setting, read_figure_data(setting))
            assert any(text.startswith("a_$b^2$ 100%&_x: ") for text in texts(drawn))
            assert not any(text.get_parse_math() for text in drawn.findobj(Text))


@pytest.mark.parametrize(("clients", "rounds"), [(1, 1), (1, 3), (2, 1), (200, 2)])
def test_very_small_and_large_runs_are_drawn(bench, without_rendering, clients, rounds):
    for variant in ("fedmosaic-entropy", "fedct", "fedavg", "local", "centralized"):
        bench.write(variant, clients=clients, rounds=rounds)
    figure_set = FigureSet(groups_in(bench))
    drawn = {name: draw() for name, draw in figure_set}
    nothing = {name for name, files in drawn.items() if not files}
    # In round 1 nothing is sent and there is no consensus.
    assert nothing == ({"consensus-quick", "communication-quick", "lambda-quick"} if rounds == 1 else set())
    assert {missing.name for missing in figure_set.missing} >= nothing


def test_many_public_set_groups_are_split_over_several_figures(bench):
    for lr in range(4):
        for alpha in (0.1, 1.0):
            bench.write(data={"public_alpha": alpha, "label_noise": lr}, rounds=1)
    names = [name for name, _ in FigureSet(groups_in(bench)).cross_group_figures()]
    assert names == ["public-skew", "public-skew-2"]


def test_the_matplotlib_style_of_the_user_has_no_effect(bench):
    from matplotlib import rc_context

    bench.write("local")
    plain = render_figures(groups_in(bench), ["accuracy-quick", "clients-quick"])
    with rc_context({"font.size": 20, "lines.linewidth": 9, "axes.facecolor": "red"}):
        assert render_figures(groups_in(bench), ["accuracy-quick", "clients-quick"]) == plain
