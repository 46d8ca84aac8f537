"""The page: one HTML file with everything in it."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.report.comparison import title_of, weighs_trust
from fedmosaic_cli.report.diagnosis_tables import diagnosis_sheets
from fedmosaic_cli.report.html.comparison_section import comparisons
from fedmosaic_cli.report.html.log_data import NO_ROOM, VALUES, Embedded, embed
from fedmosaic_cli.report.html.markup import Markup, counted, notes, to_script
from fedmosaic_cli.report.html.overview_section import overview
from fedmosaic_cli.report.html.run_section import Texts, run_list
from fedmosaic_cli.report.html.shard_section import distributions
from fedmosaic_cli.report.html.statistics_section import statistics_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.collect import Skipped
    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.comparison_table import Table
    from fedmosaic_cli.report.html.log_data import Tell
    from fedmosaic_cli.report.html.shard_section import Distributions
    from fedmosaic_cli.report.stats_tables import Sheet

HERE = files("fedmosaic_cli.report.html")
SCRIPTS = ("base.js", "sorting.js", "chart.js", "curves.js", "shards.js", "runs.js", "around.js", "start.js")


def page(
    settings: Sequence[Setting],
    tables: Sequence[Table],
    skipped: Sequence[Skipped],
    statistics: Sequence[Sheet] = (),
    tell: Tell | None = None,
) -> bytes:
    """The HTML file. The same input gives the same bytes. `tell` hears how many logs were read, and of how many."""
    embedded, texts = embed(settings, tell), Texts()
    shards, no_shards = distributions(settings)
    diagnosis = diagnosis_sheets(settings)
    runs = run_list(settings, skipped, embedded.left_out, texts)
    numbers = joined_json(
        {
            "values": to_script(VALUES),
            "settings": to_script(outline(settings, embedded, shards)),
            "curves": f"[{','.join(embedded.curves.values())}]",
            "texts": to_script(texts.all()),
        }
    )
    theme, script = asset("script/theme.js"), "".join(asset(f"script/{name}") for name in SCRIPTS)
    whole = Template(asset("page.html")).substitute(
        policy=policy(theme, script),
        theme=theme,
        style=asset("style.css"),
        overview=overview(settings, skipped),
        tables=comparisons(tables),
        curves_note=notes(curves_missing(embedded)),
        shards_note=notes(no_shards),
        statistics=statistics_list(statistics),
        without_statistics="" if statistics else "hidden",
        diagnosis=statistics_list(diagnosis),
        without_diagnosis="" if diagnosis else "hidden",
        runs=runs,
        numbers=numbers,
        script=script,
    )
    return whole.encode()


def outline(settings: Sequence[Setting], embedded: Embedded, shards: list[Distributions]) -> list[dict[str, Any]]:
    """What there is to choose from: the methods of each setting, their seeds, and which curves are theirs."""
    places = {path: number for number, path in enumerate(embedded.curves)}
    return [
        {
            "label": setting.label,
            "methods": [
                {
                    "title": title_of(key),
                    # What is made of FedMosaic stands out as it does.
                    "family": FedMosaic.name if weighs_trust(key) else key[0],
                    "runs": [
                        {"seed": int(seed), "curve": places.get(path), "digest": digest}
                        for seed, path, digest in zip(runs.seed, runs.path, runs.digest, strict=True)
                    ],
                }
                for key, runs in setting.methods.items()
            ],
            "shards": held,
        }
        for setting, held in zip(settings, shards, strict=True)
    ]


def curves_missing(embedded: Embedded) -> list[str]:
    """What of the curves is not in the page, in words."""
    reasons = Counter(embedded.left_out.values())
    crowded = reasons.pop(NO_ROOM, 0)
    told = []
    if crowded:
        told.append(f"Curves of {counted(crowded, 'run')} are left out, to keep the page small.")
    if embedded.thinned:
        told.append(f"Of {counted(embedded.thinned, 'run')} only some rounds are shown, evenly spread.")
    return told + [f"Curves of a run are left out: {reason}" for reason in reasons]


def joined_json(parts: dict[str, str]) -> Markup:
    """A JSON object of parts that are JSON already, safe inside a script element."""
    return Markup("{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}")


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def policy(*scripts: str) -> Markup:
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
