"""The `privacy` section of a summary: validation, and the lines that commands print."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from fedmosaic_cli.schema import Record

NonNegativeOrInf = Literal["inf"] | Annotated[float, Field(ge=0)]
GUARANTEE_LIMITS = {
    "strong": "at most 1",
    "good": "at most 3",
    "weak": "at most 10",
    "no meaningful guarantee": "above 10",
}
RANDOMISED_LABELS = "randomised labels"
SIGNIFICANT_DIGITS = 3
NOISE_SOURCE_NOTES = {
    "seeded": "; not an adversary who knows the seed, which determines the noise",
    "system": "; every site draws its noise from its operating system. Not counted, and without noise: the accuracies "
    "and losses that sites report for the log, and the class counts in the manifest",
}


class LabelNoiseRecord(Record):
    """Noise on labels. `guess` is the `keep` or `flip` probability of a label that carries no information."""

    mechanism: Literal["krr", "xor"]
    epsilon: NonNegativeOrInf
    keep: Annotated[float, Field(ge=0, le=1)] | None = None
    flip: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    guess: Annotated[float, Field(gt=0, le=1)] | None = None


class ExpertiseNoiseRecord(Record):
    mechanism: Literal["none", "gaussian", "histogram"]
    sigma: NonNegativeOrInf | None = None


class RoundEpsilonRecord(Record):
    labels: NonNegativeOrInf
    expertise: NonNegativeOrInf


class PrivacySection(Record):
    """Planned or spent privacy budget of the client with the largest epsilon."""

    stage: Literal["planned", "spent"] = "spent"
    unit: Literal["client", "record-assumed"]
    changed_rows: int | None = None
    delta: Annotated[float, Field(ge=0, lt=1)]
    rounds: Annotated[int, Field(ge=0)]
    worst_client: int | None = None
    labels: LabelNoiseRecord
    expertise: ExpertiseNoiseRecord
    round_epsilon: RoundEpsilonRecord
    eps_paper_formula: NonNegativeOrInf | None = None
    total_epsilon: NonNegativeOrInf
    noise: Literal["seeded", "system"] = "seeded"
    verdict: Literal["strong", "good", "weak", "no meaningful guarantee", "randomised labels"]
    ledger: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def total(self) -> float:
        return float(self.total_epsilon)

    @property
    def is_rated(self) -> bool:
        """Whether the epsilon is that of a guarantee, rather than of randomised labels."""
        return self.verdict != RANDOMISED_LABELS


def privacy_lines(content: dict[str, Any]) -> list[str]:
    """Return the privacy section as lines of text."""
    section = PrivacySection.model_validate(content)
    lines = guarantee_lines(section) if section.is_rated else randomised_label_lines(section)
    if section.unit != "client":
        lines.append(
            f"conditional: only if one record changes at most {section.changed_rows} public labels, which cannot be "
            "verified for a neural network; client sizes count as public"
        )
    lines.append(f"against: the server, or a reader of all messages of one client{NOISE_SOURCE_NOTES[section.noise]}")
    return lines


def randomised_label_lines(section: PrivacySection) -> list[str]:
    """Describe noise that is not rated as a guarantee: the worst case is the sum over all labels."""
    num_labels = sum(entry["count"] for entry in section.ledger)
    exchanges = "the one exchange" if section.rounds == 1 else f"{section.rounds} exchanges"
    epsilon = format_privacy_number(section.labels.epsilon)
    return [
        f"randomised {label_noise_text(section.labels)} | confidence: none sent",
        f"worst-case epsilon of {exchanges}: {num_labels} labels x {epsilon} = {section.total:.6g}",
    ]


def guarantee_lines(section: PrivacySection) -> list[str]:
    """Describe noise that is rated as a guarantee."""
    worst = "" if section.worst_client is None else f" | worst client: {section.worst_client}"
    num_rounds = f"{section.rounds} round{'' if section.rounds == 1 else 's'}"
    verdict = section.verdict.upper() if section.verdict == "no meaningful guarantee" else section.verdict
    guarantee = f"{verdict} ({GUARANTEE_LIMITS[section.verdict]})" if section.rounds else "nothing is sent"
    label_epsilon = format_privacy_number(section.round_epsilon.labels)
    return [
        f"privacy unit: {section.unit} | delta: {section.delta:g} | rounds: {section.rounds}{worst}",
        mechanism_line(section),
        f"per-round epsilon: labels {label_epsilon}{expertise_epsilon_text(section)}",
        f"TOTAL epsilon over {num_rounds}: {format_rounded_up(section.total)}   -> {guarantee}",
    ]


def mechanism_line(section: PrivacySection) -> str:
    """Describe the noise on labels and expertise."""
    expertise = section.expertise
    mechanism = "none sent" if expertise.mechanism == "none" else expertise.mechanism
    noise = "" if expertise.sigma is None else f" (standard deviation {format_privacy_number(expertise.sigma)})"
    return f"{label_noise_text(section.labels)} | expertise: {mechanism}{noise}"


def label_noise_text(labels: LabelNoiseRecord) -> str:
    """Describe the noise on labels."""
    chance = f"flips {labels.flip:.6g} of all bits" if labels.flip is not None else f"keeps {labels.keep or 0:.6g}"
    chance += "" if labels.guess is None else f", where a guess has {labels.guess:.3g}"
    return f"labels: {labels.mechanism} (epsilon {format_privacy_number(labels.epsilon)} each, {chance})"


def expertise_epsilon_text(section: PrivacySection) -> str:
    """Describe the epsilon of expertise, with the value of the paper's formula."""
    if section.expertise.mechanism == "none":
        return ""
    formula = section.eps_paper_formula
    validity = ", not valid above 1" if formula is not None and float(formula) > 1 else ""
    paper = "" if formula is None else f" (paper formula: {format_privacy_number(formula)}{validity})"
    label = "; once: histogram" if section.expertise.mechanism == "histogram" else ", expertise"
    return f"{label} {format_privacy_number(section.round_epsilon.expertise)}{paper}"


def format_privacy_number(number: float | str) -> str:
    """Format with one decimal from 10 on and with four significant digits below."""
    value = float(number)
    return f"{value:.1f}" if 10 <= value < 1e7 else f"{value:.4g}"


def format_rounded_up(value: float) -> str:
    """Round up to three significant digits; an excess by floating-point error is ignored."""
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - SIGNIFICANT_DIGITS + 1)
    return f"{math.ceil(value / unit - 1e-6) * unit:.{SIGNIFICANT_DIGITS}g}"
