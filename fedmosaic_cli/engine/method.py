"""The contract between methods and the engine.

A method is a frozen dataclass. Its fields are its hyper-parameters, its methods are the phases of a round. It has no
state: a client's state is in `client.state`, the server's state is passed to the phases and returned by `aggregate`.
A method uses only the names in this module, the message parts, the loss terms and `engine.params`. This module does
not import torch, so methods can be listed and configured without it.

Example:
    A method that trains locally and averages nothing::

        @hyperparameters
        class Local(Method):
            name = "local"
            title = "Local"
            ...

            def local_round(self, client, received, ctx):
                client.train("model")
                return {}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform

from pydantic.dataclasses import dataclass as validated_dataclass

from fedmosaic_cli.schema import STRICT_MODEL_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.train_settings import AggregationWeighting, BatchNormStatistics
    from fedmosaic_cli.seeds import RandomSource

Parameters = dict[str, Any]
"""A model: its tensors by name, including buffers."""

State = dict[str, Any]
"""The state of a client or of the server: tensors, numbers, and dictionaries of these. The order of keys is not kept
across a checkpoint."""

ReceivedMessage = dict[str, Any]
"""A message as the receiver sees it: by part, a tensor or `Parameters`."""

T = TypeVar("T")
MethodFamily = Literal["baseline", "FL", "PFL", "co-training"]
LearnerSupport = Literal["one network", "any network", "anything"]


@dataclass(frozen=True)
class FederationInfo:
    """What every participant knows about the federation. It contains no client data.

    Attributes:
        num_classes: Number of classes.
        initial_model: The initial global model.
        client_sizes: Number of training examples per client, as declared by the clients.
        num_rounds: Number of planned rounds.
        float_bits: Size of a number sent without compression.
        participation_rate: Fraction of clients per round.
        aggregation: Weights of clients in a mean of models: their number of examples, or equal.
        bn_buffers: What happens to batch-normalisation statistics where models are averaged.
        buffer_names: Entries of `initial_model` that are running statistics.
        batch_norm_names: Entries of `initial_model` that belong to batch normalisation, including its statistics.
        public_size: Number of public examples.
        run_id: Identifies the run in messages.
        public_set_id: Identifies the public set and its order in messages.
        extensions: Further information for a family of methods, by name; see `labels.sharing`.
    """

    num_classes: int
    initial_model: Parameters
    client_sizes: Mapping[int, int]
    num_rounds: int
    float_bits: int = 32
    participation_rate: float = 1.0
    aggregation: AggregationWeighting = "samples"
    bn_buffers: BatchNormStatistics = "average"
    buffer_names: frozenset[str] = frozenset()
    batch_norm_names: frozenset[str] = frozenset()
    public_size: int = 0
    run_id: bytes = bytes(16)
    public_set_id: bytes = bytes(16)
    extensions: Mapping[str, Any] = field(default_factory=dict)

    def aggregation_weights(self, clients: Iterable[int]) -> list[float]:
        """Return the weights of these clients in a mean of models."""
        return [self.client_sizes[client] if self.aggregation == "samples" else 1 for client in clients]


@dataclass(frozen=True)
class Traffic:
    """Bits sent and received by a client in a round; None if the data itself is moved (centralized training)."""

    uplink_bits: int | None = 0
    downlink_bits: int | None = 0


class LossTerm(Protocol):
    """A term that a method adds to a client's private cross-entropy."""

    uses_public: ClassVar[bool]
    """Whether every step also draws a public batch."""
    log_key: ClassVar[str]
    """The key of the term's mean over the round in the log."""

    @property
    def weight(self) -> float:
        """The weight of the term in the loss."""

    def to_device(self, device: torch.device) -> LossTerm:
        """Return the term with its tensors on `device`. Called once per round."""

    def loss(self, outputs: StepOutputs) -> Tensor:
        """Return the unweighted loss on the batches of a step. It must not read values back to the CPU."""


