"""Test the plots of a partition: plot type, size limits and labels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fedmosaic_cli.report.plots import canvas, partition_plots


def counts(clients, classes):
    return np.random.default_rng(0).integers(0, 50, size=(clients, classes))


def render_with_plot_type(monkeypatch, clients, classes):
    """The plot type that was used, and the files."""
    kinds = []
    for kind in ("stacked_bars", "dot_matrix", "heatmap"):
        real = getattr(partition_plots, kind)
        monkeypatch.setattr(partition_plots, kind, lambda *a, kind=kind, real=real: (kinds.append(kind), real(*a))[1])
    names = [f"class {number}" for number in range(classes)]
    files = partition_plots.render_class_counts(counts(clients, classes), names, "title")
    return kinds, files


@pytest.mark.parametrize(
    ("clients", "classes", "kind"),
    [
        (1, 2, "stacked_bars"),
        (20, 10, "stacked_bars"),
        (21, 10, "dot_matrix"),
        (60, 30, "dot_matrix"),
        (61, 10, "heatmap"),
        (5, 31, "heatmap"),
    ],
)
def test_the_plot_type_depends_on_the_number_of_clients_and_classes(monkeypatch, clients, classes, kind):
    kinds, files = render_with_plot_type(monkeypatch, clients, classes)
    assert kinds == [kind]
    assert files["png"].startswith(b"\x89PNG")
    assert files["pdf"].startswith(b"%PDF")


@pytest.mark.parametrize(("clients", "classes"), [(10_000, 10), (30, 345), (3, 65), (60, 30)])
def test_plots_have_a_maximum_size(monkeypatch, clients, classes):
    _, files = render_with_plot_type(monkeypatch, clients, classes)
    width, height = Image.open(io.BytesIO(files["png"])).size
    assert width < 4000
    assert height <= 8 * 130


def test_stacked_bars_add_up():
    table = counts(6, 4)
    axes = partition_plots.stacked_bars(table, list("abcd"), "title").axes[0]
    heights = {}
    for layer in axes.containers:
        for bar in layer:
            client = round(bar.get_x() + bar.get_width() / 2)
            assert bar.get_y() == heights.get(client, 0), "each layer starts at the top of the previous one"
            heights[client] = bar.get_y() + bar.get_height()
    assert [heights[client] for client in range(6)] == table.sum(axis=1).tolist()
    assert len({layer[0].get_hatch() for layer in axes.containers}) == 4, "readable without colour"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list("dcba"), "from top to bottom"


def test_layers_are_distinct_in_greyscale():
    shades = [np.dot(shade[:3], (0.299, 0.587, 0.114)) for shade in partition_plots.class_colors(10)]
    assert np.diff(shades).min() > 0.01


def test_dot_areas_are_proportional_to_counts():
    axes = partition_plots.dot_matrix(np.array([[100, 25], [0, 50]] * 15), ["a", "b"], "title").axes[0]
    sizes = axes.collections[0].get_sizes()
    assert sizes[0] == 4 * sizes[1] == 2 * sizes[3]
    assert sizes[2] == 0


def test_the_heatmap_has_one_cell_per_client_and_class_and_a_colour_bar():
    table = counts(100, 40)
    names = [f"class number {number} of forty" for number in range(40)]
    figure = partition_plots.heatmap(table, names, "title", 7.0)
    axes, scale = figure.axes
    (image,) = axes.get_images()
    assert image.get_array().T.tolist() == table.tolist()
    assert axes.get_ylim() == (-0.5, 39.5), "the first class is at the bottom, as in the other plots"
    assert len(axes.get_xticks()) <= 12
    assert scale.get_ylabel() == "examples"
    assert_no_overlap(figure, axes.get_xticklabels())
    assert_no_overlap(figure, axes.get_yticklabels())


def assert_no_overlap(figure, labels):
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    assert len(boxes) > 1
    for number, box in enumerate(boxes):
        assert not box.count_overlaps(boxes[number + 1 :])


def test_example_axes_have_integer_ticks():
    for figure in (
        partition_plots.public_class_counts_figure([1, 2], "ab", "t"),
        partition_plots.stacked_bars(np.array([[1, 1]]), "ab", "t"),
    ):
        figure.draw_without_rendering()
        assert all(tick == round(tick) for tick in figure.axes[0].get_yticks())


def test_a_long_title_stays_inside_a_narrow_figure():
    figure = partition_plots.public_class_counts_figure([1, 2], "ab", "long words and more " * 12)
    figure.draw_without_rendering()
    (title,) = figure.texts
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
    assert partition_plots.render_class_counts(table, "abc", "t") == partition_plots.render_class_counts(
        table, "abc", "t"
    )
    assert partition_plots.render_public_class_counts(
        table[0], "abc", "t"
    ) == partition_plots.render_public_class_counts(table[0], "abc", "t")


def test_domains_are_labelled_once_and_separated():
    axes = partition_plots.stacked_bars(counts(5, 2), "ab", "title").axes[0]
    partition_plots.draw_domain_labels(axes, ["east", "east", "west", "west", "west"])
    assert [(text.get_text(), text.get_position()[0]) for text in axes.texts] == [("east", 0.5), ("west", 3.0)]
    assert [line.get_xdata()[0] for line in axes.lines] == [1.5]
    assert {text.get_rotation() for text in axes.texts} == {0}
    partition_plots.draw_domain_labels(axes, [])
    partition_plots.draw_domain_labels(axes, ["", ""])
    assert len(axes.texts) == 2


@pytest.mark.parametrize(("clients", "each"), [(12, 1), (30, 2), (20, 4)])
def test_domain_labels_do_not_overlap(clients, each):
    domains = [f"a domain with a long name {client // each}" for client in range(clients)]
    figure = partition_plots.class_counts_figure(counts(clients, 2), "ab", "title", domains, 7.0)
    names = figure.axes[0].texts
    assert len(names) == clients // each
    assert_no_overlap(figure, names)


def test_domain_labels_without_space_are_left_out():
    domains = [f"domain {client}" for client in range(200)]
    assert not partition_plots.class_counts_figure(counts(200, 2), "ab", "title", domains, 7.0).axes[0].texts
