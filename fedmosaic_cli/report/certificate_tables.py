"""Tables of runs with one exchange: what it brought to each client by its own held-out data, and what the votes say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.labels.certificates import Certificate, ExchangeDiagnosis, mean_accuracy_gain
from fedmosaic_cli.report.comparison import LOCAL_KEY, file_name_part, method_title
from fedmosaic_cli.report.diagnosis_tables import client_table, format_optional
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL, records_to_csv
from fedmosaic_cli.report.statistics import client_gains
from fedmosaic_cli.report.stats_tables import TextTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fedmosaic_cli.labels.certificates import Interval
    from fedmosaic_cli.report.comparison import ComparisonGroup

EXCHANGE_HEADER = (
    *("Run", "clients that use it", "held-out gain", "test gain", "confidence %", "median z", "hold-out z"),
    *("classes %", "right labels %"),
)
EXCHANGE_NOTE = (
    "Clients that predict with a mixture of their own model and the student; the others equal Local. Gains: difference "
    "in accuracy to their own model in points, mean over these clients. On held-out training data it is usually larger "
    "than on test data: the own models of that test have seen fewer examples, only clients with a gain there use the "
    "student, and the shares contain the client's own votes. Votes: mean confidence; median agreement of a client with "
    "the others, and agreement of a student with votes that it has not seen, both in standard deviations from chance; "
    "classes covered; right labels by the true ones, which a federation does not have."
)
CERTIFICATE_HEADER = (
    *("Client", "uses it", "held-out gain", "held-out Brier gain", "test gain", "weights", "agreement z"),
)
CERTIFICATE_NOTE = (
    "Gains of the best tested mixture over the client's own model on held-out training data, with nominal 95 % "
    "intervals: the mixture is chosen on the same data. Weights: own model / corrected student / fine-tuned student."
)


@dataclass(frozen=True)
class CertifiedRun:
    """A run with certificates. `gains` are the test gains over Local by client, empty without a run of Local."""

    group_label: str
    title: str
    certificates: tuple[Certificate, ...]
    exchange: ExchangeDiagnosis
    gains: dict[int, float]


@cache  # used by the result files and by the page
def certified_runs(group: ComparisonGroup) -> tuple[CertifiedRun, ...]:
    """Return the runs of a group whose summary has certificates."""
    local_runs = group.baseline_runs.get(LOCAL_KEY)
    found = []
    for key, runs in group.runs_by_method.items():
        for index in runs.index[runs.certificates.notna()]:
            run = runs.loc[[index]]
            gains = {} if local_runs is None else client_gains(run, local_runs)
            found.append(
                CertifiedRun(
                    group.label,
                    f"{method_title(key)}, seed {int(run.seed[index])}",
                    tuple(map(Certificate.model_validate, run.certificates[index])),
                    ExchangeDiagnosis.model_validate(run.exchange[index] or {}),
                    {client: gain for (_, client), gain in gains.items()},
                )
            )
    return tuple(found)


def build_certificate_tables(groups: Iterable[ComparisonGroup]) -> list[TextTable]:
    """Return one table of exchanges per group, then one table of certificates per group."""
    runs_by_group = {group.label: runs for group in groups if (runs := certified_runs(group))}
    exchanges = [
        TextTable(
            f"One exchange: {label}",
            EXCHANGE_HEADER,
            tuple(map(exchange_row, runs)),
            EXCHANGE_NOTE,
            name=f"exchange-{file_name_part(label)}",
        )
        for label, runs in runs_by_group.items()
    ]
    certificates = []
    for label, runs in runs_by_group.items():
        rows = [certificate_row(run, certificate) for run in runs for certificate in run.certificates]
        name = f"certificates-{file_name_part(label)}"
        certificates.append(client_table(f"Certificates: {label}", CERTIFICATE_HEADER, rows, CERTIFICATE_NOTE, name))
    return [*exchanges, *certificates]


def exchange_row(run: CertifiedRun) -> tuple[str, ...]:
    num_used = sum(certificate.collaborates for certificate in run.certificates)
    gains = [run.gains[each.client] for each in run.certificates if each.collaborates and each.client in run.gains]
    exchange = run.exchange
    return (
        run.title,
        f"{num_used} of {len(run.certificates)}",
        format_optional(mean_accuracy_gain(run.certificates), "+.2f", 100),
        format_optional(fmean(gains) if gains else None, "+.2f", 100),
        format_optional(exchange.confidence, ".1f", 100),
        format_optional(exchange.median_z, ".1f"),
        format_optional(exchange.holdout_z, ".1f"),
        format_optional(exchange.class_coverage, ".0f", 100),
        format_optional(exchange.label_accuracy, ".1f", 100),
    )


def certificate_row(run: CertifiedRun, certificate: Certificate) -> tuple[str, ...]:
    weights = "/".join(f"{weight:g}" for weight in certificate.weights.values())
    return (
        f"{run.title}, client {certificate.client}",
        "yes" if certificate.collaborates else "no",
        format_interval(certificate.accuracy_gain, 100),
        format_interval(certificate.brier_gain),
        format_optional(run.gains.get(certificate.client), "+.2f", 100),
        weights or EMPTY_CELL,
        format_optional(certificate.agreement_z, ".1f"),
    )


def format_interval(interval: Interval | None, factor: int = 1) -> str:
    """Return `mean [low, high]`, in points with one decimal or else with three."""
    if interval is None:
        return EMPTY_CELL
    digits = 1 if factor == 100 else 3
    low, mean, high = (f"{factor * value:+.{digits}f}" for value in (interval.low, interval.mean, interval.high))
    return f"{mean} [{low}, {high}]"


def certificates_to_csv(runs: Sequence[CertifiedRun]) -> str:
    """Return one CSV line per certificate, in full precision."""
    records: list[dict[str, Any]] = []
    for run in runs:
        for certificate in run.certificates:
            content = certificate.model_dump(exclude={"weights", "accuracy_gain", "brier_gain"})
            for name in ("accuracy_gain", "brier_gain"):
                interval: Interval | None = getattr(certificate, name)
                for part in ("mean", "low", "high"):
                    content[f"{name}_{part}"] = None if interval is None else getattr(interval, part)
            records.append(
                {
                    "setting": run.group_label,
                    "run": run.title,
                    **content,
                    **{f"weight_{view}": certificate.weights.get(view) for view in ("local", "corrected", "tuned")},
                    "test_gain": run.gains.get(certificate.client),
                }
            )
    return records_to_csv(list(records[0]), records) if records else ""
