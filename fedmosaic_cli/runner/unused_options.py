"""Options of the `train` section that have no effect in a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fedmosaic_cli.engine.train_settings import TrainSettings

CUDA_OPTIONS = ("tf32", "cudnn_benchmark", "deterministic", "cuda_streams", "cuda_graphs")


def unused_option_warnings(train: TrainSettings, devices: Sequence[torch.device], execution: str) -> list[str]:
    """Return a line for each option without effect, with the reason.

    Args:
        train: The training settings of the run.
        devices: The devices of the clients.
        execution: The execution modes in use; see `runner.learner_factory.LearnerFactory.execution`.
    """
    reasons: dict[str, str] = {}
    if all(device.type != "cuda" for device in devices):
        reasons |= dict.fromkeys(CUDA_OPTIONS, "no client is on a CUDA device")
    elif execution == "stacked":
        reasons["cuda_streams"] = "all clients are stacked"
    if execution == "threads":
        for name in ("stacked_convolution", "cuda_graphs"):
            reasons.setdefault(name, "no clients are stacked")
    if train.images == "host":
        reasons.setdefault("cuda_graphs", "the images are on the host")
    defaults = type(train).model_fields
    return [
        f"train.{name} {str(getattr(train, name)).lower()} has no effect: {reason}"
        for name, reason in reasons.items()
        if getattr(train, name) != defaults[name].default
    ]