class StepOutputs(Protocol):
    """The model's outputs on the batches of a step. The public values exist only if a term uses them."""

    private_indices: Tensor
    """Positions of the private batch in the client's training data."""
    private_features: Tensor
    """Outputs of the model's body on the private batch."""
    private_logits: Tensor
    public_indices: Tensor
    """Positions of the public batch in the public set."""
    public_logits: Tensor


@dataclass(frozen=True)
class ProximalTerm:
    """Adds the gradient of strength/2 ||w - anchor||^2 to the gradient of every step."""

    anchor: Parameters
    strength: float


class Step(Protocol):
    """One step of a local round with a custom update rule; see `Client.steps`."""

    number: int
    """The number of the step, from 1."""

    def gradient(
        self, parameters: Parameters, stream: str = "private", update_running_stats: bool = True
    ) -> Parameters:
        """Return the gradient of the mean cross-entropy at `parameters` on this step's batch from `stream`.

        Args:
            parameters: The model. Its running statistics are updated unless `update_running_stats` is False.
            stream: The batch to use: "private", or a stream that was passed to `Client.steps`.
            update_running_stats: Whether batch-normalisation statistics are updated.
        """


class Client(Protocol):
    """A client as its method sees it."""

    id: int
    round: int
    """The current round, from 1."""
    state: State

    @property
    def initial_model(self) -> Parameters:
        """A new copy of this client's initial model."""

    @property
    def train_labels(self) -> Tensor:
        """The labels of the training data, on the CPU."""

    @property
    def class_counts(self) -> Tensor:
        """The number of training examples per class, on the CPU."""

    def train(
        self,
        model: str,
        terms: Sequence[LossTerm] = (),
        proximal: ProximalTerm | None = None,
        private_weight: float = 1.0,
        examples: Tensor | None = None,
    ) -> None:
        """Train `state[model]` in place for one round of local steps, and log the mean losses.

        Args:
            model: The key of the model in `state`.
            terms: Terms added to the loss.
            proximal: A proximal term added to every gradient.
            private_weight: The weight of the private cross-entropy.
            examples: Positions of the training examples to use. None uses all of them.
        """

    def steps(self, *streams: str) -> Iterator[Step]:
        """Iterate over the steps of a round, for methods with a custom update rule. Logs the mean loss.

        Args:
            *streams: Names of additional batches per step, drawn independently of the "private" batch that `train`
                would use.
        """

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        """Apply one step of the run's optimizer to `state[model]`, in place.

        Args:
            model: The key of the model in `state`.
            gradient: The gradient.
            lr: A learning rate to use instead of the run's.
        """

    def gradient(self, parameters: Parameters, stream: str) -> Parameters:
        """Return the gradient of the mean cross-entropy on one batch drawn from `stream`. Changes nothing."""

    def running_statistics(self, parameters: Parameters) -> Parameters:
        """Return batch-normalisation statistics for `parameters` from one pass over the training data."""

    def private_loss(self, parameters: Parameters) -> float:
        """Return the mean cross-entropy on the training data, in evaluation mode."""

    def predict_private(self, parameters: Parameters) -> Tensor:
        """Return logits [examples, classes] on the training data, in evaluation mode."""

    def private_features(self, parameters: Parameters) -> Tensor:
        """Return the outputs of the model's body on the training data, in evaluation mode."""

    def predict_public(self, parameters: Parameters) -> Tensor:
        """Return logits [examples, classes] on the public set, in evaluation mode, on the CPU."""

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator derived from the seed, this purpose, the client and the round."""

    def privacy_rng(self, purpose: str) -> RandomSource:
        """Return the generator of privacy noise: seeded in simulations, from the operating system on real sites."""

    def log(self, **values: Any) -> None:
        """Add values to this round's log row of the client."""


