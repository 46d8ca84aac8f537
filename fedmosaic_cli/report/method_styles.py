"""Colours, markers and dash patterns of methods and clients, for figures and for the page.

A method has the same style in every figure. Two methods that share a colour differ in marker and dash pattern. The
colours are distinct under red-green colour blindness (tests/report/test_method_styles.py computes the distances).
This module does not import matplotlib.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fedmosaic_cli.report.comparison import MethodKey


@dataclass(frozen=True)
class Color:
    """A colour on a white background and its counterpart on a dark one, as `#RRGGBB`."""

    light: str
    dark: str


@dataclass(frozen=True)
class CurveStyle:
    """The style of a curve.

    Attributes:
        color: Colour of the line and of its markers.
        marker: Marker in the notation of matplotlib; "" for a curve without markers.
        dash: Lengths of dashes and gaps in line widths; () for a solid line.
    """

    color: Color
    marker: str = ""
    dash: tuple[float, ...] = ()

    def dash_array(self, line_width: float) -> str:
        """The dash pattern as the value of the SVG attribute `stroke-dasharray`; "" for a solid line."""
        return " ".join(f"{line_width * length:g}" for length in self.dash)


INK = Color("#000000", "#FFFFFF")
GREY = Color("#737373", "#9AA0A6")
BLUE = Color("#0072B2", "#20A8F8")
VERMILION = Color("#D55E00", "#F89820")
GREEN = Color("#00A86C", "#88E898")
PINK = Color("#CC70B0", "#E028C0")
VIOLET = Color("#7828F0", "#D8C0F0")
BROWN = Color("#7A5A00", "#A08018")
SKY = Color("#6090F0", "#7870F8")
PLUM = Color("#90286E", "#C06078")
METHOD_COLORS = (BLUE, VERMILION, GREEN, PINK, VIOLET, BROWN, SKY, PLUM)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "d")
SOLID, DASHED, DOTTED = (), (4.0, 1.5), (1.2, 1.2)
DASH_DOTTED, LONG_DASHED, DASH_DOT_DOTTED = (5.0, 1.2, 1.2, 1.2), (8.0, 2.0), (4.0, 1.2, 1.2, 1.2, 1.2, 1.2)
DASHES = (SOLID, DASHED, DASH_DOTTED, DOTTED, LONG_DASHED, DASH_DOT_DOTTED)

# FedMosaic has one entry per expertise rule. Methods that equal each other for some models (FedAvg, FedProx and FedBN;
# the rules of FedMosaic) have different dash patterns.
STYLES_BY_METHOD: dict[str, CurveStyle] = {
    "local": CurveStyle(INK, dash=(5.0, 3.0)),
    "centralized": CurveStyle(GREY, dash=(1.5, 1.2)),
    "oracle": CurveStyle(GREY, "*", DASH_DOTTED),
    "fedmosaic-entropy": CurveStyle(BLUE, "s"),
    "fedmosaic-frequency": CurveStyle(VERMILION, "o", DASHED),
    "fedmosaic-uniform": CurveStyle(BLUE, "^", DOTTED),
    "fedmosaic-count": CurveStyle(VERMILION, "v", DASH_DOTTED),
    "fedmosaic-count-confidence": CurveStyle(VERMILION, "D", DOTTED),
    "gated": CurveStyle(VIOLET, "D", DASH_DOTTED),
    "student": CurveStyle(VIOLET, "p", LONG_DASHED),
    "fedavg": CurveStyle(GREEN, "^"),
    "fedprox": CurveStyle(GREEN, "X", DASHED),
    "fedbn": CurveStyle(BROWN, "v", DASH_DOTTED),
    "fedct": CurveStyle(PINK, "P"),
    "perfedavg": CurveStyle(SKY, "<"),
    "ditto": CurveStyle(PLUM, "d"),
    "pfedme": CurveStyle(PLUM, ">", DASHED),
    "apfl": CurveStyle(SKY, "p", DASHED),
    "fedphp": CurveStyle(BROWN, "*", DASHED),
    "perfedckt": CurveStyle(PINK, "D", DASHED),
    "fedavgft": CurveStyle(GREEN, "s", DASH_DOTTED),
    "scaffold": CurveStyle(GREEN, "D", DOTTED),
    "feddf": CurveStyle(PINK, "v", DASH_DOTTED),
    "fedper": CurveStyle(SKY, "s", DASH_DOTTED),
    "fedrep": CurveStyle(SKY, "P", DOTTED),
    "lgfedavg": CurveStyle(PLUM, "o", DASH_DOTTED),
    "fedproto": CurveStyle(PLUM, "X", DOTTED),
    "fedfomo": CurveStyle(BROWN, "o"),
    "pfedhn": CurveStyle(BROWN, "s", DOTTED),
    "dpsgd": CurveStyle(PINK, "o", DOTTED),
}
OTHER_STYLES = tuple(
    CurveStyle(color, marker, dash)
    for dash, (number, color) in product(DASHES, enumerate(METHOD_COLORS))
    if all((style.color, style.dash) != (color, dash) for style in STYLES_BY_METHOD.values())
    for marker in MARKERS[(number + DASHES.index(dash)) % 4 :: 4]
)
"""Styles of methods from outside the package: colour and dash pattern are not those of a built-in method."""

# Muted, so that a client is not mistaken for a method.
CLIENT_STYLES = (
    CurveStyle(Color("#084060", "#88C8F8"), "o"),
    CurveStyle(Color("#B08858", "#E8D090"), "s"),
    CurveStyle(Color("#407040", "#90A870"), "^"),
    CurveStyle(Color("#606098", "#B088C0"), "D"),
    CurveStyle(Color("#48A0A8", "#187880"), "v"),
    CurveStyle(Color("#603018", "#906028"), "P"),
)
FLIPPED_CLIENT_STYLE = CurveStyle(Color("#C81030", "#FF5A5A"), "X", (3.0, 1.0))
"""The style of clients with flipped labels."""
BACKGROUND_CLIENT_COLOR = Color("#A6A6A6", "#5C636A")
"""The colour of clients that have no separate style."""


def method_styles(keys: Sequence[MethodKey]) -> dict[MethodKey, CurveStyle]:
    """A style for each row of a figure; no two rows have the same.

    A built-in method always has its own style. A method from outside the package has one that depends on its name,
    and another one only if a method in the same figure has it. Of several rows of one method, such as rows with
    different hyper-parameters, the first has the style of the method. The others have its colour, but other markers
    and dash patterns, until these run out.

    Args:
        keys: The methods, each with the detail that distinguishes its rows.
    """
    styles: dict[MethodKey, CurveStyle] = {}
    base_by_name: dict[str, CurveStyle] = {}
    rows: Counter[str] = Counter()
    for name in sorted({style_name(key) for key in keys}):
        base_by_name[name] = STYLES_BY_METHOD.get(name) or other_style(name, base_by_name.values())
    taken = set(base_by_name.values())
    for key in dict.fromkeys(keys):
        name = style_name(key)
        base = base_by_name[name]
        if rows[name]:
            base = next((style for style in variants(base) if style not in taken), base)
            taken.add(base)
        rows[name] += 1
        styles[key] = base
    return styles


def style_name(key: MethodKey) -> str:
    """The name under which the style of a row is listed: the method, and for FedMosaic also its expertise."""
    method, detail = key
    if method != "fedmosaic":
        return method
    name = f"fedmosaic-{detail.partition(',')[0]}"
    return name if name in STYLES_BY_METHOD else "fedmosaic-frequency"


def other_style(name: str, taken: Collection[CurveStyle]) -> CurveStyle:
    """The style of a method from outside the package, which differs from `taken` in colour or dash pattern."""
    start = zlib.crc32(name.encode()) % len(OTHER_STYLES)
    choices = [*OTHER_STYLES[start:], *OTHER_STYLES[:start]]
    used = {(style.color, style.dash) for style in taken}
    unlike = (style for style in choices if (style.color, style.dash) not in used)
    return next(unlike, next((style for style in choices if style not in taken), choices[0]))


def variants(base: CurveStyle) -> Iterator[CurveStyle]:
    """Styles for further rows of one method: first other markers and dash patterns, then also other colours."""
    colors = [base.color, *(color for color in METHOD_COLORS if color != base.color)]
    dashes = [base.dash, *(dash for dash in DASHES if dash != base.dash)]
    start = (MARKERS.index(base.marker) + 1) if base.marker else 0
    for shift in range(len(MARKERS)):
        for color in colors:
            for number, dash in enumerate([*dashes[1:], dashes[0]]):
                marker = MARKERS[(start + 5 * number + shift) % len(MARKERS)]
                yield replace(base, color=color, marker=marker, dash=dash)


def client_style(client: int) -> CurveStyle:
    """The style of a client: colours repeat, with other dash patterns."""
    repetition, number = divmod(client, len(CLIENT_STYLES))
    return replace(CLIENT_STYLES[number], dash=DASHES[repetition % len(DASHES)])


def contrast(color: str, background: str = "#FFFFFF") -> float:
    """The contrast ratio of two colours by WCAG, from 1 to 21."""
    darker, lighter = sorted((relative_luminance(color), relative_luminance(background)))
    return (lighter + 0.05) / (darker + 0.05)


def relative_luminance(color: str) -> float:
    """The luminance of `#RRGGBB` by WCAG, from 0 to 1."""
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def text_color(color: str, min_contrast: float = 4.5) -> str:
    """The colour, darkened until text of this colour is readable on white."""
    parts = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    while contrast(color) < min_contrast:
        parts = [int(0.96 * part) for part in parts]
        color = "#" + "".join(f"{part:02X}" for part in parts)
    return color
