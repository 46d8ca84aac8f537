"""CUDA graphs of training steps: the kernels of a step are captured once and then launched together.

A graph repeats its kernels on the same memory. A step can be captured if everything that it changes is updated in
place, its shapes are constant, it reads no value, and only one number differs between steps: the position of its batch
in tables on the device. Replays take this number from a tensor.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.train_settings import TrainSettings

# Replays for which a step is captured. A capture launches no kernels, but it takes the time of a step in Python, waits
# for the device, and returns torch's unused memory. The threshold was not measured: no GPU was available.
MIN_REPLAYS = 8

# torch allows one capture at a time in a process, and other kernels in the stream would be captured too.
CAPTURE_LOCK = threading.Lock()


class GraphCapture(Protocol):
    """Captures functions that launch kernels on a device."""

    def warm_up(self, function: Callable[[], None]) -> None:
        """Call a function that is about to be captured."""
        ...

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Call a function without computing anything, and return what computes the captured kernels."""
        ...


class CudaGraphs:
    """Captures the CUDA graphs of one training.

    The graphs share the memory for temporary tensors. A replay leaves nothing in it, so they may be replayed in any
    order, one at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Callable[[], None]) -> None:
        """Call a function in the stream of the capture.

        Libraries allocate memory for a stream when it is first used, which cannot be captured. cuDNN may choose its
        algorithms when it first sees the shapes.
        """
        with CAPTURE_LOCK, torch.cuda.device(self._device):
            stream, current = side_stream(self._device), torch.cuda.current_stream(self._device)
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                function()
            current.wait_stream(stream)

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        with CAPTURE_LOCK, torch.cuda.device(self._device):
            graph, stream = torch.cuda.CUDAGraph(), side_stream(self._device)
            # Threads of other GPUs may allocate memory meanwhile, hence the mode.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                function()
        replay: Callable[[], None] = graph.replay
        return replay


@cache
def side_stream(device: torch.device) -> Any:
    """Return the stream of all captures on a device: a stream is never the default one while it is captured.

    Each use waits for the default stream. So memory that was allocated on the side stream, such as the states that an
    optimizer makes in the first step, is not reused before the default stream has finished with it.
    """
    return torch.cuda.Stream(device)


CAPTURES: dict[str, Callable[[torch.device], GraphCapture]] = {"cuda": CudaGraphs}
"""How steps are captured, by type of device. On other devices they are not."""


def step_capture(train_settings: TrainSettings, examples: Examples) -> GraphCapture | None:
    """Return what captures training steps on these examples, if it is configured and possible.

    Images on the host are copied to the device in each step, which cannot be captured.
    """
    device = examples.device
    if not train_settings.cuda_graphs or device.type not in CAPTURES or examples.images.device != device:
        return None
    return CAPTURES[device.type](device)


class StepGraphs:
    """Takes the steps of a training, and replays graphs where several steps have the same shapes.

    Args:
        capture: Captures the steps; None computes each.
        shapes: Equal for steps whose tensors have the same shapes.
        device: Where the steps compute.
    """

    def __init__(self, capture: GraphCapture | None, shapes: Sequence[Hashable], device: torch.device) -> None:
        self._capture = capture
        self._shapes = shapes
        self._num_remaining = Counter(shapes)
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self._position = None if capture is None else torch.zeros(1, dtype=torch.int64, device=device)

    def take_step(self, index: int, compute: Callable[[Tensor | None], None]) -> None:
        """Take a step.

        Args:
            index: Number of the step.
            compute: Computes the step whose number is in a tensor [1] on the device or, with None, the step `index`.

        Raises:
            RequestError: The step cannot be captured.
        """
        position = self._position
        if self._capture is None or position is None:
            compute(None)
            return
        shape = self._shapes[index]
        self._num_remaining[shape] -= 1
        if shape in self._replays:
            set_position(position, index)
            self._replays[shape]()
        elif self._num_remaining[shape] >= MIN_REPLAYS:
            set_position(position, index)
            self._replays[shape] = capture_step(self._capture, lambda: compute(position))
        else:
            compute(None)


def set_position(position: Tensor, index: int) -> None:
    """Set the step that replays compute."""
    position.fill_(index)


def capture_step(graphs: GraphCapture, function: Callable[[], None]) -> Callable[[], None]:
    """Take a step and capture it."""
    graphs.warm_up(function)
    try:
        return graphs.capture(function)
    except RuntimeError as error:
        # After a failed step, CUDA usually cannot end the capture either, which raises another error.
        cause = error
        while isinstance(cause.__context__, RuntimeError):
            cause = cause.__context__
        if isinstance(cause, torch.cuda.OutOfMemoryError):
            raise cause from None
        reason = str(cause).partition("\n")[0]
        raise RequestError(
            f"the training step cannot be captured in a CUDA graph (train.cuda_graphs): {reason}: set it to false"
        ) from error
