"""The contract between methods and the engine.

A method is a frozen dataclass: its fields are its hyper-parameters, its functions the phases of a round. It keeps no
state of its own. What a client remembers lies in `client.state`, what the server remembers is handed in and out.
Methods speak to clients and to the world only through the names in this module, which does not import torch: so
a method can be listed, configured and refused in an instant, and none of them can reach into the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform

from pydantic.dataclasses import dataclass as validated_dataclass

from fedmosaic_cli.engine.train_settings import DefenceSettings
from fedmosaic_cli.schema import STRICT_MODEL_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message, PartKind
    from fedmosaic_cli.engine.train_settings import AggregationWeighting, BatchNormStatistics
    from fedmosaic_cli.labels.privacy.mechanisms import RandomSource
    from fedmosaic_cli.labels.privacy.noise import PrivacyNoise
    from fedmosaic_cli.labels.wire import MessageSpec

Parameters = dict[str, Any]
"""A model: its tensors by name, buffers included. The architecture is the client's business."""

State = dict[str, Any]
"""What a client or the server remembers: tensors, numbers, and dictionaries of these."""

ReceivedMessage = dict[str, Any]
"""A message as the other side sees it: tensors, or Parameters, by part."""

T = TypeVar("T")
MethodFamily = Literal["baseline", "FL", "PFL", "co-training"]
LearnerSupport = Literal["one network", "any network", "anything"]


@dataclass(frozen=True)
class FederationInfo:
    """What everybody may know. No client's data is in here."""

    num_classes: int
    initial_model: Parameters
    """Where models that are averaged start."""
    client_sizes: Mapping[int, int]
    """How many training examples each client declared when it joined."""
    num_rounds: int
    """How many rounds are planned."""
    float_bits: int = 32
    """The size of a number that travels as it is."""
    participation_rate: float = 1.0
    """The share of clients that take part in a round."""
    aggregation: AggregationWeighting = "samples"
    """What a client counts in a mean of models: its examples, or one."""
    bn_buffers: BatchNormStatistics = "average"
    """What becomes of running means and variances where models are averaged."""
    buffer_names: frozenset[str] = frozenset()
    """Which entries of `init` are no parameters but running statistics."""
    batch_norm_names: frozenset[str] = frozenset()
    """Which entries of `init` belong to batch normalisation, its parameters and its statistics."""
    public_size: int = 0
    """How many public examples there are."""
    run_id: bytes = bytes(16)
    """What stands for this run in messages."""
    public_set_id: bytes = bytes(16)
    """What stands for the public set, in its order."""
    defence: DefenceSettings = field(default_factory=DefenceSettings)
    """How votes are counted."""
    privacy_noise: PrivacyNoise | None = None
    """What clients hide their opinions behind, if anything."""
    is_attacker: bool = False
    """Whether this is the world of a client that is going to send something else than it finds."""

    def aggregation_weights(self, clients: Iterable[int]) -> list[float]:
        """What these clients count in a mean."""
        return [self.client_sizes[client] if self.aggregation == "samples" else 1 for client in clients]


@dataclass(frozen=True)
class Traffic:
    """Bits that go to and from a client in a round; None where what travels is not a message."""

    uplink_bits: int | None = 0
    downlink_bits: int | None = 0


@dataclass(frozen=True)
class ServerLog:
    """What a server has to tell of a round: of everybody, of single clients, and labels that others may know better."""

    round_metrics: dict[str, float] = field(default_factory=dict)
    client_metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    public_labels: dict[str, Tensor] = field(default_factory=dict)


class LossTerm(Protocol):
    """A term that a method adds to a client's private cross-entropy."""

    uses_public: ClassVar[bool]
    """Whether its steps draw a public batch as well."""

    @property
    def weight(self) -> float: ...

    log_key: ClassVar[str]
    """The name of its mean over a round in the log."""

    def to_device(self, device: torch.device) -> LossTerm:
        """The term with its tensors where the model is; asked for once a round."""

    def loss(self, outputs: StepOutputs) -> Tensor:
        """The unweighted value on this step's batches, with its gradient."""


