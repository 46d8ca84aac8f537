"""Convert the state of server and clients to arrays and plain values for checkpoints, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import params

if TYPE_CHECKING:
    from fedmosaic_cli.engine.federation import Federation, RunState
    from fedmosaic_cli.engine.method import Parameters, State
    from fedmosaic_cli.storage.runs import ArrayDict

KEY_SEPARATOR = "/"


def to_arrays(parameters: Parameters) -> ArrayDict:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in parameters.items()}


def to_tensors(arrays: ArrayDict, device: torch.device) -> Parameters:
    """Copy arrays to tensors on a device."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


def capture_state(state: RunState) -> tuple[ArrayDict, dict[str, Any]]:
    """Return the state of server and clients: arrays, and other values."""
    tree: State = {"server": state.server, **{f"client-{client.id}": client.state for client in state.clients}}
    tensors: Parameters = {}
    values: dict[str, Any] = {}
    flatten_state(tree, "", tensors, values)
    return to_arrays(tensors), values


def restore_state(federation: Federation, arrays: ArrayDict, values: dict[str, Any], finished_rounds: int) -> None:
    """Restore what `capture_state` returned."""
    state = federation.state
    tree = unflatten_state({**to_tensors(arrays, torch.device("cpu")), **values})
    state.server = params.models_to_device(tree.get("server", {}), federation.server_device)
    for client in state.clients:
        client.state = params.models_to_device(tree.get(f"client-{client.id}", {}), client.device)
        client.round = finished_rounds
    state.finished = finished_rounds


def flatten_state(tree: State, prefix: str, tensors: Parameters, values: dict[str, Any]) -> None:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flatten_state(value, name + KEY_SEPARATOR, tensors, values)
        elif isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value


def unflatten_state(flat: dict[str, Any]) -> State:
    tree: State = {}
    for name, value in flat.items():
        *parents, last = name.split(KEY_SEPARATOR)
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = value
    return tree
