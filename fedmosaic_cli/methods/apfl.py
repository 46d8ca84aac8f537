"""APFL: the personal model is a mixture of a private and the global model, with a learned mixing weight per client.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020. On each batch the client's copy of the global
model takes a step; then the private model takes one with alpha times the gradient at the mixture alpha v +
(1 - alpha) w_i. Once per round, at the first step, alpha takes a gradient step along <v - w_i, gradient at the
mixture>. The mixture with the client's copy of after its last local round is evaluated. Differs from the paper: models
use the run's optimizer with separate states, alpha uses `alpha_lr`, and the mean is weighted as in all other methods.
Differs from PFLlib, which trains the private model alone and overwrites it with the mixture, and from FL-bench, where
the global copy takes every step twice. Parameters are mixed; the authors' later code mixes outputs, which needs two
models for a prediction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import Costs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        Parameters,
        PerClientScalar,
        ReceivedMessage,
        RuleStep,
        State,
    )


@hyperparameters
class APFL(FedAvg):
    """APFL. The global model equals FedAvg's for any alpha.

    Attributes:
        alpha: Initial weight of the private model. Fixed at 1, the personal model equals Local's from a common start.
        adaptive: Whether alpha is learned.
        alpha_lr: Learning rate of alpha.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True
    alpha_lr: Annotated[float, Field(ge=0, le=1e30)] = 0.1

    info = replace(
        FedAvg.info,
        name="apfl",
        title="APFL",
        family="PFL",
        citation="Deng et al., 2020",
        evaluates="the mixture of the client's private model and its copy of the global one, after its last local pass",
    )

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        copy = params.exclude(ctx.initial_model, ctx.group("buffers"))
        client.state |= {"private": params.clone(ctx.initial_model), "copy": params.clone(copy), "alpha": self.alpha}

    def train_local_model(self, client: Client, received: Parameters) -> None:
        client.take_steps(self.take_step, ["model", "private", "alpha"])
        client.log(alpha=client.state["alpha"])

    def take_step(self, step: RuleStep, state: State) -> None:
        """Take a step with the client's copy of the global model, and one with the private model."""
        private, model, alpha = state["private"], state["model"], state["alpha"]
        gradient = step.gradient(model)
        step.optimizer_step("model", gradient)
        # The mixture uses and updates the running statistics of the private model.
        gradient = step.gradient(params.interpolate(private, model, alpha, gradient))
        if self.adaptive and step.number == 1:
            alpha_gradient = self.alpha_gradient(step, private, model, gradient)
            state["alpha"] = params.clamp(alpha - self.alpha_lr * alpha_gradient, 0.0, 1.0)
        step.optimizer_step("private", params.scaled(gradient, alpha))

    def alpha_gradient(
        self, step: RuleStep, private: Parameters, model: Parameters, gradient: Parameters
    ) -> PerClientScalar:
        """Return the derivative of the loss at the mixture with respect to alpha."""
        return step.dot(private, gradient) - step.dot(model, gradient)

    def make_upload(self, client: Client, model: Parameters, ctx: FederationInfo) -> Parameters:
        client.state["copy"] = params.exclude(model, ctx.group("buffers"))
        return super().make_upload(client, model, ctx)

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        private, copy = client.state["private"], client.state["copy"]
        return params.interpolate(private, copy, client.state["alpha"], copy)

    def costs(self, ctx: FederationInfo) -> Costs:
        return replace(super().costs(ctx), state_models=super().costs(ctx).state_models + 2, trained_models=2)
