"""Optimizer states of stacked clients.

While clients are trained, every tensor of their states is stacked. Afterwards a client keeps its row of the stack. If
the same clients are trained together in the next round, their rows are the stack again, so nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.context import State


def stack_rows(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors. If they are consecutive rows of one tensor, the result is a view of it."""
    first, base = tensors[0], tensors[0]._base
    if base is None or base.shape[1:] != first.shape or any(tensor._base is not base for tensor in tensors):
        return torch.stack(list(tensors))
    size, start, offset = base.stride(0), first.storage_offset(), base.storage_offset()
    offsets = [tensor.storage_offset() for tensor in tensors]
    are_rows = all(tensor.stride() == base.stride()[1:] for tensor in tensors)
    if not are_rows or offsets != [start + number * size for number in range(len(tensors))]:
        return torch.stack(list(tensors))
    row = (start - offset) // size
    return base[row : row + len(tensors)]


def stack_states(states: Sequence[State]) -> State:
    """Stack the states of one parameter of several clients. The step count, which is equal, is kept once."""
    return {
        key: stack_rows([state[key] for state in states]) if value.dim() else value.clone()
        for key, value in states[0].items()
    }


def split_states(stacked: Sequence[State], num_clients: int, as_views: bool) -> list[list[State]]:
    """Return the states of each client, in the order of `stacked`.

    Args:
        stacked: The stacked states of some parameters.
        num_clients: Number of clients in the stack.
        as_views: Return views of the stack. A view keeps the memory of the whole stack alive, so clients that may not
            be trained together again get copies.
    """
    columns: list[dict[str, Sequence[Any]]] = [
        {key: value.unbind() if value.dim() else value.repeat(num_clients).unbind() for key, value in state.items()}
        for state in stacked
    ]
    if not as_views:
        rows = [row for column in columns for own in column.values() for row in own if row.dim()]
        copies = [torch.empty_like(row) for row in rows]
        if rows:
            torch._foreach_copy_(copies, rows)
        remaining = iter(copies)
        columns = [
            {key: [next(remaining) if row.dim() else row for row in own] for key, own in column.items()}
            for column in columns
        ]
    return [[{key: own[client] for key, own in column.items()} for column in columns] for client in range(num_clients)]