class StepOutputs(Protocol):
    """What a term may look at: the model on this step's batches."""

    private_indices: Tensor
    """Which of the client's training examples the step drew."""
    private_features: Tensor
    """What the model's body makes of them."""
    private_logits: Tensor
    public_indices: Tensor
    """Which public examples the step drew; like the next, only where a term uses them."""
    public_logits: Tensor


@dataclass(frozen=True)
class ProximalTerm:
    """A pull towards `anchor`: the gradient of strength/2 ||w - anchor||^2 is added to every step's.

    As a gradient it suits any optimizer, and the squared distance cannot be mistaken for the distance.
    """

    anchor: Parameters
    strength: float


class Step(Protocol):
    """One step of a pass that a method walks by itself."""

    number: int
    """The first is 1."""

    def gradient(
        self, parameters: Parameters, stream: str = "private", update_running_stats: bool = True
    ) -> Parameters:
        """The gradient of the mean cross-entropy at `parameters`, on this step's batch from `stream`.

        The batch's statistics enter the running ones of `parameters`, unless they are not to be kept.
        """


class Client(Protocol):
    """One client, as its method sees it."""

    id: int
    round: int
    """The round that is being played; the first is 1."""
    state: State

    @property
    def initial_model(self) -> Parameters:
        """Where this client's own model starts; made anew at every call."""

    @property
    def train_labels(self) -> Tensor:
        """Its training labels, on the CPU."""

    @property
    def class_counts(self) -> Tensor:
        """The histogram of its training labels, on the CPU."""

    def train(
        self,
        model: str,
        terms: Sequence[LossTerm] = (),
        proximal: ProximalTerm | None = None,
        private_weight: float = 1.0,
        examples: Tensor | None = None,
    ) -> None:
        """One round of local training of the parameters `state[model]`, in place; notes the mean losses.

        The loss is `private_weight` times the private cross-entropy, plus the terms. `only` are the positions of the
        training examples that the model may see; None is all of them.
        """

    def steps(self, *streams: str) -> Iterator[Step]:
        """The steps of a round, for methods with a step rule of their own. Notes the mean loss of all batches used.

        Each holds the batch that `train` would take ("private") and an independent one for every other stream named.
        """

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        """One step of the run's optimizer on `state[model]`, in place, with another learning rate if given."""

    def gradient(self, parameters: Parameters, stream: str) -> Parameters:
        """The gradient of the mean cross-entropy on one training batch drawn from `stream`. Nothing is changed."""

    def running_statistics(self, parameters: Parameters) -> Parameters:
        """Running statistics for `parameters`, from one pass over the client's training data. Nothing is changed."""

    def private_loss(self, parameters: Parameters) -> float:
        """The mean cross-entropy on all of its training data, in evaluation mode."""

    def predict_private(self, parameters: Parameters) -> Tensor:
        """Logits [examples, classes] on all of its training data, in evaluation mode."""

    def private_features(self, parameters: Parameters) -> Tensor:
        """What the model's body makes of all of its training data, in evaluation mode."""

    def predict_public(self, parameters: Parameters) -> Tensor:
        """Logits [examples, classes] on the public set, in evaluation mode, on the CPU."""

    def rng(self, purpose: str) -> np.random.Generator:
        """A stream of noise for this purpose, this client and this round."""

    def privacy_rng(self, purpose: str) -> RandomSource:
        """The same for noise that hides what is told: drawn from the seed in a simulation, where nobody is protected,
        and from the system where a client is somebody."""

    def log(self, **values: Any) -> None:
        """Values for this round's line in the log."""


