"""The two baselines: Local trains every client alone, Centralized trains one model on the pooled data.

Centralized takes as many steps as all clients together or, if a round is measured in epochs, as many epochs. Its model
is evaluated on every client's test data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.engine.method import Method, MethodInfo, Needs, hyperparameters

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, ReceivedMessage


@hyperparameters
class Local(Method):
    """Local training without any communication."""

    info = MethodInfo("local", "Local training", family="baseline")

    @property
    def needs(self) -> Needs:
        return Needs(learners="anything")

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        client.train("model")
        return {}


@hyperparameters
class Centralized(Local):
    """Local training of one client that holds all training data. A federation would not allow this."""

    info = MethodInfo(
        "centralized",
        "Centralized",
        family="baseline",
        exchanges="the raw data",
        evaluates="the one model trained on the pooled data",
    )

    @property
    def needs(self) -> Needs:
        return Needs(learners="anything", pooled_data=True)
