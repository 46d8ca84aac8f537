"""FedAvg with fine-tuning: after the last round every client trains the global model on its own data.

The strongest simple baseline of personalized federated learning, e.g. in Wang et al., Federated Evaluation of On-device
Personalization, 2019. Training is that of FedAvg, so all rounds before the last one are evaluated as in FedAvg.
Fine-tuning uses the run's optimizer with a new state. Running statistics adapt to the client, unless only the head is
tuned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import Costs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Parameters, ReceivedMessage

TUNED_KEY = "tuned"


@hyperparameters
class FedAvgFT(FedAvg):
    """FedAvg with fine-tuning.

    Attributes:
        epochs: Passes over the client's training data. With 0 it equals FedAvg, bit for bit.
        parameters: What is tuned: the whole model, or its head only.
    """

    epochs: Annotated[int, Field(ge=0, le=1000)] = 5
    parameters: Literal["all", "head"] = "all"

    info = replace(
        FedAvg.info,
        name="fedavgft",
        title="FedAvg-FT",
        family="PFL",
        citation="Wang et al., 2019",
        evaluates="the global model, fine-tuned on the client's training data after the last round",
    )

    def finalize(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> None:
        if not self.epochs:
            return
        client.state[TUNED_KEY] = params.clone(self.with_local_parameters(received["model"], client))
        names = None if self.parameters == "all" else ctx.group("head")
        client.train(TUNED_KEY, parameters=names, epochs=self.epochs, stream="finetune")

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        tuned: Parameters | None = client.state.get(TUNED_KEY)
        return super().personal_model(client, received) if tuned is None else tuned

    def costs(self, ctx: FederationInfo) -> Costs:
        costs = super().costs(ctx)
        return replace(costs, state_models=costs.state_models + 1, trained_models=2) if self.epochs else costs
