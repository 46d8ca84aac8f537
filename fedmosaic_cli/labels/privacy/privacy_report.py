"""The privacy section of a run: the planned budget before it starts, the spent budget at its end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.labels.privacy.accounting import (
    Release,
    classic_gaussian_epsilon,
    gaussian_epsilon,
    guarantee_rating,
    to_json_number,
    total_epsilon,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedmosaic_cli.labels.privacy.noise import PrivacyNoise

SEEDED_NOISE_NOTE = (
    "drawn from the run's seed, so it hides nothing from somebody who knows the seed; in floating point, so the "
    "formulas hold up to its last digits"
)
SYSTEM_NOISE_NOTE = (
    "drawn by every site from its operating system, and not stored; in floating point, so the formulas hold up to its "
    "last digits; class counts in the manifest have no noise, nor have metrics, unless sites withhold them"
)
RANDOMISED_LABELS = "randomised labels"
"""Instead of a rating, for methods that claim no privacy."""
MAX_VALID_PAPER_EPSILON = 1.0
"""The paper's formula is proven up to this epsilon."""


def planned_privacy_report(
    noise: PrivacyNoise,
    num_exchanges: int,
    public_size: int,
    num_classes: int,
    max_expertise: float,
    client_sizes: Sequence[int] | None,
) -> dict[str, Any]:
    """The section for a client that takes part in all exchanges.

    Args:
        noise: Noise of the run.
        num_exchanges: Number of rounds in which clients upload labels.
        public_size: Number of public examples.
        num_classes: Number of classes.
        max_expertise: Upper bound of expertise.
        client_sizes: Numbers of training examples, if known. The smallest client has the most noise on its histogram.
    """
    planned = noise.planned_releases(
        num_exchanges, min(client_sizes) if client_sizes else 1, public_size, max_expertise
    )
    if not client_sizes and noise.unit != "client":
        planned = [
            (replace(release, sigma=None) if release.mechanism == "histogram" else release, n) for release, n in planned
        ]
    entries = [ledger_entry(release, n, release.count * n) for release, n in planned]
    total = noise.planned_epsilon(num_exchanges, public_size, num_classes)
    stage = {"stage": "planned", "rounds": num_exchanges, "worst_client": None}
    return build_privacy_report(noise, stage, [release for release, _ in planned], entries, total, num_classes)


def spent_privacy_report(
    noise: PrivacyNoise, ledgers: Mapping[int, Iterable[Release]], num_classes: int
) -> dict[str, Any]:
    """The section for the client with the largest total epsilon, from the ledgers of all clients."""
    spent = {client: list(releases) for client, releases in ledgers.items()}
    totals = {client: total_epsilon(releases, noise.delta, num_classes) for client, releases in spent.items()}
    worst = max(totals, key=lambda client: (totals[client], -client), default=None)
    releases = [] if worst is None else spent[worst]
    stage = {"stage": "spent", "rounds": len({release.round for release in releases}), "worst_client": worst}
    total = 0.0 if worst is None else totals[worst]
    return build_privacy_report(noise, stage, releases, condense_ledger(releases), total, num_classes)


def build_privacy_report(
    noise: PrivacyNoise,
    stage_fields: dict[str, Any],
    releases: Sequence[Release],
    ledger: list[dict[str, Any]],
    total: float,
    num_classes: int,
) -> dict[str, Any]:
    """The section as it is written to files, with infinite numbers as JSON_INFINITY."""
    labels = next((release for release in releases if release.epsilon is not None), None)
    expertise = next((release for release in releases if release.mu is not None), None)
    formula = None if expertise is None or expertise.mu is None else classic_gaussian_epsilon(expertise.mu, noise.delta)
    content = {
        **stage_fields,
        "unit": noise.unit,
        "changed_rows": noise.changed_rows,
        "conditional": noise.unit != "client",
        "delta": noise.delta,
        "labels": label_noise_fields(noise, num_classes),
        "expertise": {
            "mechanism": noise.expertise_mechanism,
            "noise_multiplier": None if noise.expertise_mechanism == "none" else noise.noise_multiplier,
            "sigma": expertise and expertise.sigma,
        },
        "round_epsilon": {
            "labels": labels.pure_epsilon if labels else 0.0,
            "expertise": 0.0 if expertise is None else gaussian_epsilon(expertise.mu or 0.0, noise.delta),
        },
        "eps_paper_formula": formula,
        "eps_paper_formula_valid": None if formula is None else formula <= MAX_VALID_PAPER_EPSILON,
        "total_epsilon": total,
        "verdict": guarantee_rating(total) if noise.delta else RANDOMISED_LABELS,
        "noise": "seeded",
        "noise_means": SEEDED_NOISE_NOTE,
        "ledger": ledger,
    }
    return {key: to_json_value(value) for key, value in content.items()}


def with_system_noise(report: dict[str, Any]) -> dict[str, Any]:
    """The section of a run on real sites, which draw their noise from the operating system."""
    return {**report, "noise": "system", "noise_means": SYSTEM_NOISE_NOTE}


def label_noise_fields(noise: PrivacyNoise, num_classes: int) -> dict[str, Any]:
    """The mechanism for labels and its probabilities."""
    guess = 0.5 if noise.label_mechanism == "xor" else 1 / num_classes
    fields = {"mechanism": noise.label_mechanism, "epsilon": noise.label_epsilon, "guess": guess}
    if noise.label_mechanism == "xor":
        return {**fields, "flip": noise.flip_probability()}
    return {**fields, "keep": noise.keep_probability(num_classes), "other": noise.other_label_probability(num_classes)}


def condense_ledger(releases: Iterable[Release]) -> list[dict[str, Any]]:
    """The ledger with one entry per kind of release, whatever its round."""
    rounds: dict[Release, set[int]] = {}
    counts: dict[Release, int] = {}
    for release in releases:
        kind = replace(release, round=0, count=0)
        rounds.setdefault(kind, set()).add(release.round)
        counts[kind] = counts.get(kind, 0) + release.count
    return [ledger_entry(kind, len(rounds[kind]), count) for kind, count in counts.items()]


def ledger_entry(release: Release, num_rounds: int, count: int) -> dict[str, Any]:
    """An entry of the condensed ledger: number of rounds, number of releases, and parameters."""
    values = {"epsilon": release.epsilon, "mu": release.mu, "sigma": release.sigma}
    parameters = {key: to_json_number(value) for key, value in values.items() if value is not None}
    return {"mechanism": release.mechanism, "rounds": num_rounds, "count": count, **parameters}


def read_ledger(entries: Iterable[Mapping[str, Any]]) -> list[Release]:
    return [Release.from_dict(entry) for entry in entries]


def to_json_value(value: Any) -> Any:
    """The value with infinite numbers as JSON_INFINITY."""
    if isinstance(value, dict):
        return {key: to_json_value(inner) for key, inner in value.items()}
    return to_json_number(value) if isinstance(value, float) else value


def delta_warning(delta: float, client_sizes: Sequence[int]) -> str:
    """A warning if delta is at least 1/n: publishing one of n records at random would satisfy such a delta."""
    smallest = min(client_sizes, default=0)
    if not smallest or delta < 1 / smallest:
        return ""
    return (
        f"delta {delta:g} is not below 1/{smallest}, one over the examples of the smallest client: at such a delta one "
        "whole record may be released (privacy.delta)"
    )
