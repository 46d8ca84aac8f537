"""The number of examples in one forward pass of an evaluation."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fedmosaic_cli.models.classifier import Classifier

CPU_EVAL_BATCH_SIZE = 128
"""The fastest size on CPUs: activations of larger batches do not fit into the caches."""
MAX_EVAL_BATCH_SIZE = 4096
"""The size on accelerators, where launching kernels takes longer than running those of small batches."""
MAX_EVAL_BYTES = 2**30
"""Limit of the memory of an operation's inputs and outputs on accelerators."""


def eval_batch_size(template: Classifier, input_shape: tuple[int, int, int], device: torch.device) -> int:
    """Return the number of examples in one forward pass.

    Args:
        template: The network.
        input_shape: [channels, height, width].
        device: Where the network computes.

    Returns:
        128 on CPUs. On accelerators up to 4096, fewer if the largest operation would need more than 1 GiB.
    """
    if device.type == "cpu":
        return CPU_EVAL_BATCH_SIZE
    fitting = MAX_EVAL_BYTES // max(1, largest_operation_bytes(template, input_shape))
    return max(CPU_EVAL_BATCH_SIZE, min(MAX_EVAL_BATCH_SIZE, fitting))


def largest_operation_bytes(template: Classifier, input_shape: tuple[int, int, int]) -> int:
    """Return the memory of the inputs and outputs of the largest operation of a forward pass, per example.

    Computed without allocating memory. A network that does not run on torch's `meta` device counts as too large.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    class RecordBytes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            outputs = function(*args, **(kwargs or {}))
            tensors = [value for value in tree_leaves((args, outputs)) if isinstance(value, torch.Tensor)]
            largest = max(largest, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
            return outputs

    # Weights are counted too: in a large batch their share is small.
    examples = MAX_EVAL_BATCH_SIZE
    try:
        network = copy.deepcopy(template).to("meta").eval()
        dtype = next((weights.dtype for weights in network.parameters()), torch.get_default_dtype())
        with torch.no_grad(), RecordBytes():  # type: ignore[no-untyped-call]
            network(torch.empty(examples, *input_shape, dtype=dtype, device="meta"))
    except Exception:  # a network of the user may raise anything where tensors have no values
        return MAX_EVAL_BYTES
    return largest // examples
