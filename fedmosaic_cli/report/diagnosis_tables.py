"""Tables that diagnose co-training per run: lambda, votes, pseudo-labels, helped clients, and gate decisions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import TrustDiagnosis, diagnose_trust
from fedmosaic_cli.report.comparison import LOCAL_KEY, file_name_part, method_title, shares_labels
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL, records_to_csv
from fedmosaic_cli.report.statistics import client_gains, outcome_counts
from fedmosaic_cli.report.stats_tables import TextTable
from fedmosaic_cli.storage.runs import ROUNDS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.comparison import ComparisonGroup

DIAGNOSIS_HEADER = (
    *("Run", "median lambda", "lambda < 1e-6", "agreement %", "votes differ %", "public weight %"),
    *("correct, weighted % (oracle)", "correct, majority % (oracle)", "helped / unharmed / hurt", "mean gain"),
)
GATE_HEADER = ("Client", "round", "agreement %", "tested lambda", "gain", "standard error", "gate")
DIAGNOSIS_NOTE = (
    "lambda: median over clients in the final round, and number of clients with lambda below 1e-6, whose training "
    "equals local training. Means over clients and rounds: agreement of a client with the consensus; public examples "
    "on which the weighted vote differs from the majority vote; share of the training loss from the public set. "
    "Oracle: accuracy of the last weighted and majority vote on the true labels, which a federation does not have. "
    "Clients helped, unharmed and hurt compared with Local on the same shards and seed; mean gain in percentage points."
)
GATE_NOTE = "Gain: mean cross-fitted Brier gain of training with the consensus, with its standard error."
# Trust rules with lambda from losses, for runs whose summary does not say so.
LOSS_RATIO_RULES = ("paper", "stabilised")
MAX_WARNINGS, MAX_CLIENT_ROWS = 6, 300
MIN_DECIMAL_TRUST = 0.005


@dataclass(frozen=True)
class DiagnosedRun:
    """A co-training run. `gains` are the gains of its clients over Local, () without a matching run of Local."""

    group_label: str
    method: str
    seed: int
    diagnosis: TrustDiagnosis
    gains: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def mean_gain(self) -> float | None:
        return fmean(self.gains) if self.gains else None

    def identity(self) -> dict[str, Any]:
        """Return the first columns of its CSV records."""
        return {"setting": self.group_label, "method": self.method, "seed": self.seed}


@cache  # used by the result files and by the page
def diagnosed_runs(group: ComparisonGroup) -> tuple[DiagnosedRun, ...]:
    """Return the co-training runs of a group that exchanged labels and have readable logs."""
    local_runs = group.baseline_runs.get(LOCAL_KEY)
    diagnosed = []
    for key, runs in group.runs_by_method.items():
        for index in runs.index if shares_labels(key) else ():
            run = runs.loc[[index]]
            diagnosis = load_diagnosis(run.path[index], run.diagnosis[index], run.hyperparameters[index])
            if diagnosis is not None:
                gains = {} if local_runs is None else client_gains(run, local_runs)
                seed = int(run.seed[index])
                diagnosed.append(DiagnosedRun(group.label, method_title(key), seed, diagnosis, tuple(gains.values())))
    return tuple(diagnosed)


def load_diagnosis(path: Path, recorded: dict[str, Any] | None, hyperparameters: str) -> TrustDiagnosis | None:
    """Return the diagnosis in the summary. For older summaries, compute it from the log."""
    if recorded is not None:
        return TrustDiagnosis.model_validate(recorded)
    files = RunDirectory(path)
    try:
        files.verify_files(ROUNDS_FILE)
        is_loss_based = json.loads(hyperparameters).get("trust") in LOSS_RATIO_RULES
        return diagnose_trust(files.read_rounds(), is_loss_based=is_loss_based)
    except (RequestError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def build_diagnosis_tables(groups: Iterable[ComparisonGroup]) -> list[TextTable]:
    """Return one diagnosis table per group with co-training runs, then one table per group with gate decisions."""
    runs_by_group = {group.label: runs for group in groups if (runs := diagnosed_runs(group))}
    tables = [
        TextTable(
            f"Diagnosis: {label}",
            DIAGNOSIS_HEADER,
            tuple(map(diagnosis_row, runs)),
            warnings_note(runs),
            name=f"diagnosis-{file_name_part(label)}",
        )
        for label, runs in runs_by_group.items()
    ]
    gate_tables = [
        client_table(f"Decisions of the gate: {label}", GATE_HEADER, rows, name=f"gates-{file_name_part(label)}")
        for label, runs in runs_by_group.items()
        if (rows := gate_rows(runs))
    ]
    for kind, note in ((tables, DIAGNOSIS_NOTE), (gate_tables, GATE_NOTE)):
        kind[-1:] = [replace(table, note=" ".join(filter(None, (table.note, note)))) for table in kind[-1:]]
    return [*tables, *gate_tables]


def client_table(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], note: str = "", name: str = ""
) -> TextTable:
    """Return a table of the first rows. Its note says how many rows are left out."""
    hidden = len(rows) - MAX_CLIENT_ROWS
    more = f"{hidden} more are in the runs' summary.json." if hidden > 0 else ""
    return TextTable(title, header, tuple(rows[:MAX_CLIENT_ROWS]), " ".join(filter(None, (note, more))), name=name)


def diagnosis_row(run: DiagnosedRun) -> tuple[str, ...]:
    diagnosis, oracle = run.diagnosis, run.diagnosis.oracle
    fractions = (diagnosis.vote_agreement, diagnosis.votes_differ, diagnosis.public_share)
    return (
        run.title,
        format_trust(diagnosis.median_lambda),
        f"{diagnosis.silent_clients} of {diagnosis.clients}",
        *(format_optional(fraction, ".1f", 100) for fraction in (*fractions, oracle.weighted, oracle.majority)),
        "/".join(map(str, outcome_counts(run.gains).values())) if run.gains else EMPTY_CELL,
        format_optional(run.mean_gain, "+.2f", 100),
    )


def warnings_note(runs: Sequence[DiagnosedRun]) -> str:
    warnings = [f"{run.title}: {warning}." for run in runs for warning in run.diagnosis.warnings()]
    hidden = len(warnings) - MAX_WARNINGS
    return " ".join([*warnings[:MAX_WARNINGS], *([f"And {hidden} more such warnings."] if hidden > 0 else [])])


def gate_rows(runs: Sequence[DiagnosedRun]) -> list[tuple[str, ...]]:
    return [
        (
            f"{run.title}, client {decision.client}",
            str(decision.round),
            format_optional(decision.agreement, ".1f", 100),
            format_trust(decision.trust),
            format_optional(decision.gain, "+.4f"),
            format_optional(decision.error, ".4f"),
            "on" if decision.on else "off",
        )
        for run in runs
        for decision in run.diagnosis.gate
    ]


def format_trust(trust: float | None) -> str:
    """Return a lambda with two decimals, or with one digit if it is close to zero."""
    is_small = trust is not None and 0 < trust < MIN_DECIMAL_TRUST
    return format_optional(trust, ".0e" if is_small else ".2f")


def format_optional(value: float | None, number_format: str, factor: int = 1) -> str:
    return EMPTY_CELL if value is None else f"{factor * value:{number_format}}"


def diagnoses_to_csv(runs: Sequence[DiagnosedRun]) -> str:
    """Return one CSV line per run, in full precision."""
    names = [name for name in TrustDiagnosis.model_fields if name not in ("oracle", "gate")]
    records = []
    for run in runs:
        records.append(
            {
                **run.identity(),
                **{name: getattr(run.diagnosis, name) for name in names},
                "oracle_weighted": run.diagnosis.oracle.weighted,
                "oracle_majority": run.diagnosis.oracle.majority,
                **{name: count if run.gains else None for name, count in outcome_counts(run.gains).items()},
                "mean_gain": run.mean_gain,
                "warnings": "; ".join(run.diagnosis.warnings()),
            }
        )
    return records_to_csv(list(records[0]), records)


def gate_decisions_to_csv(runs: Sequence[DiagnosedRun]) -> str:
    """Return one CSV line per gate decision; "" without decisions."""
    records = [{**run.identity(), **decision.model_dump()} for run in runs for decision in run.diagnosis.gate]
    return records_to_csv(list(records[0]), records) if records else ""
