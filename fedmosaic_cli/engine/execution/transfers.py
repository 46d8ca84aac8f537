"""Copies between the host and a device, where the host waits for the device.

The clients of a lockstep group copy together: their tensors are joined and copied once. On a CPU nothing is joined,
because there a read costs less than waiting for the other clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.engine.execution.lockstep import current_group

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def to_host(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU."""
    group = current_group()
    if group is None or tensor.device.type == "cpu":
        return tensor.cpu()
    on_host: Tensor = group.submit(("to host", tensor.device, tensor.dtype), copy_all_to_host, tensor, is_transfer=True)
    return on_host


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. Clients of a group get views of one tensor, so do not keep them for long."""
    group = current_group()
    if group is None or tensor.device == device or tensor.device.type != "cpu":
        return copy_to_device(tensor, device)
    on_device: Tensor = group.submit(
        ("to device", device, tensor.dtype), copy_all_to_device, (tensor, device), is_transfer=True
    )
    return on_device


def copy_to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, asynchronously on CUDA only: elsewhere the source may be freed too early."""
    return tensor.to(device, non_blocking=device.type == "cuda")


def read_values(tensor: Tensor) -> Any:
    """Return the values of a tensor: a number, or lists of numbers."""
    return to_host(tensor).tolist()


def read_scalars(*scalars: Tensor) -> list[float]:
    """Return the values of tensors without dimensions. On a device they are read together, in the type of the last one:
    single precision is exact for integers up to 2**24."""
    import torch

    if scalars[0].device.type == "cpu":
        return [scalar.item() for scalar in scalars]
    values: list[float] = read_values(torch.stack([scalar.to(scalars[-1].dtype) for scalar in scalars]))
    return values


def copy_all_to_host(tensors: list[Tensor]) -> list[Tensor]:
    """Copy the tensors of several clients with one wait."""
    # Clones, so that the values of one client do not keep the memory of all.
    return [part.clone() for part in split_like(join(tensors).cpu(), tensors)]


def copy_all_to_device(requests: list[tuple[Tensor, torch.device]]) -> list[Tensor]:
    """Copy the tensors of several clients to their device with one wait."""
    tensors = [tensor for tensor, _ in requests]
    return split_like(copy_to_device(join(tensors), requests[0][1]), tensors)


def join(tensors: list[Tensor]) -> Tensor:
    """Return the values of all tensors in one dimension."""
    import torch

    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def split_like(joined: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Return the parts of `joined` in the shapes of `tensors`."""
    parts = joined.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
