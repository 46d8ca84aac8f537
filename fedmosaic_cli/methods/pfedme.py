"""pFedMe: personal models from the Moreau envelope around the global model.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. On each batch the personal
model takes `inner_steps` plain gradient steps on F_i(theta) + mu/2 ||theta - w_i||^2 (`mu` is the paper's lambda); then
the client's copy moves towards it, w_i <- w_i - lr mu (w_i - theta). The run's optimizer is not used. theta is
evaluated, stored as a copy: in the authors' code and in PFLlib the list of personal parameters is an alias, so w_i or
the global model is evaluated. Differs from the authors' code, which adds 0.001 theta to the inner gradient
(`weight_decay`). Running statistics are those of theta, the only model that is run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import Costs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        Parameters,
        ReceivedMessage,
        RuleStep,
        Server,
        State,
    )


@hyperparameters
class PFedMe(FedAvg):
    """pFedMe.

    Attributes:
        mu: Strength of the proximal term.
        inner_steps, inner_lr: Number and learning rate of the inner gradient steps.
        lr: Learning rate of the client's copy.
        beta: Weight of the mean in the server's update: 1 replaces the server's model, 0 keeps it.
        weight_decay: Weight decay of the inner steps.
    """

    mu: Annotated[float, Field(ge=0, le=1e30)] = 15.0
    inner_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    inner_lr: Annotated[float, Field(gt=0, le=1e30)] = 0.01
    lr: Annotated[float, Field(ge=0, le=1e30)] = 0.005
    beta: Annotated[float, Field(ge=0, le=2)] = 1.0
    weight_decay: Annotated[float, Field(ge=0, le=1e30)] = 0.0

    info = replace(
        FedAvg.info,
        name="pfedme",
        title="pFedMe",
        family="PFL",
        citation="Dinh et al., NeurIPS 2020",
        evaluates="the client's personal model theta, which never leaves it",
    )
    personal_state_key = "personal"

    @model_validator(mode="after")
    def require_stable_step(self) -> PFedMe:
        if self.lr * self.mu > 1:
            raise ValueError(f"lr {self.lr} times mu {self.mu} is above 1 and overshoots theta: lower one of them")
        return self

    def train_local_model(self, client: Client, received: Parameters) -> None:
        client.state["personal"] = params.clone(client.state["model"])
        client.take_steps(self.take_step, ["model", "personal"])
        client.state["model"] = params.clone(client.state["model"])

    def take_step(self, step: RuleStep, state: State) -> None:
        """Move theta by the inner steps, and the client's copy towards theta."""
        model, theta = state["model"], state["personal"]
        for _ in range(self.inner_steps):
            gradient = step.gradient(theta)
            theta = params.add_scaled(theta, self.inner_gradient(theta, gradient, model), -self.inner_lr)
        state["personal"] = theta
        state["model"] = params.interpolate(theta, model, self.lr * self.mu, gradient)

    def inner_gradient(self, theta: Parameters, gradient: Parameters, model: Parameters) -> Parameters:
        """The gradient of F_i(theta) + mu/2 ||theta - model||^2 + weight_decay/2 ||theta||^2, from that of F_i."""
        return {
            name: theta[name].sub(model[name]).mul_(self.mu).add_(slope).add_(theta[name], alpha=self.weight_decay)
            for name, slope in gradient.items()
        }

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        previous = server.state["model"]
        super().aggregate(server, uploads, ctx)
        mean = server.state["model"]
        # Running statistics are not extrapolated: a variance could become negative.
        names = mean.keys() - ctx.group("buffers")
        server.state["model"] = params.interpolate(mean, previous, self.beta, names)

    def costs(self, ctx: FederationInfo) -> Costs:
        return replace(super().costs(ctx), trained_models=0)