@dataclass_transform(frozen_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """The decorator of every method: a frozen dataclass whose fields are checked when it is made."""
    return validated_dataclass(frozen=True, config=STRICT_MODEL_CONFIG)(cls)  # type: ignore[return-value]


class Method(ABC):
    """The phases of a round. `name` is the key in files and on the command line, `title` the paper's spelling.

    As it stands, a client has a model of its own, which nobody averages and which is its personal one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    family: ClassVar[MethodFamily]
    travels: ClassVar[str]
    citation: ClassVar[str]
    evaluated: ClassVar[str] = "the client's own model"
    is_centralized: ClassVar[bool] = False
    """Whether it trains on everybody's data in one place."""
    needs_public_set: ClassVar[bool] = False
    """Whether it cannot do without a public set."""
    shares_labels: ClassVar[bool] = False
    """Whether clients tell labels of the public set: noise, attacks and defences are about these messages."""
    uploads: ClassVar[Mapping[str, PartKind]] = MappingProxyType({})
    """The parts of what clients send, where they send anything."""
    evaluation_needs_server: ClassVar[bool] = False
    """Whether what the server has after a round is needed to examine its models."""
    learners: ClassVar[LearnerSupport] = "one network"
    """What its clients may learn with: one architecture for all, a network each, or anything that predicts."""
    num_models: ClassVar[int] = 1
    """How many models a client holds at the end of its turn, the one on its way to the server included."""
    num_trained_models: ClassVar[int] = 1
    """How many of them an optimizer remembers things about."""
    needs_total_rounds: ClassVar[bool] = False
    """Whether what happens in a round depends on how many there will be."""

    @classmethod
    def unused_hyperparameters(cls, values: Mapping[str, Any]) -> frozenset[str]:
        """Which hyper-parameters nobody reads, with these values of the others."""
        return frozenset()

    @property
    def supported_learners(self) -> LearnerSupport:
        """What its clients may learn with, as it is set up."""
        return self.learners

    @property
    def depends_on_total_rounds(self) -> bool:
        """Whether it plans ahead, as it is set up."""
        return self.needs_total_rounds

    @property
    def peak_model_counts(self) -> tuple[int, int]:
        """How many models a client holds at most, as the method is set up, and how many optimizers remember of them."""
        return self.num_models, self.num_trained_models

    def local_passes(self, num_rounds: int) -> int:
        """How many rounds of local steps a client takes in so many rounds; more than that where it trains more models
        than its own and a copy of everybody's."""
        return num_rounds

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        """Prepare `client.state` before the first round."""
        client.state["model"] = client.initial_model

    def init_server(self, ctx: FederationInfo) -> State:
        """The server's state before the first round."""
        return {}

    def broadcast(self, server: State, client_id: int, ctx: FederationInfo) -> Message:
        """What the server sends to a client at the start of a round."""
        return {}

    @abstractmethod
    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        """What a client does in a round; what comes back is sent to the server."""

    def message_spec(self, ctx: FederationInfo) -> MessageSpec | None:
        """What an opinion on the public set looks like on the wire; None for methods whose clients give none."""
        return None

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        """The server's state after hearing from the clients of a round.

        What it leaves under `told` goes to the log instead: see `Told`.
        """
        return server

    def personal_model(self, server: State, client: Client) -> Parameters:
        """The client's personal model: the one that is evaluated and saved. Nothing is changed."""
        model: Parameters = client.state["model"]
        return model

    def global_model(self, server: State, client: Client) -> Parameters | None:
        """The global model as this client would use it; None where a method has none. Nothing is changed."""
        return None

    def pseudo_labels(self, server: State) -> Tensor | None:
        """What the crowd says of the public set, a label an example; None where it says nothing."""
        return None

    def num_warmup_rounds(self, num_rounds: int) -> int:
        """How many of so many rounds clients play before they first tell anything."""
        return 0

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        """What a round of exchange costs a client, foretold."""
        return Traffic()

    def cost_note(self, num_rounds: int) -> str:
        """A word where so many rounds take longer than one would think."""
        return ""

    def warning(self, num_rounds: int, num_participants: int, has_batch_norm: bool) -> str:
        """A word where, with so many rounds, so many clients in each and such a network, it would be another method."""
        return ""

    @property
    def variant(self) -> str:
        """The method's name in paths and tables, told apart where one method has several rows."""
        return self.name
