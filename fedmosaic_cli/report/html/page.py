"""The report as one self-contained HTML page, rendered from the templates beside this module."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections import Counter
from importlib.resources import files
from itertools import groupby
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.report.certificate_tables import build_certificate_tables
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import has_client_trust, method_title
from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME, format_percent
from fedmosaic_cli.report.diagnosis_tables import build_diagnosis_tables
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL
from fedmosaic_cli.report.html.embedded_data import (
    CURVE_BUDGET_EXCEEDED,
    METRIC_TITLES,
    embed_curves,
    shard_distributions,
)
from fedmosaic_cli.report.html.sections import (
    ConfigTexts,
    format_quantity,
    pluralize,
    report_facts,
    run_cards,
    summarize_group,
)
from fedmosaic_cli.report.method_styles import client_style, method_styles
from fedmosaic_cli.safe_text import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.html.embedded_data import EmbeddedCurves, LogProgressCallback, ShardDistributions
    from fedmosaic_cli.report.method_styles import CurveStyle
    from fedmosaic_cli.report.stats_tables import TextTable

# Characters that HTML does not allow, but that names of files and runs may contain.
CONTROL_CHARS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SCRIPT_FILES = ("dom", "folding", "sorting", "chart", "curves", "shards", "runs", "saving", "controls", "start")
MAX_OPEN_ROWS = 15
"""Tables with more rows are closed at first."""
MAX_HEADER_LINE = 11
"""Characters of a column header on one line. Longer headers have two lines."""
HEADER_BREAK = re.compile(r"(?<=[^<>=\u2264\u2265]\s)(?![/%])|(?<=[^\W\d][-_])(?=[^\W\d])")
"""Positions where a header may be broken: not beside an operator, and not inside a number such as 1e-6."""
MAX_STATES = 3
"""The last column of a table has this many states at most, if its texts are states such as on and off."""
PAGE_LINE_WIDTH = 2.0
NUM_CLIENT_STYLES = 24


def replace_control_chars(value: object) -> object:
    """The value of a template expression as text without control characters."""
    return value if isinstance(value, Markup) else CONTROL_CHARS.sub("\ufffd", str(value))


def format_percentage_points(difference: float) -> str:
    """A difference in percentage points, with a sign unless it is zero."""
    return format_signed(format_percent(difference, signed=True))


def format_signed(text: str) -> str:
    """A signed number with a typographic minus and without the sign of zero, or a dash; other text is unchanged."""
    if text == EMPTY_CELL:
        return "\N{EN DASH}"
    if re.fullmatch(r"[+-]0(\.0+)?", text):
        return text[1:]
    return re.sub(r"^-(?=\d)", "\u2212", text)


def table_title(table: ComparisonTable) -> str:
    words = "all settings" if table.name == OVERVIEW_NAME else table.name.replace("-", " ").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def heading_spans(table: ComparisonTable) -> list[tuple[str, int]]:
    """The headings above the columns, each with its number of columns."""
    return [(heading, len(list(group))) for heading, group in groupby(column.heading for column in table.columns)]


def header_lines(name: str) -> tuple[str, ...]:
    """Split a column header into at most two lines of similar length."""
    if len(name) <= MAX_HEADER_LINE:
        return (name,)
    positions = [match.start() for match in HEADER_BREAK.finditer(name)] or [len(name) // 2]
    middle = min(positions, key=lambda position: max(position, len(name) - position))
    return name[:middle], name[middle:]


def table_facts(table: TextTable) -> str:
    """The number of rows, and how often each state occurs in the last column, if it contains states."""
    facts = [pluralize(len(table.rows), "row")] if table.rows else []
    states = Counter(row[-1] for row in table.rows)
    if len(table.rows) > MAX_STATES >= len(states) and all(state.isalpha() for state in states):
        facts += [f"{table.header[-1]} {state}: {count}" for state, count in states.items()]
    return " · ".join(facts)


def distinct_tables(tables: Sequence[ComparisonTable]) -> tuple[ComparisonTable | None, list[ComparisonTable]]:
    """The table of all settings, and the others without those that repeat the results of a table before."""
    ordered = sorted(tables, key=lambda table: table.name != OVERVIEW_NAME)
    by_content: dict[frozenset[tuple[str, ...]], ComparisonTable] = {}
    for table in ordered:
        by_content.setdefault(table_content(table), table)
    distinct = list(by_content.values())
    if distinct and distinct[0].name == OVERVIEW_NAME:
        return distinct[0], distinct[1:]
    return None, distinct


def table_content(table: ComparisonTable) -> frozenset[tuple[str, ...]]:
    """Setting, domain and method of each cell with a measured or published result."""
    return frozenset(
        (column.group.label if column.group else column.preset, column.domain, *row.method_key)
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell.measured or cell.published
    )


def figure_links(paths: Sequence[str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The names of figures, each with its file formats and their links. `paths` are relative to the page."""
    links: dict[str, list[tuple[str, str]]] = {}
    for path in map(PurePosixPath, paths):
        links.setdefault(path.stem, []).append((path.suffix.lstrip(".").upper(), quote(str(path))))
    return list(links.items())


