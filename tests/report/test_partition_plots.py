"""Test the plots of a partition: plot type, size limits and labels."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.plots import canvas, partition_plots
from fedmosaic_cli.report.plots.canvas import Caption
from fedmosaic_cli.report.plots.client_plots import client_class_counts_figure
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS, FigureOptions, FigureStyle, FigureWidth
from fedmosaic_cli.runner.prepare import partition_plots as partition_plots_of_manifest
from fedmosaic_cli.storage.shard_manifest import class_counts_by_client
from tests.report.runs_by_hand import Bench, manifest_of


@pytest.fixture(autouse=True)
def plot_style():
    """The style of the figures, but with warnings of the layout."""
    with partition_plots.use_plot_style(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def counts(clients, classes):
    return np.random.default_rng(0).integers(0, 50, size=(clients, classes))


CAPTION = Caption("examples of clients per class", "digits", "A note.")
COLUMN = FigureOptions(FigureStyle.paper, FigureWidth.column)


def class_names(classes):
    return [f"class {number}" for number in range(classes)]


def dots_of(figure):
    """The areas of the dots [clients, classes]; None for a heat map."""
    axes = figure.axes[0]
    return None if axes.get_images() else axes.collections[0].get_sizes()


@pytest.mark.parametrize(
    ("clients", "classes", "options", "has_dots"),
    [
        (1, 2, DEFAULT_OPTIONS, True),
        (15, 10, DEFAULT_OPTIONS, True),
        (40, 10, DEFAULT_OPTIONS, True),
        (100, 10, DEFAULT_OPTIONS, False),
        (5, 31, DEFAULT_OPTIONS, False),
        (15, 10, COLUMN, True),
        (40, 10, COLUMN, False),
    ],
)
def test_few_clients_are_dots_and_many_a_heat_map(clients, classes, options, has_dots):
    names = [str(number) for number in range(classes)]
    with partition_plots.use_plot_style(options):
        figure = partition_plots.class_counts_figure(counts(clients, classes), names, CAPTION, [], options)
    assert (dots_of(figure) is not None) == has_dots
    assert not any(patch.get_hatch() for axes in figure.axes for patch in axes.patches)


@pytest.mark.parametrize(("clients", "classes"), [(10_000, 10), (30, 345), (3, 65), (60, 30)])
@pytest.mark.parametrize("options", [DEFAULT_OPTIONS, COLUMN], ids=["page", "column"])
def test_plots_have_the_width_of_the_paper_and_a_maximum_height(clients, classes, options):
    files = partition_plots.render_class_counts(counts(clients, classes), class_names(classes), CAPTION, [], options)
    width, height = Image.open(io.BytesIO(files["png"])).size
    assert width == round(options.width_inches * canvas.FIGURE_DPI)
    assert height <= 9 * canvas.FIGURE_DPI
    assert files["pdf"].startswith(b"%PDF")


def test_dot_areas_are_proportional_to_counts():
    figure = partition_plots.class_counts_figure([[100, 25], [0, 50]] * 5, ["a", "b"], CAPTION)
    sizes = dots_of(figure)
    assert sizes[0] == 4 * sizes[1] == 2 * sizes[3]
    assert sizes[2] == 0
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["100", "50", "12"]


def test_dots_do_not_overlap():
    figure = partition_plots.class_counts_figure(np.full((20, 10), 7), class_names(10), CAPTION)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    diameter = np.sqrt(dots_of(figure).max()) / 72 * figure.dpi
    (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
    assert diameter < x1 - x0
    assert diameter < y1 - y0


@pytest.mark.parametrize("clients", [100, 1000])
def test_the_heatmap_has_one_cell_per_client_and_class_and_a_colour_bar(clients):
    table = counts(clients, 40)
    names = [f"class number {number} of forty" for number in range(40)]
    figure = partition_plots.class_counts_figure(table, names, CAPTION)
    axes, scale = figure.axes
    (image,) = axes.get_images()
    assert image.get_array().T.tolist() == table.tolist()
    assert axes.get_ylim() == (-0.5, 39.5), "the first class is at the bottom, as in the dot plot"
    assert scale.get_ylabel() == "examples"
    assert_no_overlap(figure, axes.get_xticklabels())
    assert_no_overlap(figure, axes.get_yticklabels())


def test_the_text_says_which_examples_are_counted():
    manifest = manifest_of([[1, 2], [3, 4]])
    plots = partition_plots_of_manifest(manifest)
    assert set(plots) == {"distribution.png", "distribution.pdf", "public.png", "public.pdf"}
    note = partition_plots.COUNTED_EXAMPLES_NOTE
    assert "training, validation and testing" in note
    figure = partition_plots.class_counts_figure([[1, 2]], "ab", Caption("examples", "digits", note))
    assert note in " ".join(figure.get_supxlabel().split())
    paper = partition_plots.class_counts_figure([[1, 2]], "ab", Caption("examples", "digits", note), [], COLUMN)
    assert paper.get_suptitle() == paper.get_supxlabel() == ""
    assert canvas.caption_of(paper) == f"Examples (digits). {note}"


def test_partition_and_report_draw_the_same_figure(tmp_path):
    """Both count all examples of a client, as distribution.csv does."""
    manifest = manifest_of([[10, 20], [30, 40]], parameters={"public_size": 8})
    bench = Bench(tmp_path)
    bench.write(manifest=manifest)
    (group,) = comparison_groups(collect_runs(tmp_path)[0])
    drawn = []
    with partition_plots.use_plot_style():
        drawn.append(dots_of(client_class_counts_figure(group)))
        drawn.append(dots_of(partition_plots.class_counts_figure(class_counts_by_client(manifest), "ab", CAPTION)))
    assert drawn[0] == pytest.approx(drawn[1])
    assert drawn[0] / drawn[0][3] == pytest.approx(np.array([11, 21, 31, 41]) / 41)


def assert_no_overlap(figure, labels):
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    assert len(boxes) > 1
    for number, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[number + 1 :])


def test_example_axes_have_integer_ticks():
    figure = partition_plots.public_class_counts_figure([1, 2], "ab", CAPTION)
    figure.draw_without_rendering()
    assert all(tick == round(tick) for tick in figure.axes[0].get_yticks())


def test_a_long_title_stays_inside_a_narrow_figure():
    figure = partition_plots.public_class_counts_figure([1, 2], "ab", Caption("long words and more " * 12))
    figure.draw_without_rendering()
    title = figure.texts[0]
    box = title.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
    assert title.get_fontweight() == "bold"


def test_only_installed_fallback_fonts_are_used(monkeypatch):
    from matplotlib.font_manager import FontManager

    monkeypatch.setattr(FontManager, "get_font_names", lambda self: ["SimHei", "Any", "Noto Sans CJK SC"])
    assert canvas.available_fonts.__wrapped__() == ["sans-serif", "Noto Sans CJK SC", "SimHei"]


def test_rendering_is_deterministic():
    table = counts(5, 3)
    for render, data in (
        (partition_plots.render_class_counts, table),
        (partition_plots.render_public_class_counts, table[0]),
    ):
        assert render(data, "abc", CAPTION) == render(data, "abc", CAPTION)


def test_domains_are_labelled_once_and_separated():
    domains = ["east", "east", "west", "west", "west"]
    axes = partition_plots.class_counts_figure(counts(5, 2), "ab", CAPTION, domains).axes[0]
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [("east", 0.5), ("west", 3.0)]
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5]
    assert {text.get_rotation() for text in axes.texts} == {0}
    for missing in ([], [None, None], ["", ""]):
        assert not partition_plots.class_counts_figure(counts(2, 2), "ab", CAPTION, missing).axes[0].texts


@pytest.mark.parametrize(("clients", "each"), [(12, 1), (30, 2), (20, 4)])
def test_domain_labels_do_not_overlap(clients, each):
    domains = [f"a domain with a long name {client // each}" for client in range(clients)]
    figure = partition_plots.class_counts_figure(counts(clients, 2), "ab", CAPTION, domains)
    names = figure.axes[0].texts
    assert len(names) == clients // each
    assert_no_overlap(figure, names)


def test_domain_labels_without_space_are_left_out():
    domains = [f"domain {client}" for client in range(200)]
    assert not partition_plots.class_counts_figure(counts(200, 2), "ab", CAPTION, domains).axes[0].texts
