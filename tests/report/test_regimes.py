"""Test the map of regimes: its cells, its figure, its CSV file and its place on the page."""

from __future__ import annotations

import csv
import io

import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from fedmosaic_cli.cli.report import write_html_page, write_result_files
from fedmosaic_cli.data.data_dirs import no_progress
from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.plots import figure_set as figure_set_module
from fedmosaic_cli.report.plots.figure_set import FigureSet
from fedmosaic_cli.report.plots.plot_style import use_plot_style
from fedmosaic_cli.report.plots.regime_map import NOTE, TEXT_COLOR, TITLE, format_points, regime_map_figure
from fedmosaic_cli.report.regimes import find_regime_maps, regime_maps_to_csv
from tests.report.runs_by_hand import few_each, manifest_of, summary_of, write_run

DOMAINS = ["plain", "inverted", "rotated", "edges"]
SKEW = {"scheme": "dirichlet", "alpha": 0.5, "clients": 20}
TWO_CLASSES = {"scheme": "pathological", "classes_per_client": 2, "balanced": True, "clients": 20}
SHIFT = {"scheme": "domain", "clients_per_domain": 5, "domains": DOMAINS}
LOCAL_ACCURACY = 0.7
GAINS = {"local": 0, "centralized": 9, "ditto": 3, "fedmosaic-entropy": -2, "student": 2, "oracle": 4}


