"""What a run tells of its noise: before it starts what is planned, in the end what was spent. One block a run."""

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
    "drawn by every site from its operating system, and kept by nobody; in floating point, so the formulas hold up to "
    "its last digits; accuracies and losses told for the log, and class counts in the manifest, have no noise"
)
MAX_VALID_PAPER_EPSILON = 1.0
"""Up to this epsilon the paper's formula is proven."""


def planned_privacy_report(
    noise: PrivacyNoise,
    num_exchanges: int,
    public_size: int,
    num_classes: int,
    max_expertise: float,
    client_sizes: Sequence[int] | None,
) -> dict[str, Any]:
    """The block of a client that takes part in all of so many exchanges (`times`).

    `sizes` are those of the clients' training parts, None where only the data could tell; the smallest has the most
    noise on its histogram, if that depends on it.
    """
    planned = noise.planned_releases(
        num_exchanges, min(client_sizes) if client_sizes else 1, public_size, max_expertise
    )
    if not client_sizes and noise.unit != "client":
        planned = [(replace(each, sigma=None) if each.mechanism == "histogram" else each, n) for each, n in planned]
    entries = [ledger_entry(each, number, each.count * number) for each, number in planned]
    total = noise.planned_epsilon(num_exchanges, public_size)
    facts = {"stage": "planned", "rounds": num_exchanges, "worst_client": None}
    return build_privacy_report(noise, facts, [each for each, _ in planned], entries, total, num_classes)


def spent_privacy_report(
    noise: PrivacyNoise, ledgers: Mapping[int, Iterable[Release]], num_classes: int
) -> dict[str, Any]:
    """The block of the client that gave away most, from what everybody's ledger says."""
    spent = {client: list(releases) for client, releases in ledgers.items()}
    totals = {client: total_epsilon(releases, noise.delta) for client, releases in spent.items()}
    worst = max(totals, key=lambda client: (totals[client], -client), default=None)
    releases = [] if worst is None else spent[worst]
    facts = {"stage": "spent", "rounds": len({each.round for each in releases}), "worst_client": worst}
    return build_privacy_report(
        noise, facts, releases, condense_ledger(releases), 0.0 if worst is None else totals[worst], num_classes
    )


def build_privacy_report(
    noise: PrivacyNoise,
    stage_fields: dict[str, Any],
    releases: Sequence[Release],
    ledger: list[dict[str, Any]],
    total: float,
    num_classes: int,
) -> dict[str, Any]:
    """All of it as it is written to files, where an infinite number is a word."""
    labels = next((each for each in releases if each.epsilon is not None), None)
    expertise = next((each for each in releases if each.mu is not None), None)
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
            "expertise": gaussian_release_epsilon(expertise, noise.delta),
        },
        "eps_paper_formula": formula,
        "eps_paper_formula_valid": None if formula is None else formula <= MAX_VALID_PAPER_EPSILON,
        "total_epsilon": total,
        "verdict": guarantee_rating(total),
        "noise": "seeded",
        "noise_means": SEEDED_NOISE_NOTE,
        "ledger": ledger,
    }
    return {key: to_json_value(value) for key, value in content.items()}


def with_system_noise(report: dict[str, Any]) -> dict[str, Any]:
    """The same where clients are somebody: their noise comes from no seed."""
    return {**report, "noise": "system", "noise_means": SYSTEM_NOISE_NOTE}


def label_noise_fields(noise: PrivacyNoise, num_classes: int) -> dict[str, Any]:
    """How labels are told."""
    guess = 0.5 if noise.label_mechanism == "xor" else 1 / num_classes
    told = {"mechanism": noise.label_mechanism, "epsilon": noise.label_epsilon, "guess": guess}
    if noise.label_mechanism == "xor":
        return {**told, "flip": noise.flip_probability()}
    return {**told, "keep": noise.keep_probability(num_classes), "other": noise.other_label_probability(num_classes)}


def gaussian_release_epsilon(release: Release | None, delta: float) -> float:
    """What one release of Gaussian noise costs by itself."""
    return 0.0 if release is None or release.mu is None else gaussian_epsilon(release.mu, delta)


def condense_ledger(releases: Iterable[Release]) -> list[dict[str, Any]]:
    """A ledger with one entry for all releases that are alike but for their round."""
    rounds: dict[Release, set[int]] = {}
    counts: dict[Release, int] = {}
    for release in releases:
        kind = replace(release, round=0, count=0)
        rounds.setdefault(kind, set()).add(release.round)
        counts[kind] = counts.get(kind, 0) + release.count
    return [ledger_entry(kind, len(rounds[kind]), count) for kind, count in counts.items()]


def ledger_entry(release: Release, num_rounds: int, count: int) -> dict[str, Any]:
    """A line of the condensed ledger: in how many rounds, how many releases in all, with which parameters."""
    told = {"epsilon": release.epsilon, "mu": release.mu, "sigma": release.sigma}
    parameters = {key: to_json_number(value) for key, value in told.items() if value is not None}
    return {"mechanism": release.mechanism, "rounds": num_rounds, "count": count, **parameters}


def read_ledger(entries: Iterable[Mapping[str, Any]]) -> list[Release]:
    """The releases that a client wrote down."""
    return [Release.from_dict(entry) for entry in entries]


def to_json_value(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, dict):
        return {key: to_json_value(inner) for key, inner in value.items()}
    return to_json_number(value) if isinstance(value, float) else value


def delta_warning(delta: float, client_sizes: Sequence[int]) -> str:
    """A word where a delta is no promise: at 1/n, to publish one record in n at random would pass."""
    smallest = min(client_sizes, default=0)
    if not smallest or delta < 1 / smallest:
        return ""
    return (
        f"delta {delta:g} is not below 1/{smallest}, one over the examples of the smallest client: at such a delta one "
        "whole record may be given away (privacy.delta)"
    )
