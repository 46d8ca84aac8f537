"""The report as one self-contained HTML page, rendered from the templates beside this module."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections import Counter
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.report.certificate_tables import build_certificate_tables
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import has_client_trust, method_title
from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME
from fedmosaic_cli.report.diagnosis_tables import build_diagnosis_tables
from fedmosaic_cli.report.html.embedded_data import (
    CURVE_BUDGET_EXCEEDED,
    METRIC_TITLES,
    embed_curves,
    shard_distributions,
)
from fedmosaic_cli.report.html.sections import (
    ConfigTexts,
    format_percent,
    overview_tiles,
    pluralize,
    run_cards,
    summarize_group,
)
from fedmosaic_cli.safe_text import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.html.embedded_data import EmbeddedCurves, LogProgressCallback, ShardDistributions
    from fedmosaic_cli.report.stats_tables import TextTable

# Characters that HTML does not allow, but that names of files and runs may contain.
CONTROL_CHARS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SCRIPT_FILES = ("dom", "sorting", "chart", "curves", "shards", "runs", "controls", "start")


def replace_control_chars(value: object) -> object:
    """The value of a template expression as text without control characters."""
    return value if isinstance(value, Markup) else CONTROL_CHARS.sub("\ufffd", str(value))


def format_percentage_points(difference: float) -> str:
    """A difference in percentage points, with a sign unless it is zero."""
    return format_signed(f"{100 * difference:+.2f}")


def format_signed(text: str) -> str:
    """A signed number with a typographic minus and without the sign of zero; other text is unchanged."""
    if re.fullmatch(r"[+-]0(\.0+)?", text):
        return text[1:]
    return re.sub(r"^-(?=\d)", "\u2212", text)


def table_title(table: ComparisonTable) -> str:
    words = "all settings" if table.name == OVERVIEW_NAME else table.name.replace("-", " ").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def heading_spans(table: ComparisonTable) -> list[tuple[str, int]]:
    """The headings above the columns, each with its number of columns."""
    return [(heading, len(list(group))) for heading, group in groupby(column.heading for column in table.columns)]


def num_missing_cells(table: ComparisonTable) -> int:
    return sum(cell.measured is None for row in table.rows for cell in row.cells)


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
    "num_missing": num_missing_cells,
    "percent": format_percent,
    "plural": pluralize,
    "points": format_percentage_points,
    "signed": format_signed,
    "table_title": table_title,
}


def build_page(
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    skipped: Sequence[SkippedRun],
    text_tables: Sequence[TextTable] = (),
    diagrams: Sequence[TextTable] = (),
    on_progress: LogProgressCallback | None = None,
) -> bytes:
    """Render the HTML page.

    Args:
        groups: The comparison groups with their runs.
        tables: The comparison tables.
        skipped: The runs that are left out, with reasons.
        text_tables: The tables of the statistics section.
        diagrams: The diagrams of the overview section.
        on_progress: Called with the number of logs read so far and the number of logs to read.

    Returns:
        The page as bytes, which are the same for the same input.
    """
    embedded, config_texts = embed_curves(groups, on_progress), ConfigTexts()
    shards, shards_notes = shard_distributions(groups)
    runs_by_group = [(group.label, run_cards(group, embedded.omitted, config_texts)) for group in groups]
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
        tiles=overview_tiles(groups, skipped),
        summaries=list(map(summarize_group, groups)),
        tables=tables,
        statistics=text_tables,
        diagnosis=[*build_certificate_tables(groups), *build_diagnosis_tables(groups)],
        runs_by_group=runs_by_group,
        caveat_descriptions=CAVEAT_DESCRIPTIONS,
        skipped=skipped,
        curves_notes=omitted_curves_notes(embedded),
        shards_notes=shards_notes,
        metric_titles=METRIC_TITLES,
        outline=page_outline(groups, embedded, shards),
        curves=Markup(",".join(embedded.json_by_path.values())),  # contains only numbers and names of metrics
        config_texts=config_texts.as_list(),
    )
    return escape_control_characters(page).encode()


def page_outline(
    groups: Sequence[ComparisonGroup], embedded_curves: EmbeddedCurves, shards: list[ShardDistributions]
) -> list[dict[str, Any]]:
    """The groups with their methods, seeds, curve indices and shards, for the scripts of the page."""
    curve_indices = {path: number for number, path in enumerate(embedded_curves.json_by_path)}
    return [
        {
            "label": group.label,
            "methods": [
                {
                    "title": method_title(key),
                    # Methods derived from FedMosaic are highlighted like FedMosaic.
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
