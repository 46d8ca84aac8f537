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
from fedmosaic_cli.labels.trust_diagnosis import Decision, Diagnosis, diagnose
from fedmosaic_cli.report.comparison import LOCAL, shares_labels, title_of
from fedmosaic_cli.report.formats.text_formats import MISSING
from fedmosaic_cli.report.statistics import gains_of
from fedmosaic_cli.report.stats_tables import Sheet
from fedmosaic_cli.storage.runs import ROUNDS, RunFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pandas as pd

    from fedmosaic_cli.report.comparison import Key, Setting

HEAD = (
    *("Run", "median lambda", "lambda < 1e-6", "agreement %", "votes differ %", "public weight %"),
    *("right, weighted % (oracle)", "right, majority % (oracle)", "helped / unharmed / hurt", "mean gain"),
)
GATE_HEAD = ("Client", "round", "agreement %", "lambda in question", "gain", "standard error", "gate")
NOTE = (
    "Lambda: median over clients in the last round, and how many are so small that this is Local training. Means over "
    "clients and rounds: how often a client says what the consensus says; on how many examples the weighted vote is "
    "not the majority's; what of the training loss came from the public set. Oracle: right labels of the last vote, by "
    "labels that nobody in a federation has. Clients helped, left unharmed and hurt against Local on the same shards "
    "and seed, mean gain in percentage points."
)
GATE_NOTE = "Gain: mean Brier gain out of fold of training with the consensus, and its standard error."
# Rules of runs that were made before a summary said whether lambda follows from losses.
LOSS_RATIOS = ("paper", "stabilised")
MOST_WARNINGS, MOST_DECISIONS = 6, 300


@dataclass(frozen=True)
class Diagnosed:
    """A co-training run. `gains` are its clients' against Local; nothing where there is no such run."""

    setting: str
    method: str
    seed: int
    found: Diagnosis
    gains: tuple[float, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.method}, seed {self.seed}"

    @property
    def outcomes(self) -> tuple[int, int, int]:
        """How many clients were helped, left unharmed, and hurt."""
        kinds = [(gain > 0) - (gain < 0) for gain in self.gains]
        return kinds.count(1), kinds.count(0), kinds.count(-1)

    @property
    def mean_gain(self) -> float | None:
        return fmean(self.gains) if self.gains else None


@cache  # for the files of a report and for the page
def diagnosed(setting: Setting) -> tuple[Diagnosed, ...]:
    """The co-training runs of a setting, as far as there was an exchange and their logs can be read."""
    found = []
    for key, runs in setting.methods.items():
        for place in runs.index if shares_labels(key) else ():
            run = runs.loc[[place]]
            diagnosis = diagnosis_of(run.path[place], run.diagnosis[place], run.hyperparameters[place])
            if diagnosis is not None:
                found.append(line_of(setting, key, run, diagnosis))
    return tuple(found)


def line_of(setting: Setting, key: Key, run: pd.DataFrame, diagnosis: Diagnosis) -> Diagnosed:
    gains = gains_of(run, setting.methods[LOCAL]) if LOCAL in setting.methods else {}
    return Diagnosed(setting.label, title_of(key), int(run.seed.iloc[0]), diagnosis, tuple(gains.values()))


