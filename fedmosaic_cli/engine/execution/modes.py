"""How clients are run: one by one in threads, or stacked. The one place that chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from fedmosaic_cli.engine.execution.stacked.stacked_layers import can_stack, multiplications
from fedmosaic_cli.engine.execution.stacked.stacked_runner import StackedWorkspace
from fedmosaic_cli.engine.network_runner import Workspace
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.machine import available_cores
from fedmosaic_cli.models.architectures import build

if TYPE_CHECKING:
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.model_settings import ModelSettings

Execution = Literal["threads", "stacked"]

WORKSPACES: dict[Execution, type[Workspace]] = {"threads": Workspace, "stacked": StackedWorkspace}

# Below so many multiplications in a step's forward pass, on a CPU, stacking gains: calling kernels takes longer than
# running them. `benchmarks/speed.py --only tiny` has networks on both sides.
SMALL_STEP = 4_000_000


def choose(
    train: TrainSettings, model: ModelSettings, input_shape: tuple[int, int, int], clients: int, device: torch.device
) -> Execution:
    """What was asked for; or, for `auto`, what should be fastest for so many clients with one network.

    A network that does not fit the images, or the execution asked for, is refused.
    """
    with torch.device("meta"):  # nothing is allocated
        template = build(model, input_shape, 1)
    if train.execution == "stacked" and not can_stack(template):
        raise RequestError(f"the layers of {model.name} cannot be stacked (train.execution): use auto or threads")
    if train.execution != "auto":
        return train.execution
    if clients == 1 or not can_stack(template):
        return "threads"
    small = train.batch_size * multiplications(template, max(input_shape[1:])) < SMALL_STEP
    return "stacked" if small or device.type != "cpu" else "threads"


def worker_count(asked: int, clients: int, device: torch.device) -> int:
    """As many as asked for, or one a core; a GPU is kept busy by one."""
    if asked:
        return asked
    return 1 if device.type != "cpu" else min(available_cores(), clients)
