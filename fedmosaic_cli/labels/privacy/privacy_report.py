"""What a run tells of its noise: before it starts what is planned, in the end what was spent. One block a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.labels.privacy.accounting import (
    Release,
    gaussian_epsilon,
    paper_formula,
    to_file,
    total_epsilon,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fedmosaic_cli.labels.privacy.noise import Noise

SEEDED = (
    "drawn from the run's seed, so it hides nothing from somebody who knows the seed; in floating point, so the "
    "formulas hold up to its last digits"
)
SYSTEM = (
    "drawn by every site from its operating system, and kept by nobody; in floating point, so the formulas hold up to "
    "its last digits; accuracies and losses told for the log, and class counts in the manifest, have no noise"
)
MOST_FOR_THE_FORMULA = 1.0
"""Up to this epsilon the paper's formula is proven."""


def planned_block(
    noise: Noise, times: int, public_size: int, num_classes: int, high: float, sizes: Sequence[int] | None
) -> dict[str, Any]:
    """The block of a client that takes part in all of so many exchanges (`times`).

    `sizes` are those of the clients' training parts, None where only the data could tell; the smallest has the most
    noise on its histogram, if that depends on it.
    """
    planned = noise.planned(times, min(sizes) if sizes else 1, public_size, high)
    if not sizes and noise.unit != "client":
        planned = [(replace(each, sigma=None) if each.mechanism == "histogram" else each, n) for each, n in planned]
    entries = [entry_of(each, number, each.count * number) for each, number in planned]
    total = noise.planned_total(times, public_size)
    facts = {"stage": "planned", "rounds": times, "worst_client": None}
    return block(noise, facts, [each for each, _ in planned], entries, total, num_classes)


def spent_block(noise: Noise, ledgers: Mapping[int, Iterable[Release]], num_classes: int) -> dict[str, Any]:
    """The block of the client that gave away most, from what everybody's ledger says."""
    spent = {client: list(releases) for client, releases in ledgers.items()}
    totals = {client: total_epsilon(releases, noise.delta) for client, releases in spent.items()}
    worst = max(totals, key=lambda client: (totals[client], -client), default=None)
    releases = [] if worst is None else spent[worst]
    facts = {"stage": "spent", "rounds": len({each.round for each in releases}), "worst_client": worst}
    return block(noise, facts, releases, condensed(releases), 0.0 if worst is None else totals[worst], num_classes)


def block(
    noise: Noise,
    facts: dict[str, Any],
    releases: Sequence[Release],
    ledger: list[dict[str, Any]],
    total: float,
    num_classes: int,
) -> dict[str, Any]:
    """All of it as it is written to files, where an infinite number is a word."""
    labels = next((each for each in releases if each.epsilon is not None), None)
    expertise = next((each for each in releases if each.mu is not None), None)
    formula = None if expertise is None or expertise.mu is None else paper_formula(expertise.mu, noise.delta)
    content = {
        **facts,
        "unit": noise.unit,
        "changed_rows": noise.changed_rows,
        "conditional": noise.unit != "client",
        "delta": noise.delta,
        "labels": label_facts(noise, num_classes),
        "expertise": {
            "mechanism": noise.expertise,
            "noise_multiplier": None if noise.expertise == "none" else noise.noise_multiplier,
            "sigma": expertise and expertise.sigma,
        },
        "round_epsilon": {
            "labels": labels.pure_epsilon if labels else 0.0,
            "expertise": epsilon_of(expertise, noise.delta),
        },
        "eps_paper_formula": formula,
        "eps_paper_formula_valid": None if formula is None else formula <= MOST_FOR_THE_FORMULA,
        "total_epsilon": total,
        "verdict": verdict(total),
        "noise": "seeded",
        "noise_means": SEEDED,
        "ledger": ledger,
    }
    return {key: finite(value) for key, value in content.items()}


def at_sites(content: dict[str, Any]) -> dict[str, Any]:
    """The same where clients are somebody: their noise comes from no seed."""
    return {**content, "noise": "system", "noise_means": SYSTEM}


def label_facts(noise: Noise, num_classes: int) -> dict[str, Any]:
    """How labels are told."""
    guess = 0.5 if noise.labels == "xor" else 1 / num_classes
    told = {"mechanism": noise.labels, "epsilon": noise.label_epsilon, "guess": guess}
    if noise.labels == "xor":
        return {**told, "flip": noise.flip()}
    return {**told, "keep": noise.keep(num_classes), "other": noise.other(num_classes)}


def epsilon_of(release: Release | None, delta: float) -> float:
    """What one release of Gaussian noise costs by itself."""
    return 0.0 if release is None or release.mu is None else gaussian_epsilon(release.mu, delta)


def condensed(releases: Iterable[Release]) -> list[dict[str, Any]]:
    """A ledger with one entry for all releases that are alike but for their round."""
    rounds: dict[Release, set[int]] = {}
    counts: dict[Release, int] = {}
    for release in releases:
        kind = replace(release, round=0, count=0)
        rounds.setdefault(kind, set()).add(release.round)
        counts[kind] = counts.get(kind, 0) + release.count
    return [entry_of(kind, len(rounds[kind]), count) for kind, count in counts.items()]


def entry_of(release: Release, rounds: int, count: int) -> dict[str, Any]:
    """A line of the condensed ledger: in how many rounds, how many releases in all, with which parameters."""
    told = {"epsilon": release.epsilon, "mu": release.mu, "sigma": release.sigma}
    parameters = {key: to_file(value) for key, value in told.items() if value is not None}
    return {"mechanism": release.mechanism, "rounds": rounds, "count": count, **parameters}


def read_ledger(entries: Iterable[Mapping[str, Any]]) -> list[Release]:
    """The releases that a client wrote down."""
    return [Release.from_dict(entry) for entry in entries]


def finite(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return to_file(value) if isinstance(value, float) else value


def too_likely(delta: float, sizes: Sequence[int]) -> str:
    """A word where a delta is no promise: at 1/n, to publish one record in n at random would pass."""
    smallest = min(sizes, default=0)
    if not smallest or delta < 1 / smallest:
        return ""
    return (
        f"delta {delta:g} is not below 1/{smallest}, one over the examples of the smallest client: at such a delta one "
        "whole record may be given away (privacy.delta)"
    )
