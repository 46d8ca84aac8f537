"""The page: one HTML file with everything in it."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.report.comparison import has_client_trust, method_title
from fedmosaic_cli.report.diagnosis_tables import build_diagnosis_tables
from fedmosaic_cli.report.html.comparison_section import comparison_section
from fedmosaic_cli.report.html.log_data import CURVE_BUDGET_EXCEEDED, METRIC_TITLES, EmbeddedCurves, embed_curves
from fedmosaic_cli.report.html.markup import Markup, note_list, pluralize, to_script_json
from fedmosaic_cli.report.html.overview_section import overview_section
from fedmosaic_cli.report.html.run_section import ConfigTexts, run_section
from fedmosaic_cli.report.html.shard_section import shard_distributions
from fedmosaic_cli.report.html.statistics_section import statistics_section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.html.log_data import LogProgressCallback
    from fedmosaic_cli.report.html.shard_section import ShardDistributions
    from fedmosaic_cli.report.stats_tables import TextTable

ASSETS_DIR = files("fedmosaic_cli.report.html")
SCRIPT_FILES = ("base.js", "sorting.js", "chart.js", "curves.js", "shards.js", "runs.js", "around.js", "start.js")


def build_page(
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    skipped: Sequence[SkippedRun],
    text_tables: Sequence[TextTable] = (),
    on_progress: LogProgressCallback | None = None,
) -> bytes:
    """The HTML file. The same input gives the same bytes. `tell` hears how many logs were read, and of how many."""
    embedded, texts = embed_curves(groups, on_progress), ConfigTexts()
    shards, no_shards = shard_distributions(groups)
    diagnosis = build_diagnosis_tables(groups)
    runs = run_section(groups, skipped, embedded.omitted, texts)
    numbers = join_json(
        {
            "values": to_script_json(METRIC_TITLES),
            "settings": to_script_json(page_outline(groups, embedded, shards)),
            "curves": f"[{','.join(embedded.json_by_path.values())}]",
            "texts": to_script_json(texts.as_list()),
        }
    )
    theme, script = read_asset("script/theme.js"), "".join(read_asset(f"script/{name}") for name in SCRIPT_FILES)
    whole = Template(read_asset("page.html")).substitute(
        policy=content_security_policy(theme, script),
        theme=theme,
        style=read_asset("style.css"),
        overview=overview_section(groups, skipped),
        tables=comparison_section(tables),
        curves_note=note_list(omitted_curves_notes(embedded)),
        shards_note=note_list(no_shards),
        statistics=statistics_section(text_tables),
        without_statistics="" if text_tables else "hidden",
        diagnosis=statistics_section(diagnosis),
        without_diagnosis="" if diagnosis else "hidden",
        runs=runs,
        numbers=numbers,
        script=script,
    )
    return whole.encode()


def page_outline(
    groups: Sequence[ComparisonGroup], embedded_curves: EmbeddedCurves, shards: list[ShardDistributions]
) -> list[dict[str, Any]]:
    """What there is to choose from: the methods of each setting, their seeds, and which curves are theirs."""
    places = {path: number for number, path in enumerate(embedded_curves.json_by_path)}
    return [
        {
            "label": setting.label,
            "methods": [
                {
                    "title": method_title(key),
                    # What is made of FedMosaic stands out as it does.
                    "family": FedMosaic.name if has_client_trust(key) else key[0],
                    "runs": [
                        {"seed": int(seed), "curve": places.get(path), "digest": digest}
                        for seed, path, digest in zip(runs.seed, runs.path, runs.digest, strict=True)
                    ],
                }
                for key, runs in setting.runs_by_method.items()
            ],
            "shards": held,
        }
        for setting, held in zip(groups, shards, strict=True)
    ]


def omitted_curves_notes(embedded_curves: EmbeddedCurves) -> list[str]:
    """What of the curves is not in the page, in words."""
    reasons = Counter(embedded_curves.omitted.values())
    crowded = reasons.pop(CURVE_BUDGET_EXCEEDED, 0)
    told = []
    if crowded:
        told.append(f"Curves of {pluralize(crowded, 'run')} are left out, to keep the page small.")
    if embedded_curves.num_subsampled:
        told.append(f"Of {pluralize(embedded_curves.num_subsampled, 'run')} only some rounds are shown, evenly spread.")
    return told + [f"Curves of a run are left out: {reason}" for reason in reasons]


def join_json(parts: dict[str, str]) -> Markup:
    """A JSON object of parts that are JSON already, safe inside a script element."""
    return Markup("{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}")


def read_asset(name: str) -> str:
    return (ASSETS_DIR / name).read_text(encoding="utf-8")


def content_security_policy(*scripts: str) -> Markup:
    """Nothing may be loaded from anywhere, and no script may run but ours."""
    digests = [b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    ours = " ".join(f"'sha256-{digest}'" for digest in digests)
    allowed = (
        "default-src 'none'",
        f"script-src {ours}",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    # All quotes in it are single ones, so it is fit for an attribute as it is.
    return Markup("; ".join(allowed))
