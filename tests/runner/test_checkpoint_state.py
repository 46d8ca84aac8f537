"""Which values the states of server and clients may have, in checkpoints and in files of client states."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.errors import RunFailedError
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.checkpoint_state import capture_state
from fedmosaic_cli.runner.client_state_files import ClientStateFiles
from tests.toys import CPU, TOYS

REFUSED = {
    "bfloat16": ({"a": {"b": torch.ones(2, dtype=torch.bfloat16)}}, "type bfloat16 .*'a/b'"),
    "complex128": ({"a": torch.ones(2, dtype=torch.complex128)}, "type complex128 .*'a'"),
    "sparse": ({"a": torch.ones(2).to_sparse()}, "a tensor .*'a'"),
    "nan": ({"a": {"b": float("nan")}}, "the number nan .*'a/b'"),
    "infinite in a list": ({"a": [1.0, [float("inf")]]}, "the number inf .*'a'"),
    "tuple": ({"a": (1, 2)}, "type tuple .*'a'"),
    "tuple in a list": ({"a": [{"b": (1, 2)}]}, "type tuple .*'a'"),
    "tensor in a list": ({"a": [torch.ones(1)]}, "a list of tensors .*'a'"),
    "keys in a list": ({"a": [{1: 2}]}, "other keys than strings .*'a'"),
    "integer key": ({"a": {1: torch.ones(1)}}, "the key 1 .*'a'"),
    "separator": ({"b/c": 1}, "the key 'b/c'"),
}


@pytest.mark.parametrize(("state", "words"), REFUSED.values(), ids=REFUSED)
def test_values_that_files_cannot_hold_are_refused_by_name(state, words, tmp_path):
    federation = TOYS["even"].federation(Local())
    federation.state.clients[1].state = state
    line = rf"^[^\n]*{words}[^\n]*client-1[^\n]*$"
    with pytest.raises(RunFailedError, match=line):
        capture_state(federation.state)
    with pytest.raises(RunFailedError, match=line):
        ClientStateFiles(tmp_path).save(1, state)
    assert not list(tmp_path.iterdir())


def test_other_values_are_read_as_they_were_written(tmp_path):
    state = {
        "model": {"w": torch.zeros(0, 3), "step": torch.tensor(2), "half": torch.ones(2, dtype=torch.float16)},
        "empty": {},
        "numbers": {"integer": 1, "float": 0.1, "flag": True, "none": None, "text": "a/b"},
        "list": [1, 0.5, None, ["a"], {"key": [True]}],
    }
    files = ClientStateFiles(tmp_path)
    files.save(1, state)
    loaded = files.load(1, CPU)
    assert str(loaded) == str(state)
