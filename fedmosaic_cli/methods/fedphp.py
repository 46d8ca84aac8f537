"""FedPHP: each client keeps a moving average of its own models, which teaches every global model it receives.

Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021. The local loss is (1 -
strength) CE + strength KT, where KT is either distillation from the history model or the maximum mean discrepancy
between its features and the model's. After the pass, history <- mu history + (1 - mu) model, where mu grows with the
number of times the client has taken part, up to `momentum`. Evaluated is the history model. Differs from the paper:
there is no teacher before there is a history. Differs from PFLlib, which evaluates the model just trained and whose
defaults leave the cross-entropy out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.losses import Distillation, FeatureMatching
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Client, Parameters, Term, World


@hyperparameters
class FedPHP(FedAvg):
    """With `strength` 0 the global model is FedAvg's, bit for bit."""

    strength: Annotated[float, Field(ge=0, le=1)] = 0.05
    transfer: Literal["distillation", "mmd"] = "distillation"
    temperature: Annotated[float, Field(gt=0, le=1e30)] = 4.0
    momentum: Annotated[float, Field(ge=0, le=1)] = 0.9

    name = "fedphp"
    title = "FedPHP"
    family = "PFL"
    citation = "Li et al., ECML PKDD 2021"
    evaluated = "the client's history model, which never leaves it"
    personal_entry = "history"
    models_held = 2
    plans_ahead = True

    def enter(self, client: Client, world: World) -> None:
        super().enter(client, world)
        client.state["times"] = 0

    def train(self, client: Client, received: Parameters) -> None:
        if not self.strength or not client.state["times"]:
            super().train(client, received)
            return
        client.train("model", [self.lesson(client)], private_weight=1 - self.strength)

    def lesson(self, client: Client) -> Term:
        """What the history model teaches in this round: asked once, as it does not change during the pass."""
        history = client.state["history"]
        if self.transfer == "mmd":
            return FeatureMatching(client.private_features(history), self.strength)
        return Distillation(client.predict_private(history), self.strength, self.temperature)

    def hand_over(self, client: Client, model: Parameters, world: World) -> Parameters:
        inherited = self.inherited(client.state["times"], world)
        client.state["history"] = params.mixed(model, client.state["history"], 1 - inherited)
        client.state["times"] += 1
        return super().hand_over(client, model, world)

    def inherited(self, times: int, world: World) -> float:
        """The share of the history that survives, for a client that has taken part so many times before."""
        return min(self.momentum * times / (world.participation * world.rounds), self.momentum)
