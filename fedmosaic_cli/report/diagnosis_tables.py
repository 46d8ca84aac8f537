"""What came of co-training in each run: lambda, votes, pseudo-labels, and whom it helped; and what gates decided."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import GateOutcome, TrustDiagnosis, diagnose_trust
from fedmosaic_cli.report.comparison import LOCAL_KEY, method_title, shares_labels
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL
from fedmosaic_cli.report.statistics import client_gains
from fedmosaic_cli.report.stats_tables import TextTable
from fedmosaic_cli.storage.runs import ROUNDS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pandas as pd

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

DIAGNOSIS_HEADER = (
    *("Run", "median lambda", "lambda < 1e-6", "agreement %", "votes differ %", "public weight %"),
    *("right, weighted % (oracle)", "right, majority % (oracle)", "helped / unharmed / hurt", "mean gain"),
)
GATE_HEADER = ("Client", "round", "agreement %", "lambda in question", "gain", "standard error", "gate")
DIAGNOSIS_NOTE = (
    "Lambda: median over clients in the last round, and how many are so small that this is Local training. Means over "
    "clients and rounds: how often a client says what the consensus says; on how many examples the weighted vote is "
    "not the majority's; what of the training loss came from the public set. Oracle: right labels of the last vote, by "
    "labels that nobody in a federation has. Clients helped, left unharmed and hurt against Local on the same shards "
    "and seed, mean gain in percentage points."
)
GATE_NOTE = "Gain: mean Brier gain out of fold of training with the consensus, and its standard error."
# Rules of runs that were made before a summary said whether lambda follows from losses.
LOSS_RATIO_RULES = ("paper", "stabilised")
MAX_WARNINGS, MAX_GATE_DECISIONS = 6, 300


@dataclass(frozen=True)
class DiagnosedRun:
    """A co-training run. `gains` are its clients' against Local; nothing where there is no such run."""

    group_label: str
    method: str
    seed: int
    diagnosis: TrustDiagnosis
    gains: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def outcome_counts(self) -> tuple[int, int, int]:
        """How many clients were helped, left unharmed, and hurt."""
        kinds = [(gain > 0) - (gain < 0) for gain in self.gains]
        return kinds.count(1), kinds.count(0), kinds.count(-1)

    @property
    def mean_gain(self) -> float | None:
        return fmean(self.gains) if self.gains else None


@cache  # for the files of a report and for the page
def diagnosed_runs(group: ComparisonGroup) -> tuple[DiagnosedRun, ...]:
    """The co-training runs of a setting, as far as there was an exchange and their logs can be read."""
    found = []
    for key, runs in group.runs_by_method.items():
        for place in runs.index if shares_labels(key) else ():
            run = runs.loc[[place]]
            diagnosis = load_diagnosis(run.path[place], run.diagnosis[place], run.hyperparameters[place])
            if diagnosis is not None:
                found.append(to_diagnosed_run(group, key, run, diagnosis))
    return tuple(found)


def to_diagnosed_run(
    group: ComparisonGroup, key: MethodKey, run: pd.DataFrame, diagnosis: TrustDiagnosis
) -> DiagnosedRun:
    gains = client_gains(run, group.runs_by_method[LOCAL_KEY]) if LOCAL_KEY in group.runs_by_method else {}
    return DiagnosedRun(group.label, method_title(key), int(run.seed.iloc[0]), diagnosis, tuple(gains.values()))


