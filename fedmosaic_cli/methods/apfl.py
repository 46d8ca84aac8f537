"""APFL: a personal model that is a mixture of a private and the shared one, in proportions that each client learns.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020. On each batch the client's copy of the global
model takes a step; then the private model takes one with the gradient at the mixture alpha v + (1 - alpha) w_i, times
alpha. Once a round, at its first step, alpha descends along <v - w_i, gradient at the mixture>. Evaluated is the
mixture with the client's copy as it stands after its last local pass. Differs from the paper: models step with the
run's optimizer, each with its own memory, alpha with `alpha_lr`, and the mean is weighted as in all other methods.
Differs from PFLlib, where the private model is trained by itself and then overwritten by the mixture, and from
FL-bench, where the shared copy takes every step twice. What is mixed are parameters; the authors' later code mixes
outputs, which takes two models to predict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Client, FederationInfo, Parameters, State


@hyperparameters
class APFL(FedAvg):
    """`alpha` is the private model's share at the start; unless `adaptive`, for ever.

    Fixed at 1 the personal model is Local's (from a common start), bit for bit; the global one is FedAvg's for any
    alpha.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    adaptive: bool = True
    alpha_lr: Annotated[float, Field(ge=0, le=1e30)] = 0.1

    name = "apfl"
    title = "APFL"
    family = "PFL"
    citation = "Deng et al., 2020"
    evaluated = "the mixture of the client's private model and its copy of the global one, after its last local pass"
    num_models, num_trained_models = 3, 2

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        copy = params.exclude(ctx.initial_model, ctx.buffer_names)
        client.state |= {"private": params.clone(ctx.initial_model), "copy": params.clone(copy), "alpha": self.alpha}

    def train_local_model(self, client: Client, received: Parameters) -> None:
        private, model, alpha = client.state["private"], client.state["model"], client.state["alpha"]
        for step in client.steps():
            gradient = step.gradient(model)
            client.optimizer_step("model", gradient)
            # The mixture runs on the private model's statistics, which thereby become its own.
            gradient = step.gradient(params.interpolate(private, model, alpha, gradient))
            slope = self.alpha_gradient(private, model, gradient) if self.adaptive and step.number == 1 else 0.0
            client.optimizer_step("private", {name: alpha * tensor for name, tensor in gradient.items()})
            alpha = min(max(alpha - self.alpha_lr * slope, 0.0), 1.0)
        client.state["alpha"] = alpha
        client.log(alpha=alpha)

    def alpha_gradient(self, private: Parameters, model: Parameters, gradient: Parameters) -> float:
        """The derivative of the loss at the mixture by alpha."""
        return params.dot(private, gradient) - params.dot(model, gradient)

    def make_upload(self, client: Client, model: Parameters, ctx: FederationInfo) -> Parameters:
        client.state["copy"] = params.exclude(model, ctx.buffer_names)
        return super().make_upload(client, model, ctx)

    def personal_model(self, server: State, client: Client) -> Parameters:
        private, copy = client.state["private"], client.state["copy"]
        return params.interpolate(private, copy, client.state["alpha"], copy)
