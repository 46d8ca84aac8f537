"""Compare finished co-training runs with Local runs, and warn about untrustworthy results."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stderr, print_text
from fedmosaic_cli.cli.views.results_table import comparison_table
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
    local_run_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fedmosaic_cli.cli.views.results_table import ResultRow
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.report.collaboration import GainsOverLocal
    from fedmosaic_cli.storage.runs import RunDirectory

SEED_OPTION = re.compile(r"--seed (\d+)")
LOCAL_WORDS = len(["fedmosaic", "baseline", "local"])


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


def warn_about_trust(runs: Sequence[tuple[str, RecordedRun]], data_dirs: DataDirs) -> None:
    """Print the warnings of the trust diagnosis of labelled runs, and once which commands to try next."""
    warned: list[RecordedRun] = []
    for label, run in runs:
        content = run.summary.get("diagnosis")
        explanations = TrustDiagnosis.model_validate(content).explanations() if content else []
        for explanation in explanations:
            print_stderr(f"warning: {label}: {explanation}")
        warned += [run] * bool(explanations)
    if warned:
        for line in trust_advice(warned, data_dirs):
            print_stderr(line)


def trust_advice(runs: Sequence[RecordedRun], data_dirs: DataDirs) -> list[str]:
    """Return which other rules of trust to try, with commands for the first run and all seeds of its variant."""
    first = runs[0]
    seeds = sorted({run.summary["seed"] for run in runs if run.summary["variant"] == first.summary["variant"]})
    try:
        command = local_run_command(first, data_dirs, None)
    except RequestError:  # a file of the run is missing
        command = []
    hyperparameters = first.summary["hyperparameters"]
    lines = []
    if command:
        conditions = SEED_OPTION.sub("", shlex.join(command[LOCAL_WORDS:])).strip()
        conditions += f" --seed {seeds[0]}" if len(seeds) == 1 else f" --seeds {','.join(map(str, seeds))}"
        if hyperparameters.get("trust") == "paper":
            expertise = f" --expertise {hyperparameters['expertise']}" if "expertise" in hyperparameters else ""
            stabilised = f"{conditions}{expertise} --set methods.fedmosaic.trust=stabilised"
            lines.append(f"  lambda that does not vanish, and is at most 1: fedmosaic train {stabilised}")
        gated = f"fedmosaic baseline gated student {conditions}"
        lines.append(f"  methods that test on held-out data whether to collaborate: {gated}")
    return [*lines, "  docs/trust.md describes the rules of trust"]


def compare_run_with_local(
    label: str, files: RunDirectory, summary: dict[str, Any], data_dirs: DataDirs
) -> LocalComparison | MissingLocalBaseline | None:
    """Compare a run with the Local run in the default directory; return None for runs that report no accuracies."""
    if summary.get("unreported"):
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


def print_local_comparisons(methods: Sequence[ResultRow], console: Console) -> None:
    """Print the comparisons with Local: a sentence for one run, else a table; and how to make a missing Local run."""
    results = [result.comparison for method in methods for result in method.results]
    found = [result for result in results if isinstance(result, LocalComparison)]
    if len(results) == 1 and found:
        print_text(str(found[0]))
    elif found:
        table = comparison_table(methods)
        if table is not None:
            console.print(table)
        for caveat in dict.fromkeys(f"{result.label}: {each}" for result in found for each in result.local.caveats):
            print_stderr(f"note: {caveat}")
    missing = [result for result in results if isinstance(result, MissingLocalBaseline) and result.remedy]
    if missing:
        print_stderr(f"note: {merge_seeds(missing)}")


def merge_seeds(missing: Sequence[MissingLocalBaseline]) -> MissingLocalBaseline:
    """Return the first missing Local run, with one command for all seeds whose commands are otherwise the same."""
    first = missing[0]
    seeds = [
        match.group(1)
        for each in missing
        if (match := SEED_OPTION.search(each.remedy))
        and SEED_OPTION.sub("", each.remedy) == SEED_OPTION.sub("", first.remedy)
    ]
    seeds = list(dict.fromkeys(seeds))
    if len(seeds) < 2:
        return first
    return replace(first, remedy=SEED_OPTION.sub(f"--seeds {','.join(seeds)}", first.remedy))


def summary_document(
    summary: dict[str, Any], comparison: LocalComparison | MissingLocalBaseline | None
) -> dict[str, Any]:
    """Return the summary for `--json`; for methods that share labels, with the comparison or why it is missing."""
    if comparison is None or not method_info(summary["method"]).shares_labels:
        return summary
    missing = comparison.reason if isinstance(comparison, MissingLocalBaseline) else None
    document = comparison.to_dict() if isinstance(comparison, LocalComparison) else None
    return {**summary, "collaboration": document, "no_collaboration": missing}