def load_diagnosis(path: Path, recorded: dict[str, Any] | None, hyperparameters: str) -> TrustDiagnosis | None:
    """As the summary has it; from the log where it is older than that."""
    if recorded is not None:
        return TrustDiagnosis.model_validate(recorded)
    files = RunDirectory(path)
    try:
        files.verify_files(ROUNDS_FILE)
        return diagnose_trust(
            files.read_rounds(), is_loss_based=json.loads(hyperparameters).get("trust") in LOSS_RATIO_RULES
        )
    except (RequestError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def build_diagnosis_tables(groups: Iterable[ComparisonGroup]) -> list[TextTable]:
    """A sheet for every setting with co-training runs, then one for every setting in which gates decided."""
    by_setting = {setting.label: diagnosed_runs(setting) for setting in groups}
    sheets = [
        TextTable(f"Diagnosis: {label}", DIAGNOSIS_HEADER, tuple(map(diagnosis_row, lines)), warnings_note(lines))
        for label, lines in by_setting.items()
        if lines
    ]
    gates = [sheet for label, lines in by_setting.items() if (sheet := gate_table(label, lines))]
    return [*add_note_to_last(sheets, DIAGNOSIS_NOTE), *add_note_to_last(gates, GATE_NOTE)]


def add_note_to_last(tables: Sequence[TextTable], note: str) -> list[TextTable]:
    """The sheets, the last of them with a note on all: once is enough."""
    noted = [replace(sheet, note=" ".join(filter(None, (sheet.note, note)))) for sheet in tables[-1:]]
    return [*tables[:-1], *noted]


def diagnosis_row(run: DiagnosedRun) -> tuple[str, ...]:
    found, oracle = run.diagnosis, run.diagnosis.oracle
    return (
        run.title,
        format_optional_number(found.median_lambda),
        f"{found.silent_clients} of {found.clients}",
        *map(format_optional_percent, (found.vote_agreement, found.votes_differ, found.public_share)),
        *map(format_optional_percent, (oracle.weighted, oracle.majority)),
        "/".join(map(str, run.outcome_counts)) if run.gains else EMPTY_CELL,
        EMPTY_CELL if run.mean_gain is None else f"{100 * run.mean_gain:+.2f}",
    )


def warnings_note(runs: Sequence[DiagnosedRun]) -> str:
    """What one should know of these runs, as a note has it."""
    found = [f"{line.title}: {warning}." for line in runs for warning in line.diagnosis.warnings()]
    more = len(found) - MAX_WARNINGS
    return " ".join([*found[:MAX_WARNINGS], *([f"And {more} more such warnings."] if more > 0 else [])])


def gate_table(group_label: str, runs: Sequence[DiagnosedRun]) -> TextTable | None:
    """What the gates of a setting's runs decided, client by client; None where there are none."""
    rows = [gate_decision_row(line, decision) for line in runs for decision in line.diagnosis.gate]
    if not rows:
        return None
    more = len(rows) - MAX_GATE_DECISIONS
    note = f"{more} more are in the runs' summary.json." if more > 0 else ""
    return TextTable(f"Decisions of the gate: {group_label}", GATE_HEADER, tuple(rows[:MAX_GATE_DECISIONS]), note)


def gate_decision_row(run: DiagnosedRun, decision: GateOutcome) -> tuple[str, ...]:
    return (
        f"{run.title}, client {decision.client}",
        str(decision.round),
        format_optional_percent(decision.agreement),
        format_optional_number(decision.trust),
        EMPTY_CELL if decision.gain is None else f"{decision.gain:+.4f}",
        EMPTY_CELL if decision.error is None else f"{decision.error:.4f}",
        "on" if decision.on else "off",
    )


def format_optional_percent(fraction: float | None) -> str:
    return EMPTY_CELL if fraction is None else f"{100 * fraction:.1f}"


def format_optional_number(value: float | None) -> str:
    return EMPTY_CELL if value is None else f"{value:.2g}"


def diagnoses_to_csv(runs: Sequence[DiagnosedRun]) -> str:
    """A line a run, in full precision."""
    return records_to_csv([diagnosis_record(line) for line in runs])


def gate_decisions_to_csv(runs: Sequence[DiagnosedRun]) -> str:
    """A line a client whose gate decided; nothing where there are no gates."""
    entries = [{**run_identity(line), **decision.model_dump()} for line in runs for decision in line.diagnosis.gate]
    return records_to_csv(entries) if entries else ""


def records_to_csv(records: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(records[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def diagnosis_record(run: DiagnosedRun) -> dict[str, Any]:
    names = [name for name in TrustDiagnosis.model_fields if name not in ("oracle", "gate")]
    found, oracle = run.diagnosis, run.diagnosis.oracle
    outcomes = zip(("helped", "unharmed", "hurt"), run.outcome_counts, strict=True)
    return {
        **run_identity(run),
        **{name: getattr(found, name) for name in names},
        "oracle_weighted": oracle.weighted,
        "oracle_majority": oracle.majority,
        **{name: count if run.gains else None for name, count in outcomes},
        "mean_gain": run.mean_gain,
        "warnings": "; ".join(found.warnings()),
    }


def run_identity(run: DiagnosedRun) -> dict[str, Any]:
    return {"setting": run.group_label, "method": run.method, "seed": run.seed}
