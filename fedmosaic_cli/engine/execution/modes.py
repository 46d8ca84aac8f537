"""How clients are run: one by one in threads, or stacked. The one place that chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from fedmosaic_cli.engine.execution.stacked.stacked_layers import is_stackable, num_multiplications
from fedmosaic_cli.engine.execution.stacked.stacked_runner import StackedNetworkRunner
from fedmosaic_cli.engine.network_runner import NetworkRunner
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.machine import num_available_cores
from fedmosaic_cli.models.architectures import build_network

if TYPE_CHECKING:
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.model_settings import ModelSettings

ExecutionMode = Literal["threads", "stacked"]

NETWORK_RUNNERS: dict[ExecutionMode, type[NetworkRunner]] = {"threads": NetworkRunner, "stacked": StackedNetworkRunner}

# Below so many multiplications in a step's forward pass, on a CPU, stacking gains: calling kernels takes longer than
# running them. `benchmarks/speed.py --only tiny` has networks on both sides.
MAX_STACKED_MULTIPLICATIONS = 4_000_000


def choose_execution(
    train_settings: TrainSettings,
    model_settings: ModelSettings,
    input_shape: tuple[int, int, int],
    num_clients: int,
    device: torch.device,
) -> ExecutionMode:
    """What was asked for; or, for `auto`, what should be fastest for so many clients with one network.

    A network that does not fit the images, or the execution asked for, is refused.
    """
    with torch.device("meta"):  # nothing is allocated
        template = build_network(model_settings, input_shape, 1)
    if train_settings.execution == "stacked" and not is_stackable(template):
        raise RequestError(
            f"the layers of {model_settings.name} cannot be stacked (train.execution): use auto or threads"
        )
    if train_settings.execution != "auto":
        return train_settings.execution
    if num_clients == 1 or not is_stackable(template):
        return "threads"
    small = (
        train_settings.batch_size * num_multiplications(template, max(input_shape[1:])) < MAX_STACKED_MULTIPLICATIONS
    )
    return "stacked" if small or device.type != "cpu" else "threads"


def num_workers(requested: int, num_clients: int, device: torch.device) -> int:
    """As many as asked for, or one a core; a GPU is kept busy by one."""
    if requested:
        return requested
    return 1 if device.type != "cpu" else min(num_available_cores(), num_clients)
