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
from fedmosaic_cli.engine.execution.lockstep import my_desk
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Lesson, Losses
    from fedmosaic_cli.engine.method import Parameters, State
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings

GLOBAL_STREAM = threading.Lock()
# The fastest on CPUs, by a little, and far from the largest: more activations at a time leave the caches.
EVALUATION_BATCH = 128


@dataclass(frozen=True)
class Desk:
    """A worker's own module, and the tensors that it runs on."""

    module: Classifier
    tensors: dict[str, Tensor]


class Workspace:
    """A module for each worker. Implements `engine.learner.Learner` for networks."""

    def __init__(
        self,
        model: ModelSettings,
        train: TrainSettings,
        input_shape: tuple[int, int, int],
        num_classes: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.train = train
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.device = device
        self.dtype = dtype
        self.template = self._new_module(seed=0)
        self._desks: dict[int, Desk] = {}
        self.buffers = buffer_names(self.template)
        self.batch_norm = batch_norm_names(self.template)
        self.trained = [name for name, _ in self.template.named_parameters()]

    @property
    def team(self) -> Hashable:
        """Who can be trained together; None where everybody is alone."""
        return None

    def precision(self) -> AbstractContextManager[Any]:
        """In which numbers passes through the network are computed; weights are kept in full."""
        if self.train.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def initial_parameters(self, seed: int) -> Parameters:
        return {name: tensor.detach() for name, tensor in self._new_module(seed).state_dict().items()}

    def fit(self, parameters: Parameters, memory: State, lesson: Lesson) -> Losses:
        return training.fit(self, parameters, memory, lesson)

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        return self._in_batches(self.module(parameters).eval(), examples)

    def features(self, parameters: Parameters, examples: Examples) -> Tensor:
        """What the head sees [examples, width], in evaluation mode. Nothing is changed."""
        return self._in_batches(self.module(parameters).eval().features, examples)

    def _in_batches(self, function: Callable[[Tensor], Tensor], examples: Examples) -> Tensor:
        starts = range(0, len(examples), EVALUATION_BATCH)
        with torch.inference_mode(), self.precision():
            outputs = [function(examples.inputs(slice(start, start + EVALUATION_BATCH))) for start in starts]
        if not outputs:
            return torch.empty(0, self.num_classes, dtype=self.dtype, device=self.device)
        return torch.cat(outputs).to(self.dtype)

    def gradient(
        self, parameters: Parameters, inputs: Tensor, labels: Tensor, keep_statistics: bool
    ) -> tuple[Tensor, Parameters]:
        """The mean cross-entropy on a batch and its gradient."""
        return training.gradient_at(self, parameters, inputs, labels, keep_statistics)

    def statistics(self, parameters: Parameters, examples: Examples) -> Parameters:
        """Running statistics for `parameters`: the mean over the batches of one pass in training mode."""
        fresh = {name: torch.zeros_like(parameters[name]) for name in self.buffers}
        module = self.module({**parameters, **fresh}).train()
        norms = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
        momentum = [layer.momentum for layer in norms]
        try:
            for layer in norms:
                layer.momentum = None  # torch's word for a plain mean
            with torch.no_grad():
                for start in range(0, max(len(examples) - 1, 0), EVALUATION_BATCH):
                    module(examples.inputs(slice(start, start + EVALUATION_BATCH)))
        finally:
            for layer, value in zip(norms, momentum, strict=True):
                layer.momentum = value
        return fresh if len(examples) > 1 else params.only(parameters, self.buffers)

    def module(self, parameters: Parameters) -> Classifier:
        """This worker's module, running on `parameters` until the next call."""
        desk = self._desk()
        for name, tensor in desk.tensors.items():
            tensor.data = parameters[name]
        return desk.module

    def _desk(self) -> Desk:
        worker = my_desk()
        if worker not in self._desks:
            module = copy.deepcopy(self.template)
            self._desks[worker] = Desk(module, module.state_dict(keep_vars=True))
        return self._desks[worker]

    def _new_module(self, seed: int) -> Classifier:
        # Layers initialise themselves from torch's global stream: lend them a seeded one and put the old one back.
        with GLOBAL_STREAM, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = build(self.model, self.input_shape, self.num_classes)
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
