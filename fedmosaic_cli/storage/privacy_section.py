"""What a summary says of noise in messages: checked as it is read, and as lines to print."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NonNegativeOrInf = Literal["inf"] | Annotated[float, Field(ge=0)]
GUARANTEE_LIMITS = {
    "strong": "at most 1",
    "good": "at most 3",
    "weak": "at most 10",
    "no meaningful guarantee": "above 10",
}
SIGNIFICANT_DIGITS = 3


class PrivacyRecord(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class LabelNoiseRecord(PrivacyRecord):
    mechanism: Literal["krr", "xor"]
    epsilon: NonNegativeOrInf
    keep: Annotated[float, Field(ge=0, le=1)] | None = None
    flip: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    guess: Annotated[float, Field(gt=0, le=1)] | None = None
    """How often a label is kept, or a bit flipped, that says nothing at all."""


NOISE_SOURCE_NOTES = {
    "seeded": "; not somebody who knows the seed, from which the noise is drawn",
    "system": "; every site draws its noise from its operating system. Not counted, and without noise: the accuracies "
    "and losses that sites tell for the log, and the class counts in the manifest",
}


class ExpertiseNoiseRecord(PrivacyRecord):
    mechanism: Literal["none", "gaussian", "histogram"]
    sigma: NonNegativeOrInf | None = None


class RoundEpsilonRecord(PrivacyRecord):
    labels: NonNegativeOrInf
    expertise: NonNegativeOrInf


class PrivacySection(PrivacyRecord):
    """What was planned or spent, by the client that gives away most."""

    stage: Literal["planned", "spent"] = "spent"
    unit: Literal["client", "record-assumed"]
    changed_rows: int | None = None
    delta: Annotated[float, Field(gt=0, lt=1)]
    rounds: Annotated[int, Field(ge=0)]
    worst_client: int | None = None
    labels: LabelNoiseRecord
    expertise: ExpertiseNoiseRecord
    round_epsilon: RoundEpsilonRecord
    eps_paper_formula: NonNegativeOrInf | None = None
    total_epsilon: NonNegativeOrInf
    noise: Literal["seeded", "system"] = "seeded"
    verdict: Literal["strong", "good", "weak", "no meaningful guarantee"]

    @property
    def total(self) -> float:
        return float(self.total_epsilon)


def privacy_lines(content: dict[str, Any]) -> list[str]:
    """The block as one prints it."""
    block = PrivacySection.model_validate(content)
    counted = f"{block.rounds} round{'' if block.rounds == 1 else 's'}"
    return [
        f"privacy unit: {block.unit} | delta: {block.delta:g} | rounds: {block.rounds}{worst_client_text(block)}",
        mechanism_line(block),
        f"per-round epsilon: labels {format_privacy_number(block.round_epsilon.labels)}{expertise_epsilon_text(block)}",
        f"TOTAL epsilon over {counted}: {format_rounded_up(block.total)}   -> {guarantee_text(block)}",
        *condition_lines(block),
        f"against: the server, or whoever reads all messages of one client{NOISE_SOURCE_NOTES[block.noise]}",
    ]


def worst_client_text(section: PrivacySection) -> str:
    return "" if section.worst_client is None else f" | worst client: {section.worst_client}"


def mechanism_line(section: PrivacySection) -> str:
    """How labels and expertise are told."""
    labels, expertise = section.labels, section.expertise
    chance = f"flips {labels.flip:.6g} of all bits" if labels.flip is not None else f"keeps {labels.keep or 0:.6g}"
    chance += "" if labels.guess is None else f", where a guess has {labels.guess:.3g}"
    told = "none sent" if expertise.mechanism == "none" else expertise.mechanism
    noise = "" if expertise.sigma is None else f" (standard deviation {format_privacy_number(expertise.sigma)})"
    return f"labels: {labels.mechanism} (epsilon {format_privacy_number(labels.epsilon)} each, {chance}) | expertise: {told}{noise}"


def expertise_epsilon_text(section: PrivacySection) -> str:
    """What expertise costs, beside what the paper's formula would say."""
    if section.expertise.mechanism == "none":
        return ""
    formula = section.eps_paper_formula
    beyond = ", not valid above 1" if formula is not None and float(formula) > 1 else ""
    beside = "" if formula is None else f" (paper formula: {format_privacy_number(formula)}{beyond})"
    what = "; once: histogram" if section.expertise.mechanism == "histogram" else ", expertise"
    return f"{what} {format_privacy_number(section.round_epsilon.expertise)}{beside}"


def guarantee_text(section: PrivacySection) -> str:
    word = section.verdict
    if not section.rounds:
        return "nothing is sent"
    return f"{word.upper() if word not in ('strong', 'good', 'weak') else word} ({GUARANTEE_LIMITS[word]})"


def condition_lines(section: PrivacySection) -> list[str]:
    """What has to be true for the number to mean anything."""
    if section.unit == "client":
        return []
    return [
        f"conditional: only if one record changes at most {section.changed_rows} public labels, which nobody can check "
        "for a neural network; sizes of clients count as known to all"
    ]


def format_privacy_number(number: float | str) -> str:
    """A number as one reads it: with a decimal from 10 on, with four digits below."""
    value = float(number)
    return f"{value:.1f}" if 10 <= value < 1e7 else f"{value:.4g}"


def format_rounded_up(value: float) -> str:
    """Three digits, and never less than there is; what is above by rounding of the machine alone stays."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - SIGNIFICANT_DIGITS + 1)
    return f"{math.ceil(value / unit - 1e-6) * unit:.{SIGNIFICANT_DIGITS}g}"