ENVIRONMENT = Environment(
    loader=PackageLoader("fedmosaic_cli.report.html"),
    autoescape=True,
    finalize=replace_control_chars,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
ENVIRONMENT.filters |= {
    "heading_spans": heading_spans,
    "header_lines": header_lines,
    "percent": format_percent,
    "plural": pluralize,
    "points": format_percentage_points,
    "quantity": format_quantity,
    "signed": format_signed,
    "table_facts": table_facts,
    "table_title": table_title,
}


def build_page(
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    skipped: Sequence[SkippedRun],
    text_tables: Sequence[TextTable] = (),
    diagrams: Sequence[TextTable] = (),
    on_progress: LogProgressCallback | None = None,
    figure_paths: Sequence[str] = (),
) -> bytes:
    """Render the HTML page.

    Args:
        groups: The comparison groups with their runs.
        tables: The comparison tables.
        skipped: The runs that are left out, with reasons.
        text_tables: The tables of the statistics section.
        diagrams: The diagrams of the overview section.
        on_progress: Called with the number of logs read so far and the number of logs to read.
        figure_paths: Files of figures, relative to the page and with forward slashes. The page links to them.

    Returns:
        The page as bytes, which are the same for the same input.
    """
    embedded, config_texts = embed_curves(groups, on_progress), ConfigTexts()
    shards, shards_notes = shard_distributions(groups)
    runs_by_group = [(group.label, run_cards(group, embedded.omitted, config_texts)) for group in groups]
    overview, other_tables = distinct_tables(tables)
    summaries = list(map(summarize_group, groups))
    theme, script = (
        read_asset("script/theme.js"),
        Markup().join(read_asset(f"script/{name}.js") for name in SCRIPT_FILES),
    )
    page = ENVIRONMENT.get_template("page.html").render(
        policy=content_security_policy(theme, script),
        style=read_asset("style.css"),
        theme=theme,
        script=script,
        diagrams=diagrams,
        facts=report_facts(groups, skipped),
        summaries=summaries,
        row_numbers={
            (summary.label, row.key): (number, row_number)
            for number, summary in enumerate(summaries)
            for row_number, row in enumerate(summary.rows)
        },
        overview=overview,
        # With one setting, its details are in the rows of the overview.
        is_single=overview is not None and len(overview.columns) == len(groups) == 1 and not overview.columns[0].domain,
        tables=other_tables,
        figures=figure_links(figure_paths),
        max_open_rows=MAX_OPEN_ROWS,
        statistics=text_tables,
        diagnosis=[*build_certificate_tables(groups), *build_diagnosis_tables(groups)],
        runs_by_group=runs_by_group,
        caveat_descriptions=CAVEAT_DESCRIPTIONS,
        skipped=skipped,
        curves_notes=omitted_curves_notes(embedded),
        shards_notes=shards_notes,
        metric_titles=METRIC_TITLES,
        outline=page_outline(groups, embedded, shards),
        client_styles=[style_to_json(client_style(client)) for client in range(NUM_CLIENT_STYLES)],
        curves=Markup(",".join(embedded.json_by_path.values())),  # contains only numbers and names of metrics
        config_texts=config_texts.as_list(),
    )
    return escape_control_characters(page).encode()


def page_outline(
    groups: Sequence[ComparisonGroup], embedded_curves: EmbeddedCurves, shards: list[ShardDistributions]
) -> list[dict[str, Any]]:
    """The groups with their methods, seeds, curve indices and shards, for the scripts of the page."""
    curve_indices = {path: number for number, path in enumerate(embedded_curves.json_by_path)}
    styles = method_styles([key for group in groups for key in group.runs_by_method])
    return [
        {
            "label": group.label,
            "methods": [
                {
                    "title": method_title(key),
                    "style": style_to_json(styles[key]),
                    # Methods derived from FedMosaic are selected at first, like FedMosaic.
                    "family": FedMosaic.info.name if has_client_trust(key) else key[0],
                    "runs": [
                        {"seed": int(seed), "curve": curve_indices.get(path), "digest": digest}
                        for seed, path, digest in zip(runs.seed, runs.path, runs.digest, strict=True)
                    ],
                }
                for key, runs in group.runs_by_method.items()
            ],
            "shards": distributions,
        }
        for group, distributions in zip(groups, shards, strict=True)
    ]


def style_to_json(style: CurveStyle) -> dict[str, str]:
    """A curve style for the scripts: a CSS colour for light and dark pages, a dash pattern and a marker."""
    color = f"light-dark({style.color.light}, {style.color.dark})"
    return {"color": color, "dash": style.dash_array(PAGE_LINE_WIDTH), "marker": style.marker}


def omitted_curves_notes(embedded_curves: EmbeddedCurves) -> list[str]:
    """Notes on runs and rounds whose curves are left out."""
    reasons = Counter(embedded_curves.omitted.values())
    num_over_budget = reasons.pop(CURVE_BUDGET_EXCEEDED, 0)
    notes = []
    if num_over_budget:
        notes.append(f"Curves of {pluralize(num_over_budget, 'run')} are left out to limit the size of the page.")
    if embedded_curves.num_subsampled:
        notes.append(f"{pluralize(embedded_curves.num_subsampled, 'run')}: only evenly spaced rounds are shown.")
    return notes + [f"Curves of a run are left out: {reason}" for reason in reasons]


def read_asset(name: str) -> Markup:
    """A script or style sheet of the page."""
    text = (files("fedmosaic_cli.report.html") / name).read_text(encoding="utf-8")
    return Markup(text)


def content_security_policy(*scripts: str) -> str:
    """A policy that forbids all network access and all scripts but the given ones."""
    digests = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed_scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed_scripts}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
