"""The two baselines: Local trains every client alone, Centralized trains one model on the pooled data.

Centralized takes as many steps as all clients together or, if a round is measured in epochs, as many epochs. Its model
is evaluated on every client's test data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmosaic_cli.engine.method import LearnerSupport, Method, Traffic, hyperparameters

if TYPE_CHECKING:
    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, FederationInfo, ReceivedMessage


@hyperparameters
class Local(Method):
    """Local training without any communication."""

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
    """Local training of one client that holds all training data. A federation would not allow this."""

    name = "centralized"
    title = "Centralized"
    travels = "the raw data"
    evaluated = "the one model trained on the pooled data"
    is_centralized = True

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        return Traffic(None, None)