@dataclass_transform(frozen_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """Make a method class a frozen dataclass whose fields are validated on construction."""
    return validated_dataclass(frozen=True, config=STRICT_MODEL_CONFIG)(cls)  # type: ignore[return-value]


class Method(ABC):
    """A federated-learning method.

    The base class gives every client a model that is never shared; it is also the personal model. Methods that
    average models extend `methods.fedavg.FedAvg`, methods that share labels extend `labels.sharing.SharesLabels`.
    """

    name: ClassVar[str]
    """The name in files and on the command line."""
    title: ClassVar[str]
    """The name in tables, as the paper spells it."""
    family: ClassVar[MethodFamily]
    travels: ClassVar[str]
    """What clients and server exchange, in words."""
    citation: ClassVar[str]
    evaluated: ClassVar[str] = "the client's own model"
    """Which model is evaluated, in words."""
    is_centralized: ClassVar[bool] = False
    """Whether it trains on the pooled data of all clients."""
    needs_public_set: ClassVar[bool] = False
    shares_labels: ClassVar[bool] = False
    """Whether it extends `labels.sharing.SharesLabels`."""
    uploads: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The parts of an upload and their kinds, e.g. {"model": "weights"}."""
    evaluation_needs_server: ClassVar[bool] = False
    """Whether a client needs the server's state of after the round to evaluate its model."""
    learners: ClassVar[LearnerSupport] = "one network"
    """What clients may train: the same network, different networks, or anything that predicts."""
    num_models: ClassVar[int] = 1
    """Models in a client's memory at the end of its round, including its upload."""
    num_trained_models: ClassVar[int] = 1
    """Models with optimizer state."""
    needs_total_rounds: ClassVar[bool] = False
    """Whether a round depends on the number of planned rounds."""

    @classmethod
    def unused_hyperparameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        """Return the hyper-parameters that have no effect, given the values of the others."""
        return frozenset()

    @property
    def supported_learners(self) -> LearnerSupport:
        """What clients may train with these hyper-parameters."""
        return self.learners

    @property
    def depends_on_total_rounds(self) -> bool:
        """Whether a round depends on the number of planned rounds, with these hyper-parameters."""
        return self.needs_total_rounds

    @property
    def peak_model_counts(self) -> tuple[int, int]:
        """The maximum number of models per client, and how many of them have optimizer state."""
        return self.num_models, self.num_trained_models

    def local_passes(self, num_rounds: int) -> int:
        """Return how many rounds of local steps a client computes in `num_rounds` rounds."""
        return num_rounds

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        """Prepare `client.state` before the first round."""
        client.state["model"] = client.initial_model

    def init_server(self, ctx: FederationInfo) -> State:
        """Return the server's state before the first round."""
        return {}

    def broadcast(self, server: State, client_id: int, ctx: FederationInfo) -> Message:
        """Return the server's message to a client at the start of a round."""
        return {}

    @abstractmethod
    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        """Run a client's part of a round.

        Args:
            client: The client. Its state may be changed.
            received: The message that `broadcast` returned for this client.
            ctx: What the client knows about the federation.

        Returns:
            The message to the server; {} for none.
        """

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        """Return the server's state after a round. Called only if there are uploads.

        Args:
            server: The state before.
            uploads: The clients' messages by client id, sorted.
            ctx: What the server knows about the federation.
        """
        return server

    def personal_model(self, server: State, client: Client) -> Parameters:
        """Return the client's personal model, which is evaluated and saved. Changes nothing."""
        model: Parameters = client.state["model"]
        return model

    def global_model(self, server: State, client: Client) -> Parameters | None:
        """Return the global model as this client uses it; None for methods without one. Changes nothing."""
        return None

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        """Return the traffic of a client in a round with an exchange, before the run."""
        return Traffic()

    def cost_note(self, num_rounds: int) -> str:
        """Return a note on unusually high compute cost; "" for none."""
        return ""

    def warning(self, num_rounds: int, num_participants: int, has_batch_norm: bool) -> str:
        """Return a warning if the configuration makes this method equivalent to another one; "" for none.

        Example: FedBN without batch normalisation is FedAvg.
        """
        return ""

    @property
    def variant(self) -> str:
        """The name in paths and table rows. Differs from `name` if one method has several rows."""
        return self.name
