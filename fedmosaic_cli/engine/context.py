"""What a method sees of the federation, of a client and of the server, and the types that it passes around.

This module does not import torch, so that methods can be listed and configured without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args

from fedmosaic_cli.errors import FedMosaicError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import torch
    from torch import Tensor, nn

    from fedmosaic_cli.engine.train_settings import AggregationWeighting, BatchNormStatistics
    from fedmosaic_cli.seeds import RandomSource

T = TypeVar("T")

Parameters = dict[str, Any]
"""A model: its tensors by name, including buffers."""

State = dict[str, Any]
"""The state of a client or of the server: tensors, numbers, strings, lists, and dictionaries of these. A checkpoint
keeps the order of keys. Keys must not contain `/`."""

Message = dict[str, Any]
"""A message as its sender makes it: the values of its parts by name. `engine.messages` lists the kinds of parts."""

ReceivedMessage = dict[str, Any]
"""A message as its receiver sees it: the values of its parts by name, without shared memory."""

PerClientScalar = Any
"""A number of a client: a `float` or, for several clients with stacked models, a float64 tensor [clients]."""

OPTIMIZER_SUFFIX = ".optimizer"
"""`state[model + OPTIMIZER_SUFFIX]` is the optimizer state of `state[model]`."""

ParameterGroup = Literal["body", "head", "batch_norm", "buffers"]
PARAMETER_GROUPS: tuple[str, ...] = get_args(ParameterGroup)


@dataclass(frozen=True)
class FederationInfo:
    """What every participant knows about the federation. It contains no client data.

    Attributes:
        num_classes: Number of classes.
        initial_model: The initial global model; empty if the first client has no network.
        client_sizes: Number of training examples per client, as declared by the clients.
        num_rounds: Number of planned rounds.
        float_bits: Size of a number sent without compression.
        participation_rate: Fraction of clients per round.
        aggregation: Weights of clients in a mean of models: their number of examples, or equal.
        bn_buffers: What happens to batch-normalisation statistics where models are averaged.
        groups: Names of entries of `initial_model` by group. `head` is the last linear layer and `body` all other
            entries; `batch_norm` are the entries of batch-normalisation layers, including statistics; `buffers` are
            the entries that are not trained.
        feature_dim: Number of inputs of the head.
        networks: The initial parameters of the additional networks that the method needs, by name.
        public_size: Number of public examples.
        public_labels: The true labels of the public set, for methods with `Needs.public_labels`; else None.
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
    groups: Mapping[ParameterGroup, frozenset[str]] = field(default_factory=dict)
    feature_dim: int = 0
    networks: Mapping[str, Parameters] = field(default_factory=dict)
    public_size: int = 0
    public_labels: Tensor | None = None
    run_id: bytes = bytes(16)
    public_set_id: bytes = bytes(16)
    extensions: Mapping[str, Any] = field(default_factory=dict)

    def group(self, name: ParameterGroup) -> frozenset[str]:
        """Return the names of a group of parameters; empty if the first client has no network.

        Raises:
            FedMosaicError: There is no such group.
        """
        if name not in PARAMETER_GROUPS:
            raise FedMosaicError(f"unknown group '{name}' (ctx.group): use one of {', '.join(PARAMETER_GROUPS)}")
        return self.groups.get(name, frozenset())

    def aggregation_weights(self, clients: Iterable[int]) -> list[float]:
        """Return the weights of these clients in a mean of models."""
        return [self.client_sizes[client] if self.aggregation == "samples" else 1 for client in clients]


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
    module: nn.Module | None
    """The network in training mode. Only for terms with `uses_module`."""
    private_inputs: Tensor | None
    """The images of the private batch, as the network sees them (with augmentation). Only for terms with
    `uses_module`."""


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
        """Return the unweighted loss on the batches of a step. It must not read values back to the CPU.

        A term that calls the network itself, e.g. for gradients with respect to images, has a class attribute
        `uses_module = True`. Its clients are then trained one by one.
        """


@dataclass(frozen=True)
class ProximalTerm:
    """Adds the gradient of strength/2 ||w - anchor||^2 to the gradient of every step."""

    anchor: Parameters
    strength: float


