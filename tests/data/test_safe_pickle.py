"""Untrusted pickles: plain content is read, anything else is refused and nothing is executed."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.data.io.safe_pickle import read_pickled_npz_member, read_safe_pickle
from fedmosaic_cli.errors import RequestError

CONTENT = {
    "bytes": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "floats": np.asfortranarray(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)),
    "big endian": np.arange(3, dtype=">i4"),
    "texts": np.array(["a", "bc"]),
    "flags": np.array([True, False]),
    "scalar": np.float64(2.5),
    "nothing": np.zeros((0, 3)),
    "plain": [1, "two", (3.0, None), {"four": b"5"}],
}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_content_is_read_back(tmp_path, protocol):
    (tmp_path / "file").write_bytes(pickle.dumps(CONTENT, protocol=protocol))
    found = read_safe_pickle(tmp_path / "file")
    assert found.keys() == CONTENT.keys()
    for key, value in CONTENT.items():
        if isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype
            assert np.array_equal(found[key], value)
        else:
            assert found[key] == value


def test_an_object_inside_an_npz(tmp_path):
    np.savez_compressed(tmp_path / "f.npz", data=CONTENT)
    assert np.array_equal(read_pickled_npz_member(tmp_path / "f.npz", "data")["bytes"], CONTENT["bytes"])
    with pytest.raises(RequestError, match="no item named"):
        read_pickled_npz_member(tmp_path / "f.npz", "other")
    np.savez(tmp_path / "g.npz", data=np.arange(3))
    with pytest.raises(RequestError, match="not one object"):
        read_pickled_npz_member(tmp_path / "g.npz", "data")


class Calls:
    """A pickle that calls a function when it is read."""

    def __init__(self, function, *arguments):
        self.what = function, arguments

    def __reduce__(self):
        return self.what


@pytest.mark.parametrize("function", [eval, exec, print, sys.exit, np.load, np.frombuffer, getattr])
def test_nothing_is_called(tmp_path, function):
    (tmp_path / "file").write_bytes(pickle.dumps({"x": Calls(function, "1")}))
    with pytest.raises(RequestError, match="it asks for"):
        read_safe_pickle(tmp_path / "file")


def test_a_type_that_hides_pointers_is_refused(tmp_path):
    """NumPy would interpret these bytes as object addresses."""
    state = (3, "|", None, ("p",), {"p": (np.dtype("O"), 0)}, 8, 1, 0)
    hidden = b"".join(
        [
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02V8K\x00K\x01\x87R",
            pickle.dumps(state, protocol=2)[2:-1] + b"b",
            b"\x89U\x08AAAAAAAAtb.",
        ]
    )
    (tmp_path / "file").write_bytes(hidden)
    with pytest.raises(RequestError, match="not a safe pickle"):
        read_safe_pickle(tmp_path / "file")


def test_bytes_that_do_not_fill_the_array_are_refused(tmp_path):
    good = pickle.dumps(np.arange(4, dtype=np.int64), protocol=2)
    (tmp_path / "file").write_bytes(good.replace(b"K\x04\x85", b"K\x09\x85"))
    with pytest.raises(RequestError, match="not a safe pickle"):
        read_safe_pickle(tmp_path / "file")


def test_an_archive_that_expands_without_end(tmp_path, monkeypatch):
    from fedmosaic_cli.data.io import npz_files

    monkeypatch.setattr(npz_files, "EXPANSION_ALLOWANCE_BYTES", 1000)
    np.savez_compressed(tmp_path / "f.npz", data={"x": np.zeros(10_000_000, dtype=np.uint8)})
    with pytest.raises(RequestError, match="this is not a data file"):
        read_pickled_npz_member(tmp_path / "f.npz", "data")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_pickle_is_one_error(tmp_path_factory, position, change):
    content = bytearray(pickle.dumps(CONTENT, protocol=4))
    content[position % len(content)] ^= change
    path = tmp_path_factory.mktemp("damaged") / "file"
    path.write_bytes(bytes(content))
    with suppress(RequestError):
        read_safe_pickle(path)
