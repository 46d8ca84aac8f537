"""A client that computes in this process."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch

from fedmosaic_cli.engine import augmentation, batching, optim, params, training
from fedmosaic_cli.engine.context import OPTIMIZER_SUFFIX, Training, TrainResult
from fedmosaic_cli.engine.execution.transfers import to_host
from fedmosaic_cli.engine.learner import BatchSchedule, ClientPredictor, Fit, StepOptions, TrainingTask
from fedmosaic_cli.engine.losses import mean_cross_entropy
from fedmosaic_cli.engine.network_learner import NetworkLearner
from fedmosaic_cli.engine.step_rules import StepTask
from fedmosaic_cli.errors import DivergenceError, FedMosaicError
from fedmosaic_cli.seeds import SystemRandom, derive_rng, derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from torch import Generator, Tensor

    from fedmosaic_cli.engine.context import (
        LossTerm,
        Parameters,
        ProximalTerm,
        ReceivedMessage,
        Server,
        State,
        Step,
        StepRule,
    )
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Learner, TrainingLosses
    from fedmosaic_cli.engine.server import PublicTrainer
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.seeds import RandomSource

T = TypeVar("T")


class StateStore(Protocol):
    """Storage for the states of idle clients."""

    def save(self, client_id: int, state: State) -> None:
        """Keep the state of a client, in place of an older one."""

    def load(self, client_id: int, device: torch.device) -> State:
        """Return a copy of the kept state."""


class InProcessClient:
    """A client that computes in this process, simulated or at a site. Implements `engine.context.Client`.

    Args:
        client_id: Number of the client, or a name for the worker of the server.
        seed: Seed of the run.
        private: Training examples.
        public: Public examples.
        learner: Trains and evaluates the client's models.
        train_settings: Configuration of the training.
        num_classes: Number of classes.
        num_round_clients: Number of clients per round that a client with pooled data represents. It takes their number
            of steps or, with `local_epochs`, the fraction `num_round_clients / num_total_clients` of its epochs.
        num_total_clients: Number of clients whose data is pooled.
        use_system_rng: Draw privacy noise from the operating system instead of the seed.
        validation: Validation examples, if there are any.
        networks: The learners of the method's additional networks by name.
        public_trainer: Trains on the public set for all clients with the same network, if the method needs it.
    """

    def __init__(
        self,
        client_id: int | str,
        seed: int,
        private: Examples,
        public: Examples,
        learner: Learner,
        train_settings: TrainSettings,
        num_classes: int,
        num_round_clients: int = 1,
        num_total_clients: int = 1,
        use_system_rng: bool = False,
        validation: Examples | None = None,
        networks: Mapping[str, NetworkLearner] | None = None,
        public_trainer: PublicTrainer | None = None,
    ) -> None:
        self.id: Any = client_id
        self.round = 0
        self.state_store: StateStore | None = None
        self._state: State | None = {}
        self.metrics: dict[str, Any] = {}
        self.withheld_metrics: set[str] = set()
        self.is_skipped = False
        self.private = private
        self.public = public
        self.validation = validation
        self.learner = learner
        self._networks = networks or {}
        self._public_trainer = public_trainer
        self._seed = seed
        self._train_settings = train_settings
        self._num_classes = num_classes
        self._num_round_clients = num_round_clients
        self._num_total_clients = num_total_clients
        self._use_system_rng = use_system_rng
        self._round_state: State = {}
        self._round_batches: dict[tuple[Any, ...], Any] = {}
        self._before_training: Callable[[int], None] = lambda num_steps: None

    @property
    def device(self) -> torch.device:
        return self.private.device

    @property
    def state(self) -> State:
        """The state of the client; it is read from `state_store` if it is there."""
        if self._state is None and self.state_store is not None:
            self._state = self.state_store.load(self.id, self.device)
        return {} if self._state is None else self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state

    @property
    def is_state_stored(self) -> bool:
        """Whether the state is in `state_store` and not in memory."""
        return self._state is None

    def release_state(self, is_changed: bool = True) -> None:
        """Move the state to `state_store`, if there is one.

        Args:
            is_changed: False if the store has the same state, so that nothing has to be written.
        """
        if self.state_store is None or self._state is None:
            return
        if is_changed:
            self.state_store.save(self.id, self._state)
        self._state = None

    @property
    def predictor(self) -> ClientPredictor:
        """Computes the outputs of the client's networks for any parameters."""
        return ClientPredictor(self.learner, self._networks)

    def begin_round(self, round_number: int) -> None:
        """Start a round with empty metrics."""
        self.round = round_number
        self._round_batches.clear()
        self._clear_metrics()
        self.is_skipped = False

    def call_before_training(self, function: Callable[[int], None]) -> None:
        """Call `function` with the number of steps before each training. Its exception cancels the training."""
        self._before_training = function
        if self._public_trainer is not None:
            self._public_trainer.worker.call_before_training(function)

    def require_finite(self, models: State | ReceivedMessage, kind: str = "") -> None:
        """Raise DivergenceError if a logged value or a model is NaN or infinite. `kind` names uploads in the error."""
        for name, value in self.metrics.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise DivergenceError(self.id, self.round, name)
        for name, model in models.items():
            if isinstance(model, dict) and not name.endswith(OPTIMIZER_SUFFIX) and not params.is_bounded(model):
                raise DivergenceError(self.id, self.round, f"its {kind} '{name}'" if kind else "its model")

    def rollback(self, state_before: State) -> None:
        """Restore the state from before the round and mark the client as skipped."""
        self.state = state_before
        self._clear_metrics()
        self.is_skipped = True

    def finish_round(self) -> None:
        """Discard batches, and optimizer state that is not kept between rounds."""
        self._round_state.clear()
        self._round_batches.clear()

    @property
    def lr(self) -> float:
        return self._train_settings.lr

    @property
    def initial_model(self) -> Parameters:
        return self.learner.initial_parameters(self._init_seed())

    def initial_network(self, network: str) -> Parameters:
        return self._network_learner(network).initial_parameters(self._init_seed(network))

    @property
    def has_network(self) -> bool:
        return isinstance(self.learner, NetworkLearner)

    @property
    def train_labels(self) -> Tensor:
        return self.private.host_targets

    @property
    def class_counts(self) -> Tensor:
        return torch.bincount(self.train_labels, minlength=self._num_classes)

    @property
    def validation_labels(self) -> Tensor:
        return torch.empty(0, dtype=torch.int64) if self.validation is None else self.validation.host_targets

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
        training = Training(
            model=model,
            terms=terms,
            proximal=proximal,
            private_weight=private_weight,
            examples=examples,
            parameters=parameters,
            correction=correction,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            lr=lr,
            optimizer=optimizer,
            max_grad_norm=max_grad_norm,
            weight_decay=weight_decay,
            stream=stream,
            network=network,
        )
        return self.train_all([training])[0]

    def train_all(self, trainings: Sequence[Training]) -> list[TrainResult]:
        fits = [self._make_fit(training) for training in trainings]
        losses: list[TrainingLosses] = []
        for network, own in groupby(zip(trainings, fits, strict=True), key=lambda pair: pair[0].network):
            losses += self._learner(network).fit_all([fit for _, fit in own])
        return [self._log_result(*results) for results in zip(trainings, fits, losses, strict=True)]

    def _make_fit(self, training: Training) -> Fit:
        """The model, the optimizer state and the task of a training."""
        model, stream = training.model, training.stream
        if training.epochs is not None and training.steps is not None:
            raise FedMosaicError("both epochs and steps are given (client.train): use one of them")
        private = self.private if training.examples is None else self._subset(training.examples)
        batches = self._private_batches(stream, private, training.epochs, training.steps, training.batch_size)
        self._before_training(len(batches))
        with_public = any(term.uses_public for term in training.terms)
        schedule = self._batch_schedule(batches, with_public, stream, training.batch_size)
        names = None if training.parameters is None else frozenset(training.parameters)
        unknown = sorted((names or frozenset()) - self.state[model].keys())
        if unknown:
            raise FedMosaicError(f"the model has no entry '{unknown[0]}' (client.train, parameters): see ctx.groups")
        options = StepOptions(names, training.lr, training.optimizer, training.max_grad_norm, training.weight_decay)
        task = TrainingTask(
            private,
            self.public,
            schedule,
            training.terms,
            training.proximal,
            training.private_weight,
            options,
            training.correction,
            derive_seed(self._seed, "layers", stream, self.id, self.round),
        )
        return Fit(self.state[model], self._optimizer_state(model, training.optimizer), task)

    def _log_result(self, training: Training, fit: Fit, losses: TrainingLosses) -> TrainResult:
        """Log the losses of a training and return its result."""
        terms = training.terms
        if not all(math.isfinite(loss) for loss in (losses.private, *losses.terms) if loss is not None):
            raise DivergenceError(self.id, self.round, "its training loss")
        logged = {"loss_private": losses.private}
        for term, loss in zip(terms, losses.terms, strict=True):
            logged.setdefault(term.log_key, loss)
        # The fraction of the training loss that comes from the public set.
        values = [0.0 if loss is None else term.weight * loss for term, loss in zip(terms, losses.terms, strict=True)]
        public = [value for term, value in zip(terms, values, strict=True) if term.uses_public]
        total = training.private_weight * (losses.private or 0.0) + sum(values)
        if public:
            logged["public_share"] = sum(public) / total if total else 0.0
        covers_all = training.examples is None and self._covers_all(fit.task.schedule.private_batches)
        complete = {"loss_private", *(term.log_key for term in terms if not term.uses_public)} if covers_all else set()
        self._log_training(logged, logged.keys() - complete)
        used_lr = self._train_settings.lr if training.lr is None else training.lr
        return TrainResult(losses.private, tuple(losses.terms), losses.num_steps, used_lr)

    def steps(self, *streams: str, examples: Tensor | None = None) -> Iterator[Step]:
        private = self.private if examples is None else self._subset(examples)
        batches = {stream: self._private_batches(stream, private) for stream in ("private", *streams)}
        seed = derive_seed(self._seed, "layers", self.id, self.round)
        self._before_training(len(batches["private"]))
        steps = training.ManualSteps(self._network, private, batches, seed)
        yield from steps
        covers_all = examples is None and not streams and self._covers_all(batches["private"])
        self._log_step_loss(steps.mean_loss(), covers_all)

    def take_steps(self, rule: StepRule, entries: Sequence[str], streams: Sequence[str] = ()) -> None:
        batches = {stream: self._private_batches(stream) for stream in ("private", *streams)}
        seed = derive_seed(self._seed, "layers", self.id, self.round)
        self._before_training(len(batches["private"]))
        state = {name: self.state[name] for name in entries}
        require_models_and_numbers(state)
        loss = self._network.take_steps(StepTask(rule, state, self._optimizer_state, self.private, batches, seed))
        require_models_and_numbers(state)
        self.state |= state
        self._log_step_loss(loss, not streams and self._covers_all(batches["private"]))

    def optimizer_step(self, model: str, gradient: Parameters, lr: float | None = None) -> None:
        settings, options = self._network.train_settings, StepOptions(lr=lr)
        optim.optimizer_step(settings, self.state[model], gradient, self._optimizer_state(model), options)

    def gradient(self, parameters: Parameters, stream: str) -> Parameters:
        batches = batching.resolve_indices(self.private, self._private_batches(stream)[:1])
        if not batches or (self._network.batch_norm_names and len(batches[0]) == 1):
            # Without examples there is no gradient, nor with one example whose batch statistics are undefined.
            return {n: torch.zeros_like(t) for n, t in parameters.items() if n not in self._network.buffer_names}
        inputs = self.private.batch_inputs(batches[0])
        labels = self.private.targets[batches[0].local_indices]
        return self._network.gradient(parameters, inputs, labels, update_running_stats=False)[1]

    def running_statistics(self, parameters: Parameters) -> Parameters:
        return self._network.running_statistics(parameters, self.private)

    def private_loss(self, parameters: Parameters) -> float:
        return self.learner.evaluate(parameters, self.private)[1]

    def validation_loss(self, parameters: Parameters) -> float:
        logits = to_host(self.predict_validation(parameters))
        return mean_cross_entropy(logits.log_softmax(dim=1), self.validation_labels)

    def predict_private(self, parameters: Parameters, network: str | None = None) -> Tensor:
        return self._learner(network).predict(parameters, self.private)

    def predict_validation(self, parameters: Parameters, network: str | None = None) -> Tensor:
        examples = (
            self.private.subset(torch.empty(0, dtype=torch.int64)) if self.validation is None else self.validation
        )
        return self._learner(network).predict(parameters, examples)

    def private_features(self, parameters: Parameters, network: str | None = None) -> Tensor:
        return self._learner(network).features(parameters, self.private)

    def predict_public(self, parameters: Parameters, network: str | None = None) -> Tensor:
        # These predictions are processed in float64 and sent, neither of which needs the GPU.
        return to_host(self._learner(network).predict(parameters, self.public))

    def rng(self, purpose: str) -> np.random.Generator:
        return derive_rng(self._seed, purpose, self.id, self.round)

    def privacy_rng(self, purpose: str) -> RandomSource:
        return SystemRandom() if self._use_system_rng else self.rng(purpose)

    def shared_result(self, key: str, compute: Callable[[Server], T]) -> T:
        if self._public_trainer is None:
            raise FedMosaicError(
                "clients cannot train on the public set alone: declare Needs(public_training=True) in the method"
            )
        return self._public_trainer.result(self.round, key, compute)

    def log(self, **values: Any) -> None:
        self.metrics.update(values)
        self.withheld_metrics -= values.keys()

    def _log_training(self, values: Mapping[str, Any], withheld: Collection[str]) -> None:
        """Log metrics of a training. Those that the method has logged itself take precedence.

        Args:
            values: The metrics.
            withheld: Names of metrics that are not means over all private examples, or are about public examples. Sites
                do not send them, because means over different examples determine the values of single ones.
        """
        new = {name: value for name, value in values.items() if name not in self.metrics}
        self.metrics |= new
        self.withheld_metrics |= new.keys() & withheld

    def _log_step_loss(self, loss: float | None, covers_all: bool) -> None:
        """Log the mean loss of a round of custom steps. `covers_all`: it covers all examples equally often."""
        if loss is not None and not math.isfinite(loss):
            raise DivergenceError(self.id, self.round, "its training loss")
        self._log_training({"loss_private": loss}, set() if covers_all else {"loss_private"})

    def _covers_all(self, batches: list[Tensor]) -> bool:
        """Return whether the batches of a training contain all private examples equally often."""
        if not self.has_network:
            return True  # classifiers of scikit-learn are fitted to all examples
        sizes = list(map(batching.num_rows, batches))
        skips_single = bool(self._network.batch_norm_names) and 1 in sizes
        return bool(len(self.private)) and sum(sizes) % len(self.private) == 0 and not skips_single

    def _clear_metrics(self) -> None:
        self.metrics, self.withheld_metrics = {}, set()

    @property
    def _network(self) -> NetworkLearner:
        if not isinstance(self.learner, NetworkLearner):
            raise FedMosaicError(f"client {self.id} has no network (model.name): this method needs one")
        return self.learner

    def _learner(self, network: str | None) -> Learner:
        return self.learner if network is None else self._network_learner(network)

    def _network_learner(self, network: str) -> NetworkLearner:
        if network not in self._networks:
            raise FedMosaicError(f"the method declares no network '{network}' (Needs.networks): declare it")
        return self._networks[network]

    def _init_seed(self, *network: str) -> int:
        """The seed of initial parameters, which clients share unless `train.init` is `per-client`."""
        own = (self.id,) if self._train_settings.init == "per-client" else ()
        return derive_seed(self._seed, "init", *own, *network)

    def _optimizer_state(self, model: str, optimizer: str | None = None) -> State:
        """The optimizer state of a model. With `reset` it is discarded after the round, because it is twice as large as
        the model."""
        owner = self._round_state if self._train_settings.optimizer_state == "reset" else self.state
        # Different optimizers keep different values.
        other = f"-{optimizer}" if optimizer not in (None, self._train_settings.optimizer) else ""
        optimizer_state: State = owner.setdefault(f"{model}{other}{OPTIMIZER_SUFFIX}", {})
        return optimizer_state

    def _batch_schedule(
        self, private_batches: list[Tensor], with_public: bool, stream: str, batch_size: int | None
    ) -> BatchSchedule:
        """The batches of a training. Private batches do not depend on whether public ones are drawn."""
        public: list[Tensor] = []
        if with_public:
            name = "public" if stream == "private" else f"public-{stream}"
            size, count = batch_size or self._train_settings.batch_size, len(private_batches)

            def draw() -> list[Tensor]:
                drawn = batching.step_batches(len(self.public), size, count, self._torch_generator(name))
                return self._augmented(drawn, name)

            public = self._once_per_round((name, size, count), draw)
        return BatchSchedule(private_batches, public)

    def _private_batches(
        self,
        stream: str,
        examples: Examples | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
    ) -> list[Tensor]:
        """The private batches of a training, with the configured number of steps or epochs unless one is given."""
        train = self._train_settings
        count, size = len(self.private if examples is None else examples), batch_size or train.batch_size
        if epochs is None and steps is None:
            epochs, steps = (train.local_epochs, None) if train.local_steps is None else (None, train.local_steps)
        if not count:
            return []

        def draw() -> list[Tensor]:
            generator = self._torch_generator(stream)
            if steps is not None:
                batches = batching.step_batches(count, size, steps * self._num_round_clients, generator)
            else:
                batches = batching.epoch_batches(count, size, epochs or 0, generator)
                batches = batches[: -(-self._num_round_clients * len(batches) // self._num_total_clients)]
            return self._augmented(batches, stream)

        return self._once_per_round((stream, count, size, epochs, steps), draw)

    def _subset(self, examples: Tensor) -> Examples:
        """Some of the private examples."""
        key = "subset", id(examples)
        # The positions are kept with their subset, so that no other tensor gets their identity.
        return self._once_per_round(key, lambda: (examples, self.private.subset(examples)))[1]

    def _once_per_round(self, key: tuple[Any, ...], compute: Callable[[], T]) -> T:
        """What a client needs for several trainings of a round, e.g. the batches of one stream for several models."""
        if key not in self._round_batches:
            self._round_batches[key] = compute()
        value: T = self._round_batches[key]
        return value

    def _augmented(self, batches: list[Tensor], stream: str) -> list[Tensor]:
        """The batches with random flips and crops of their images, if configured."""
        mode = self._train_settings.augment
        if mode == "none" or not batches:
            return batches
        height, width = self.private.images.shape[1:3]
        count, generator = sum(len(batch) for batch in batches), self._torch_generator("augment", stream)
        return augmentation.add_windows(batches, augmentation.draw_windows(mode, count, (height, width), generator))

    def _torch_generator(self, *purpose: str) -> Generator:
        return torch.Generator().manual_seed(derive_seed(self._seed, *purpose, self.id, self.round))


def require_models_and_numbers(state: State) -> None:
    """Raise FedMosaicError if a step rule reads or makes something else."""
    for name, value in state.items():
        if not isinstance(value, dict | int | float):
            raise FedMosaicError(
                f"state['{name}'] is of type {type(value).__name__} (client.take_steps): a step rule works on models "
                "and numbers"
            )
