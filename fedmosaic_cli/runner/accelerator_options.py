"""The options of torch for GPUs: speed against reproducibility. None has an effect on CPUs."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.engine.train_settings import TrainSettings

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True)
class AcceleratorOptions:
    """The values of torch's options in this process.

    Attributes:
        tf32: Round the factors of matrix products and convolutions to 10 bits.
        cudnn_benchmark: Let cuDNN measure its algorithms for each shape and take the fastest.
        deterministic: Use algorithms that add in a fixed order, and refuse operations without one.
    """

    tf32: bool
    cudnn_benchmark: bool
    deterministic: bool

    @classmethod
    def current(cls) -> AcceleratorOptions:
        """Return the values that are set now."""
        return cls(
            torch.get_float32_matmul_precision() != "highest",
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
        )

    @classmethod
    def from_settings(cls, train: TrainSettings) -> AcceleratorOptions:
        return cls(train.tf32, train.cudnn_benchmark, train.deterministic)

    def apply(self) -> None:
        """Set the options for the whole process."""
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        if self.deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports torch's compiler
            torch.use_deterministic_algorithms(self.deterministic)
        if self.deterministic:
            # cuBLAS reads this when it is first used. Without it, products add in varying order.
            os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")


@contextmanager
def accelerator_options(train: TrainSettings, device: torch.device) -> Iterator[None]:
    """Set the options of a run and restore the former ones afterwards. Does nothing on a CPU."""
    if device.type == "cpu":
        yield
        return
    before, cudnn_tf32 = AcceleratorOptions.current(), torch.backends.cudnn.allow_tf32
    AcceleratorOptions.from_settings(train).apply()
    try:
        yield
    finally:
        before.apply()
        torch.backends.cudnn.allow_tf32 = cudnn_tf32
