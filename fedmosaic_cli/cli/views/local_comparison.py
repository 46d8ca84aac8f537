"""Compare finished co-training runs with Local runs, and warn about untrustworthy results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stderr, print_stdout
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import TrustDiagnosis
from fedmosaic_cli.methods.registry import method_info
from fedmosaic_cli.runner.baseline_lookup import (
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
    """A finished run, compared per client with its Local run."""

    label: str
    files: RunDirectory
    local: LocalBaseline
    collaboration: GainsOverLocal

    def __str__(self) -> str:
        gains, num_clients = self.collaboration, len(self.collaboration.gains)
        counts = f"{gains.helped} of {num_clients} clients better, {gains.hurt} worse, {gains.unharmed} equal"
        caveats = "".join(f"; note that {caveat}" for caveat in self.local.caveats)
        return f"against Local ({self.local.files.path}): {counts}; mean {100 * gains.mean_gain:+.2f} points{caveats}"

    def to_dict(self) -> dict[str, Any]:
        return comparison_to_dict(self.files, self.local, self.collaboration)


def warn_about_trust(label: str, summary: dict[str, Any]) -> None:
    """Print the warnings of the trust diagnosis."""
    content = summary.get("diagnosis")
    for warning in TrustDiagnosis.model_validate(content).warnings() if content else ():
        print_stderr(f"warning: {label}: {warning}")


def compare_run_with_local(
    label: str, files: RunDirectory, summary: dict[str, Any], data_dirs: DataDirs
) -> LocalComparison | MissingLocalBaseline | None:
    """Compare a run with the Local run in the default directory; return None for methods that share no labels."""
    if not method_info(summary["method"]).shares_labels or summary.get("unreported"):
        return None
    try:
        local = find_local_baseline(RecordedRun(files, summary), [], None, "test", data_dirs)
    except RequestError as error:  # a missing preset or file is no reason to fail after the run has finished
        return MissingLocalBaseline(str(error))
    if isinstance(local, MissingLocalBaseline):
        return local
    sizes = [client["test"]["size"] for client in files.read_shard_manifest()["clients"]]
    gains = compare_accuracies(local, summary["accuracy"]["per_client"], local.accuracies or [], sizes)
    return gains if isinstance(gains, MissingLocalBaseline) else LocalComparison(label, files, local, gains)


def print_local_comparisons(results: Sequence[LocalComparison | MissingLocalBaseline | None]) -> None:
    """Print one line per run, and the command that makes the first missing Local run."""
    for result in results:
        if isinstance(result, LocalComparison):
            print_stdout(f"{result.label}: {result}" if len(results) > 1 else str(result))
    for missing in [result for result in results if isinstance(result, MissingLocalBaseline) and result.remedy][:1]:
        print_stderr(f"note: {missing}")


def summary_document(
    summary: dict[str, Any], comparison: LocalComparison | MissingLocalBaseline | None
) -> dict[str, Any]:
    """Return the summary for `--json`, with the comparison or the reason why it is missing."""
    if comparison is None:
        return summary
    missing = comparison.reason if isinstance(comparison, MissingLocalBaseline) else None
    document = comparison.to_dict() if isinstance(comparison, LocalComparison) else None
    return {**summary, "collaboration": document, "no_collaboration": missing}
