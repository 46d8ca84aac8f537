"""The two baselines every personalized method has to beat.

Local: each client trains alone. Centralized: the same training on everybody's data in one place, with as many steps as
all clients take together, or, where a round is measured in epochs, with as many of those; its one model is examined on
every client's own test part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmosaic_cli.engine.method import LearnerSupport, Method, Traffic, hyperparameters

if TYPE_CHECKING:
    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, FederationInfo, ReceivedMessage


@hyperparameters
class Local(Method):
    """No collaboration: nothing is sent, nothing received."""

    name = "local"
    title = "Local training"
    family = "baseline"
    travels = "nothing"
    citation = "-"
    learners: ClassVar[LearnerSupport] = "anything"

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        client.train("model")
        return {}


@hyperparameters
class Centralized(Local):
    """Local training of one client that holds all training data. Raw data travels, which no federation allows."""

    name = "centralized"
    title = "Centralized"
    travels = "the raw data"
    evaluated = "the one model trained on the pooled data"
    is_centralized = True

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        return Traffic(None, None)
