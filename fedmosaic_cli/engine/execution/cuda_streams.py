"""CUDA streams for clients that are trained one by one, so that their small kernels run at the same time.

What a client computes and allocates belongs to the stream of the client. Other streams use it only after the part of a
round has ended, when the host has waited for the stream; and the stream starts a part of a round after everything that
the main thread has launched. So no memory is reused while a kernel still reads it.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class CudaStreams:
    """The streams of all GPUs.

    Args:
        num_streams: Number of streams per GPU; 1 leaves everything in the default stream.
    """

    def __init__(self, num_streams: int) -> None:
        self.num_streams = num_streams
        self._streams: dict[tuple[torch.device, int], Any] = {}
        self._lock = threading.Lock()

    def are_used_on(self, device: torch.device) -> bool:
        """Return whether clients on a device have streams."""
        return device.type == "cuda" and self.num_streams > 1

    @contextmanager
    def of_client(self, client: int, device: torch.device) -> Iterator[None]:
        """Compute in the stream of a client, and wait for it at the end."""
        if not self.are_used_on(device):
            yield
            return
        key = device, client % self.num_streams
        with self._lock:
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(device)
            stream = self._streams[key]
        stream.wait_stream(torch.cuda.default_stream(device))
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            stream.synchronize()


def wait_for_current_stream(device: torch.device) -> None:
    """Wait until what this thread has launched is computed, because other streams are about to use it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
