"""Per-FedAvg: the global model is an initialisation that adapts to a client with one gradient step.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020. Minimises sum_i
F_i(w - alpha grad F_i(w)). A step uses independent batches for the inner gradient, the outer gradient and the Hessian.
The global model after one plain step of size alpha on a batch of the client's training data is evaluated; the step
works on a copy and keeps running statistics. Differs from the paper: the outer step uses the run's optimizer with
learning rate beta (the paper's plain step with `train.optimizer=sgd`), and the mean is weighted as in all other
methods. Differs from PFLlib, whose beta is the learning rate and whose evaluation changes running statistics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, Parameters, ReceivedMessage, RuleStep, State


@hyperparameters
class PerFedAvg(FedAvg):
    """Per-FedAvg.

    Attributes:
        alpha: Step size of the adaptation. 0 equals FedAvg with learning rate `beta`, bit for bit.
        beta: Learning rate of the outer step.
        version: `first-order` ignores the Hessian; `hessian-free` approximates it by a difference of gradients.
        delta: Step size of that difference.
    """

    alpha: Annotated[float, Field(ge=0, le=1e30)] = 0.01
    beta: Annotated[float, Field(ge=0, le=1e30)] = 0.001
    version: Literal["first-order", "hessian-free"] = "first-order"
    delta: Annotated[float, Field(gt=0, le=1e30)] = 0.001

    info = replace(
        FedAvg.info,
        name="perfedavg",
        title="Per-FedAvg",
        family="PFL",
        citation="Fallah et al., NeurIPS 2020",
        evaluates="the global model after one step on the client's training data",
    )

    def train_local_model(self, client: Client, received: Parameters) -> None:
        streams = ["inner", "curvature"] if self.version == "hessian-free" else ["inner"]
        client.take_steps(self.take_step, ["model"], streams)

    def take_step(self, step: RuleStep, state: State) -> None:
        """Take an outer step with the gradient at the adapted model."""
        model = state["model"]
        inner = step.gradient(model, "inner", update_running_stats=False)
        # The outer batch is that of FedAvg, and only it updates running statistics.
        outer = step.gradient(params.add_scaled(model, inner, -self.alpha))
        if self.version == "hessian-free":
            outer = params.add_scaled(outer, self.hessian_vector_product(step, model, outer), -self.alpha)
        step.optimizer_step("model", outer, lr=self.beta)

    def hessian_vector_product(self, step: RuleStep, model: Parameters, direction: Parameters) -> Parameters:
        """Return the Hessian at `model` times `direction`, from two gradients on one batch."""
        ahead, behind = (
            step.gradient(params.add_scaled(model, direction, distance), "curvature", update_running_stats=False)
            for distance in (self.delta, -self.delta)
        )
        return {name: (tensor - behind[name]) / (2 * self.delta) for name, tensor in ahead.items()}

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        model = self.with_local_parameters(received["model"], client)
        return params.add_scaled(model, client.gradient(model, "adaptation"), -self.alpha)
