"""Execution of networks: one module per worker, which runs on the parameters of any client.

Clients own tensors, not modules. Binding makes the module use a client's tensors without copying, so that training the
module updates the client's tensors in place.
"""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedmosaic_cli.engine import params, step_rules, training
from fedmosaic_cli.engine.eval_batches import eval_batch_size
from fedmosaic_cli.engine.execution.lockstep import current_worker_id, without_group
from fedmosaic_cli.engine.execution.stacked.stacked_layers import is_stackable
from fedmosaic_cli.engine.losses import count_and_loss
from fedmosaic_cli.models.architectures import as_classifier, build_network
from fedmosaic_cli.models.registered_models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from fedmosaic_cli.engine.context import ParameterGroup, Parameters, State
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Fit, TrainingLosses, TrainingTask
    from fedmosaic_cli.engine.method import NetworkFactory
    from fedmosaic_cli.engine.step_rules import StepTask
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings

GLOBAL_RNG_LOCK = threading.Lock()
# Batch-normalisation statistics are means over batches, so this number determines them on every device.
STATISTICS_BATCH_SIZE = 128


class NetworkLearner:
    """Implements `engine.learner.Learner` for networks.

    Args:
        model_settings: The network.
        train_settings: Configuration of the training.
        input_shape: [channels, height, width].
        num_classes: Number of classes.
        device: Where the network computes.
        dtype: Type of its weights.
        extend: Makes an additional network of a method from the client's network; see `engine.method.Needs`.
    """

    def __init__(
        self,
        model_settings: ModelSettings,
        train_settings: TrainSettings,
        input_shape: tuple[int, int, int],
        num_classes: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        extend: NetworkFactory | None = None,
    ) -> None:
        self.model_settings = model_settings
        self._extend = extend
        self.train_settings = train_settings
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.device = device
        self.dtype = dtype
        self.template = self._new_module(seed=0)
        self._worker_modules: dict[int, tuple[Classifier, dict[str, Tensor]]] = {}
        self.buffer_names = buffer_names(self.template)
        self.batch_norm_names = batch_norm_names(self.template)
        self.trainable_names = [name for name, tensor in self.template.named_parameters() if tensor.requires_grad]
        self.groups = parameter_groups(self.template)
        # The code of a plug-in network is unknown, unless it is a sequence of known layers.
        is_unknown = model_settings.name in MODELS and not is_stackable(self.template)
        self.has_random_layers = has_random_layers(self.template) or is_unknown

    @property
    def stack_key(self) -> Hashable:
        return None

    @cached_property
    def eval_batch_size(self) -> int:
        """The number of examples in one forward pass of an evaluation."""
        return eval_batch_size(self.template, self.input_shape, self.device)

    @contextmanager
    def seeded_layers(self, seed: int) -> Iterator[None]:
        """Let layers such as dropout draw from `seed`. They use torch's global generator, so one client runs at a time.

        Does nothing for networks without such layers.
        """
        if not self.has_random_layers:
            yield
            return
        gpus = [self.device] if self.device.type == "cuda" else []
        with GLOBAL_RNG_LOCK, torch.random.fork_rng(gpus):
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                with torch.cuda.device(gpu):
                    torch.cuda.manual_seed(seed)
            yield

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward passes: bfloat16 if configured. Weights stay in full precision."""
        if self.train_settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def initial_parameters(self, seed: int) -> Parameters:
        return {name: tensor.detach() for name, tensor in self._new_module(seed).state_dict().items()}

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        # The clients of a group share the module, so none of them may wait while one trains it.
        with without_group(), self.seeded_layers(task.seed):
            return training.fit_network(self, parameters, optimizer_state, task)

    def fit_all(self, fits: Sequence[Fit]) -> list[TrainingLosses]:
        return [self.fit(fit.parameters, fit.optimizer_state, fit.task) for fit in fits]

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        return self._run_in_batches(self.bound_module(parameters).eval(), examples, self.num_classes)

    def evaluate(self, parameters: Parameters, examples: Examples) -> tuple[float, float]:
        return count_and_loss(self.predict(parameters, examples), examples.targets)

    def features(self, parameters: Parameters, examples: Examples) -> Tensor:
        """Inputs of the head [examples, width] in evaluation mode, without side effects."""
        width = self.template.head.in_features
        return self._run_in_batches(self.bound_module(parameters).eval().features, examples, width)

    def _run_in_batches(self, function: Callable[[Tensor], Tensor], examples: Examples, width: int) -> Tensor:
        size = self.eval_batch_size
        with torch.inference_mode(), self.autocast():
            outputs = [function(examples.inputs(slice(start, start + size))) for start in range(0, len(examples), size)]
        if not outputs:
            return torch.empty(0, width, dtype=self.dtype, device=self.device)
        return torch.cat(outputs).to(self.dtype)

    def gradient(
        self, parameters: Parameters, inputs: Tensor, labels: Tensor, update_running_stats: bool
    ) -> tuple[Tensor, Parameters]:
        """The mean cross-entropy on a batch and its gradient."""
        return training.batch_gradient(self, parameters, inputs, labels, update_running_stats)

    def take_steps(self, task: StepTask) -> float | None:
        """Take the steps of a custom rule and return the mean loss; None without a step. `task.state` is updated."""
        return step_rules.take_steps(self, task)

    def running_statistics(self, parameters: Parameters, examples: Examples) -> Parameters:
        """Batch-norm statistics for `parameters`: the mean over the batches of one pass in training mode."""
        statistics = self.buffer_names & self.batch_norm_names
        fresh = {name: torch.zeros_like(parameters[name]) for name in statistics}
        module = self.bound_module({**parameters, **fresh}).train()
        norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
        momentum = [layer.momentum for layer in norms]
        try:
            for layer in norms:
                layer.momentum = None  # None selects the plain mean
            with torch.no_grad():
                for start in range(0, max(len(examples) - 1, 0), STATISTICS_BATCH_SIZE):
                    module(examples.inputs(slice(start, start + STATISTICS_BATCH_SIZE)))
        finally:
            for layer, value in zip(norms, momentum, strict=True):
                layer.momentum = value
        return fresh if len(examples) > 1 else params.select(parameters, statistics)

    def bound_module(self, parameters: Parameters) -> Classifier:
        """This worker's module, bound to `parameters` until the next call."""
        worker = current_worker_id()
        if worker not in self._worker_modules:
            module = copy.deepcopy(self.template)
            self._worker_modules[worker] = module, module.state_dict(keep_vars=True)
        module, tensors = self._worker_modules[worker]
        for name, tensor in tensors.items():
            tensor.data = parameters[name]
        return module

    def _new_module(self, seed: int) -> Classifier:
        # Layers draw their weights from torch's global generator: seed it, and restore it afterwards.
        with GLOBAL_RNG_LOCK, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = build_network(self.model_settings, self.input_shape, self.num_classes)
            if self._extend is not None:
                module = as_classifier(self._extend(module, self.num_classes), self.input_shape)
        return module.to(self.device, self.dtype)


def has_random_layers(module: nn.Module) -> bool:
    """Return whether a network has layers that draw random numbers in training mode."""
    return any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in module.modules())


def parameter_groups(module: Classifier) -> dict[ParameterGroup, frozenset[str]]:
    """Return the names of state entries by group; see `engine.context.FederationInfo`."""
    names = frozenset(module.state_dict())
    head = frozenset(f"head.{name}" for name in module.head.state_dict())
    return {
        "body": names - head,
        "head": head,
        "batch_norm": batch_norm_names(module),
        "buffers": buffer_names(module),
    }


def buffer_names(module: nn.Module) -> frozenset[str]:
    """State entries that are not parameters."""
    return frozenset(module.state_dict().keys() - dict(module.named_parameters()).keys())


def batch_norm_names(module: nn.Module) -> frozenset[str]:
    """State entries of batch-norm layers: parameters and statistics."""
    return frozenset(
        f"{path}.{entry}"
        for path, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for entry in layer.state_dict()
    )
