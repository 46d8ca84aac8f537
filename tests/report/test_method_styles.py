"""Test that curves of methods and clients can be distinguished, also by colour-blind readers."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from fedmosaic_cli.methods.registry import ALL_BASELINES, METHODS
from fedmosaic_cli.report.method_styles import (
    CLIENT_STYLES,
    FLIPPED_CLIENT_STYLE,
    GREY,
    INK,
    METHOD_COLORS,
    STYLES_BY_METHOD,
    client_style,
    contrast,
    method_styles,
    text_color,
)

# Simulation of colour blindness in linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 2009, severity 1.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
# Differences in OKLab; black and white differ by 1.
MIN_DISTANCE = {"normal": 0.12, "deuteranopia": 0.065, "protanopia": 0.065}
DARK_BACKGROUND = "#1C2024"
PAPER_KEYS = [*((name, "") for name in ALL_BASELINES), ("fedmosaic", "entropy"), ("fedmosaic", "frequency")]


def oklab(color, vision="normal"):
    """Coordinates of a colour in the perceptual space OKLab (Ottosson 2020), as seen by a reader."""
    encoded = np.array([int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return to_lab @ np.cbrt(to_lms @ seen)


def distance(one, other, vision="normal"):
    return float(np.linalg.norm(oklab(one, vision) - oklab(other, vision)))


def test_the_distance_of_colours_is_that_of_the_literature():
    assert distance("#000000", "#FFFFFF") == pytest.approx(1, abs=1e-3)
    assert oklab("#FF0000") == pytest.approx([0.628, 0.225, 0.126], abs=1e-3)
    red, green = "#A05000", "#507000"
    assert distance(red, green) > 3 * distance(red, green, "protanopia"), "red and green look alike"


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("background", ["light", "dark"])
def test_colours_of_methods_are_distinct(vision, background):
    colors = [getattr(color, background) for color in (INK, GREY, *METHOD_COLORS)]
    for one, other in itertools.combinations(colors, 2):
        assert distance(one, other, vision) >= MIN_DISTANCE[vision], (one, other)


@pytest.mark.parametrize("style", [*STYLES_BY_METHOD.values(), *CLIENT_STYLES, FLIPPED_CLIENT_STYLE], ids=str)
def test_lines_have_enough_contrast_on_both_backgrounds(style):
    assert contrast(style.color.light) >= 3, "the minimum of WCAG for graphics"
    assert contrast(style.color.dark, DARK_BACKGROUND) >= 3
    assert contrast(text_color(style.color.light)) >= 4.5, "the minimum for text"


def test_contrast_is_that_of_wcag():
    assert contrast("#000000") == pytest.approx(21)
    assert contrast("#767676") == pytest.approx(4.54, abs=0.01)
    assert text_color("#0072B2") == "#0072B2", "dark enough"


def test_the_colours_of_clients_are_not_those_of_methods():
    methods = [color.light for color in (INK, GREY, *METHOD_COLORS)]
    clients = [style.color.light for style in (*CLIENT_STYLES, FLIPPED_CLIENT_STYLE)]
    for client, method in itertools.product(clients, methods):
        assert distance(client, method) >= 0.08, (client, method)
    for one, other in itertools.combinations(clients, 2):
        assert distance(one, other) >= 0.1, (one, other)
    assert len({client_style(number) for number in range(30)}) == 30


def test_every_built_in_method_has_a_style():
    assert set(METHODS) - {"fedmosaic"} <= set(STYLES_BY_METHOD)
    assert {name for name in STYLES_BY_METHOD if not name.startswith("fedmosaic-")} <= set(METHODS)


def test_methods_with_one_colour_differ_in_marker_and_dashes():
    for one, other in itertools.combinations(STYLES_BY_METHOD.values(), 2):
        if one.color == other.color:
            assert one.dash != other.dash, (one, other)
            assert one.marker != other.marker, (one, other)


def test_the_rows_of_the_paper_are_distinct_without_colour():
    styles = method_styles(PAPER_KEYS)
    assert len(styles) == 15
    assert len({(style.marker, style.dash) for style in styles.values()}) == 15
    colors = [style.color for key, style in styles.items()]
    assert max(colors.count(color) for color in METHOD_COLORS) == 2


def test_a_method_has_the_same_style_in_every_figure():
    everything = method_styles(PAPER_KEYS)
    for key in PAPER_KEYS:
        assert method_styles([key])[key] == everything[key]
    assert method_styles(PAPER_KEYS[::-1]) == everything


def test_methods_from_outside_have_styles_that_depend_on_their_names():
    keys = [(f"my-method-{number}", "") for number in range(9)]
    alone = {key: method_styles([key])[key] for key in keys}
    assert len({style.color for style in alone.values()}) > 3
    assert method_styles(keys[:1]) == method_styles(keys[:1]), "not Python's hash, which differs between processes"
    together = method_styles([*PAPER_KEYS, *keys])
    assert {key: together[key] for key in PAPER_KEYS} == method_styles(PAPER_KEYS)
    assert sum(together[key] == alone[key] for key in keys) >= 5, "only a clash changes a style"


def test_the_style_of_a_name_never_changes():
    style = method_styles([("my-prox", "")])["my-prox", ""]
    code = "from fedmosaic_cli.report.method_styles import method_styles as m; print(m([('my-prox', '')]))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == str({("my-prox", ""): style})


def test_35_methods_in_one_figure_have_different_styles():
    keys = [*((name, "") for name in METHODS), *((f"plugin-{number}", "") for number in range(35 - len(METHODS)))]
    styles = list(method_styles(keys).values())
    assert len({(style.color, style.dash) for style in styles}) == 35


def test_rows_of_one_method_share_the_colour_and_differ_in_marker_and_dashes():
    keys = [("ditto", f"mu={value}") for value in (0.01, 0.1, 1, 10)]
    styles = method_styles(keys)
    assert styles[keys[0]] == STYLES_BY_METHOD["ditto"]
    assert len({style.color for style in styles.values()}) == 1
    assert len({style.marker for style in styles.values()}) == 4
    assert len({style.dash for style in styles.values()}) == 4


def test_very_many_rows_of_one_method_are_distinct():
    keys = [("fedmosaic", f"entropy, trust={number}") for number in range(100)]
    assert len(set(method_styles(keys).values())) == 100


def test_dash_lengths_scale_with_the_line():
    assert STYLES_BY_METHOD["fedprox"].dash_array(2) == "8 3"
    assert STYLES_BY_METHOD["fedavg"].dash_array(2) == ""


def test_styles_do_not_import_matplotlib():
    code = "import sys, fedmosaic_cli.report.method_styles; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["False", "False"]
