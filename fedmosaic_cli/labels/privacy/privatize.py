"""What a client lets go of: its opinion as it is or, where noise is asked for, with noise that is written down.

And what the server makes of that: in which form it comes, and how the votes are to be counted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fedmosaic_cli.labels.defences import Rules
from fedmosaic_cli.labels.privacy import mechanisms
from fedmosaic_cli.labels.privacy.noise import check_budget
from fedmosaic_cli.labels.privacy.privacy_report import read_ledger
from fedmosaic_cli.labels.voting import Rates
from fedmosaic_cli.labels.wire import ExpertiseCode, Form, LabelCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.method import State, World
    from fedmosaic_cli.labels.privacy.noise import Noise

    Floats = NDArray[np.float64]

CAP_SHARE, ENOUGH_TO_CAP = 0.2, 10
LEDGER, HISTOGRAM = "ledger", "released_histogram"


class Speaker(Protocol):
    """A client, as far as it has something to say."""

    id: int
    round: int
    state: State

    @property
    def class_counts(self) -> Tensor: ...

    def hiding(self, purpose: str) -> mechanisms.Draws: ...


def label_code(world: World) -> LabelCode:
    """How labels travel: one that was flipped bit by bit may be no class, or several."""
    return LabelCode.BITS if world.noise is not None and world.noise.labels == "xor" else LabelCode.INDEX


def expertise_code(world: World, plain: ExpertiseCode) -> ExpertiseCode:
    """How expertise travels; `plain` without noise. With noise it is always in levels: the last bits of a number could
    tell what it was."""
    if world.noise is None:
        return plain
    codes = {"none": ExpertiseCode.NONE, "gaussian": ExpertiseCode.LEVELS, "histogram": ExpertiseCode.HISTOGRAM}
    return codes[world.noise.expertise]


def rates_of(world: World) -> Rates:
    """How far labels that arrive are the labels that were meant."""
    noise = world.noise
    if noise is None:
        return Rates()
    if noise.labels == "xor":
        return Rates(1 - noise.flip(), noise.flip())
    return Rates(noise.keep(world.num_classes), noise.other(world.num_classes))


def rules_of(world: World, voters: int) -> Rules:
    """How the votes of so many are counted."""
    defence, share = world.defence, world.defence.cap_share
    if share == "auto":
        share = CAP_SHARE if voters >= ENOUGH_TO_CAP else None
    return Rules(defence.normalise, share, defence.vote, defence.trim)


def released(
    labels: NDArray[np.int64], expertise: Floats | None, client: Speaker, world: World, form: Form
) -> tuple[NDArray[Any], Floats | None]:
    """Labels and expertise as they leave the client. What noise they are given is entered in its ledger.

    Who lies about all of it has nothing to hide.
    """
    noise = world.noise
    if noise is None:
        return labels, expertise
    if world.lying:
        noise = replace(noise, label_epsilon=math.inf, noise_multiplier=0.0)
    else:
        enter(client, world, form, noise)
    hide = mechanisms.flipped_bits if noise.labels == "xor" else mechanisms.randomised_labels
    said: NDArray[Any] = hide(labels, noise.label_epsilon, world.num_classes, client.hiding("dp-labels"))
    if noise.expertise == "histogram":
        return said, histogram_of(client, world, noise)
    if noise.expertise == "none" or expertise is None:
        return said, None
    sigma = noise.sigma_scores(world.public_size, form.high)
    return said, mechanisms.noisy_scores(expertise, sigma, form.high, client.hiding("dp-expertise"))


def enter(client: Speaker, world: World, form: Form, noise: Noise) -> None:
    """Write down what this round's message releases; refuse one that would spend more than is allowed."""
    ledger = client.state.setdefault(LEDGER, [])
    size = world.sizes[client.id]
    releases = noise.releases(client.round, size, world.public_size, form.high, first=not ledger)
    if noise.max_epsilon is not None:
        check_budget(read_ledger(ledger), releases, noise)
    ledger.extend(release.to_dict() for release in releases)


def histogram_of(client: Speaker, world: World, noise: Noise) -> Floats:
    """The client's classes as it told of them when it was first asked: noise is drawn once, and never again."""
    import torch

    if world.lying:
        return mechanisms.noisy_histogram(client.class_counts.numpy(), 0.0, client.hiding("dp-histogram"))
    if HISTOGRAM not in client.state:
        sigma = noise.sigma_histogram(world.sizes[client.id])
        counts = client.class_counts.numpy()
        told = mechanisms.noisy_histogram(counts, sigma, client.hiding("dp-histogram"))
        client.state[HISTOGRAM] = torch.as_tensor(told)
    released_histogram: Floats = client.state[HISTOGRAM].numpy()
    return released_histogram
