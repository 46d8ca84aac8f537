"""Gated co-training: FedMosaic's exchange with a trust that has to prove itself. Not in the paper.

Clients learn from the consensus only where a cross-fitted test on their own data says that it helps them; where it does
not, they are Local, bit for bit, and still vote. Votes come from models that learned to doubt whatever is unlike their
own data, and weigh what a client has seen of a class and how sure it is. Pseudo-labels are read against the client's
own mix of classes. docs/trust.md has the definitions, and what they gain.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedmosaic import FedMosaic


@hyperparameters
class GatedCoTraining(FedMosaic):
    """FedMosaic with other defaults, under a name of its own."""

    expertise: Literal["frequency", "entropy", "count", "count-confidence", "uniform"] = "count-confidence"
    trust: Literal["paper", "stabilised", "agreement", "gated"] | Annotated[float, Field(ge=0, le=1e30)] = "gated"
    warmup_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    public_loss: Literal["plain", "prior-adjusted"] = "prior-adjusted"
    votes_from: Literal["self", "shadow", "doubting"] = "doubting"

    name = "gated"
    title = "Gated co-training"
    citation = "docs/trust.md"

    @property
    def variant(self) -> str:
        return self.name
