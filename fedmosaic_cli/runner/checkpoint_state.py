"""Convert the state of server and clients to arrays and plain values for checkpoints, and back."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.errors import RunFailedError
from fedmosaic_cli.storage.checkpoints import KEY_SEPARATOR
from fedmosaic_cli.storage.tensor_files import FORMAT_NAMES, TensorSource, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from fedmosaic_cli.engine.context import Parameters, State
    from fedmosaic_cli.engine.federation import Federation, RunState
    from fedmosaic_cli.storage.runs import ArrayDict
    from fedmosaic_cli.storage.tensor_files import Array, TensorFile

TENSOR_TYPES = {getattr(torch, name) for name in FORMAT_NAMES}
"""The types of tensors that files can hold."""
KEY_ORDER = "key_order"
"""Key of the list of all keys, because files do not keep their order."""


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    file: TensorFile
    name: str


class StateArrays(TensorSource):
    """Tensors of a state as arrays. Those on a GPU or in a file are copied when they are accessed."""

    def __init__(self, tensors: Mapping[str, torch.Tensor | StoredTensor]) -> None:
        self._tensors = tensors

    def spec(self, name: str) -> TensorSpec:
        tensor = self._tensors[name]
        if isinstance(tensor, StoredTensor):
            return tensor.file.spec(tensor.name)
        return TensorSpec(array_dtype(tensor.dtype), tuple(tensor.shape))

    def __getitem__(self, name: str) -> Array:
        tensor = self._tensors[name]
        return tensor.file[tensor.name] if isinstance(tensor, StoredTensor) else to_array(tensor)

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
    """Return the state of server and clients: arrays, and other values. What is on disk is read when it is accessed."""
    sources: dict[str, torch.Tensor | StoredTensor] = {}
    values: dict[str, Any] = {}
    order: list[str] = []

    def add(flat: State) -> None:
        for name, value in flat.items():
            (sources if isinstance(value, torch.Tensor | StoredTensor) else values)[name] = value
            order.append(name)

    require_storable(state.server.state, "server")
    add(flatten_state({"server": state.server.state}))
    for client in state.clients:
        name = f"client-{client.id}"
        if getattr(client, "is_state_stored", False):
            stored, other, keys = client.state_store.read(client.id)
            flat = {
                f"{name}{KEY_SEPARATOR}{key}": other[key] if key in other else StoredTensor(stored, key) for key in keys
            }
            add(flat or {name: {}})
        else:
            require_storable(client.state, name)
            add(flatten_state({name: client.state}))
    return StateArrays(sources), {**values, KEY_ORDER: order}


def restore_state(
    federation: Federation, arrays: Mapping[str, Array], values: dict[str, Any], finished_rounds: int
) -> None:
    """Restore what `capture_state` returned, one client after the other."""
    state = federation.state
    # Checkpoints of version 0.1.0 do not keep the order.
    names: dict[str, list[str]] = {}
    for name in values.get(KEY_ORDER, [*arrays, *values]):
        names.setdefault(name.partition(KEY_SEPARATOR)[0], []).append(name)

    def part(owner: str, device: torch.device) -> State:
        own = names.get(owner, [])
        tensors = to_tensors({name: arrays[name] for name in own if name not in values}, torch.device("cpu"))
        tree = unflatten_state({name: tensors[name] if name in tensors else values[name] for name in own})
        return params.models_to_device(tree.get(owner, {}), device)

    state.server.state = part("server", federation.server_device)
    for client in state.clients:
        client.state = part(f"client-{client.id}", client.device)
        client.round = finished_rounds
        if hasattr(client, "release_state"):
            client.release_state()
    state.finished = finished_rounds


def require_storable(tree: State, owner: str, path: tuple[str, ...] = ()) -> None:
    """Raise RunFailedError for an entry of a state that a file would not hold, or not with the same type."""
    for key, value in tree.items():
        if not isinstance(key, str) or KEY_SEPARATOR in key:
            where = f"'{KEY_SEPARATOR.join(path)}' in the state of {owner}" if path else f"the state of {owner}"
            raise RunFailedError(f"the key {key!r} cannot be stored ({where}): use strings without {KEY_SEPARATOR}")
        own = (*path, key)
        if isinstance(value, dict):
            require_storable(value, owner, own)
        elif problem := storage_problem(value):
            name = KEY_SEPARATOR.join(own)
            raise RunFailedError(
                f"{problem} cannot be stored ('{name}' in the state of {owner}): use dense tensors of a supported "
                "type, finite numbers, strings, and dictionaries of these; a list may hold numbers, strings, lists and "
                "dictionaries, but no tensors"
            )


def storage_problem(value: Any) -> str | None:
    """Return what a value is if a file cannot hold it; None if it can."""
    if isinstance(value, torch.Tensor):
        is_stored = value.layout == torch.strided and value.dtype in TENSOR_TYPES
        return None if is_stored else f"a tensor of type {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, list):
        return next(filter(None, map(list_problem, value)), None)
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value}"
    return None if value is None or isinstance(value, int | float | str) else f"a value of type {type(value).__name__}"


def list_problem(value: Any) -> str | None:
    """Return what an element of a list is if a file cannot hold it; None if it can."""
    if isinstance(value, torch.Tensor):
        return "a list of tensors"
    if not isinstance(value, dict):
        return storage_problem(value)
    if not all(isinstance(key, str) for key in value):
        return "a list of dictionaries with other keys than strings"
    return next(filter(None, map(list_problem, value.values())), None)


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
