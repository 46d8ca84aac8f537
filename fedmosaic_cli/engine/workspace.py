"""Where models come alive: one module a worker, through which any client's parameters are run.

Clients own tensors, not modules. Binding points the module at a client's tensors, so nothing is copied, and training
through the module changes the client's tensors in place.
"""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from torch import nn

    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.engine.settings import TrainSettings
    from fedmosaic_cli.models.settings import ModelSettings

GLOBAL_STREAM = threading.Lock()


class Workspace:
    """A module and an optimizer for each worker thread."""

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

    def initial_parameters(self, seed: int) -> Parameters:
        """The starting point that `seed` names."""
        return params.copy(self._new_module(seed).state_dict())

    def module(self, parameters: Parameters) -> nn.Module:
        """This thread's module, running on `parameters` until the next call."""
        self._prepare_thread()
        for name, tensor in self._mine.tensors.items():
            tensor.data = parameters[name]
        module: nn.Module = self._mine.module
        return module

    def optimizer(self) -> torch.optim.Optimizer:
        """This thread's optimizer of this thread's module, with no state."""
        self._prepare_thread()
        optimizer: torch.optim.Optimizer = self._mine.optimizer
        optimizer.state.clear()
        return optimizer

    def _prepare_thread(self) -> None:
        if not hasattr(self._mine, "module"):
            self._mine.module = copy.deepcopy(self._template)
            self._mine.tensors = self._mine.module.state_dict(keep_vars=True)
            self._mine.optimizer = new_optimizer(self._mine.module, self.train)

    def _new_module(self, seed: int) -> nn.Module:
        # Layers initialise themselves from torch's global stream: lend them a seeded one and put the old one back.
        with GLOBAL_STREAM, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = build(self.model, self.input_shape, self.num_classes)
        return module.to(self.device, self.dtype)


def new_optimizer(module: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
    if train.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), lr=train.lr, betas=(0.9, 0.999), fused=True)
    return torch.optim.SGD(module.parameters(), lr=train.lr, momentum=train.momentum, fused=True)
