"""The options of `train` and `baseline` about noise, and what is said of it before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import remark
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.privacy_report import too_likely
from fedmosaic_cli.runner.privacy_section import planned_privacy
from fedmosaic_cli.storage.privacy_section import privacy_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedmosaic_cli.cli.train_options import Request
    from fedmosaic_cli.config.run_config import RunConfig

LABELS = ("krr", "xor", "off")
EXPERTISE = ("gaussian", "histogram", "none")


def privacy_layer(request: Request) -> dict[str, Any]:
    """What the options say of the section `privacy`."""
    values = {
        **(mechanisms(request.dp) if request.dp is not None else {}),
        "epsilon": None if request.dp_epsilon is None else budget(request.dp_epsilon),
        "delta": request.dp_delta,
        "unit": request.dp_unit and request.dp_unit.value,
        "max_epsilon": request.dp_max_eps,
    }
    return {key: value for key, value in values.items() if value is not None}


def mechanisms(text: str) -> dict[str, str]:
    """The keys that `krr` or `xor,gaussian` stands for."""
    labels, comma, expertise = (part.strip() for part in text.partition(","))
    if labels not in LABELS or (comma and (labels == "off" or expertise not in EXPERTISE)):
        raise RequestError(
            f"cannot read '{text}' (--dp): write krr or xor, and {', '.join(EXPERTISE[:-1])} or none behind a comma, "
            "e.g. krr,histogram; or off"
        )
    return {"labels": labels, **({"expertise": expertise} if comma else {})}


def budget(text: str) -> float | str:
    """A number, or `inf` for no noise at all."""
    if text == "inf":
        return text
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"cannot read '{text}' (--dp-epsilon): write a number such as 8, or inf") from None


def options_of(request: Request) -> dict[str, object]:
    """The same options, as they are typed."""
    return {
        "--dp": request.dp,
        "--dp-epsilon": request.dp_epsilon,
        "--dp-delta": request.dp_delta,
        "--dp-unit": request.dp_unit and request.dp_unit.value,
        "--dp-max-eps": request.dp_max_eps,
    }


def tell_planned(runs: Iterable[tuple[RunConfig, int, Sequence[int]]], sites: bool) -> None:
    """The block of each kind of run, and a warning where delta promises nothing.

    A run comes with the number of classes and the sizes of its clients, who may be at `sites`; seeds make no kinds.
    """
    told: set[str] = set()
    for config, classes, sizes in runs:
        block = planned_privacy(config, classes, sizes, sites)
        if block is None or config.method.variant in told:
            continue
        told.add(config.method.variant)
        for line in block_lines(config.method.variant, block):
            remark(line)
        if warning := too_likely(config.privacy.delta, sizes):
            remark(f"warning: {warning}")


def block_lines(variant: str, block: Mapping[str, Any]) -> list[str]:
    """A block under the name of what it is about."""
    return [f"{variant}, {block['stage']}:", *(f"  {line}" for line in privacy_lines(dict(block)))]


def spent_lines(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The blocks of finished runs: of each kind, the one that gave away most."""
    worst: dict[str, Mapping[str, Any]] = {}
    for summary in summaries:
        block = summary.get("privacy")
        held = worst.get(summary["variant"])
        if block and (held is None or float(block["total_epsilon"]) > float(held["total_epsilon"])):
            worst[summary["variant"]] = block
    return [line for variant, block in worst.items() for line in block_lines(variant, block)]
