"""What a client would tell the server about other examples than the public ones, in the very words of its method."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.messages import MessageHeader
from fedmosaic_cli.engine.method import FederationInfo
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.privacy.privatize import privatize
from fedmosaic_cli.labels.sharing import EXTENSION_KEY, LabelSharing
from fedmosaic_cli.labels.voting import Ballot
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.method import State


@dataclass
class AuditClient:
    """Stands for a client in a round; the noise in what it says is as much as the client's, and not the same."""

    id: int
    round: int
    class_counts: Tensor
    seed: int
    state: State = field(default_factory=dict)

    def privacy_rng(self, purpose: str) -> np.random.Generator:
        return derive_rng(self.seed, "audit", purpose, self.id, self.round)


def query_labels(
    config: RunConfig, log_probs: Tensor, client: AuditClient
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Labels and weights of votes as they arrive at the server, from a client with these predictions; weights are None
    where labels travel alone. What is asked about stands in the place of as many public examples."""
    method = config.method
    if not isinstance(method, FedCT):
        raise TypeError(f"{method.title} tells no labels")
    noise = None if config.noise is None else replace(config.noise, max_epsilon=None)  # nothing is spent here
    world = FederationInfo(
        num_classes=log_probs.shape[1],
        initial_model={},
        client_sizes={client.id: int(client.class_counts.sum())},
        num_rounds=1,
        public_size=config.data.public_size or 0,
        extensions={EXTENSION_KEY: LabelSharing(privacy_noise=noise)},
    )
    form = replace(method.message_spec(world), public_size=len(log_probs))
    labels = log_probs.argmax(dim=1)
    said = privatize(labels.numpy(), method.compute_expertise(log_probs, labels, client), client, world, form)
    sent = wire.encode_label_upload(
        MessageHeader(world.run_id, world.public_set_id, client.round, client.id), form, *said
    )
    ballot = Ballot(client.id, sent, form)
    heard, weights = ballot.labels(), ballot.weights()
    if weights.ndim > 1 and heard.ndim == 1:  # a weight a class, and a class an example
        weights = weights[0, heard]
    return heard, None if form.expertise_encoding is wire.ExpertiseEncoding.NONE else weights
