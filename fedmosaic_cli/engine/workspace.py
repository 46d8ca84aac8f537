"""Where networks come alive: one module a worker, through which any client's parameters are run.

Clients own tensors, not modules. Binding points the module at a client's tensors, so nothing is copied, and training
through the module changes the client's tensors in place.
"""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fedmosaic_cli.engine import params, training
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Lesson, Losses
    from fedmosaic_cli.engine.method import Parameters, State
    from fedmosaic_cli.engine.settings import TrainSettings
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.settings import ModelSettings

GLOBAL_STREAM = threading.Lock()
EVALUATION_BATCH = 256


class Workspace:
    """A module and an optimizer for each worker thread. Implements `engine.learner.Learner` for networks."""

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
        self._template = self._new_module(seed=0)
        self._mine = threading.local()
        self.buffers = buffer_names(self._template)
        self.batch_norm = batch_norm_names(self._template)

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
        with torch.inference_mode():
            outputs = [function(examples.inputs(slice(start, start + EVALUATION_BATCH))) for start in starts]
        if not outputs:
            return torch.empty(0, self.num_classes, dtype=self.dtype, device=self.device)
        return torch.cat(outputs)

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
        """This thread's module, running on `parameters` until the next call."""
        self._prepare_thread()
        for name, tensor in self._mine.tensors.items():
            tensor.data = parameters[name]
        module: Classifier = self._mine.module
        return module

    def optimizer(self, lr: float | None = None) -> torch.optim.Optimizer:
        """This thread's optimizer of this thread's module, with no state."""
        self._prepare_thread()
        optimizer: torch.optim.Optimizer = self._mine.optimizer
        optimizer.state.clear()
        optimizer.param_groups[0]["lr"] = self.train.lr if lr is None else lr
        return optimizer

    def _prepare_thread(self) -> None:
        if not hasattr(self._mine, "module"):
            self._mine.module = copy.deepcopy(self._template)
            self._mine.tensors = self._mine.module.state_dict(keep_vars=True)
            self._mine.optimizer = new_optimizer(self._mine.module, self.train)

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


def new_optimizer(module: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
    if train.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), lr=train.lr, betas=(0.9, 0.999), fused=True)
    return torch.optim.SGD(module.parameters(), lr=train.lr, momentum=train.momentum, fused=True)