def diagnosis_of(path: Path, content: dict[str, Any] | None, hyperparameters: str) -> Diagnosis | None:
    """As the summary has it; from the log where it is older than that."""
    if content is not None:
        return Diagnosis.model_validate(content)
    files = RunFiles(path)
    try:
        files.check(ROUNDS)
        return diagnose(files.rounds(), by_losses=json.loads(hyperparameters).get("trust") in LOSS_RATIOS)
    except (RequestError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def diagnosis_sheets(settings: Iterable[Setting]) -> list[Sheet]:
    """A sheet for every setting with co-training runs, then one for every setting in which gates decided."""
    by_setting = {setting.label: diagnosed(setting) for setting in settings}
    sheets = [
        Sheet(f"Diagnosis: {label}", HEAD, tuple(map(row_of, lines)), warnings_of(lines))
        for label, lines in by_setting.items()
        if lines
    ]
    gates = [sheet for label, lines in by_setting.items() if (sheet := gate_sheet(label, lines))]
    return [*explained(sheets, NOTE), *explained(gates, GATE_NOTE)]


def explained(sheets: Sequence[Sheet], note: str) -> list[Sheet]:
    """The sheets, the last of them with a note on all: once is enough."""
    noted = [replace(sheet, note=" ".join(filter(None, (sheet.note, note)))) for sheet in sheets[-1:]]
    return [*sheets[:-1], *noted]


def row_of(line: Diagnosed) -> tuple[str, ...]:
    found, oracle = line.found, line.found.oracle
    return (
        line.title,
        number(found.median_lambda),
        f"{found.silent_clients} of {found.clients}",
        *map(percent, (found.vote_agreement, found.votes_differ, found.public_share)),
        *map(percent, (oracle.weighted, oracle.majority)),
        "/".join(map(str, line.outcomes)) if line.gains else MISSING,
        MISSING if line.mean_gain is None else f"{100 * line.mean_gain:+.2f}",
    )


def warnings_of(lines: Sequence[Diagnosed]) -> str:
    """What one should know of these runs, as a note has it."""
    found = [f"{line.title}: {warning}." for line in lines for warning in line.found.warnings()]
    more = len(found) - MOST_WARNINGS
    return " ".join([*found[:MOST_WARNINGS], *([f"And {more} more such warnings."] if more > 0 else [])])


def gate_sheet(setting: str, lines: Sequence[Diagnosed]) -> Sheet | None:
    """What the gates of a setting's runs decided, client by client; None where there are none."""
    rows = [decision_row(line, decision) for line in lines for decision in line.found.gate]
    if not rows:
        return None
    more = len(rows) - MOST_DECISIONS
    note = f"{more} more are in the runs' summary.json." if more > 0 else ""
    return Sheet(f"Decisions of the gate: {setting}", GATE_HEAD, tuple(rows[:MOST_DECISIONS]), note)


def decision_row(line: Diagnosed, decision: Decision) -> tuple[str, ...]:
    return (
        f"{line.title}, client {decision.client}",
        str(decision.round),
        percent(decision.agreement),
        number(decision.trust),
        MISSING if decision.gain is None else f"{decision.gain:+.4f}",
        MISSING if decision.error is None else f"{decision.error:.4f}",
        "on" if decision.on else "off",
    )


def percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f}"


def number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2g}"


def diagnoses_to_csv(lines: Sequence[Diagnosed]) -> str:
    """A line a run, in full precision."""
    return to_csv([entry_of(line) for line in lines])


def gates_to_csv(lines: Sequence[Diagnosed]) -> str:
    """A line a client whose gate decided; nothing where there are no gates."""
    entries = [{**place_of(line), **decision.model_dump()} for line in lines for decision in line.found.gate]
    return to_csv(entries) if entries else ""


def to_csv(entries: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(entries[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return text.getvalue()


def entry_of(line: Diagnosed) -> dict[str, Any]:
    names = [name for name in Diagnosis.model_fields if name not in ("oracle", "gate")]
    found, oracle = line.found, line.found.oracle
    outcomes = zip(("helped", "unharmed", "hurt"), line.outcomes, strict=True)
    return {
        **place_of(line),
        **{name: getattr(found, name) for name in names},
        "oracle_weighted": oracle.weighted,
        "oracle_majority": oracle.majority,
        **{name: count if line.gains else None for name, count in outcomes},
        "mean_gain": line.mean_gain,
        "warnings": "; ".join(found.warnings()),
    }


def place_of(line: Diagnosed) -> dict[str, Any]:
    return {"setting": line.setting, "method": line.method, "seed": line.seed}
