"""FedMosaic: co-training in which each client weighs how far to trust the crowd, and the crowd weighs each client.

Abourayya et al., Whom to Trust? Adaptive Collaboration in Personalized Federated Learning. FedCT with two points filled
in: the trust lambda in the consensus and the expertise behind every vote. What the paper leaves open is chosen here:
lambda is computed once a round, on full sets in evaluation mode, before training, and receives no gradient; the
entropy-based expertise is log C - H; the server adds a little to every vote; expertise travels in 8 bits a value.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.cotraining.expertise import (
    entropy_expertise,
    frequency_expertise,
    highest_expertise,
    uniform_expertise,
)
from fedmosaic_cli.cotraining.trust import TRUST_RULES
from fedmosaic_cli.cotraining.wire import ExpertiseCode
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.engine.objective import labelled, mean_cross_entropy
from fedmosaic_cli.engine.release import expertise_code
from fedmosaic_cli.methods.fedct import FedCT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.cotraining.wire import Form
    from fedmosaic_cli.engine.method import Client, World
    from fedmosaic_cli.engine.release import Speaker


LEVEL_BITS = 8


@hyperparameters
class FedMosaic(FedCT):
    """`trust` is a rule's name or a constant: 0 is Local, 1 with `uniform` expertise is FedCT, bit for bit."""

    expertise: Literal["frequency", "entropy", "uniform"] = "frequency"
    trust: Literal["paper", "stabilised"] | Annotated[float, Field(ge=0, le=1e30)] = "paper"
    expertise_bits: Literal["float32"] | Annotated[int, Field(ge=1, le=32)] = LEVEL_BITS

    name = "fedmosaic"
    title = "FedMosaic"
    family = "co-training"
    travels = "hard labels and expertise up, consensus labels down"
    citation = "Abourayya et al., 2026"

    @property
    def variant(self) -> str:
        return f"{self.name}-{self.expertise}"

    def trust_in(self, consensus: Tensor | None, client: Client) -> float:
        if isinstance(self.trust, float):
            return 0.0 if consensus is None else self.trust
        private_loss = client.private_loss(client.state["model"])
        client.note(loss_private=private_loss, agreement=None)
        if consensus is None:
            return 0.0
        # The model has not changed since it gave its opinion, so those predictions give the public loss as well.
        log_probs = client.state.get("log_probs")
        if log_probs is None:  # It joins a federation that has a consensus already.
            log_probs = client.predict_public(client.state["model"]).log_softmax(dim=1)
        log_probs, consensus = labelled(log_probs, consensus)
        public_loss = mean_cross_entropy(log_probs, consensus)
        agreement = (log_probs.argmax(dim=1) == consensus).double().mean().item()
        client.note(loss_public=public_loss, agreement=agreement)
        return TRUST_RULES[self.trust](private_loss, public_loss)

    def expertise_in(self, log_probs: Tensor, labels: Tensor, client: Speaker) -> NDArray[np.float64]:
        client.state["log_probs"] = log_probs
        if self.expertise == "frequency":
            expertise = frequency_expertise(labels, client.class_counts)
        elif self.expertise == "entropy":
            expertise = entropy_expertise(log_probs)
        else:
            expertise = uniform_expertise(labels)
        return expertise.numpy()

    def opinion_form(self, world: World) -> Form:
        bits = self.expertise_bits
        code = expertise_code(world, ExpertiseCode.FLOATS if bits == "float32" else ExpertiseCode.LEVELS)
        return replace(
            super().opinion_form(world),
            expertise=code,
            expertise_bits=LEVEL_BITS if bits == "float32" else bits,
            high=highest_expertise(self.expertise, world.num_classes),
            share=self.expertise == "frequency" and (world.noise is None or code is ExpertiseCode.HISTOGRAM),
        )
