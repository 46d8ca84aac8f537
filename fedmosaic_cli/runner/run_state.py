"""Where a run stands, as arrays and plain values for checkpoints, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import params

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Parameters, State
    from fedmosaic_cli.engine.rounds import Federation, Standing
    from fedmosaic_cli.storage.runs import Arrays

SEPARATOR = "/"


def to_arrays(parameters: Parameters) -> Arrays:
    """A model as NumPy arrays."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in parameters.items()}


def to_tensors(arrays: Arrays, device: torch.device) -> Parameters:
    """A model as tensors of its own on `device`."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


def capture(standing: Standing) -> tuple[Arrays, dict[str, Any]]:
    """Everything that server and clients remember: tensors, and the rest."""
    tree: State = {"server": standing.server, **{f"client-{client.id}": client.state for client in standing.clients}}
    tensors: Parameters = {}
    values: dict[str, Any] = {}
    flatten(tree, "", tensors, values)
    return to_arrays(tensors), values


def restore(federation: Federation, arrays: Arrays, values: dict[str, Any], finished: int) -> None:
    """Put a run back where `capture` found it."""
    standing = federation.standing
    tree = unflatten({**to_tensors(arrays, torch.device("cpu")), **values})
    standing.server = params.models_on(tree.get("server", {}), federation.device)
    for client in standing.clients:
        client.state = params.models_on(tree.get(f"client-{client.id}", {}), client.device)
        client.round = finished
    standing.finished = finished


def flatten(tree: State, prefix: str, tensors: Parameters, values: dict[str, Any]) -> None:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flatten(value, name + SEPARATOR, tensors, values)
        elif isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value


def unflatten(flat: dict[str, Any]) -> State:
    tree: State = {}
    for name, value in flat.items():
        *parents, last = name.split(SEPARATOR)
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = value
    return tree
