"""What a summary says of noise in messages: checked as it is read, and as lines to print."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = Literal["inf"] | Annotated[float, Field(ge=0)]
LIMITS = {"strong": "at most 1", "good": "at most 3", "weak": "at most 10", "no meaningful guarantee": "above 10"}
DIGITS = 3


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class LabelNoise(Part):
    mechanism: Literal["krr", "xor"]
    epsilon: Number
    keep: Annotated[float, Field(ge=0, le=1)] | None = None
    flip: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    guess: Annotated[float, Field(gt=0, le=1)] | None = None
    """How often a label is kept, or a bit flipped, that says nothing at all."""


SOURCES = {
    "seeded": "; not somebody who knows the seed, from which the noise is drawn",
    "system": "; every site draws its noise from its operating system. Not counted, and without noise: the accuracies "
    "and losses that sites tell for the log, and the class counts in the manifest",
}


class ExpertiseNoise(Part):
    mechanism: Literal["none", "gaussian", "histogram"]
    sigma: Number | None = None


class RoundEpsilon(Part):
    labels: Number
    expertise: Number


class PrivacyBlock(Part):
    """What was planned or spent, by the client that gives away most."""

    stage: Literal["planned", "spent"] = "spent"
    unit: Literal["client", "record-assumed"]
    changed_rows: int | None = None
    delta: Annotated[float, Field(gt=0, lt=1)]
    rounds: Annotated[int, Field(ge=0)]
    worst_client: int | None = None
    labels: LabelNoise
    expertise: ExpertiseNoise
    round_epsilon: RoundEpsilon
    eps_paper_formula: Number | None = None
    total_epsilon: Number
    noise: Literal["seeded", "system"] = "seeded"
    verdict: Literal["strong", "good", "weak", "no meaningful guarantee"]

    @property
    def total(self) -> float:
        return float(self.total_epsilon)


def privacy_lines(content: dict[str, Any]) -> list[str]:
    """The block as one prints it."""
    block = PrivacyBlock.model_validate(content)
    counted = f"{block.rounds} round{'' if block.rounds == 1 else 's'}"
    return [
        f"privacy unit: {block.unit} | delta: {block.delta:g} | rounds: {block.rounds}{worst_of(block)}",
        mechanisms_of(block),
        f"per-round epsilon: labels {plain(block.round_epsilon.labels)}{expertise_of(block)}",
        f"TOTAL epsilon over {counted}: {rounded_up(block.total)}   -> {verdict_of(block)}",
        *condition_of(block),
        f"against: the server, or whoever reads all messages of one client{SOURCES[block.noise]}",
    ]


def worst_of(block: PrivacyBlock) -> str:
    return "" if block.worst_client is None else f" | worst client: {block.worst_client}"


def mechanisms_of(block: PrivacyBlock) -> str:
    """How labels and expertise are told."""
    labels, expertise = block.labels, block.expertise
    chance = f"flips {labels.flip:.6g} of all bits" if labels.flip is not None else f"keeps {labels.keep or 0:.6g}"
    chance += "" if labels.guess is None else f", where a guess has {labels.guess:.3g}"
    told = "none sent" if expertise.mechanism == "none" else expertise.mechanism
    noise = "" if expertise.sigma is None else f" (standard deviation {plain(expertise.sigma)})"
    return f"labels: {labels.mechanism} (epsilon {plain(labels.epsilon)} each, {chance}) | expertise: {told}{noise}"


def expertise_of(block: PrivacyBlock) -> str:
    """What expertise costs, beside what the paper's formula would say."""
    if block.expertise.mechanism == "none":
        return ""
    formula = block.eps_paper_formula
    beyond = ", not valid above 1" if formula is not None and float(formula) > 1 else ""
    beside = "" if formula is None else f" (paper formula: {plain(formula)}{beyond})"
    what = "; once: histogram" if block.expertise.mechanism == "histogram" else ", expertise"
    return f"{what} {plain(block.round_epsilon.expertise)}{beside}"


def verdict_of(block: PrivacyBlock) -> str:
    word = block.verdict
    if not block.rounds:
        return "nothing is sent"
    return f"{word.upper() if word not in ('strong', 'good', 'weak') else word} ({LIMITS[word]})"


def condition_of(block: PrivacyBlock) -> list[str]:
    """What has to be true for the number to mean anything."""
    if block.unit == "client":
        return []
    return [
        f"conditional: only if one record changes at most {block.changed_rows} public labels, which nobody can check "
        "for a neural network; sizes of clients count as known to all"
    ]


def plain(number: float | str) -> str:
    """A number as one reads it: with a decimal from 10 on, with four digits below."""
    value = float(number)
    return f"{value:.1f}" if 10 <= value < 1e7 else f"{value:.4g}"


def rounded_up(total: float) -> str:
    """Three digits, and never less than there is; what is above by rounding of the machine alone stays."""
    if total == 0 or math.isinf(total):
        return f"{total:g}"
    unit = 10.0 ** (math.floor(math.log10(total)) - DIGITS + 1)
    return f"{math.ceil(total / unit - 1e-6) * unit:.{DIGITS}g}"
