"""Write run directories, and build the page from them."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME, ComparisonTable, TableColumn, build_rows
from fedmosaic_cli.report.html.page import build_page
from tests.report import runs_by_hand
from tests.report.runs_by_hand import manifest_of, summary_of

# Characters that are special in HTML, in script elements or in JavaScript.
HOSTILE_NAME = "</script><img src=x onerror=alert(1)>\"'&<!--]]>"
HOSTILE = f"{HOSTILE_NAME}\u2028"
"""With a line separator, which names of runs cannot contain but file contents can."""


def write_run(
    root: Path,
    setting: str,
    variant: str,
    seed: int,
    accuracies: list[float],
    *,
    rounds: int = 5,
    classes: tuple[str, ...] = ("cat", "dog"),
    domains: tuple[str, ...] = (),
    trust: float | None = None,
    **changes: object,
) -> Path:
    """Write a finished run with a log, a configuration and a manifest.

    The digest of its shards is `shards-<seed>`. `trust` is random if it is None.
    """
    digest = f"shards-{seed}"
    shards = {"parameters": {"alpha": 1.0}, "digest": digest}
    summary = summary_of(setting, variant, seed, accuracies, **{"rounds": rounds, "shards": shards, **changes})
    train = [[client + place for place in range(len(classes))] for client in range(len(accuracies))]
    public = [30] * len(classes)
    manifest = manifest_of(train, classes=classes, domains=domains, public=public, seed=seed, digest=digest)
    folder = root / re.sub(r"[/\x00]", "_", setting)[:40] / variant / f"seed-{seed}"
    log = log_of(variant, seed, accuracies, rounds, trust)
    runs_by_hand.write_run(folder, summary, manifest, log, f"method: {variant}\n")
    (folder / "env.json").write_text(json.dumps({"arguments": ["train", "--preset", setting]}))
    return folder


def log_of(
    variant: str, seed: int, accuracies: list[float], rounds: int, trust: float | None
) -> list[dict[str, object]]:
    """A log in which accuracies rise linearly, and trust begins in round 3 for methods that share labels."""
    draw = random.Random(f"{variant} {seed}")
    shares = variant.startswith("fedmosaic")
    return [
        {
            "round": number,
            "client": client,
            "lambda": (draw.random() if trust is None else trust) if shares and number > 2 else None,
            "loss_private": draw.random(),
            "loss_public": None,
            "accuracy": last * number / rounds,
            "test_loss": draw.random(),
            "bits_up": 10,
            "bits_down": 10,
            **({"pseudo_label_accuracy": 1 / 3} if shares else {}),
        }
        for number in range(1, rounds + 1)
        for client, last in enumerate(accuracies)
    ]


def small_federation(root: Path) -> Path:
    """Write runs of two settings and two seeds; the second setting has domains, and FedAvg lacks a seed there."""
    domains = ("plain", "plain", "noisy", "noisy")
    for seed in (0, 1):
        write_run(root, "first", "centralized", seed, [0.9, 0.9, 0.9])
        write_run(root, "first", "local", seed, [0.5, 0.6, 0.7])
        write_run(root, "first", "fedavg", seed, [0.4, 0.6, 0.3])
        write_run(root, "first", "fedmosaic-entropy", seed, [0.6, 0.6, 0.8])
        # Only Local differs between seeds here.
        for variant, accuracies in (
            ("local", [0.5 + 0.1 * seed, 0.6 + 0.1 * seed, 0.7 + 0.1 * seed, 0.8 + 0.1 * seed]),
            ("fedmosaic-entropy", [0.6, 0.6, 0.7, 0.8]),
        ):
            write_run(root, "second", variant, seed, accuracies, domains=domains)
    write_run(root, "second", "fedavg", 1, [0.1, 0.2, 0.3, 0.4], domains=domains)
    return root


def table_of(settings, paper=False, name=OVERVIEW_NAME, methods=(), **more):
    """A table of these settings, by default the overview, with rows for `methods` even if they have no runs."""
    columns = tuple(TableColumn(setting.label, setting, setting.name) for setting in settings)
    rows = build_rows(columns, methods, paper)
    return ComparisonTable(name, columns, rows, "Caption.", has_published=paper, **more)


def page_of(root: Path, statistics=(), **more) -> str:
    """The page of all runs in a directory."""
    frame, skipped = collect_runs(root)
    settings = comparison_groups(frame)
    return build_page(settings, [table_of(settings, **more)], skipped, statistics).decode()
