"""A simulated client: its data, its memory, and the services a method may ask of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import batching, optim, params, training
from fedmosaic_cli.engine.learner import Draw, Lesson
from fedmosaic_cli.engine.losses import mean_cross_entropy
from fedmosaic_cli.engine.network_runner import Workspace
from fedmosaic_cli.errors import DivergenceError, FedMosaicError
from fedmosaic_cli.seeds import SystemDraws, derive, generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from torch import Generator, Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner, Losses
    from fedmosaic_cli.engine.method import Leash, Parameters, Received, State, Step, Term
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.labels.privacy.mechanisms import Draws

# What is remembered for a model stands beside it, under its name with this behind it.
OPTIMIZER = ".optimizer"


class SimulatedClient:
    """Implements `engine.method.Client`.

    Where all data is pooled, it stands for those who would take part in a round, so many `of_clients`: it takes their
    steps or, where a round is measured in epochs, their share of its own. One that `hides` something from others who
    know the seed draws its noise from the system.
    """

    def __init__(
        self,
        client_id: int,
        seed: int,
        private: Examples,
        public: Examples,
        learner: Learner,
        train: TrainSettings,
        num_classes: int,
        stands_for: int = 1,
        of_clients: int = 1,
        hides: bool = False,
    ) -> None:
        self.id = client_id
        self.round = 0
        self.state: State = {}
        self.notes: dict[str, Any] = {}
        self.left_out = False
        self.private = private
        self.public = public
        self.learner = learner
        self._seed = seed
        self._train = train
        self._num_classes = num_classes
        self._stands_for = stands_for
        self._of_clients = of_clients
        self._hides = hides
        self._of_this_round: State = {}

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.private.device

    def begin_round(self, number: int) -> None:
        """Turn to a new page of the log."""
        self.round = number
        self.notes = {}
        self.left_out = False

    def check(self, models: State | Received) -> None:
        """Refuse to go on with a model, or from a loss, that is none any more."""
        for name, value in self.notes.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise DivergenceError(self.id, self.round, name)
        for name, model in models.items():
            if isinstance(model, dict) and not name.endswith(OPTIMIZER) and not params.finite(model):
                raise DivergenceError(self.id, self.round, "its model")

    def leave_out(self, before: State) -> None:
        """Be as `before` the round, as if there had been none."""
        self.state = before
        self.notes = {}
        self.left_out = True

    def end_turn(self) -> None:
        """Forget what was only for this round."""
        self._of_this_round.clear()

    @property
    def init(self) -> Parameters:
        names: tuple[str | int, ...] = ("init", self.id) if self._train.init == "per-client" else ("init",)
        return self.learner.initial_parameters(derive(self._seed, *names))

    @property
    def labels(self) -> Tensor:
        return self.private.targets.cpu()

    @property
    def class_counts(self) -> Tensor:
        return torch.bincount(self.labels, minlength=self._num_classes)

    def train(
        self,
        model: str,
        terms: Sequence[Term] = (),
        leash: Leash | None = None,
        private_weight: float = 1.0,
        only: Tensor | None = None,
    ) -> None:
        private = self.private if only is None else self.private.at(only)
        draw = self._draw(any(term.uses_public for term in terms), private)
        lesson = Lesson(private, self.public, draw, terms, leash, private_weight)
        losses = self.learner.fit(self.state[model], self._memory(model), lesson)
        known = [loss for loss in (losses.private, *losses.terms) if loss is not None]
        if not all(map(math.isfinite, known)):
            raise DivergenceError(self.id, self.round, "its training loss")
        # A loss that the method measured itself is the one to log.
        self.notes.setdefault("loss_private", losses.private)
        for term, loss in zip(terms, losses.terms, strict=True):
            self.notes.setdefault(term.log_as, loss)
        self._note_public_share(losses, terms, private_weight)

    def steps(self, *streams: str) -> Iterator[Step]:
        draws = {stream: self._private_batches(stream) for stream in ("private", *streams)}
        steps = training.OwnSteps(self._network, self.private, draws)
        yield from steps
        loss = steps.mean_loss()
        if loss is not None and not math.isfinite(loss):
            raise DivergenceError(self.id, self.round, "its training loss")
        self.notes.setdefault("loss_private", loss)

    def descend(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        optim.descend(self._network.train, self.state[model], gradient, self._memory(model), lr)

    def gradient(self, parameters: Parameters, stream: str) -> Parameters:
        batch = batching.located(self.private, self._private_batches(stream)[:1])[0]
        if self._network.batch_norm and len(batch) == 1:
            # Batch statistics of a single example do not exist, so neither does a gradient.
            return {n: torch.zeros_like(t) for n, t in parameters.items() if n not in self._network.buffers}
        inputs, labels = self.private.shown(batch.places), self.private.targets[batch.positions]
        return self._network.gradient(parameters, inputs, labels, keep_statistics=False)[1]

    def statistics(self, parameters: Parameters) -> Parameters:
        return self._network.statistics(parameters, self.private)

    def private_loss(self, parameters: Parameters) -> float:
        return mean_cross_entropy(self.predict_private(parameters).log_softmax(dim=1), self.private.targets)

    def predict_private(self, parameters: Parameters) -> Tensor:
        return self.learner.predict(parameters, self.private)

    def private_features(self, parameters: Parameters) -> Tensor:
        return self._network.features(parameters, self.private)

    def predict_public(self, parameters: Parameters) -> Tensor:
        # What a client says of the public set leaves the device anyway, and needs float64, which not every GPU has.
        return self.learner.predict(parameters, self.public).cpu()

    def noise(self, purpose: str) -> np.random.Generator:
        return generator(self._seed, purpose, self.id, self.round)

    def hiding(self, purpose: str) -> Draws:
        return SystemDraws() if self._hides else self.noise(purpose)

    def note(self, **values: Any) -> None:
        self.notes.update(values)

    @property
    def _network(self) -> Workspace:
        if not isinstance(self.learner, Workspace):
            raise FedMosaicError(f"client {self.id} has no network (model.name): this method needs one")
        return self.learner

    def _note_public_share(self, losses: Losses, terms: Sequence[Term], private_weight: float) -> None:
        """What of the loss that was descended on came from the public set, over the round; both as trained on."""
        values = [0.0 if loss is None else term.weight * loss for term, loss in zip(terms, losses.terms, strict=True)]
        public = [value for term, value in zip(terms, values, strict=True) if term.uses_public]
        whole = private_weight * (losses.private or 0.0) + sum(values)
        if public:
            self.notes.setdefault("public_share", sum(public) / whole if whole else 0.0)

    def _memory(self, model: str) -> State:
        """What the optimizer of a model remembers. What is forgotten after the round is not kept longer than a turn:
        it is twice the model, for every client."""
        home = self._of_this_round if self._train.optimizer_state == "reset" else self.state
        memory: State = home.setdefault(f"{model}{OPTIMIZER}", {})
        return memory

    def _draw(self, with_public: bool, examples: Examples | None = None) -> Draw:
        """This round's batches. The private ones are the same whether or not public ones are drawn."""
        private, public = self._private_batches("private", examples), []
        if with_public:
            public = batching.steps(len(self.public), self._train.batch_size, len(private), self._stream("public"))
        return Draw(private, public)

    def _private_batches(self, stream: str, examples: Examples | None = None) -> list[Tensor]:
        train, generator, count = self._train, self._stream(stream), len(examples or self.private)
        if train.local_steps is None:
            drawn = batching.epochs(count, train.batch_size, train.local_epochs, generator)
            return drawn[: -(-self._stands_for * len(drawn) // self._of_clients)]
        return batching.steps(count, train.batch_size, train.local_steps * self._stands_for, generator)

    def _stream(self, purpose: str) -> Generator:
        return torch.Generator().manual_seed(derive(self._seed, purpose, self.id, self.round))
