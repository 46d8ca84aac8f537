"""Test the figures drawn from hand-written run directories, and the reasons for missing figures."""

from __future__ import annotations

import json
import re
import zlib

import numpy as np
import pytest

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups, method_title
from fedmosaic_cli.report.plots import figure_data as figure_data_module
from fedmosaic_cli.report.plots import figure_set as figure_set_module
from fedmosaic_cli.report.plots.client_plots import (
    client_class_counts_figure,
    clients_to_plot,
    losses_figure,
    public_set_figure,
    trust_figure,
)
from fedmosaic_cli.report.plots.communication_plot import communication_figure, format_bytes
from fedmosaic_cli.report.plots.figure_data import FigureUnavailableError, read_figure_data
from fedmosaic_cli.report.plots.figure_set import FigureSet
from fedmosaic_cli.report.plots.line_labels import spread_levels
from fedmosaic_cli.report.plots.plot_style import (
    CLIENT_STYLES,
    FLIPPED_CLIENT_STYLE,
    HIGHLIGHT_STYLES,
    METHOD_STYLES,
    REFERENCE_STYLES,
    method_line_styles,
    use_plot_style,
)
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


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "runs")


@pytest.fixture
def without_rendering(monkeypatch):
    """Lay out the figures of a figure set without rendering them, which takes most of the time."""

    def sketch(figure, dpi):
        figure.draw_without_rendering()
        return {"png": b"sketch", "pdf": b"sketch"}

    monkeypatch.setattr(figure_set_module, "render_png_and_pdf", sketch)


def groups_in(bench):
    return comparison_groups(collect_runs(bench.folder)[0])


def draw(figure, bench):
    """The figure of the only comparison group."""
    (setting,) = groups_in(bench)
    with use_plot_style():
        return figure(setting, read_figure_data(setting))


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


def test_accuracy_is_the_mean_over_seeds_with_a_band_from_lowest_to_highest(bench):
    bench.write("fedavg", 0, 0.4)
    bench.write("fedavg", 1, 0.6)
    figure = draw(accuracy_figure, bench)
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata() == pytest.approx([0.51, 0.52, 0.53])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0.41, 0.63))
    assert "Lines: mean over 2 seeds; bands: lowest to highest seed." in texts(figure)
    assert "53.0  FedAvg" in labels_in(axes)


def test_accuracies_are_shown_in_percent(bench):
    bench.write("fedavg", 0, 0.4)
    axes = draw(accuracy_figure, bench).axes[0]
    assert axes.get_ylabel() == "accuracy (%)"
    shown = [float(text) for text in ticks(axes.yaxis)]
    assert min(shown) > 30
    assert max(shown) < 60


def test_a_long_run_has_a_panel_for_the_final_rounds(bench):
    bench.write("fedavg", 0, 0.4, rounds=20)
    bench.write("local", 0, 0.4, rounds=20)
    whole, end = draw(accuracy_figure, bench).axes
    assert whole.get_xlim()[0] <= 1
    assert 10 < end.get_xlim()[0] < 11, "space for the markers of its first round"
    assert end.get_ylim()[0] > 0.5 > whole.get_ylim()[0]
    assert labels_in(whole) == {}
    assert set(labels_in(end)) == {"60.0  FedAvg", "60.0  Local training"}


def test_the_final_rounds_panel_shows_whole_bands_and_no_outliers(bench):
    for seed, accuracy in ((0, 0.5), (1, 0.6)):
        bench.write("fedmosaic-entropy", seed, accuracy, rounds=20)
    near = {"local": 0.52, "fedct": 0.54, "fedbn": 0.56, "ditto": 0.55}
    for variant, accuracy in {**near, "fedprox": 0.05, "fedavg": 0.1}.items():
        bench.write(variant, 0, accuracy, rounds=20)
    figure = draw(accuracy_figure, bench)
    low, high = figure.axes[1].get_ylim()
    assert 0.5 < low < 0.61, "the lowest seed in round 11"
    assert 0.8 < high < 0.85, "the highest in round 20"
    names = labels_in(figure.axes[1])
    assert {"30.0 ↓  FedAvg", "25.0 ↓  FedProx"} < set(names)
    assert names["30.0 ↓  FedAvg"].xyann[1] > names["25.0 ↓  FedProx"].xyann[1], "sorted by value"
    note = " ".join(" ".join(texts(figure)).split())
    assert "FedAvg and FedProx are below the right panel." in note


