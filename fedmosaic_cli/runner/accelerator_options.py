"""The options of torch for GPUs: speed against reproducibility. None has an effect on CPUs."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from fedmosaic_cli.engine.train_settings import TrainSettings

T = TypeVar("T")
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True)
class AcceleratorOptions:
    """The values of torch's options in this process.

    Attributes:
        matmul_precision: Torch's name for the precision of matrix products: highest, high or medium.
        cudnn_tf32: Round in convolutions and recurrent networks.
        cudnn_benchmark: Let cuDNN measure its algorithms for each shape and take the fastest.
        deterministic: Use algorithms that add in a fixed order.
        warn_only: Warn about operations without such an algorithm instead of refusing them.
    """

    matmul_precision: str
    cudnn_tf32: bool
    cudnn_benchmark: bool
    deterministic: bool
    warn_only: bool

    @classmethod
    def current(cls) -> AcceleratorOptions:
        """Return the values that are set now."""
        return cls(
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    @classmethod
    def from_settings(cls, train: TrainSettings) -> AcceleratorOptions:
        """Return the values of a run. TF32 rounds the factors of products and convolutions to 10 bits."""
        precision = "high" if train.tf32 else "highest"
        return cls(precision, train.tf32, train.cudnn_benchmark, train.deterministic, warn_only=False)

    def apply(self) -> None:
        """Set the options for the whole process."""
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if modes != (self.deterministic, self.warn_only):  # the call imports torch's compiler
            torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        if self.deterministic:
            # cuBLAS reads this when it is first used. Without it, products add in varying order.
            os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")


@contextmanager
def accelerator_options(train: TrainSettings, device: torch.device) -> Iterator[None]:
    """Set the options of a run and restore the former ones afterwards. Does nothing on a CPU."""
    if device.type == "cpu":
        yield
        return
    before = AcceleratorOptions.current()
    AcceleratorOptions.from_settings(train).apply()
    try:
        yield
    finally:
        before.apply()


def with_accelerator_options(
    train: TrainSettings, device: torch.device, items: Generator[T, None, None]
) -> Iterator[T]:
    """Yield items that are computed with the options of a run, while the code between them has the former ones."""
    with closing(items):
        while True:
            with accelerator_options(train, device):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
