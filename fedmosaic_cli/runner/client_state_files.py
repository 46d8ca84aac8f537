"""States of clients on disk (`train.client_state` disk): memory holds those of the clients that compute."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.runner.checkpoint_state import (
    StateArrays,
    flatten_state,
    require_storable,
    to_tensors,
    unflatten_state,
)
from fedmosaic_cli.storage.files import (
    read_json,
    remove_path,
    scratch_directory,
    to_json_bytes,
    write_new_blocks,
    write_new_file,
)
from fedmosaic_cli.storage.tensor_files import TensorFile, layout_of, tensor_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedmosaic_cli.engine.context import State
    from fedmosaic_cli.storage.runs import RunDirectory

DIRECTORY_NAME = "client-state"


class ClientStateFiles:
    """Implements `engine.client.StateStore`: a file of tensors and a file of other values per client.

    The files are scratch: a run that is killed continues from its checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, client_id: int, state: State) -> None:
        """Write the state of a client, in place of an older one."""
        require_storable(state, f"client-{client_id}")
        flat = flatten_state(state)
        tensors = {name: value for name, value in flat.items() if isinstance(value, torch.Tensor)}
        values = {name: value for name, value in flat.items() if name not in tensors}
        arrays = StateArrays(tensors)
        tensors_path, values_path = self._paths(client_id)
        for path in (tensors_path, values_path):
            remove_path(path)
        write_new_blocks(tensors_path, tensor_blocks(arrays, layout_of(arrays)))
        write_new_file(values_path, to_json_bytes({"values": values, "order": list(flat)}))

    def load(self, client_id: int, device: torch.device) -> State:
        """Read the state of a client."""
        arrays, values, order = self.read(client_id)
        flat = {**to_tensors(arrays, torch.device("cpu")), **values}
        return params.models_to_device(unflatten_state({name: flat[name] for name in order}), device)

    def read(self, client_id: int) -> tuple[TensorFile, dict[str, Any], list[str]]:
        """Return the tensors of a client, which are read when they are accessed, the other values, and all names.

        Each access opens the file: a checkpoint refers to the files of all clients at the same time.
        """
        tensors_path, values_path = self._paths(client_id)
        content = read_json(values_path)
        return TensorFile(tensors_path, keep_open=False), content["values"], content["order"]

    def _paths(self, client_id: int) -> tuple[Path, Path]:
        return self._folder / f"{client_id}.safetensors", self._folder / f"{client_id}.json"


@contextmanager
def client_state_files(kind: str, files: RunDirectory) -> Iterator[ClientStateFiles | None]:
    """Yield a store in the directory of a run; None if states stay in memory."""
    if kind == "memory":
        yield None
        return
    with scratch_directory(files.path / DIRECTORY_NAME) as folder:
        yield ClientStateFiles(folder)