class RegimeBench:
    """Writes the runs of settings with gains over Local in percentage points."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, num_examples, heterogeneity, public_size, gains=GAINS, seeds=(0,), name="", **changes):
        """Write one run per method and seed. The names of settings say nothing about their data."""
        scheme = heterogeneity["scheme"]
        dataset = "fashion-mnist-domains" if scheme == "domain" else "fashion-mnist"
        parameters = {
            **{"protocol": "official", "domains": [], "public_size": public_size, "examples_per_client": num_examples},
            **{key: value for key, value in heterogeneity.items() if key != "scheme"},
        }
        setting = name or f"setting-{len(list(self.folder.glob('*')))}"
        train = {"lr": 0.1, "local_steps": 10 if (num_examples or 0) <= 100 else 40}
        for seed in seeds:
            manifest = manifest_of(few_each(2), parameters=parameters, seed=seed)
            shards = {"parameters": parameters, "digest": manifest["digest"]}
            for variant, points in gains.items():
                value = LOCAL_ACCURACY + (points[seed] if isinstance(points, list) else points) / 100
                facts = {"dataset": dataset, "scheme": scheme, "train": train, "shards": shards, **changes}
                summary = summary_of(setting, variant, seed, [value] * 2, **facts)
                write_run(self.folder / setting / variant / f"seed-{seed}", summary, manifest)

    def groups(self):
        return comparison_groups(collect_runs(self.folder)[0])

    def the_map(self):
        (regime_map,), notes = find_regime_maps(self.groups())
        assert notes == []
        return regime_map

    def figure(self):
        with use_plot_style():
            figure = regime_map_figure(self.the_map())
            figure.draw_without_rendering()
        return figure


@pytest.fixture
def bench(tmp_path):
    return RegimeBench(tmp_path / "runs")


def cell_texts(axes):
    """The texts of each cell from top to bottom, by column and row."""
    cells = {}
    for text in sorted(axes.texts, key=lambda text: text.get_position()[1]):
        column, y = text.get_position()
        cells.setdefault((column, round(y)), []).append(text.get_text())
    return cells


def cell_colors(axes):
    """The colour of each cell, by column and row."""
    cells = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_width() == 1]
    return {(patch.get_x() + 0.5, patch.get_y() + 0.5): patch.get_facecolor() for patch in cells}


def hatched_cells(axes):
    return [(round(patch.get_x()), round(patch.get_y())) for patch in axes.patches if patch.get_hatch()]


# Cells


def test_coordinates_come_from_the_recorded_settings(bench):
    for heterogeneity in (SHIFT, SKEW, {**SKEW, "alpha": 0.1}, TWO_CLASSES):
        for num_examples in (1000, 25):
            for public_size in (2000, 500):
                bench.write(num_examples, heterogeneity, public_size, {"local": 0, "student": 1})
    regime_map = bench.the_map()
    assert regime_map.label == "fashion-mnist"
    assert len(regime_map.cells) == 16
    assert regime_map.public_sizes == [500, 2000]
    assert regime_map.example_counts == [25, 1000]
    assert [row.label.replace("\n", " ") for row in regime_map.heterogeneities] == [
        "2 classes per client",
        "Dirichlet \N{GREEK SMALL LETTER ALPHA} = 0.1",
        "Dirichlet \N{GREEK SMALL LETTER ALPHA} = 0.5",
        "feature shift 4 domains",
    ]


def test_gains_are_means_over_the_seeds_and_shards_of_local(bench):
    bench.write(25, SKEW, 500, {"local": [0, 1, 0], "student": [2, 5, 0]}, seeds=(0, 1, 2))
    bench.write(100, SKEW, 500, {"local": 0, "student": 1})
    first, second = bench.the_map().cells.values()
    gain = first.gains["student", ""]
    assert gain.mean == pytest.approx(0.02)
    assert gain.std == pytest.approx(0.02)
    assert gain.seeds == (0, 1, 2)
    assert (gain.accuracy, gain.local_accuracy) == pytest.approx((LOCAL_ACCURACY + 7 / 300, LOCAL_ACCURACY + 1 / 300))
    assert second.gains["student", ""].std is None


def test_the_best_method_is_neither_centralized_nor_the_oracle(bench):
    for num_examples in (25, 100):
        bench.write(num_examples, SKEW, 500)
    cell = next(iter(bench.the_map().cells.values()))
    assert cell.best_key == ("ditto", "")
    assert cell.label_sharing_gain == pytest.approx(0.02)
    assert cell.gain_of("oracle") == pytest.approx(0.04)
    assert cell.gain_of("fedavg") is None


@pytest.mark.parametrize("gain", [-3, 0, 0.4])
def test_local_is_the_best_if_no_other_method_gains_half_a_point(bench, gain):
    for num_examples in (25, 100):
        bench.write(num_examples, SKEW, 500, {"local": 0, "ditto": -5, "student": gain, "oracle": 7})
    assert {cell.best_key for cell in bench.the_map().cells.values()} == {("local", "")}


def test_a_method_with_fewer_seeds_is_not_the_best(bench):
    bench.write(100, SKEW, 500)
    bench.write(25, SKEW, 500, {"local": 0, "student": 1}, seeds=(0, 1), name="a")
    bench.write(25, SKEW, 500, {"ditto": 8}, seeds=(0,), name="a")
    assert next(iter(bench.the_map().cells.values())).best_key == ("student", "")


@pytest.mark.parametrize("gains", [{"local": 0}, {"student": 1, "oracle": 2}])
def test_settings_without_local_or_without_another_method_are_no_cells(bench, gains):
    bench.write(25, SKEW, 500)
    bench.write(100, SKEW, 500)
    bench.write(250, SKEW, 500, gains)
    assert bench.the_map().example_counts == [25, 100]


def test_runs_with_one_number_of_examples_are_no_map(bench):
    bench.write(50, SKEW, 500)
    bench.write(50, SHIFT, 2000)
    bench.write(None, TWO_CLASSES, 500)
    assert find_regime_maps(bench.groups()) == ([], [])


def test_settings_that_differ_otherwise_are_separate_maps(bench):
    for name in ("mlp", "cnn3-bn"):
        for num_examples in (25, 100):
            bench.write(num_examples, SKEW, 500, model={"name": name})
    bench.write(25, TWO_CLASSES, 500, model={"name": "alexnet"})
    maps, _ = find_regime_maps(bench.groups())
    assert [regime_map.label for regime_map in maps] == ["fashion-mnist, name=cnn3-bn", "fashion-mnist, name=mlp"]
    names = [name for name, _ in FigureSet(bench.groups(), kinds=("regimes",))]
    assert names == ["regimes", "regimes-2"]


def test_of_two_settings_in_one_regime_the_one_with_more_seeds_is_kept(bench):
    bench.write(25, SKEW, 500, name="first")
    bench.write(25, SKEW, 500, seeds=(0, 1), name="second")
    bench.write(100, SKEW, 500)
    (regime_map,), notes = find_regime_maps(bench.groups())
    assert next(iter(regime_map.cells.values())).group.name == "second"
    assert notes == ["first is left out, because second is the same regime"]


# The figure


def test_cells_show_the_best_method_the_student_and_the_oracle(bench):
    for public_size in (500, 2000):
        for num_examples in (25, 1000):
            bench.write(num_examples, SKEW, public_size, {**GAINS, "ditto": num_examples / 100 + public_size / 1000})
    first, second, color_bar = bench.figure().axes
    assert first.get_title(loc="left") == "|U| = 500"
    assert second.get_title(loc="left") == "|U| = 2,000"
    assert cell_texts(first) == {
        (0, 0): ["Student", "+2.0", "student +2.0", "oracle +4.0"],
        (1, 0): ["Ditto", "+10.5", "student +2.0", "oracle +4.0"],
    }
    assert cell_texts(second)[0, 0] == ["Ditto", "+2.2", "student +2.0", "oracle +4.0"]
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["25", "1,000"]
    assert "shares labels only" in color_bar.get_xlabel()
    sizes = [text.get_fontsize() for text in first.texts[:4]]
    assert sizes[0] == sizes[1] > sizes[2] == sizes[3] > 5


def test_colours_are_those_of_the_best_label_sharing_method(bench):
    for num_examples, student in ((25, 3), (100, 0), (250, -3)):
        gains = {"local": 0, "fedavg": 9, "student": student, "fedmosaic-entropy": -4, "oracle": 5}
        bench.write(num_examples, SKEW, 500, gains)
    bench.write(1000, SKEW, 500, {"local": 0, "fedavg": 9})
    panel, color_bar = bench.figure().axes
    gain, none, loss, unknown = cell_colors(panel).values()
    assert color_bar.get_xlim() == pytest.approx((-3, 3)), "centred at 0"
    assert gain[2] > gain[0], "blue"
    assert loss[0] > loss[2], "red"
    assert min(none) > 0.95, "white"
    assert unknown == to_rgba("white"), "no method that shares labels"


def test_text_has_enough_contrast_on_every_colour(bench):
    def luminance(color):
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgba(color)[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    for num_examples, gain in ((25, 3), (100, -3)):
        bench.write(num_examples, SKEW, 500, {"local": 0, "student": gain, "oracle": 5})
    for color in cell_colors(bench.figure().axes[0]).values():
        assert (luminance(color) + 0.05) / (luminance(TEXT_COLOR) + 0.05) >= 4.5


def test_negative_gains_are_shown_with_a_minus_and_local_is_named(bench):
    for num_examples in (25, 100):
        bench.write(num_examples, SHIFT, 500, {"local": 0, "fedavg": -12, "student": -0.5, "oracle": -1})
    panel, _ = bench.figure().axes
    assert cell_texts(panel)[0, 0] == ["Local", "0.0", "student \N{MINUS SIGN}0.5", "oracle \N{MINUS SIGN}1.0"]
    assert hatched_cells(panel) == [(0, 0), (1, 0)]


def test_cells_in_which_neither_votes_nor_true_labels_gain_are_hatched(bench):
    for num_examples, student, oracle in ((25, 0.3, 0.6), (100, 0.3, 0.4), (1000, 0.7, 0.4)):
        bench.write(num_examples, SKEW, 500, {"local": 0, "ditto": 3, "student": student, "oracle": oracle})
    bench.write(250, SKEW, 500, {"local": 0, "student": 1})
    panel, _ = bench.figure().axes
    assert hatched_cells(panel) == [(1, 0)]
    assert cell_texts(panel)[2, 0] == ["Student", "+1.0", "student +1.0", "oracle \N{EN DASH}"]


def test_missing_cells_are_dashes(bench):
    bench.write(25, TWO_CLASSES, 500)
    bench.write(100, SKEW, 500)
    bench.write(100, SKEW, 2000)
    first, second, _ = bench.figure().axes
    assert cell_texts(first)[1, 0] == cell_texts(first)[0, 1] == ["\N{EN DASH}"]
    assert cell_texts(first)[0, 0][0] == "Ditto"
    assert [cell for cell, texts in cell_texts(second).items() if len(texts) > 1] == [(1, 1)]
    assert list(cell_colors(second)) == [(1, 1)], "no colour without runs"


def test_one_public_size_has_the_width_of_a_column(bench):
    for num_examples in (25, 100):
        bench.write(num_examples, SKEW, 500)
    assert bench.figure().get_figwidth() < 3.5
    bench.write(25, SKEW, 2000)
    figure = bench.figure()
    assert figure.get_figwidth() == 7
    assert NOTE in " ".join(figure.get_supxlabel().split())
    assert figure.get_suptitle() == f"fashion-mnist: {TITLE}"


def test_texts_of_a_full_map_fit_into_their_cells(bench):
    gains = {"local": 0, "fedmosaic-entropy": 10.5, "student": -10.5, "oracle": 12.5}
    for public_size in (500, 2000):
        for num_examples in (25, 100, 250, 1000):
            for heterogeneity in (TWO_CLASSES, SKEW, SHIFT):
                bench.write(num_examples, heterogeneity, public_size, gains)
    for axes in bench.figure().axes[:2]:
        for text in axes.texts:
            box = text.get_window_extent().transformed(axes.transData.inverted())
            column, row = text.get_position()
            assert abs(box.width) < 0.95, text.get_text()
            assert round(row) - 0.5 < min(box.y0, box.y1) < max(box.y0, box.y1) < round(row) + 0.5
            assert column - 0.5 < box.x0 < box.x1 < column + 0.5


def test_rows_of_one_method_are_named_with_their_details(bench):
    for num_examples in (25, 100):
        bench.write(num_examples, SKEW, 500, {"local": 0, "fedmosaic-entropy": 2, "fedmosaic-frequency": 1})
    panel, _ = bench.figure().axes
    assert cell_texts(panel)[0, 0][:2] == ["FedMosaic-U", "+2.0"]


def test_gains_are_formatted_in_points():
    values = (0.0123, -0.0123, 0.0004, -0.0004, None)
    assert list(map(format_points, values)) == ["+1.2", "\N{MINUS SIGN}1.2", "0.0", "0.0", "\N{EN DASH}"]


# Files and page


@pytest.fixture
def without_rendering(monkeypatch):
    monkeypatch.setattr(figure_set_module, "render_figure", lambda figure, formats: dict.fromkeys(formats, b"x"))


def test_the_study_writes_the_map_its_numbers_and_the_page(bench, tmp_path):
    for num_examples in (25, 100):
        bench.write(num_examples, SKEW, 500)
    write_result_files(tmp_path / "out", bench.groups(), [], True, no_progress, ("regimes",))
    write_html_page(tmp_path / "out" / "index.html", bench.groups(), [], [], no_progress)
    figures = tmp_path / "out" / "figures"
    assert sorted(path.name for path in figures.iterdir()) == ["regimes.pdf", "regimes.png"]
    assert (figures / "regimes.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "out" / "regimes.csv").read_text() == regime_maps_to_csv([bench.the_map()])
    page = (tmp_path / "out" / "index.html").read_text()
    overview = page.partition('id="tables-head"')[0]
    assert f"{TITLE}: fashion-mnist" in overview
    assert NOTE in overview
    assert "student +2.0" in overview


def test_the_csv_file_has_one_line_per_cell_and_method(bench):
    for num_examples in (25, 100):
        bench.write(num_examples, SHIFT, 500, seeds=(0, 1))
    lines = list(csv.DictReader(io.StringIO(regime_maps_to_csv([bench.the_map()]))))
    assert len(lines) == 2 * len(GAINS)
    best = [line for line in lines if line["best"] == "True"]
    assert [(line["method"], line["examples_per_client"]) for line in best] == [("Ditto", "25"), ("Ditto", "100")]
    assert {(line["scheme"], line["alpha"], line["domains"], line["public_size"]) for line in best} == {
        ("domain", "", "4", "500")
    }
    assert float(best[0]["gain"]) == pytest.approx(0.03)
    assert best[0]["seeds"] == "0 1"


def test_reports_without_such_runs_do_not_mention_the_map(bench, tmp_path, without_rendering, capsys):
    bench.write(50, SKEW, 500)
    write_result_files(tmp_path / "out", bench.groups(), [], True, no_progress)
    write_html_page(tmp_path / "out" / "index.html", bench.groups(), [], [], no_progress)
    assert not list((tmp_path / "out").rglob("regimes*"))
    assert TITLE not in (tmp_path / "out" / "index.html").read_text()
    assert "regimes" not in capsys.readouterr().err


def test_a_study_without_enough_runs_names_what_is_missing(bench):
    bench.write(50, SKEW, 500)
    figure_set = FigureSet(bench.groups(), kinds=("regimes",))
    assert list(figure_set) == []
    (missing,) = figure_set.missing
    assert missing.name == "regimes"
    assert "fedmosaic reproduce regimes" in missing.reason