@pytest.mark.parametrize("accuracy", [0.0, 0.97])
@pytest.mark.parametrize("figure", [accuracy_figure, communication_figure])
def test_percent_axes_have_no_ticks_outside_0_to_100(bench, figure, accuracy):
    for variant in ("fedavg", "local"):
        bench.write(variant, 0, accuracy, change=lambda row: {**row, "accuracy": round(row["accuracy"])})
    axes = draw(figure, bench).axes[0]
    shown = [float(text) for text in ticks(axes.yaxis)]
    assert min(shown) >= 0
    assert max(shown) <= 100
    assert round(accuracy) * 100 in shown


ALL = ["centralized", "local", "fedavg", "fedprox", "fedct", "fedbn", "perfedavg", "ditto", "pfedme", "apfl"]
ALL += ["fedphp", "perfedckt", "fedmosaic-entropy", "fedmosaic-frequency"]


@pytest.mark.parametrize("figure", [accuracy_figure, communication_figure])
def test_labels_of_all_methods_do_not_overlap(bench, figure):
    """Equal accuracies of all methods but one are the worst case."""
    for number, variant in enumerate(ALL):
        bench.write(variant, 0, 0.5 + 0.3 * (number == 0), rounds=20)
    drawn = draw(figure, bench)
    titles = [method_title((name.split("-")[0], "-".join(name.split("-")[1:]))) for name in ALL]
    boxes = text_boxes(drawn, lambda text: any(title in text for title in titles) and "panel" not in text)
    assert len(boxes) == len(ALL)
    assert_no_overlap(boxes)


def test_fedmosaic_is_highlighted_and_references_are_dashed():
    keys = [(name.split("-")[0], "-".join(name.split("-")[1:])) for name in ALL]
    styles = method_line_styles(keys)
    strong = [look for key, look in styles.items() if key[0] == "fedmosaic"]
    others = [look for key, look in styles.items() if key[0] != "fedmosaic"]
    assert min(look.width for look in strong) > max(look.width for look in others)
    local = styles["local", ""]
    assert local.zorder > min(look.zorder for look in strong) > max(look.zorder for look in others if look != local)
    assert local.width < min(look.width for look in strong) / 2, "lines equal to it remain visible"
    assert styles["local", ""].dash != "-" != styles["centralized", ""].dash
    assert len({(look.marker, str(look.dash)) for look in styles.values()}) == len(keys), "distinct without colour"


def test_every_colour_has_enough_contrast_on_white():
    from matplotlib.colors import to_rgb

    for look in (
        *CLIENT_STYLES,
        FLIPPED_CLIENT_STYLE,
        *METHOD_STYLES.values(),
        *REFERENCE_STYLES.values(),
        *HIGHLIGHT_STYLES.values(),
    ):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(look.color)]
        assert 1.05 / (np.dot(linear, (0.2126, 0.7152, 0.0722)) + 0.05) >= 4.5, look


def test_rows_of_one_method_differ_in_line_style():
    keys = [("fedmosaic", "entropy, trust=1"), ("fedmosaic", "entropy, trust=2"), ("fedavg", "a=1"), ("fedavg", "a=2")]
    styles = method_line_styles(keys)
    assert len({(look.color, look.dash) for look in styles.values()}) == 4
    assert styles[keys[0]].color == styles[keys[1]].color


def test_equal_variants_of_fedmosaic_are_both_visible():
    over, under = (method_line_styles([("fedmosaic", kind)])["fedmosaic", kind] for kind in ("frequency", "entropy"))
    assert over.zorder > under.zorder
    assert over.dash != "-" == under.dash


def test_many_rows_of_fedmosaic_are_thinner_and_distinct():
    keys = [("fedmosaic", f"entropy, trust={number}") for number in range(12)]
    styles = method_line_styles(keys)
    assert len({(look.color, look.dash) for look in styles.values()}) == 12
    assert max(look.width for look in styles.values()) < method_line_styles(keys[:2])[keys[0]].width


# Single clients


