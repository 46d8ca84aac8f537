"""Estimate the memory of a run by counting what it holds at the same time."""

from __future__ import annotations

import heapq
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fedmosaic_cli.engine.eval_batches import eval_batch_size
from fedmosaic_cli.engine.execution.modes import num_workers
from fedmosaic_cli.engine.execution.stacked.stacked_learner import STACKED_EVAL_EXAMPLES
from fedmosaic_cli.engine.execution.worker_pool import MAX_STACK_SIZE
from fedmosaic_cli.engine.network_learner import batch_norm_names
from fedmosaic_cli.machine import return_free_memory
from fedmosaic_cli.models.architectures import build_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.models.classifier import Classifier
    from fedmosaic_cli.models.model_settings import ModelSettings


FIRST_ROUND_BYTES = 53_000_000
"""What the first round loads besides tensors: modules of Python, code of torch's kernels, and what threads need.

The growth of resident memory in the first round of `quickstart`, whose tensors take less than 1 MB. Measured with torch
2.15 on Linux.
"""


@lru_cache
def base_bytes() -> int:
    """Return what a run holds besides its tensors: torch, this program, and what the first round loads.

    Torch and the program are measured at the first call.
    """
    return_free_memory()  # a dry run has read labels
    return int(psutil.Process().memory_info().rss) + FIRST_ROUND_BYTES


class LiveMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that operations return, for as long as they exist. Needs no data, only shapes.

    Args:
        existing: Tensors that do not count, also not as views.
    """

    def __init__(self, existing: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_bytes = 0
        self._live_bytes = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in existing}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return tree_map_only(torch.Tensor, self._count, func(*args, **(kwargs or {})))

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self._live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)
            weakref.finalize(storage, self._release, key)
        return tensor

    def _release(self, key: int) -> None:
        self._live_bytes -= self._sizes.pop(key)


@dataclass(frozen=True)
class NetworkShape:
    """What the memory of a network's activations depends on, besides the batch."""

    model: ModelSettings
    input_shape: tuple[int, int, int]
    num_classes: int

    def build(self) -> Classifier:
        """Build the network without memory for its weights."""
        with torch.device("meta"):
            return build_network(self.model, self.input_shape, self.num_classes)

    def inputs(self, batch_size: int) -> torch.Tensor:
        return torch.empty(batch_size, *self.input_shape, device="meta")


@lru_cache
def training_bytes(shape: NetworkShape, num_private: int, num_public: int) -> int:
    """Return the peak memory of a training step beside weights and optimizer state: activations and gradients.

    Args:
        shape: The network and its images.
        num_private: Private examples of a batch.
        num_public: Public examples of a batch; they take the same pass unless the network has batch normalisation.
    """
    module = shape.build().train()
    is_joint = not batch_norm_names(module)
    passes = [num_private + num_public] if is_joint else [num_private, *filter(None, [num_public])]
    memory = LiveMemory(module.state_dict().values())
    with memory:
        logits = torch.cat([module(shape.inputs(size)) for size in passes])
        labels = torch.zeros(len(logits), dtype=torch.int64, device="meta")
        cross_entropy(logits, labels).backward()
    return memory.peak_bytes


@lru_cache
def prediction_bytes(shape: NetworkShape, num_examples: int) -> int:
    """Return the peak memory of predicting a batch, beside weights."""
    module = shape.build().eval()
    memory = LiveMemory(module.state_dict().values())
    with memory, torch.no_grad():
        module(shape.inputs(num_examples))
    return memory.peak_bytes


def step_bytes(
    config: RunConfig,
    client: int,
    shape: NetworkShape,
    model_bytes: int,
    device: torch.device,
    execution: str,
    group_size: int,
) -> int:
    """Return what a worker needs to train and predict, besides the state of clients and server.

    Freed memory is kept (`machine.tune_malloc`). The blocks of a prediction are larger than those of a training step
    and do not fit into them, so both count.

    Args:
        config: The run.
        client: One of the clients with this network.
        shape: The network and its images.
        model_bytes: Size of a model.
        device: Where the clients compute.
        execution: How these clients are executed.
        group_size: Number of clients that the worker computes together.
    """
    train = config.train_settings_for(client)
    optimizer_bytes = model_bytes * train.num_optimizer_copies
    one = training_bytes(shape, train.batch_size, train.batch_size if config.method.needs.public_set else 0)
    if train.optimizer_state == "reset":  # it exists while a client trains
        one += optimizer_bytes
    if execution == "stacked":
        return group_size * (one + model_bytes + optimizer_bytes) + prediction_bytes(shape, STACKED_EVAL_EXAMPLES)
    num_examples = eval_batch_size(shape.build(), shape.input_shape, device)
    return one + prediction_bytes(shape, num_examples)


class ConcurrentGroups(NamedTuple):
    """The clients that compute at the same time: how many groups, one per worker, and the clients of a group."""

    num_groups: int
    group_size: int


def concurrent_groups(config: RunConfig, client: int, device: torch.device, execution: str) -> ConcurrentGroups:
    """Return how clients like `client` compute at the same time: one by one, or in stacks."""
    train, num_alike = config.train_settings_for(client), config.group_size(client)
    at_once = min(num_alike, train.clients_per_round or num_alike)
    workers = num_workers(train.workers, num_alike, device)
    size = min(at_once, MAX_STACK_SIZE) if execution == "stacked" else 1
    return ConcurrentGroups(min(workers, -(-at_once // size)), size)


def concurrent_bytes(
    config: RunConfig, device: torch.device, modes: Mapping[int, str], group_bytes: Callable[[int, int], int]
) -> int:
    """Return what the groups that compute at the same time need at most. Different networks have different groups.

    Args:
        config: The run.
        device: Where the clients compute.
        modes: How the clients with each network are executed, by the first of these clients.
        group_bytes: Returns what a group needs, given one of its clients and the number of clients.
    """
    num_clients = sum(map(len, config.client_groups.values()))
    num_participants = min(config.train.clients_per_round or num_clients, num_clients)
    needed: list[int] = []
    for client, execution in modes.items():
        groups = concurrent_groups(config, client, device, execution)
        needed += [group_bytes(client, groups.group_size)] * groups.num_groups
    workers = num_workers(config.train.workers, num_clients, device)
    return sum(heapq.nlargest(min(workers, num_participants), needed))
