"""What a client lets go of: its opinion as it is or, where noise is asked for, with noise that is written down.

And what the server makes of that: in which form it comes, and how the votes are to be counted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fedmosaic_cli.labels.defences import VotingRules
from fedmosaic_cli.labels.privacy import mechanisms
from fedmosaic_cli.labels.privacy.noise import require_budget
from fedmosaic_cli.labels.privacy.privacy_report import read_ledger
from fedmosaic_cli.labels.voting import ReportingRates
from fedmosaic_cli.labels.wire import ExpertiseEncoding, LabelEncoding, MessageSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.method import FederationInfo, State
    from fedmosaic_cli.labels.privacy.noise import PrivacyNoise

    FloatArray = NDArray[np.float64]

AUTO_CAP_SHARE, AUTO_CAP_MIN_CLIENTS = 0.2, 10
LEDGER_KEY, HISTOGRAM_KEY = "ledger", "released_histogram"


class LabelClient(Protocol):
    """A client, as far as it has something to say."""

    id: int
    round: int
    state: State

    @property
    def class_counts(self) -> Tensor: ...

    def privacy_rng(self, purpose: str) -> mechanisms.RandomSource: ...


def label_encoding(ctx: FederationInfo) -> LabelEncoding:
    """How labels travel: one that was flipped bit by bit may be no class, or several."""
    return (
        LabelEncoding.BITS
        if ctx.privacy_noise is not None and ctx.privacy_noise.label_mechanism == "xor"
        else LabelEncoding.INDEX
    )


def expertise_encoding(ctx: FederationInfo, default: ExpertiseEncoding) -> ExpertiseEncoding:
    """How expertise travels; `plain` without noise. With noise it is always in levels: the last bits of a number could
    tell what it was."""
    if ctx.privacy_noise is None:
        return default
    codes = {
        "none": ExpertiseEncoding.NONE,
        "gaussian": ExpertiseEncoding.LEVELS,
        "histogram": ExpertiseEncoding.HISTOGRAM,
    }
    return codes[ctx.privacy_noise.expertise_mechanism]


def reporting_rates(ctx: FederationInfo) -> ReportingRates:
    """How far labels that arrive are the labels that were meant."""
    noise = ctx.privacy_noise
    if noise is None:
        return ReportingRates()
    if noise.label_mechanism == "xor":
        return ReportingRates(1 - noise.flip_probability(), noise.flip_probability())
    return ReportingRates(noise.keep_probability(ctx.num_classes), noise.other_label_probability(ctx.num_classes))


def voting_rules(ctx: FederationInfo, num_voters: int) -> VotingRules:
    """How the votes of so many are counted."""
    defence, share = ctx.defence, ctx.defence.cap_share
    if share == "auto":
        share = AUTO_CAP_SHARE if num_voters >= AUTO_CAP_MIN_CLIENTS else None
    return VotingRules(defence.normalise, share, defence.vote, defence.trim)


def privatize(
    labels: NDArray[np.int64], expertise: FloatArray | None, client: LabelClient, ctx: FederationInfo, spec: MessageSpec
) -> tuple[NDArray[Any], FloatArray | None]:
    """Labels and expertise as they leave the client. What noise they are given is entered in its ledger.

    Who lies about all of it has nothing to hide.
    """
    noise = ctx.privacy_noise
    if noise is None:
        return labels, expertise
    if ctx.is_attacker:
        noise = replace(noise, label_epsilon=math.inf, noise_multiplier=0.0)
    else:
        record_releases(client, ctx, spec, noise)
    hide = mechanisms.flip_one_hot_bits if noise.label_mechanism == "xor" else mechanisms.randomized_response
    said: NDArray[Any] = hide(labels, noise.label_epsilon, ctx.num_classes, client.privacy_rng("dp-labels"))
    if noise.expertise_mechanism == "histogram":
        return said, privatized_histogram(client, ctx, noise)
    if noise.expertise_mechanism == "none" or expertise is None:
        return said, None
    sigma = noise.expertise_sigma(ctx.public_size, spec.max_expertise)
    return said, mechanisms.add_clipped_gaussian_noise(
        expertise, sigma, spec.max_expertise, client.privacy_rng("dp-expertise")
    )


def record_releases(client: LabelClient, ctx: FederationInfo, spec: MessageSpec, noise: PrivacyNoise) -> None:
    """Write down what this round's message releases; refuse one that would spend more than is allowed."""
    ledger = client.state.setdefault(LEDGER_KEY, [])
    size = ctx.client_sizes[client.id]
    releases = noise.round_releases(client.round, size, ctx.public_size, spec.max_expertise, is_first=not ledger)
    if noise.max_epsilon is not None:
        require_budget(read_ledger(ledger), releases, noise)
    ledger.extend(release.to_dict() for release in releases)


def privatized_histogram(client: LabelClient, ctx: FederationInfo, noise: PrivacyNoise) -> FloatArray:
    """The client's classes as it told of them when it was first asked: noise is drawn once, and never again."""
    import torch

    if ctx.is_attacker:
        return mechanisms.noisy_histogram(client.class_counts.numpy(), 0.0, client.privacy_rng("dp-histogram"))
    if HISTOGRAM_KEY not in client.state:
        sigma = noise.histogram_sigma(ctx.client_sizes[client.id])
        counts = client.class_counts.numpy()
        told = mechanisms.noisy_histogram(counts, sigma, client.privacy_rng("dp-histogram"))
        client.state[HISTOGRAM_KEY] = torch.as_tensor(told)
    released_histogram: FloatArray = client.state[HISTOGRAM_KEY].numpy()
    return released_histogram
