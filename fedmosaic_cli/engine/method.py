"""The contract between methods and the engine.

A method is a frozen dataclass. Its fields are its hyper-parameters, its methods are the phases of a round. It has no
state: a client's state is in `client.state`, the server's in `server.state`. What it needs and what it sends is
declared, so that traffic, memory and the checks at remote sites follow from the declaration.

Example:
    FedAvg without its options::

        @hyperparameters
        class MyFedAvg(Method):
            info = MethodInfo("my-fedavg", "My FedAvg", family="FL", exchanges="model parameters in both directions")
            needs = Needs(broadcast_to_evaluate=True)
            uploads = downloads = {"model": Weights()}

            def init_server(self, server, ctx):
                server.state["model"] = params.clone(ctx.initial_model)

            def broadcast(self, server, client_id, ctx):
                return {"model": server.state["model"]}

            def local_round(self, client, received, ctx):
                client.state["model"] = received["model"]
                client.train("model")
                return {"model": client.state.pop("model")}

            def aggregate(self, server, uploads, ctx):
                models = [upload["model"] for upload in uploads.values()]
                server.state["model"] = params.weighted_mean(models, ctx.aggregation_weights(uploads))

            def personal_model(self, client, received):
                return received["model"]

This module does not import torch, so methods can be listed and configured without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, dataclass_transform

from pydantic.dataclasses import dataclass as validated_dataclass

from fedmosaic_cli.engine.context import NO_PARTS
from fedmosaic_cli.schema import STRICT_MODEL_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        Message,
        Parameters,
        Predictor,
        ReceivedMessage,
        Server,
    )
    from fedmosaic_cli.engine.messages import Part

    NetworkFactory = Callable[[nn.Module, int], nn.Module]
    """Returns an additional network. Its arguments are a new copy of the client's network and the number of classes."""

T = TypeVar("T")
MethodFamily = Literal["baseline", "FL", "PFL", "co-training"]
LearnerSupport = Literal["one network", "any network", "anything"]


@dataclass(frozen=True)
class MethodInfo:
    """Describes a method to people.

    Attributes:
        name: The name in files and on the command line.
        title: The name in tables.
        family: The group in tables: a baseline, one model for all clients (FL), personal models (PFL), or co-training.
        exchanges: What clients and server exchange, in words.
        citation: Authors, venue and year.
        evaluates: Which model is evaluated, in words.
        shares_labels: Whether clients upload labels of the public set, as subclasses of `SharesLabels` do.
    """

    name: str
    title: str
    family: MethodFamily = "PFL"
    exchanges: str = "nothing"
    citation: str = "-"
    evaluates: str = "the client's own model"
    shares_labels: bool = False


@dataclass(frozen=True)
class Needs:
    """What a method requires. A run is refused before its start if the configuration does not provide it.

    Attributes:
        public_set: A public set.
        learners: What clients may train: the same network, different networks, or anything that predicts.
        validation: Validation data of every client.
        server_compute: A server that trains and predicts on the public set.
        public_training: Clients that train on the public set alone, the same at all of them; see
            `engine.context.Client.shared_result`.
        peers: Clients send to their neighbours; see `engine.peers.PeerMethod`.
        plain_sgd: The optimizer sgd without momentum.
        averaged_statistics: Running statistics of batch normalisation that are averaged (`train.bn_buffers`).
        total_rounds: The number of planned rounds, because a round depends on it.
        public_labels: The true labels of the public set, in `ctx.public_labels`. For comparison only: no federation
            has them.
        pooled_data: The training data of all clients in one place. No federation allows this.
        broadcast_to_evaluate: `received` in `personal_model`, `global_model` and `finalize`. Without it, `received` is
            empty there, and remote sites save one exchange per round.
        initial_exchange: One exchange before the first round: `local_round` is called once with `client.round` 0.
        networks: Additional networks of every client by name, e.g. a teacher or a network with one more layer. They
            are made from the client's network; for a scikit-learn client from the network of the run (`model`).
    """

    public_set: bool = False
    learners: LearnerSupport = "one network"
    validation: bool = False
    server_compute: bool = False
    public_training: bool = False
    peers: bool = False
    plain_sgd: bool = False
    averaged_statistics: bool = False
    total_rounds: bool = False
    public_labels: bool = False
    pooled_data: bool = False
    broadcast_to_evaluate: bool = False
    initial_exchange: bool = False
    networks: Mapping[str, NetworkFactory] = field(default_factory=dict)


