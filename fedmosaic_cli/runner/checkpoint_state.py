"""Convert the state of server and clients to arrays and plain values for checkpoints, and back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.storage.checkpoints import KEY_SEPARATOR
from fedmosaic_cli.storage.tensor_files import TensorSource, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from fedmosaic_cli.engine.context import Parameters, State
    from fedmosaic_cli.engine.federation import Federation, RunState
    from fedmosaic_cli.storage.runs import ArrayDict
    from fedmosaic_cli.storage.tensor_files import Array

KEY_ORDER = "key_order"
"""Key of the list of all keys, because files do not keep their order."""


class StateArrays(TensorSource):
    """Tensors of a state as arrays. Those that have to be copied, e.g. from a GPU, are copied when accessed."""

    def __init__(self, tensors: Parameters) -> None:
        self._tensors = tensors

    def spec(self, name: str) -> TensorSpec:
        tensor = self._tensors[name]
        return TensorSpec(array_dtype(tensor.dtype), tuple(tensor.shape))

    def __getitem__(self, name: str) -> Array:
        return to_array(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@lru_cache
def array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the type of arrays with the same values."""
    return to_array(torch.empty(0, dtype=dtype)).dtype


def to_array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array


def to_arrays(parameters: Parameters) -> ArrayDict:
    return {name: to_array(tensor) for name, tensor in parameters.items()}


def to_tensors(arrays: Mapping[str, Array], device: torch.device) -> Parameters:
    """Copy arrays to tensors on a device."""
    return {name: torch.tensor(array, device=device) for name, array in arrays.items()}


def capture_state(state: RunState) -> tuple[StateArrays, dict[str, Any]]:
    """Return the state of server and clients: arrays, and other values."""
    tree: State = {"server": state.server.state, **{f"client-{client.id}": client.state for client in state.clients}}
    flat = flatten_state(tree)
    tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
    values = {name: value for name, value in flat.items() if name not in tensors}
    return StateArrays(tensors), {**values, KEY_ORDER: list(flat)}


def restore_state(
    federation: Federation, arrays: Mapping[str, Array], values: dict[str, Any], finished_rounds: int
) -> None:
    """Restore what `capture_state` returned."""
    state = federation.state
    flat = {**to_tensors(arrays, torch.device("cpu")), **values}
    order = flat.pop(KEY_ORDER, list(flat))  # checkpoints of version 0.1.0 do not keep the order
    tree = unflatten_state({name: flat[name] for name in order})
    state.server.state = params.models_to_device(tree.get("server", {}), federation.server_device)
    for client in state.clients:
        client.state = params.models_to_device(tree.get(f"client-{client.id}", {}), client.device)
        client.round = finished_rounds
    state.finished = finished_rounds


def flatten_state(tree: State, prefix: str = "") -> State:
    """Return the leaves of nested dictionaries by path. An empty dictionary is a leaf."""
    flat: State = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten_state(value, name + KEY_SEPARATOR) if isinstance(value, dict) and value else {name: value}
    return flat


def unflatten_state(flat: dict[str, Any]) -> State:
    """Return the nested dictionaries that `flatten_state` was given."""
    tree: State = {}
    for name, value in flat.items():
        *parents, last = name.split(KEY_SEPARATOR)
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = value
    return tree
