"""What is told of co-training runs when they have ended: what to be wary of, and whom they helped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stderr, print_stdout
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import TrustDiagnosis
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.local_baseline import (
    LocalBaseline,
    MissingLocalBaseline,
    RecordedRun,
    compare_accuracies,
    comparison_to_dict,
    find_local_baseline,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.report.collaboration import GainsOverLocal
    from fedmosaic_cli.storage.runs import RunDirectory


@dataclass(frozen=True)
class LocalComparison:
    """A finished run under its name, and how its clients fare beside their Local models."""

    label: str
    files: RunDirectory
    local: LocalBaseline
    collaboration: GainsOverLocal

    def __str__(self) -> str:
        found, clients = self.collaboration, len(self.collaboration.gains)
        counts = f"{found.helped} of {clients} clients better, {found.hurt} worse, {found.unharmed} equal"
        odd = "".join(f"; mind that {caveat}" for caveat in self.local.caveats)
        return f"against Local ({self.local.files.path}): {counts}; mean {100 * found.mean_gain:+.2f} points{odd}"

    def to_dict(self) -> dict[str, Any]:
        return comparison_to_dict(self.files, self.local, self.collaboration)


def warn_about_trust(label: str, summary: dict[str, Any]) -> None:
    """Say where a run tells of something else than collaboration."""
    content = summary.get("diagnosis")
    for warning in TrustDiagnosis.model_validate(content).warnings() if content else ():
        print_stderr(f"warning: {label}: {warning}")


def compare_run_with_local(
    label: str, files: RunDirectory, summary: dict[str, Any], test_sizes: Sequence[int], data_dirs: DataDirs
) -> LocalComparison | MissingLocalBaseline | None:
    """A co-training run against the Local run in its usual place; None for other methods.

    `sizes` are those of the test parts.
    """
    if not METHODS[summary["method"]].shares_labels:
        return None
    try:
        local = find_local_baseline(RecordedRun(files, summary), [], None, "test", data_dirs)
    except RequestError as error:  # what the run was made from is gone: no reason to fail once it is finished
        return MissingLocalBaseline(str(error))
    if isinstance(local, MissingLocalBaseline):
        return local
    found = compare_accuracies(local, summary["accuracy"]["per_client"], local.accuracies or [], test_sizes)
    return found if isinstance(found, MissingLocalBaseline) else LocalComparison(label, files, local, found)


def print_local_comparisons(results: Sequence[LocalComparison | MissingLocalBaseline | None]) -> None:
    """A line a run; of those without a Local run the first, with the command that makes it."""
    for result in results:
        if isinstance(result, LocalComparison):
            print_stdout(f"{result.label}: {result}" if len(results) > 1 else str(result))
    for missing in [result for result in results if isinstance(result, MissingLocalBaseline) and result.remedy][:1]:
        print_stderr(f"note: {missing}")


def summary_document(
    summary: dict[str, Any], comparison: LocalComparison | MissingLocalBaseline | None
) -> dict[str, Any]:
    """A summary for machines, that of a co-training run with the comparison: null and the reason if there is none."""
    if comparison is None:
        return summary
    missing = comparison.reason if isinstance(comparison, MissingLocalBaseline) else None
    found = comparison.to_dict() if isinstance(comparison, LocalComparison) else None
    return {**summary, "collaboration": found, "no_collaboration": missing}
