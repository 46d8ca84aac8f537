"""Privacy options of `train` and `baseline`, and the output about privacy budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning
from fedmosaic_cli.runner.privacy_section import planned_privacy_section
from fedmosaic_cli.storage.privacy_summary import privacy_lines
from fedmosaic_cli.storage.shard_manifest import train_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fedmosaic_cli.cli.train_options import TrainOptions
    from fedmosaic_cli.config.run_config import RunConfig

LABEL_MECHANISMS = ("krr", "xor", "off")
EXPERTISE_MECHANISMS = ("gaussian", "histogram", "none")


def privacy_config_layer(options: TrainOptions) -> dict[str, Any]:
    """Return the values of the section `privacy` that the options set."""
    values = {
        **(parse_mechanisms(options.dp) if options.dp is not None else {}),
        "epsilon": None if options.dp_epsilon is None else parse_epsilon(options.dp_epsilon),
        "delta": options.dp_delta,
        "unit": options.dp_unit and options.dp_unit.value,
        "max_epsilon": options.dp_max_eps,
    }
    return {key: value for key, value in values.items() if value is not None}


def parse_mechanisms(text: str) -> dict[str, str]:
    """Parse `krr`, `xor,gaussian` and the like."""
    labels, comma, expertise = (part.strip() for part in text.partition(","))
    if labels not in LABEL_MECHANISMS or (comma and (labels == "off" or expertise not in EXPERTISE_MECHANISMS)):
        raise RequestError(
            f"cannot read '{text}' (--dp): write off, or krr or xor, optionally followed by a comma and gaussian, "
            "histogram or none, e.g. krr,histogram"
        )
    return {"labels": labels, **({"expertise": expertise} if comma else {})}


def parse_epsilon(text: str) -> float | str:
    """Parse a number, or `inf` for no noise."""
    if text == "inf":
        return text
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"cannot read '{text}' (--dp-epsilon): write a number such as 8, or inf") from None


def privacy_option_values(options: TrainOptions) -> dict[str, object]:
    """Return the privacy options with their values on the command line."""
    return {
        "--dp": options.dp,
        "--dp-epsilon": options.dp_epsilon,
        "--dp-delta": options.dp_delta,
        "--dp-unit": options.dp_unit and options.dp_unit.value,
        "--dp-max-eps": options.dp_max_eps,
    }


def print_planned_privacy(runs: Iterable[tuple[RunConfig, dict[str, Any]]], is_remote: bool) -> None:
    """Print the planned privacy budget of each method, and a warning if delta is too large to be meaningful.

    Args:
        runs: Configurations with the manifests of their shards.
        is_remote: Whether clients are at remote sites.
    """
    printed: set[str] = set()
    for config, manifest in runs:
        sizes = list(train_sizes(manifest).values())
        section = planned_privacy_section(config, len(manifest["class_names"]), sizes, is_remote)
        if section is None or config.method.variant in printed:
            continue
        printed.add(config.method.variant)
        for line in privacy_section_lines(config.method.variant, section):
            print_stderr(line)
        if warning := delta_warning(section["delta"], sizes):
            print_stderr(f"warning: {warning}")


def privacy_section_lines(variant: str, section: Mapping[str, Any]) -> list[str]:
    """Return the lines about one privacy budget."""
    return [f"{variant}, {section['stage']}:", *(f"  {line}" for line in privacy_lines(dict(section)))]


def spent_privacy_lines(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines about finished runs: per variant, the run with the largest epsilon."""
    worst: dict[str, Mapping[str, Any]] = {}
    for summary in summaries:
        section = summary.get("privacy")
        largest = worst.get(summary["variant"])
        if section and (largest is None or float(section["total_epsilon"]) > float(largest["total_epsilon"])):
            worst[summary["variant"]] = section
    return [line for variant, section in worst.items() for line in privacy_section_lines(variant, section)]