@dataclass(frozen=True)
class Training:
    """The arguments of one `Participant.train`."""

    model: str
    terms: Sequence[LossTerm] = ()
    proximal: ProximalTerm | None = None
    private_weight: float = 1.0
    examples: Tensor | None = None
    parameters: Iterable[str] | None = None
    correction: Parameters | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    optimizer: Literal["adam", "sgd"] | None = None
    max_grad_norm: float | None = None
    weight_decay: float = 0.0
    stream: str = "private"
    network: str | None = None


@dataclass(frozen=True)
class TrainResult:
    """The outcome of `Client.train`.

    Attributes:
        loss: The mean private cross-entropy over all steps; None without a step.
        term_losses: The mean loss of each term; None without a step.
        num_steps: Number of optimizer steps that were taken.
        lr: The learning rate of these steps.
    """

    loss: float | None
    term_losses: tuple[float | None, ...] = ()
    num_steps: int = 0
    lr: float = 0.0


class Step(Protocol):
    """One step of a local round with a custom update rule; see `Client.steps`."""

    @property
    def number(self) -> int:
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


class RuleStep(Step, Protocol):
    """One step of a rule that `Client.take_steps` applies to one client, or to the stacked models of several ones."""

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        """Apply one step of the run's optimizer to `state[model]`, in place; see `Participant.optimizer_step`."""

    def dot(self, first: Parameters, second: Parameters) -> PerClientScalar:
        """Return the inner product over the floating-point entries of `second`."""


class StepRule(Protocol):
    """What a method does in one step.

    `state` contains the entries of the client's state that the rule was given: models, and numbers of type
    `PerClientScalar`. The rule may replace them. In stacked execution the tensors of several clients are stacked to
    [clients, ...], floating-point numbers to [clients], and only clients with equal integers are stacked. So a rule
    uses elementwise operations and the functions of `engine.params`, and nothing else of the client.
    """

    def __call__(self, step: RuleStep, state: State) -> None: ...


class Participant(Protocol):
    """What clients and server have in common: a state, random streams, a log, and training."""

    round: int
    """The current round, from 1."""
    state: State

    @property
    def lr(self) -> float:
        """The configured learning rate."""

    @property
    def initial_model(self) -> Parameters:
        """A new copy of the initial model."""

    def initial_network(self, network: str) -> Parameters:
        """Return new parameters of an additional network that `Needs.networks` names."""

    def train(
        self,
        model: str,
        terms: Sequence[LossTerm] = (),
        proximal: ProximalTerm | None = None,
        private_weight: float = 1.0,
        examples: Tensor | None = None,
        *,
        parameters: Iterable[str] | None = None,
        correction: Parameters | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        optimizer: Literal["adam", "sgd"] | None = None,
        max_grad_norm: float | None = None,
        weight_decay: float = 0.0,
        stream: str = "private",
        network: str | None = None,
    ) -> TrainResult:
        """Train `state[model]` in place for one round of local steps, and log the mean losses.

        Args:
            model: The key of the model in `state`.
            terms: Terms added to the loss.
            proximal: A proximal term added to every gradient.
            private_weight: The weight of the private cross-entropy.
            examples: Positions of the training examples to use. None uses all of them.
            parameters: Names of the entries to train. Layers without any of them are in evaluation mode, so their
                running statistics do not change. None trains the whole model.
            correction: Added to the gradient of every step, by name.
            epochs: Passes over the examples, instead of the configured number of epochs or steps.
            steps: Number of steps, instead of the configured number of epochs or steps.
            batch_size: Examples per batch, instead of the configured number.
            lr: Learning rate, instead of the configured one.
            optimizer: Optimizer, instead of the configured one.
            max_grad_norm: Gradients are scaled down to this Euclidean norm. None does not clip.
            weight_decay: Strength of the L2 penalty of the optimizer.
            stream: Names the random order of the examples. Use another name for a second training in a round.
            network: An additional network that `Needs.networks` names. None is the client's own network.
        """

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        """Apply one step of the run's optimizer to `state[model]`, in place.

        Args:
            model: The key of the model in `state`.
            gradient: The gradient.
            lr: A learning rate to use instead of the run's.
        """

    def predict_public(self, parameters: Parameters, network: str | None = None) -> Tensor:
        """Return logits [examples, classes] on the public set, in evaluation mode, on the CPU."""

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator derived from the seed, this purpose, the client or server, and the round."""

    def log(self, **values: Any) -> None:
        """Add values to this round's log row: of the client, or for the server of every client."""