@dataclass(frozen=True)
class Costs:
    """The costs of a client that do not follow from the declared messages.

    Attributes:
        state_models: Models in a client's state at the end of its round, without its upload; may be a fraction.
        trained_models: Models with optimizer state.
        local_rounds: Rounds of local steps in the whole run; None is one per round.
        note: A note on unusually high costs; "" for none.
    """

    state_models: float = 1.0
    trained_models: int = 1
    local_rounds: int | None = None
    note: str = ""


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before its data is loaded; see `Method.warnings`."""

    num_rounds: int
    num_clients: int
    num_participants: int
    has_batch_norm: bool
    public_size: int
    optimizer: str = "adam"
    learning_rate: float = 0.0
    examples_per_client: int | None = None


@dataclass(frozen=True)
class UsedIf:
    """Marks a hyper-parameter that has an effect only with some values of another one.

    Example:
        `gate_folds: Annotated[int, UsedIf("trust", "gated")] = 2`
    """

    name: str
    values: tuple[Any, ...]

    def __init__(self, name: str, *values: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", values)


@dataclass_transform(frozen_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """Make a method class a frozen dataclass whose fields are validated on construction."""
    return validated_dataclass(frozen=True, config=STRICT_MODEL_CONFIG)(cls)  # type: ignore[return-value]


class Method(ABC):
    """A federated-learning method.

    The base class gives every client a model that is never shared; it is also the personal model. Methods that
    average models extend `methods.fedavg.FedAvg`, methods that share labels extend `labels.sharing.SharesLabels`.
    """

    info: ClassVar[MethodInfo]

    @property
    def needs(self) -> Needs:
        """What the method requires. Usually a class attribute."""
        return Needs()

    @property
    def uploads(self) -> Mapping[str, Part]:
        """The parts of a client's message by name, each with its kind. Usually a class attribute."""
        return NO_PARTS

    @property
    def downloads(self) -> Mapping[str, Part]:
        """The parts of the server's message by name, each with its kind. Usually a class attribute."""
        return NO_PARTS

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        """Prepare `client.state` before the first round."""
        client.state["model"] = client.initial_model

    def init_server(self, server: Server, ctx: FederationInfo) -> None:
        """Prepare `server.state` before the first round."""

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        """Return the server's message to a client at the start of a round. Changes nothing.

        Returns:
            Some or all of the parts that `downloads` declares; {} for none.
        """
        return {}

    @abstractmethod
    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        """Run a client's part of a round.

        Args:
            client: The client. Its state may be changed.
            received: The message that `broadcast` returned for this client.
            ctx: What the client knows about the federation.

        Returns:
            All parts that `uploads` declares, or {} for no upload.
        """

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        """Update `server.state` after a round. Called only if there are uploads.

        Args:
            server: The server.
            uploads: The clients' messages by client id, sorted.
            ctx: What the server knows about the federation.
        """

    def finalize(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> None:
        """Change a client's state once, after the last round and before its evaluation, e.g. by fine-tuning.

        A method that overrides this cannot be continued with more rounds. It is called on all clients.
        """

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        """Return the client's personal model, which is evaluated and saved. Changes nothing.

        Args:
            client: The client.
            received: What `broadcast` returns for this client after the round, if `Needs.broadcast_to_evaluate`; else
                {}. It is the same in a simulation and at a site, and must not be changed.

        Returns:
            The parameters of the client's network or, if `predict` is overridden, everything that `predict` reads.
        """
        model: Parameters = client.state["model"]
        return model

    def global_model(self, client: Client, received: ReceivedMessage) -> Parameters | None:
        """Return the global model as this client uses it; None for methods without one. Changes nothing."""
        return None

    def predict(self, model: Parameters, predictor: Predictor, examples: Any) -> Tensor:
        """Return logits for some examples. Override it for prototypes, ensembles or mixtures.

        `fedmosaic evaluate` calls it with the saved model, so it must not depend on anything else.

        Args:
            model: What `personal_model` returned.
            predictor: Computes the outputs of the client's network.
            examples: The examples; pass them to `predictor`.
        """
        return predictor.predict(model, examples)

    def warnings(self, facts: RunFacts) -> list[str]:
        """Return warnings about a configuration, e.g. if it makes this method equivalent to another one."""
        return []

    def costs(self, ctx: FederationInfo) -> Costs:
        """Return the costs of a client in the whole run. `ctx.initial_model` may be empty or without values."""
        return Costs()

    @property
    def variant(self) -> str:
        """The name in paths and table rows. Differs from the name if one method has several rows."""
        return self.info.name


def unused_hyperparameters(method: type[Method], values: Mapping[str, Any]) -> frozenset[str]:
    """Return the hyper-parameters that have no effect, given the values of the others; see `UsedIf`."""
    return frozenset(
        name
        for name, field_info in getattr(method, "__pydantic_fields__", {}).items()
        for mark in field_info.metadata
        if isinstance(mark, UsedIf) and values.get(mark.name) not in mark.values
    )


def has_finalize(method: Method) -> bool:
    """Return whether a method changes its clients after the last round."""
    return type(method).finalize is not Method.finalize


def depends_on_total_rounds(method: Method) -> bool:
    """Return whether a run with more rounds would start differently."""
    return method.needs.total_rounds or has_finalize(method)


def has_prediction_rule(method: Method) -> bool:
    """Return whether a method overrides `predict`."""
    return type(method).predict is not Method.predict
