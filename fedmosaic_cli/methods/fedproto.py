"""FedProto: clients share the mean features of their classes, called prototypes, and no weights.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. The loss is cross-entropy
plus `mu` times the mean squared distance between features and the global prototype of their class. A prediction is the
class of the nearest global prototype. Prototypes are computed after training, in evaluation mode; PFLlib averages
features during training. The server weighs them by the number of examples, as the paper does; PFLlib and the authors'
code do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedmosaic_cli.engine.execution.transfers import to_device
from fedmosaic_cli.engine.losses import ToDeviceMixin
from fedmosaic_cli.engine.messages import Tensors
from fedmosaic_cli.engine.method import Method, MethodInfo, Needs, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        Message,
        Parameters,
        Predictor,
        ReceivedMessage,
        Server,
        StepOutputs,
    )

MEANS, COUNTS = "prototypes.means", "prototypes.counts"


@dataclass(frozen=True)
class PrototypeLoss(ToDeviceMixin):
    """Mean squared distance between the features of a private batch and the prototypes of their classes.

    Attributes:
        targets: The prototype of each training example [examples, width].
        has_target: 1 for examples whose class has a prototype, else 0.
    """

    targets: Tensor
    has_target: Tensor
    weight: float
    log_key: ClassVar[str] = "loss_prototypes"
    uses_public: ClassVar[bool] = False

    def loss(self, outputs: StepOutputs) -> Tensor:
        index = outputs.private_indices
        distances = (outputs.private_features - self.targets[index]).square().mean(dim=1)
        return (distances * self.has_target[index]).mean()


def prototype_shapes(ctx: FederationInfo) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a message: mean features and number of examples per class."""
    return {"means": (ctx.num_classes, ctx.feature_dim), "counts": (ctx.num_classes,)}


@hyperparameters
class FedProto(Method):
    """FedProto.

    Attributes:
        mu: Weight of the distance to prototypes. With 0, training equals Local, bit for bit.
        prediction: The class of the nearest global prototype, or the client's own classifier.
    """

    mu: Annotated[float, Field(ge=0, le=1e30)] = 1.0
    prediction: Literal["prototype", "classifier"] = "prototype"

    info = MethodInfo(
        "fedproto",
        "FedProto",
        exchanges="mean features and number of examples per class, in both directions",
        citation="Tan et al., AAAI 2022",
        evaluates="the client's own body with the nearest global prototype",
    )
    uploads: ClassVar[Mapping[str, Tensors]] = {"prototypes": Tensors(prototype_shapes)}
    downloads: ClassVar[Mapping[str, Tensors]] = {"prototypes": Tensors(prototype_shapes)}

    @property
    def needs(self) -> Needs:
        return Needs(broadcast_to_evaluate=self.prediction == "prototype")

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        return {"prototypes": server.state["prototypes"]} if "prototypes" in server.state else {}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        terms, labels = [], client.train_labels
        if received and self.mu:
            prototypes = received["prototypes"]
            labels = to_device(labels, prototypes["means"].device)
            has_target = (prototypes["counts"] > 0).to(prototypes["means"].dtype)
            terms = [PrototypeLoss(prototypes["means"][labels], has_target[labels], self.mu)]
        client.train("model", terms)
        features = client.private_features(client.state["model"])
        counts = to_device(client.class_counts.to(features.dtype), features.device)
        sums = features.new_zeros(ctx.num_classes, features.shape[1])
        sums.index_add_(0, to_device(labels, features.device), features)
        return {"prototypes": {"means": sums / counts.clamp(min=1)[:, None], "counts": counts}}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        sent = [upload["prototypes"] for upload in uploads.values()]
        counts = sum(own["counts"] for own in sent)
        sums = sum(own["means"] * own["counts"][:, None] for own in sent)
        # A class that no participant holds keeps its prototype.
        means, known = sums / counts.clamp(min=1)[:, None], server.state.get("prototypes")
        if known is not None:
            means = means.where(counts[:, None] > 0, known["means"])
            counts = counts.where(counts > 0, known["counts"])
        server.state["prototypes"] = {"means": means, "counts": counts}

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        model: Parameters = client.state["model"]
        if not received:
            return model
        prototypes = received["prototypes"]
        return {**model, MEANS: prototypes["means"], COUNTS: prototypes["counts"]}

    def predict(self, model: Parameters, predictor: Predictor, examples: Any) -> Tensor:
        import torch

        if MEANS not in model:
            return predictor.predict(model, examples)
        features, is_known = predictor.features(model, examples), model[COUNTS] > 0
        distances = torch.cdist(features, model[MEANS]).square()
        # Classes without a prototype are never predicted, and keep the loss finite.
        farthest = distances.max(dim=1, keepdim=True).values + 1
        logits: Tensor = -distances.where(is_known[None], farthest)
        return logits
