"""FedFomo: each client mixes models of other clients by how much they lower its validation loss.

Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021. The server keeps the model
of every client and sends each client `num_models` of them: those with the highest scores, or with probability epsilon
random ones. The client weighs a received model w_n by max(0, L(w_i) - L(w_n)) / ||w_n - w_i|| on its validation data,
where w_i is its own model, normalises the weights, moves towards the mixture and then trains. Scores are added up over
rounds. A client never gets its own model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.execution.transfers import read_values
from fedmosaic_cli.engine.messages import PerClient, Tensors, Weights
from fedmosaic_cli.engine.method import Costs, Method, MethodInfo, Needs, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, Parameters, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part


@hyperparameters
class FedFomo(Method):
    """FedFomo. It equals Local from a common start if no other model helps.

    Attributes:
        num_models: Models that a client receives per round.
        epsilon: Probability of a random choice in the first round.
        epsilon_decay: Decrease of that probability per round.
    """

    num_models: Annotated[int, Field(ge=1, le=100_000)] = 5
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.3
    epsilon_decay: Annotated[float, Field(ge=0, le=1)] = 0.05

    info = MethodInfo(
        "fedfomo",
        "FedFomo",
        exchanges="model parameters and scores up, models of other clients down",
        citation="Zhang et al., ICLR 2021",
    )

    @property
    def needs(self) -> Needs:
        return Needs(validation=True)

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"model": Weights(), "scores": Tensors(lambda ctx: {"scores": (len(ctx.client_sizes),)})}

    @property
    def downloads(self) -> Mapping[str, Part]:
        return {"models": PerClient(Weights(), lambda ctx: min(self.num_models, len(ctx.client_sizes) - 1))}

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        client.state["model"] = params.clone(ctx.initial_model)

    def init_server(self, server: Server, ctx: FederationInfo) -> None:
        server.state |= {"models": {}, "scores": {}}

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        models = server.state["models"]
        others = [client for client in ctx.client_sizes if client != client_id and str(client) in models]
        if not others:
            return {}
        scores, rng = server.state["scores"].get(str(client_id)), server.rng(f"choice-{client_id}")
        order = [others[position] for position in rng.permutation(len(others))]
        is_random = rng.random() < self.epsilon - self.epsilon_decay * (server.round - 1)
        if scores is not None and not is_random:
            values = read_values(scores)
            order.sort(key=lambda client: -values[client])
        return {"models": {client: models[str(client)] for client in order[: self.num_models]}}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        own, others = client.state["model"], received.get("models", {})
        scores = self.scores(client, own, others, ctx)
        client.state["model"] = self.mixture(own, others, {other: max(0.0, s) for other, s in scores.items()})
        client.log(mixed_models=sum(score > 0 for score in scores.values()))
        client.train("model")
        dense = next(iter(own.values())).new_zeros(len(ctx.client_sizes))
        for other, score in scores.items():
            dense[other] = score
        return {"model": client.state["model"], "scores": {"scores": dense}}

    def scores(
        self, client: Client, own: Parameters, others: Mapping[int, Parameters], ctx: FederationInfo
    ) -> dict[int, float]:
        """Return how much each model lowers the validation loss, relative to the distance of its parameters."""
        weights = params.exclude(own, ctx.group("buffers"))
        loss = client.validation_loss(own) if others else 0.0
        distances = {other: params.squared_distance(weights, model) ** 0.5 for other, model in others.items()}
        return {
            other: (loss - client.validation_loss(model)) / distances[other] if distances[other] else 0.0
            for other, model in others.items()
        }

    def mixture(self, own: Parameters, others: Mapping[int, Parameters], weights: Mapping[int, float]) -> Parameters:
        """Return own + sum_n w_n (model_n - own), with weights that are normalised to a sum of 1."""
        total = sum(weights.values())
        if not total:
            return own
        helpful = [other for other in others if weights[other]]
        return params.weighted_mean([others[other] for other in helpful], [weights[other] for other in helpful])

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        scores = server.state["scores"]
        for client, upload in uploads.items():
            server.state["models"][str(client)] = upload["model"]
            new = upload["scores"]["scores"]
            scores[str(client)] = scores[str(client)] + new if str(client) in scores else new

    def costs(self, ctx: FederationInfo) -> Costs:
        return Costs(state_models=1)