class Server(Participant, Protocol):
    """The server as a method sees it.

    `train` and `predict_public` need `Needs.server_compute`. The server has no labelled data: it trains on the public
    set with the terms only, and terms that use private batches see batches of the public set.
    """


class Client(Participant, Protocol):
    """A client as its method sees it."""

    id: int

    @property
    def has_network(self) -> bool:
        """Whether the client trains a network, and not a scikit-learn classifier."""

    @property
    def train_labels(self) -> Tensor:
        """The labels of the training data, on the CPU."""

    @property
    def class_counts(self) -> Tensor:
        """The number of training examples per class, on the CPU."""

    @property
    def validation_labels(self) -> Tensor:
        """The labels of the validation data, on the CPU; empty if the client has none."""

    def train_all(self, trainings: Sequence[Training]) -> list[TrainResult]:
        """Train several models, as calls of `train` one after the other do.

        In stacked execution models of one client are trained together. They must not share tensors, and no training may
        depend on the result of another one.
        """

    def steps(self, *streams: str, examples: Tensor | None = None) -> Iterator[Step]:
        """Iterate over the steps of a round, for methods with a custom update rule. Logs the mean loss.

        Args:
            *streams: Names of additional batches per step, drawn independently of the "private" batch that `train`
                would use.
            examples: Positions of the training examples to use. None uses all of them.
        """

    def take_steps(self, rule: StepRule, entries: Sequence[str], streams: Sequence[str] = ()) -> None:
        """Take the steps of a round with a custom update rule, and log the mean loss.

        It equals a loop over `steps`. In stacked execution the rule is applied once for all clients.

        Args:
            rule: What a step does: a function or a bound method that is the same for all clients.
            entries: The keys in `state` of the models and numbers that the rule reads and updates.
            streams: Names of additional batches per step; see `steps`.
        """

    def gradient(self, parameters: Parameters, stream: str) -> Parameters:
        """Return the gradient of the mean cross-entropy on one training batch drawn from `stream`. Changes nothing.

        The batch is augmented as in training (`train.augment`).
        """

    def running_statistics(self, parameters: Parameters) -> Parameters:
        """Return batch-normalisation statistics for `parameters` from one pass over the training data."""

    def private_loss(self, parameters: Parameters) -> float:
        """Return the mean cross-entropy on the training data, in evaluation mode."""

    def validation_loss(self, parameters: Parameters) -> float:
        """Return the mean cross-entropy on the validation data, in evaluation mode."""

    def predict_private(self, parameters: Parameters, network: str | None = None) -> Tensor:
        """Return logits [examples, classes] on the training data, in evaluation mode."""

    def predict_validation(self, parameters: Parameters, network: str | None = None) -> Tensor:
        """Return logits [examples, classes] on the validation data, in evaluation mode."""

    def private_features(self, parameters: Parameters, network: str | None = None) -> Tensor:
        """Return the outputs of the model's body on the training data, in evaluation mode."""

    def privacy_rng(self, purpose: str) -> RandomSource:
        """Return the generator of privacy noise: seeded in simulations, from the operating system on real sites."""

    def shared_result(self, key: str, compute: Callable[[Server], T]) -> T:
        """Return `compute(trainer)`, e.g. a model that is trained on the public set only.

        Needs `Needs.public_training`. The result must be the same for all clients with the same network: it may depend
        on `trainer`, on `ctx` and on what all clients receive, and on nothing else. Every site computes it; a
        simulation computes it once.

        Args:
            key: The name of the result among those of a round.
            compute: Returns the result. `trainer` trains and predicts like a server with `Needs.server_compute`; its
                state is empty at first and discarded afterwards, its random streams are the same for all clients.

        Returns:
            The result. It must not be changed.
        """


class Predictor(Protocol):
    """Computes the outputs of a client's network for any parameters; see `Method.predict`."""

    def predict(self, parameters: Parameters, examples: Any, network: str | None = None) -> Tensor:
        """Return logits [examples, classes] in evaluation mode, of the client's or of an additional network."""

    def features(self, parameters: Parameters, examples: Any, network: str | None = None) -> Tensor:
        """Return the inputs of the head [examples, width] in evaluation mode."""


NO_PARTS: Mapping[str, Any] = MappingProxyType({})
