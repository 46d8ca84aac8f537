"""pFedHN: the server learns a hypernetwork that generates the model of each client from an embedding.

Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021. A client trains its generated model and
uploads how its parameters changed. For every upload, in the order of clients, the server takes one step of SGD with
momentum on the inner product of generated model and negative change. Differs from the paper: several clients take part
in a round, and the last layer starts with small weights and the initial model as its bias, so that all clients start
near the common initial model. Running statistics stay with the client.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.messages import Weights
from fedmosaic_cli.engine.method import Costs, Method, MethodInfo, Needs, hyperparameters
from fedmosaic_cli.methods.scaffold import trained_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, Parameters, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part

OUTPUT_SCALE = 0.01
"""Factor of the initial weights of the last layer."""


@hyperparameters
class PFedHN(Method):
    """pFedHN.

    Attributes:
        embedding_dim: Size of a client's embedding; None is 1 + clients / 4, as in the paper.
        hidden: Width of the hidden layers.
        hidden_layers: Number of hidden layers.
        lr: Learning rate of the hypernetwork.
        momentum: Momentum of the hypernetwork.
        weight_decay: L2 penalty of the hypernetwork.
        max_grad_norm: Largest norm of a gradient of the hypernetwork.
    """

    embedding_dim: Annotated[int, Field(ge=1, le=4096)] | None = None
    hidden: Annotated[int, Field(ge=1, le=4096)] = 100
    hidden_layers: Annotated[int, Field(ge=0, le=20)] = 3
    lr: Annotated[float, Field(gt=0, le=1e30)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0, le=1e30)] = 1e-3
    max_grad_norm: Annotated[float, Field(gt=0, le=1e30)] = 50.0

    info = MethodInfo(
        "pfedhn",
        "pFedHN",
        exchanges="the client's generated model down, its change up",
        citation="Shamsian et al., ICML 2021",
        evaluates="the model that the hypernetwork generates for the client",
    )

    @property
    def needs(self) -> Needs:
        return Needs(broadcast_to_evaluate=True)

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"change": Weights(names=trained_names)}

    @property
    def downloads(self) -> Mapping[str, Part]:
        return {"model": Weights(names=trained_names)}

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        client.state["buffers"] = params.clone(params.select(ctx.initial_model, ctx.group("buffers")))
        client.state["has_statistics"] = False

    def init_server(self, server: Server, ctx: FederationInfo) -> None:
        import torch

        rng, template = server.rng("hypernetwork"), params.select(ctx.initial_model, trained_names(ctx))
        first = next(iter(template.values()))

        def normal(*shape: int) -> Tensor:
            return torch.as_tensor(rng.normal(0, shape[-1] ** -0.5, shape)).to(first)

        num_clients = max(ctx.client_sizes) + 1
        widths = [self.embedding_dim or 1 + num_clients // 4, *[self.hidden] * self.hidden_layers]
        network = {"embeddings": normal(num_clients, widths[0])}
        for number, (before, after) in enumerate(pairwise(widths)):
            network |= {f"hidden{number}.weight": normal(after, before), f"hidden{number}.bias": first.new_zeros(after)}
        for name, tensor in template.items():
            network[f"output.{name}.weight"] = OUTPUT_SCALE * normal(tensor.numel(), widths[-1])
            network[f"output.{name}.bias"] = tensor.detach().flatten().clone()
        server.state["hypernetwork"] = network
        server.state["momentum"] = params.zeros_like(network)

    def generated_model(self, network: Parameters, client_id: int, ctx: FederationInfo) -> Parameters:
        """Return the model that the hypernetwork generates for a client."""
        hidden = network["embeddings"][client_id]
        for number in range(self.hidden_layers):
            hidden = (network[f"hidden{number}.weight"] @ hidden + network[f"hidden{number}.bias"]).relu()
        return {
            name: (network[f"output.{name}.weight"] @ hidden + network[f"output.{name}.bias"]).view(tensor.shape)
            for name, tensor in params.select(ctx.initial_model, trained_names(ctx)).items()
        }

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        return {"model": self.generated_model(server.state["hypernetwork"], client_id, ctx)}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        start = received["model"]
        client.state["model"] = {**params.clone(start), **client.state["buffers"]}
        client.train("model")
        model = client.state.pop("model")
        client.state["buffers"] = params.select(model, client.state["buffers"])
        client.state["has_statistics"] = True
        return {"change": params.add_scaled(params.select(model, start), start, -1)}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        import torch

        for client, upload in uploads.items():
            network = {n: t.detach().clone().requires_grad_() for n, t in server.state["hypernetwork"].items()}
            with torch.enable_grad():
                model = self.generated_model(network, client, ctx)
                loss = -sum((model[name] * change).sum() for name, change in upload["change"].items())
                gradients = torch.autograd.grad(loss, list(network.values()))
            gradient = dict(zip(network, gradients, strict=True))
            self.hypernetwork_step(server, gradient)

    def hypernetwork_step(self, server: Server, gradient: Parameters) -> None:
        """Take one step of SGD with momentum, weight decay and clipping."""
        network, norm = server.state["hypernetwork"], params.dot(gradient, gradient) ** 0.5
        gradient = params.scaled(gradient, min(1.0, self.max_grad_norm / norm) if norm else 1.0)
        gradient = params.add_scaled(gradient, network, self.weight_decay)
        momentum = params.add_scaled(gradient, server.state["momentum"], self.momentum)
        server.state["momentum"] = momentum
        server.state["hypernetwork"] = params.add_scaled(network, momentum, -self.lr)

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        model = {**received["model"], **client.state["buffers"]}
        if not client.state["buffers"] or client.state["has_statistics"]:
            return model
        # Initial running statistics are useless: a client that has not trained yet computes them from its data.
        return {**model, **client.running_statistics(model)}

    def costs(self, ctx: FederationInfo) -> Costs:
        return Costs(state_models=0)
