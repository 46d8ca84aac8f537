"""Privacy noise for uploads, with a ledger of what each client released; and how the server reads such uploads."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.labels.privacy import mechanisms
from fedmosaic_cli.labels.privacy.noise import require_budget
from fedmosaic_cli.labels.privacy.privacy_report import read_ledger
from fedmosaic_cli.labels.sharing import label_sharing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.context import FederationInfo, State
    from fedmosaic_cli.labels.privacy.noise import PrivacyNoise
    from fedmosaic_cli.labels.wire import MessageSpec
    from fedmosaic_cli.seeds import RandomSource

    FloatArray = NDArray[np.float64]

LEDGER_KEY, HISTOGRAM_KEY = "ledger", "released_histogram"


class LabelClient(Protocol):
    """What label sharing needs to know of a client."""

    id: int
    round: int
    state: State

    @property
    def class_counts(self) -> Tensor: ...

    def privacy_rng(self, purpose: str) -> RandomSource: ...


def privatize(
    labels: NDArray[np.int64], expertise: FloatArray | None, client: LabelClient, ctx: FederationInfo, spec: MessageSpec
) -> tuple[NDArray[Any], FloatArray | None]:
    """Add the noise of the run to labels and expertise, and record the release in the client's ledger.

    An attacker that fabricates its upload adds no noise and records nothing.

    Args:
        labels: The client's labels of the public set.
        expertise: The expertise of each label; None if it is not sent.
        client: The client; its state holds the ledger.
        ctx: What the client knows about the federation.
        spec: The encoding of the upload.

    Returns:
        Labels and expertise as they are sent.

    Raises:
        DivergenceError: The expertise is not finite.
    """
    import numpy as np

    sharing = label_sharing(ctx)
    noise = sharing.privacy_noise
    if noise is None:
        return labels, expertise
    if expertise is not None and not np.isfinite(expertise).all():
        raise DivergenceError(client.id, client.round, "its expertise on public examples")
    if sharing.is_attacker:
        noise = replace(noise, label_epsilon=math.inf, noise_multiplier=0.0)
    else:
        record_releases(client, ctx, spec, noise)
    mechanism = mechanisms.flip_one_hot_bits if noise.label_mechanism == "xor" else mechanisms.randomized_response
    noisy: NDArray[Any] = mechanism(labels, noise.label_epsilon, ctx.num_classes, client.privacy_rng("dp-labels"))
    if noise.expertise_mechanism == "histogram":
        return noisy, privatized_histogram(client, ctx, noise)
    if noise.expertise_mechanism == "none" or expertise is None:
        return noisy, None
    sigma = noise.expertise_sigma(ctx.public_size, spec.max_expertise)
    rng = client.privacy_rng("dp-expertise")
    return noisy, mechanisms.add_clipped_gaussian_noise(expertise, sigma, spec.max_expertise, rng)


def record_releases(client: LabelClient, ctx: FederationInfo, spec: MessageSpec, noise: PrivacyNoise) -> None:
    """Record what this round's message releases. Refuses a message that would exceed the budget."""
    ledger = client.state.setdefault(LEDGER_KEY, [])
    size = ctx.client_sizes[client.id]
    releases = noise.round_releases(client.round, size, ctx.public_size, spec.max_expertise, is_first=not ledger)
    if noise.max_epsilon is not None:
        require_budget(read_ledger(ledger), releases, noise, ctx.num_classes)
    ledger.extend(release.to_dict() for release in releases)


def privatized_histogram(client: LabelClient, ctx: FederationInfo, noise: PrivacyNoise) -> FloatArray:
    """Return the client's class histogram with noise. The noise is drawn once per run and stored."""
    import torch

    counts = client.class_counts.numpy()
    if label_sharing(ctx).is_attacker:
        return mechanisms.noisy_histogram(counts, 0.0, client.privacy_rng("dp-histogram"))
    if HISTOGRAM_KEY not in client.state:
        sigma = noise.histogram_sigma(ctx.client_sizes[client.id])
        noisy = mechanisms.noisy_histogram(counts, sigma, client.privacy_rng("dp-histogram"))
        client.state[HISTOGRAM_KEY] = torch.as_tensor(noisy)
    histogram: FloatArray = client.state[HISTOGRAM_KEY].numpy()
    return histogram