def test_trust_figure_shows_all_clients_and_shades_rounds_before_the_consensus(bench):
    bench.write("fedmosaic-entropy", 4, clients=8, rounds=5)
    bench.write("fedmosaic-frequency", 4, clients=8, rounds=5)
    first, second = draw(trust_figure, bench).axes
    assert first.get_title(loc="left") == "FedMosaic-W\nseed 4"
    assert second.get_title(loc="left") == "FedMosaic-U\nseed 4"
    drawn = {round(line.get_ydata()[-1], 3): line for line in first.lines}
    assert sorted(drawn) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert drawn[0.3].get_ydata() == pytest.approx([0, 0.3, 0.3, 0.3, 0.3])
    assert list(labels_in(first)) == [f"client {number}" for number in range(6)]
    assert max(line.get_linewidth() for line in (drawn[0.7], drawn[0.8])) < drawn[0.1].get_linewidth()
    (shade,) = first.patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (first.get_xlim()[0], 1.5)


def test_trust_figure_shows_the_first_seed(bench):
    for seed in (2, 1):
        bench.write("fedmosaic-entropy", seed)
    assert draw(trust_figure, bench).axes[0].get_title(loc="left") == "FedMosaic-U\nseed 1"


def test_many_clients_are_drawn_as_median_and_quantiles(bench):
    bench.write(clients=30, manifest=manifest_of(few_each(30), flipped=[29]))
    figure = draw(trust_figure, bench)
    (axes,) = figure.axes
    assert list(labels_in(axes)) == ["client 0", "client 1", "client 29, flipped"]
    median = next(line for line in axes.lines if line.get_color() == "black")
    assert median.get_ydata() == pytest.approx([0, 1.55, 1.55])
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(np.quantile(np.arange(1, 31) / 10, 0.9))
    assert any("10th to 90th percentile" in text for text in texts(figure))


def test_clients_with_flipped_labels_are_highlighted(bench):
    from matplotlib.text import Text

    bench.write(clients=9, manifest=manifest_of(few_each(9), flipped=[8]))
    (axes,) = draw(trust_figure, bench).axes
    assert list(labels_in(axes)) == [*(f"client {number}" for number in range(5)), "client 8, flipped"]
    widest = max(axes.lines, key=lambda line: line.get_linewidth())
    assert widest.get_ydata()[-1] == pytest.approx(0.9)
    panels = draw(losses_figure, bench).axes
    assert panels[-1].get_title(loc="left") == "client 8, labels flipped"
    shown = {text.get_text(): text for panel in panels for text in panel.findobj(Text) if "client" in text.get_text()}
    assert shown["client 8, labels flipped"].get_color() == FLIPPED_CLIENT_STYLE.color != shown["client 0"].get_color()
    assert shown["client 8, labels flipped"].get_fontweight() == "bold"


def test_selected_clients_include_those_with_flipped_labels():
    assert clients_to_plot(20, {7, 19}, 6) == [0, 1, 2, 3, 7, 19]
    assert clients_to_plot(2, set(), 6) == [0, 1]
    assert clients_to_plot(20, set(range(20)), 3) == [0, 1, 2]


def test_titles_say_how_many_of_many_variants_are_shown(bench):
    for number in range(13):
        bench.write(hyperparameters={"trust": number})
    figure = draw(trust_figure, bench)
    assert len(figure.axes) == 12
    assert "12 of 13 variants" in " ".join(figure.get_suptitle().split())
    assert "3 of 13 variants" in " ".join(draw(losses_figure, bench).get_suptitle().split())


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
    assert {text.get_text() for text in first.figure.legends[0].get_texts()} == {
        "FedMosaic-U, private",
        "FedMosaic-U, public",
    }


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
    (private,) = draw(losses_figure, bench).axes[0].lines
    assert private.get_linestyle() == "-"


def test_class_counts_of_clients_and_public_set(bench):
    bench.write(manifest=manifest_of(few_each(3), seed=7), clients=3)
    (setting,) = groups_in(bench)
    with use_plot_style():
        clients, public = client_class_counts_figure(setting), public_set_figure(setting)
    assert clients.get_suptitle() == "quick, shards of seed 7: training examples of 3 clients"
    assert [bar.get_height() for bar in clients.axes[0].containers[0]] == [1, 2, 3], "training examples of class cat"
    assert public.get_suptitle() == "quick, shards of seed 7: public set, 8 examples"
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
    assert (end.get_xdata()[0], end.get_ydata()[0], end.get_marker()) == (pytest.approx(800), pytest.approx(0.43), "p")
    assert [line.get_ydata()[0] for line in levels] == pytest.approx([0.73, 0.33])
    assert axes.get_xscale() == "log"
    names = set(labels_in(axes))
    assert names == {"FedAvg", "Centralized (moves raw data)", "Local training (sends nothing)"}
    assert {"100 B", "1 kB"} <= set(ticks(axes.xaxis))


