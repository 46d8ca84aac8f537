"""What is told of co-training runs when they have ended: what to be wary of, and whom they helped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import remark, say
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.trust_diagnosis import Diagnosis
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.runner.local_baseline import LocalRun, NoLocalRun, Recorded, compared, find_local, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.report.collaboration import Collaboration
    from fedmosaic_cli.storage.runs import RunFiles


@dataclass(frozen=True)
class BesideLocal:
    """A finished run under its name, and how its clients fare beside their Local models."""

    label: str
    files: RunFiles
    local: LocalRun
    found: Collaboration

    def __str__(self) -> str:
        found, clients = self.found, len(self.found.gains)
        counts = f"{found.helped} of {clients} clients better, {found.hurt} worse, {found.unharmed} equal"
        odd = "".join(f"; mind that {caveat}" for caveat in self.local.caveats)
        return f"against Local ({self.local.files.path}): {counts}; mean {100 * found.mean_gain:+.2f} points{odd}"

    def to_dict(self) -> dict[str, Any]:
        return told(self.files, self.local, self.found)


def warn_of_trust(label: str, summary: dict[str, Any]) -> None:
    """Say where a run tells of something else than collaboration."""
    content = summary.get("diagnosis")
    for warning in Diagnosis.model_validate(content).warnings() if content else ():
        remark(f"warning: {label}: {warning}")


def beside_local(
    label: str, files: RunFiles, summary: dict[str, Any], sizes: Sequence[int], place: Place
) -> BesideLocal | NoLocalRun | None:
    """A co-training run against the Local run in its usual place; None for other methods.

    `sizes` are those of the test parts.
    """
    if not METHODS[summary["method"]].shares_labels:
        return None
    try:
        local = find_local(Recorded(files, summary), [], None, "test", place)
    except RequestError as error:  # what the run was made from is gone: no reason to fail once it is finished
        return NoLocalRun(str(error))
    if isinstance(local, NoLocalRun):
        return local
    found = compared(local, summary["accuracy"]["per_client"], local.accuracies or [], sizes)
    return found if isinstance(found, NoLocalRun) else BesideLocal(label, files, local, found)


def show_beside_local(results: Sequence[BesideLocal | NoLocalRun | None]) -> None:
    """A line a run; of those without a Local run the first, with the command that makes it."""
    for result in results:
        if isinstance(result, BesideLocal):
            say(f"{result.label}: {result}" if len(results) > 1 else str(result))
    for missing in [result for result in results if isinstance(result, NoLocalRun) and result.way_out][:1]:
        remark(f"note: {missing}")


def document(summary: dict[str, Any], result: BesideLocal | NoLocalRun | None) -> dict[str, Any]:
    """A summary for machines, that of a co-training run with the comparison: null and the reason if there is none."""
    if result is None:
        return summary
    missing = result.reason if isinstance(result, NoLocalRun) else None
    found = result.to_dict() if isinstance(result, BesideLocal) else None
    return {**summary, "collaboration": found, "no_collaboration": missing}
