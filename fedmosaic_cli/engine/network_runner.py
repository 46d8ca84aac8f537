"""Where networks come alive: one module a worker, through which any client's parameters are run.

Clients own tensors, not modules. Binding points the module at a client's tensors, so nothing is copied, and training
through the module changes the client's tensors in place.
"""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fedmosaic_cli.engine import params, training
from fedmosaic_cli.engine.execution.lockstep import current_worker_id
from fedmosaic_cli.models.architectures import build_network

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import TrainingLosses, TrainingTask
    from fedmosaic_cli.engine.method import Parameters, State
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings

GLOBAL_RNG_LOCK = threading.Lock()
# The fastest on CPUs, by a little, and far from the largest: more activations at a time leave the caches.
EVAL_BATCH_SIZE = 128


@dataclass(frozen=True)
class WorkerModule:
    """A worker's own module, and the tensors that it runs on."""

    module: Classifier
    tensors: dict[str, Tensor]


class NetworkRunner:
    """A module for each worker. Implements `engine.learner.Learner` for networks."""

    def __init__(
        self,
        model_settings: ModelSettings,
        train_settings: TrainSettings,
        input_shape: tuple[int, int, int],
        num_classes: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model_settings = model_settings
        self.train_settings = train_settings
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.device = device
        self.dtype = dtype
        self.template = self._new_module(seed=0)
        self._worker_modules: dict[int, WorkerModule] = {}
        self.buffer_names = buffer_names(self.template)
        self.batch_norm_names = batch_norm_names(self.template)
        self.trainable_names = [name for name, _ in self.template.named_parameters()]

    @property
    def stack_key(self) -> Hashable:
        """Who can be trained together; None where everybody is alone."""
        return None

    def autocast(self) -> AbstractContextManager[Any]:
        """In which numbers passes through the network are computed; weights are kept in full."""
        if self.train_settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def initial_parameters(self, seed: int) -> Parameters:
        return {name: tensor.detach() for name, tensor in self._new_module(seed).state_dict().items()}

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        return training.fit_network(self, parameters, optimizer_state, task)

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        return self._run_in_batches(self.bound_module(parameters).eval(), examples)

    def features(self, parameters: Parameters, examples: Examples) -> Tensor:
        """What the head sees [examples, width], in evaluation mode. Nothing is changed."""
        return self._run_in_batches(self.bound_module(parameters).eval().features, examples)

    def _run_in_batches(self, function: Callable[[Tensor], Tensor], examples: Examples) -> Tensor:
        starts = range(0, len(examples), EVAL_BATCH_SIZE)
        with torch.inference_mode(), self.autocast():
            outputs = [function(examples.inputs(slice(start, start + EVAL_BATCH_SIZE))) for start in starts]
        if not outputs:
            return torch.empty(0, self.num_classes, dtype=self.dtype, device=self.device)
        return torch.cat(outputs).to(self.dtype)

    def gradient(
        self, parameters: Parameters, inputs: Tensor, labels: Tensor, update_running_stats: bool
    ) -> tuple[Tensor, Parameters]:
        """The mean cross-entropy on a batch and its gradient."""
        return training.batch_gradient(self, parameters, inputs, labels, update_running_stats)

    def running_statistics(self, parameters: Parameters, examples: Examples) -> Parameters:
        """Running statistics for `parameters`: the mean over the batches of one pass in training mode."""
        fresh = {name: torch.zeros_like(parameters[name]) for name in self.buffer_names}
        module = self.bound_module({**parameters, **fresh}).train()
        norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
        momentum = [layer.momentum for layer in norms]
        try:
            for layer in norms:
                layer.momentum = None  # torch's word for a plain mean
            with torch.no_grad():
                for start in range(0, max(len(examples) - 1, 0), EVAL_BATCH_SIZE):
                    module(examples.inputs(slice(start, start + EVAL_BATCH_SIZE)))
        finally:
            for layer, value in zip(norms, momentum, strict=True):
                layer.momentum = value
        return fresh if len(examples) > 1 else params.select(parameters, self.buffer_names)

    def bound_module(self, parameters: Parameters) -> Classifier:
        """This worker's module, running on `parameters` until the next call."""
        desk = self._worker_module()
        for name, tensor in desk.tensors.items():
            tensor.data = parameters[name]
        return desk.module

    def _worker_module(self) -> WorkerModule:
        worker = current_worker_id()
        if worker not in self._worker_modules:
            module = copy.deepcopy(self.template)
            self._worker_modules[worker] = WorkerModule(module, module.state_dict(keep_vars=True))
        return self._worker_modules[worker]

    def _new_module(self, seed: int) -> Classifier:
        # Layers initialise themselves from torch's global stream: lend them a seeded one and put the old one back.
        with GLOBAL_RNG_LOCK, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = build_network(self.model_settings, self.input_shape, self.num_classes)
        return module.to(self.device, self.dtype)


def buffer_names(module: nn.Module) -> frozenset[str]:
    """The entries of a network that are no parameters."""
    return frozenset(name for name, _ in module.named_buffers())


def batch_norm_names(module: nn.Module) -> frozenset[str]:
    """All entries of a network's batch normalisation: known by their layer's type, whatever it is called."""
    return frozenset(
        f"{path}.{entry}"
        for path, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        for entry in layer.state_dict()
    )