def test_labels_of_methods_that_send_little_are_beside_their_lines(bench):
    def much(row):
        return {**row, "bits_up": row["bits_up"] * 10**5, "bits_down": row["bits_down"] * 10**5}

    for variant in ("fedmosaic-entropy", "fedmosaic-frequency", "fedct"):
        for trust in (1, 2):
            bench.write(variant, rounds=20, hyperparameters={"trust": trust})
    bench.write("fedavg", rounds=20, change=much)
    figure = draw(communication_figure, bench)
    (axes,) = figure.axes
    names = labels_in(axes)
    boxes = text_boxes(figure, lambda text: text in names)
    assert len(boxes) == 7
    assert_no_overlap(boxes)
    edge = axes.get_window_extent().x1
    outside = {name: text.get_window_extent().x1 > edge for name, text in names.items()}
    assert outside == {name: name == "FedAvg" for name in names}


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
    bench.write("fedct")
    bench.write("fedavg")
    agreement, oracle = draw(consensus_figure, bench).axes
    assert [line.get_ydata().tolist() for line in agreement.lines][1][1:] == pytest.approx([0.8, 1 - 0.4 / 3])
    assert np.isnan(agreement.lines[0].get_ydata()[0])
    assert set(labels_in(oracle)) == {"50.0"}
    names = [text.get_text() for text in agreement.figure.legends[0].get_texts()]
    assert names == ["FedCT", "FedMosaic-U"]
    assert 1 < agreement.get_xlim()[0] < 2, "there is no value before the first consensus"
    assert ORACLE_NOTE in " ".join(oracle.get_title(loc="left").split())
    assert ORACLE_NOTE not in agreement.get_title(loc="left")


def test_methods_without_logged_agreement_are_named(bench):
    bench.write("fedmosaic-entropy")
    bench.write("fedct", change=lambda row: {key: value for key, value in row.items() if key != "agreement"})
    figure = draw(consensus_figure, bench)
    assert len(figure.axes[0].lines) == 1
    assert figure.legends[0].get_title().get_text() == "One seed. FedCT logged no agreement."


def test_methods_derived_from_fedmosaic_are_drawn_like_it(bench):
    bench.write("fedmosaic-entropy")
    bench.write("gated", change=lambda row: {**row, "lambda": 0.5, "vote_agreement": 0.25})
    figure = draw(consensus_figure, bench)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedMosaic-U", "Gated co-training"]
    assert figure.axes[0].lines[1].get_ydata().tolist() == [0.25, 0.25, 0.25]
    assert [axes.get_title(loc="left") for axes in draw(trust_figure, bench).axes] == [
        "FedMosaic-U\nseed 0",
        "Gated co-training\nseed 0",
    ]
    assert "determine" not in draw(losses_figure, bench).get_suptitle()
    styles = method_line_styles([("fedmosaic", "frequency"), ("fedmosaic", "entropy"), ("gated", ""), ("fedct", "")])
    assert len({(look.color, look.marker) for look in styles.values()}) == 4
    assert styles["gated", ""].width == styles["fedmosaic", "entropy"].width > styles["fedct", ""].width


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
    local, ours = (container.lines for container in axes.containers)
    assert ours[0].get_xdata() == pytest.approx([50, 100, 200], abs=1.5)
    assert all(ours[0].get_xdata() > local[0].get_xdata()), "error bars do not overlap"
    assert ours[0].get_ydata() == pytest.approx([0.63, 0.68, 0.78])
    assert local[0].get_ydata() == pytest.approx([0.43, 0.43, 0.43])
    (bars,) = ours[2]
    assert bars.get_segments()[0][:, 1] == pytest.approx([0.58, 0.68])
    assert axes.get_xscale() == "linear"
    assert ticks(axes.xaxis) == ["50", "100", "200"]


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
def test_curves_with_zero_trust_are_named_in_the_title(bench, figure, varied):
    for value, last in ((0.5, 1e-9), (0.7, 1e-7)):
        size = {varied: value if varied == "public_alpha" else int(100 * value)}
        silent = {"change": lambda row, last=last: {**row, "lambda": last}, "hyperparameters": {"trust": "paper"}}
        bench.write(setting=f"u-{value}", data=size, **silent)
        bench.write(setting=f"u-{value}", data=size, hyperparameters={"trust": "stabilised"})
    (family,), _ = find_public_set_groups(groups_in(bench), varied)
    with use_plot_style():
        title = " ".join(figure([family]).axes[0].get_title(loc="left").split())
    assert f"FedMosaic-U (trust=paper): {ZERO_TRUST_NOTE}" in title
    assert "stabilised" not in title


