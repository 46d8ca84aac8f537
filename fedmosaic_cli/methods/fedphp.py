"""FedPHP: each client keeps a moving average of its models, which teaches every global model it receives.

Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021. The local loss is (1 -
strength) CE + strength KT, where KT is distillation from the history model or the maximum mean discrepancy between the
features of both models. After the local round, history <- mu history + (1 - mu) model, where mu grows with the number
of rounds the client took part in, up to `momentum`. The history model is evaluated. Differs from the paper: there is no
teacher in a client's first round. Differs from PFLlib, which evaluates the model just trained and whose defaults leave
out the cross-entropy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.losses import DistillationLoss, FeatureMatchingLoss
from fedmosaic_cli.engine.method import Needs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, LossTerm, Parameters


@hyperparameters
class FedPHP(FedAvg):
    """FedPHP.

    Attributes:
        strength: Weight of the transfer loss. With 0 the global model equals FedAvg's, bit for bit.
        transfer: Distillation, or maximum mean discrepancy of features.
        temperature: Temperature of the distillation.
        momentum: Maximum weight of the history in the moving average.
    """

    strength: Annotated[float, Field(ge=0, le=1)] = 0.05
    transfer: Literal["distillation", "mmd"] = "distillation"
    temperature: Annotated[float, Field(gt=0, le=1e30)] = 4.0
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.9

    info = replace(
        FedAvg.info,
        name="fedphp",
        title="FedPHP",
        family="PFL",
        citation="Li et al., ECML PKDD 2021",
        evaluates="the client's history model, which never leaves it",
    )
    personal_state_key = "history"

    @property
    def needs(self) -> Needs:
        return replace(super().needs, total_rounds=True)

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        client.state["times"] = 0

    def train_local_model(self, client: Client, received: Parameters) -> None:
        if not self.strength or not client.state["times"]:
            super().train_local_model(client, received)
            return
        client.train("model", [self.transfer_term(client)], private_weight=1 - self.strength)

    def transfer_term(self, client: Client) -> LossTerm:
        """Return the transfer loss. The history model is fixed during the round, so its outputs are computed once."""
        history = client.state["history"]
        if self.transfer == "mmd":
            return FeatureMatchingLoss(client.private_features(history), self.strength)
        return DistillationLoss(client.predict_private(history), self.strength, self.temperature)

    def make_upload(self, client: Client, model: Parameters, ctx: FederationInfo) -> Parameters:
        weight = self.history_weight(client.state["times"], ctx)
        client.state["history"] = params.interpolate(model, client.state["history"], 1 - weight)
        client.state["times"] += 1
        return super().make_upload(client, model, ctx)

    def history_weight(self, num_participations: int, ctx: FederationInfo) -> float:
        """Return the weight of the history in the moving average after this many participations."""
        return min(self.momentum * num_participations / (ctx.participation_rate * ctx.num_rounds), self.momentum)
