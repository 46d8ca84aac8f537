"""Choice of the execution mode and of the number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from fedmosaic_cli.engine.execution.stacked.stacked_layers import is_stackable, num_multiplications
from fedmosaic_cli.engine.execution.stacked.stacked_learner import StackedNetworkLearner
from fedmosaic_cli.engine.network_learner import NetworkLearner
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.machine import num_available_cores
from fedmosaic_cli.models.architectures import build_network

if TYPE_CHECKING:
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.model_settings import ModelSettings

ExecutionMode = Literal["threads", "stacked"]

NETWORK_LEARNERS: dict[ExecutionMode, type[NetworkLearner]] = {
    "threads": NetworkLearner,
    "stacked": StackedNetworkLearner,
}

# On a CPU, stacking is faster below this number of multiplications in the forward pass of a step: calling kernels takes
# longer than running them. `benchmarks/speed.py --only tiny` measures networks on both sides.
MAX_STACKED_MULTIPLICATIONS = 4_000_000


def choose_execution(
    train_settings: TrainSettings,
    model_settings: ModelSettings,
    input_shape: tuple[int, int, int],
    num_clients: int,
    device: torch.device,
) -> ExecutionMode:
    """The configured execution mode or, for `auto`, the one that should be fastest.

    Args:
        train_settings: Execution and batch size.
        model_settings: Network of the clients.
        input_shape: [channels, height, width].
        num_clients: Number of clients with this network.
        device: Device of the clients.

    Raises:
        RequestError: The network does not fit the images, or it cannot be stacked and `stacked` is configured.
    """
    with torch.device("meta"):  # allocates no memory
        template = build_network(model_settings, input_shape, 1, check_outputs=False)
    if train_settings.execution == "stacked" and not is_stackable(template):
        raise RequestError(
            f"the layers of {model_settings.name} cannot be stacked (train.execution): use auto or threads"
        )
    if train_settings.execution != "auto":
        return train_settings.execution
    if num_clients == 1 or not is_stackable(template):
        return "threads"
    multiplications = train_settings.batch_size * num_multiplications(template, max(input_shape[1:]))
    return "stacked" if multiplications < MAX_STACKED_MULTIPLICATIONS or device.type != "cpu" else "threads"


def num_workers(requested: int, num_clients: int, device: torch.device) -> int:
    """The requested number or, for 0, one per core and at most one per client; one on a GPU."""
    if requested:
        return requested
    return 1 if device.type != "cpu" else min(num_available_cores(), num_clients)
