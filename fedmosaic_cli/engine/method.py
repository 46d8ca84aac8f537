"""The contract between methods and the engine.

A method is a frozen dataclass: its fields are its hyper-parameters, its functions the phases of a round. It keeps no
state of its own. What a client remembers lies in `client.state`, what the server remembers is handed in and out.
Methods speak to clients and to the world only through the names in this module, which does not import torch: so
a method can be listed, configured and refused in an instant, and none of them can reach into the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, dataclass_transform

from pydantic.dataclasses import dataclass as validated_dataclass

from fedmosaic_cli.engine import params
from fedmosaic_cli.settings import STRICT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import Tensor

    from fedmosaic_cli.engine.messages import Message

Parameters = dict[str, Any]
"""A model: its tensors by name, buffers included. The architecture is the client's business."""

State = dict[str, Any]
"""What a client or the server remembers: tensors, numbers, and dictionaries of these."""

Received = dict[str, Any]
"""A message as the other side sees it: tensors, or Parameters, by part."""

T = TypeVar("T")
Family = Literal["baseline", "FL", "PFL", "co-training"]


@dataclass(frozen=True)
class World:
    """What everybody may know. No client's data is in here."""

    num_classes: int
    init: Parameters
    """Where models that are averaged start."""
    sizes: Mapping[int, int]
    """How many training examples each client declared when it joined."""


@dataclass(frozen=True)
class Traffic:
    """Bits that go to and from a client in a round; None where what travels is not a message."""

    up: int | None = 0
    down: int | None = 0


class Term(Protocol):
    """A term that a method adds to a client's private cross-entropy."""

    @property
    def weight(self) -> float: ...

    @property
    def log_as(self) -> str:
        """The name of its mean over a round in the log."""

    def on(self, device: torch.device) -> Term:
        """The term with its tensors where the model is; asked for once a round."""

    def loss(self, step: Step) -> Tensor:
        """The unweighted value on this step's batches, with its gradient."""


class Step(Protocol):
    """What a term may look at in one training step."""

    public_index: Tensor
    """Which public examples the step drew."""
    public_logits: Tensor
    """The model's outputs on them."""


class Client(Protocol):
    """One client, as its method sees it."""

    id: int
    round: int
    """The round that is being played; the first is 1."""
    state: State

    @property
    def init(self) -> Parameters:
        """Where this client's own model starts."""

    @property
    def class_counts(self) -> Tensor:
        """The histogram of its training labels, on the CPU."""

    def train(self, model: str, terms: Sequence[Term] = ()) -> None:
        """One round of local training of the parameters `state[model]`, in place; notes the mean losses."""

    def private_loss(self, parameters: Parameters) -> float:
        """The mean cross-entropy on all of its training data, in evaluation mode."""

    def predict_public(self, parameters: Parameters) -> Tensor:
        """Log-probabilities [examples, classes] on the public set, in evaluation mode, on the CPU."""

    def note(self, **values: float | None) -> None:
        """Values for this round's line in the log."""


@dataclass_transform(frozen_default=True)
def hyperparameters(cls: type[T]) -> type[T]:
    """The decorator of every method: a frozen dataclass whose fields are checked when it is made."""
    return validated_dataclass(frozen=True, config=STRICT)(cls)  # type: ignore[return-value]


class Method(ABC):
    """The phases of a round. `name` is the key in files and on the command line, `title` the paper's spelling.

    As it stands, a client has a model of its own, which nobody averages and which is its personal one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    family: ClassVar[Family]
    travels: ClassVar[str]
    citation: ClassVar[str]
    evaluated: ClassVar[str] = "the client's own model"
    pooled: ClassVar[bool] = False
    """Whether it trains on everybody's data in one place."""
    needs_public: ClassVar[bool] = False
    """Whether it cannot do without a public set."""

    def enter(self, client: Client) -> None:
        """Prepare `client.state` before the first round."""
        client.state["model"] = params.copy(client.init)

    def open(self, world: World) -> State:
        """The server's state before the first round."""
        return {}

    def broadcast(self, server: State, client_id: int, world: World) -> Message:
        """What the server sends to a client at the start of a round."""
        return {}

    @abstractmethod
    def local_round(self, client: Client, received: Received, world: World) -> Message:
        """What a client does in a round; what comes back is sent to the server."""

    def aggregate(self, server: State, uploads: Mapping[int, Received], world: World) -> State:
        """The server's state after hearing from the clients of a round."""
        return server

    def personal(self, server: State, client: Client) -> Parameters:
        """The client's personal model: the one that is evaluated and saved. Nothing is changed."""
        model: Parameters = client.state["model"]
        return model

    def traffic(self, model_bits: int, public_size: int, num_classes: int) -> Traffic:
        """What a round of exchange costs a client, foretold from the sizes of a model and of the public set."""
        return Traffic()

    @property
    def variant(self) -> str:
        """The method's name in paths and tables, told apart where one method has several rows."""
        return self.name