def test_curves_with_trust_at_one_point_are_not_named_in_the_title(bench):
    for size, last in ((50, 0.0), (100, 0.2)):
        bench.write(
            setting=f"u-{size}", data={"public_size": size}, change=lambda row, last=last: {**row, "lambda": last}
        )
    with use_plot_style():
        figure = public_size_figure(find_public_set_groups(groups_in(bench), "public_size")[0])
    assert ZERO_TRUST_NOTE not in figure.axes[0].get_title(loc="left")


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
        "FedMosaic-U (trust=paper)": [10],
        "FedMosaic-U (trust=stabilised)": [20],
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
    assert axes.containers[1].lines[0].get_ydata() == pytest.approx([0.54, 0.63, 0.73])
    assert axes.containers[0].lines[0].get_ydata() == pytest.approx([0.33] * 3)
    assert classes.collections[0].get_array().tolist() == [[0, 2, 4], [8, 6, 4]]
    assert ticks(classes.yaxis) == ["cat", "dog"]
    assert sorted(text.get_text() for text in classes.texts) == ["0", "2", "4", "4", "6", "8"]


def test_many_classes_of_the_public_set_have_a_colour_bar(bench):
    for alpha in (0.1, 0.5, 1.0, 5.0, 100.0, None):
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
        figure = critical_difference_figure(
            ranking({"A": 1.25, "B": 2.0, "FedMosaic": 4.0, "D": 2.75}, 1.0, 4), "Ranks $_x$"
        )
    (axes,) = figure.axes
    written = texts(figure)
    for text in ("1.25  A", "2.00  B", "D  2.75", "FedMosaic  4.00", "CD = 1.00", "Ranks $_x$"):
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
        figure = critical_difference_figure(ranking(ranks, 3.0, 3), "Ranks")
    boxes = text_boxes(figure, lambda text: "method number" in text)
    assert len(boxes) == 14
    assert_no_overlap(boxes)
    width = figure.get_window_extent().width
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)


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
    for kind in (accuracy_figure, trust_figure, losses_figure, consensus_figure, communication_figure):
        figure = draw(kind, bench)
        width, height = figure.get_window_extent().size
        for box in text_boxes(figure, lambda text: "long" in text):
            assert box.x0 >= 0, kind
            assert box.x1 <= width, kind
            assert box.y1 <= height, kind


def test_long_names_are_in_the_legend_and_values_at_the_lines(bench):
    for trust in ("paper", "stabilised"):
        bench.write(hyperparameters={"trust": trust, "epsilon": 0.3 + len(trust)}, rounds=8)
    bench.write("local", 0, 0.7, rounds=8)
    for kind in (accuracy_figure, communication_figure, consensus_figure):
        figure = draw(kind, bench)
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        assert sum("trust=stabilised" in name for name in names) == 1, kind
        assert all(re.fullmatch(r"[\d.]+", text) for axes in figure.axes for text in labels_in(axes)), kind
        below = figure.legends[0].get_window_extent()
        assert below.x0 >= 0, kind
        assert below.x1 <= figure.get_window_extent().width, kind
        assert all(axes.get_tightbbox().y0 >= below.y1 - 1 for axes in figure.axes), kind
        assert all(axes.get_window_extent().width > 200 for axes in figure.axes), kind


def test_characters_missing_from_the_font_cause_no_warning(bench):
    bench.write(setting="数据")
    assert dict(FigureSet(groups_in(bench)))["accuracy-setting"]()


def test_special_characters_in_names_are_not_math_markup(bench):
    from matplotlib.text import Text

    bench.write(setting="a_$b^2$ 100%&_x", rounds=2)
    (setting,) = groups_in(bench)
    with use_plot_style():
        for figure in (accuracy_figure, trust_figure, losses_figure, consensus_figure, communication_figure):
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
    assert nothing == ({"consensus-quick", "communication-quick"} if rounds == 1 else set())
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
    assert figure_set_module.FIGURE_DPI >= 200
