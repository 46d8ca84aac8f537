"""Graphs of the simulated accelerator: operations that are recorded once and repeated on the same memory.

As with a CUDA graph, a capture changes no tensor, reads and copies to or from the host fail, a replay reads and writes
the memory of the capture, and the graph owns only the tensors that were made during the capture, whose content is
undefined until a replay. Unlike with a CUDA graph, a replay fails if other memory that it uses has been freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from fedmosaic_cli.engine.execution.step_graph import CAPTURES
from tests.accelerator.simulated_device import CAPTURE, DEVICE_TYPE, RECORDS, is_simulated

REPLAY, CAPTURE_WAIT = "replay", "capture"
GARBAGE = 255
"""The bytes of undefined memory: NaN as numbers, -1 as indices."""


@dataclass(frozen=True)
class Place:
    """Where a tensor of the device is, without keeping its memory."""

    storage: StorageWeakRef
    address: int
    num_bytes: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Place:
        storage = tensor.untyped_storage()
        layout = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
        return cls(StorageWeakRef(storage), storage.data_ptr(), storage.nbytes(), *layout)

    def memory(self) -> torch.Tensor:
        """Return all bytes of the storage as a CPU tensor."""
        if self.storage.expired():
            raise RuntimeError("a graph uses memory that was freed")
        return torch.frombuffer((ctypes.c_char * self.num_bytes).from_address(self.address), dtype=torch.uint8)

    def on_cpu(self) -> torch.Tensor:
        """Return a CPU tensor in the same place."""
        if not self.size.numel():
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype)
        return self.memory().view(self.dtype).as_strided(self.size, self.stride, self.offset)


@dataclass(frozen=True)
class RecordedCall:
    """An operation with its arguments, and the places of those of its results that have memory."""

    operation: Callable[..., Any]
    arguments: tuple[Any, Any]
    outputs: dict[int, Place]

    def repeat(self) -> None:
        args, kwargs = tree_map(lambda value: value.on_cpu() if isinstance(value, Place) else value, self.arguments)
        results = tree_leaves(self.operation(*args, **kwargs))
        for number, place in self.outputs.items():
            place.on_cpu().copy_(results[number])


class SimulatedGraph:
    """The operations of a captured call."""

    def __init__(self) -> None:
        self._calls: list[RecordedCall] = []
        self._arguments: tuple[Any, Any] = ((), {})
        # By address: tensors made during the capture, and the content that other memory had before.
        self._own: dict[int, torch.Tensor] = {}
        self._before: dict[int, tuple[Place, torch.Tensor]] = {}

    def begin_call(self, name: str, waits: bool, args: Any, kwargs: Any) -> None:
        """Note the places of the arguments of an operation, and their content, which the operation may change.

        Raises:
            RuntimeError: The host waits for the operation.
        """
        if waits:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        self._arguments = tree_map(lambda value: Place.of(value) if is_simulated(value) else value, (args, kwargs))
        for place in tree_leaves(self._arguments):
            if isinstance(place, Place) and place.num_bytes and place.address not in self._own:
                self._before.setdefault(place.address, (place, place.memory().clone()))

    def end_call(self, operation: Callable[..., Any], results: Any) -> None:
        """Record an operation with these results. Results in other memory than new one need no copy."""
        outputs = {}
        for number, result in enumerate(tree_leaves(results)):
            if is_simulated(result) and result.numel():
                place = Place.of(result)
                if place.address not in self._own and place.address not in self._before:
                    self._own[place.address] = result
                    outputs[number] = place
        self._calls.append(RecordedCall(operation, self._arguments, outputs))

    def end_capture(self) -> None:
        """Restore the memory that was changed, and make that of the graph undefined."""
        for place, content in self._before.values():
            place.memory().copy_(content)
        self._before.clear()
        for tensor in self._own.values():
            Place.of(tensor).memory().fill_(GARBAGE)

    def replay(self) -> None:
        with torch._C._AutoDispatchBelowAutograd():
            for call in self._calls:
                call.repeat()
        for record in RECORDS:
            record.count_kernel(REPLAY)


class SimulatedGraphs:
    """Implements `engine.execution.step_graph.GraphCapture`. A capture counts as a wait, because torch waits for it."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == DEVICE_TYPE

    def warm_up(self, function: Callable[[], None]) -> None:
        function()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        for record in RECORDS:
            record.count_wait(CAPTURE_WAIT)
        graph = CAPTURE.graph = SimulatedGraph()
        try:
            function()
        finally:
            CAPTURE.graph = None
            graph.end_capture()
        return graph.replay


CAPTURES[DEVICE_TYPE] = SimulatedGraphs
