"""Damaged and hostile shards are refused in one line, and nothing in them is executed."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.storage.files import sha256, to_checksummed_json
from fedmosaic_cli.storage.shard_manifest import arrays_digest, manifest_digest
from tests.faults.command_checker import CommandChecker
from tests.faults.conftest import PICTURE

# Options without warnings, so that a refusal is the only output.
TRAIN = ("train", "--shards", "shards", "--rounds", "1", "--set", "methods.fedmosaic.warmup_rounds=0")
DRY = (*TRAIN, "--dry-run")
REAL = (*TRAIN, "--quiet", "--set", "model.hidden=[4]", "--set", "train.local_steps=1")
MANIFEST, PUBLIC, CLIENTS = "manifest.json", "public.npz", [f"client-00{n}.npz" for n in range(3)]
READ = [MANIFEST, PUBLIC, *CLIENTS]

Files = dict[str, bytes]


class ShardFiles(dict[str, Files]):
    """Files by kind of shards, with a short repr."""

    def __repr__(self) -> str:
        return f"ShardFiles({', '.join(self)})"


Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def shard_files(tmp_path_factory) -> ShardFiles:
    """Create the files of shards without and with examples once."""
    folder = tmp_path_factory.mktemp("shard_files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("fedmosaic_cli.runner.prepare.partition_plots", lambda manifest: {"distribution.png": PICTURE})
        for name, more in (("plain", ()), ("exported", ("--export",))):
            arguments = ["partition", "--scheme", "iid", "--clients", "3", "--public-size", "30", "--out", name, *more]
            assert CliRunner().invoke(app, arguments).exit_code == 0
    kinds = ("plain", "exported")
    return ShardFiles({name: {path.name: path.read_bytes() for path in (folder / name).iterdir()} for name in kinds})


def write_shards_directory(files: Files, folder: Path) -> None:
    """Write exactly these files into the directory `shards`."""
    shutil.rmtree(folder / "shards", ignore_errors=True)
    (folder / "shards").mkdir()
    for name, data in files.items():
        (folder / "shards" / name).write_bytes(data)


def train(check_command: CommandChecker, given: object, folder: Path) -> int:
    """Run a short training, remove its files and return the exit code."""
    code = check_command(*REAL, given=given).exit_code
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return code


@pytest.mark.parametrize("kind", ["plain", "exported"])
def test_unchanged_shards_are_accepted(check_command, shard_files, tmp_path, kind):
    write_shards_directory(shard_files[kind], tmp_path)
    assert check_command(*DRY).exit_code == 0
    assert train(check_command, "nothing wrong", tmp_path) == 0


def damaged(shard_files: ShardFiles, rng: random.Random) -> tuple[str, Files]:
    """Damage one file; return a description and all files."""
    files = dict(shard_files[rng.choice(["plain", "exported"])])
    name = rng.choice(READ)
    data = files[name]
    at, length = rng.randrange(len(data)), rng.randint(1, 40)
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(data))] ^= rng.randint(1, 255)
    other = rng.choice([other for other in READ if other != name])
    flipped = bytes([*data[:at], data[at] ^ 1 << rng.randrange(8), *data[at + 1 :]])
    kinds: dict[str, bytes | None] = {
        "cut": data[:at],
        "flip": flipped,
        "change": bytes(changed),
        "insert": data[:at] + rng.randbytes(length) + data[at:],
        "take out": data[:at] + data[at + length :],
        "append": data + rng.randbytes(length),
        "zeros": data[:at] + bytes(len(data) - at),
        "empty": b"",
        "remove": None,
        "swap": files[other],
        "elsewhere": shard_files["plain" if files.keys() == shard_files["exported"].keys() else "exported"][name],
    }
    what = rng.choice(list(kinds))
    new = kinds[what]
    if what == "swap":
        files[other] = data
    if new is None:
        del files[name]
    elif new != data:
        files[name] = new
    else:  # the change had no effect
        what, files[name] = "flip", flipped
    return f"{what} {name} at {at}", files


def try_damage(seed: int, check_command: CommandChecker, shard_files: ShardFiles, folder: Path) -> None:
    what, files = damaged(shard_files, random.Random(f"shards {seed}"))
    write_shards_directory(files, folder)
    assert check_command(*DRY, given=(seed, what)).exit_code == 2, f"{seed}: {what} was not detected"
    if seed % 10 == 0:
        assert train(check_command, (seed, what), folder) == 2


def test_some_damaged_shards_are_refused(check_command, shard_files, tmp_path):
    for seed in range(150):
        try_damage(seed, check_command, shard_files, tmp_path)


@pytest.mark.slow
def test_many_damaged_shards_are_refused(check_command, shard_files, tmp_path):
    for seed in range(1_000, 2_200):
        try_damage(seed, check_command, shard_files, tmp_path)


@pytest.mark.parametrize("name", READ)
def test_entries_that_are_not_files_are_refused(check_command, shard_files, tmp_path, name):
    """Directory, broken link, link to itself, pipe without a writer, endless device."""
    path = tmp_path / "shards" / name
    variants = (
        path.mkdir,
        lambda: path.symlink_to("nowhere"),
        lambda: path.symlink_to(path),
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
    )
    for make in variants:
        write_shards_directory({other: data for other, data in shard_files["plain"].items() if other != name}, tmp_path)
        make()
        assert check_command(*DRY, given=name).exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        *('{"schema": NaN}', '{"schema": 3, "schema": 3}', "[]", "null", "3", '"x"', "{}", '{"schema": 3}', "\ufeff{}"),
        *(f'{{"schema": 3, "checksum": "x", "seed": {value}}}' for value in ("1e999", "NaN", "9" * 5000, "[" * 900)),
        *('{"schema": 3, "checksum": "x", "a": ' + "[" * n + "]" * n + "}" for n in (100, 500, 900, 980, 100_000)),
        *('{"checksum": "x", "schema": ' + "[" * n + "]" * n + "}" for n in (100, 900)),
    ],
    ids=lambda text: text[:40],
)
def test_invalid_manifest_is_refused(check_command, shard_files, tmp_path, text):
    write_shards_directory({**shard_files["plain"], MANIFEST: text.encode()}, tmp_path)
    assert check_command(*DRY, given=text).exit_code == 2


def manifest_of(files: Files) -> dict[str, Any]:
    content = json.loads(files[MANIFEST])
    content.pop("checksum")
    return content


def with_manifest(files: Files, content: dict[str, Any]) -> Files:
    """Replace the manifest by another one with a valid digest and checksum."""
    return {**files, MANIFEST: to_checksummed_json({**content, "digest": manifest_digest(content)})}


def places(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document; of lists only the first two items."""
    if isinstance(content, dict):
        inner = list(content.items())
    else:
        inner = list(enumerate(content))[:2] if isinstance(content, list) else []
    return [place for key, value in inner for place in ((*above, key), *places(value, (*above, key)))]


NUMBERS = [-1, 0, 1, 2, 0.5, 1e308, 2**31, 2**63, 10**15, 10**400, -(10**15)]
TEXTS = ["", "../x", "/etc/passwd", "client-000", "\0", "\ud800", "\x1b[2J", "k" * 5000, "digits-domains", "domain"]
# A run in this process disables subnormal numbers.
FLOATS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=9) | st.sampled_from([*NUMBERS, *TEXTS]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


def similar_values(value: Any) -> list[Any]:
    """Return values that are similar to this one."""
    if isinstance(value, bool | int | float):
        return [value + 1, value - 1, -value, float(value), bool(value), str(value), [value]]
    if isinstance(value, list):
        return [value[:-1], value * 2, value[::-1], [*value, None], dict(enumerate(value)), tuple(value)[:1]]
    if isinstance(value, dict):
        return [{}, list(value), {**value, "x": 1}, dict(list(value.items())[1:])]
    return [None, f"{value}x", [value], 0]


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, int, int, Any]]:
    """Generate changes of a manifest; positions are resolved later."""
    kinds = st.sampled_from(["replace", "nudge", "nudge", "remove", "repeat"])
    one = st.tuples(kinds, st.integers(0, 10_000), st.integers(0, 10), JSON)
    return draw(st.lists(one, min_size=1, max_size=3))


def changed(content: dict[str, Any], todo: list[tuple[str, int, int, Any]]) -> dict[str, Any]:
    result = copy.deepcopy(content)
    for kind, where, which, value in todo:
        everywhere = places(result)
        *above, key = everywhere[where % len(everywhere)]
        holder: Any = result
        for step in above:
            holder = holder[step]
        if kind == "remove":
            del holder[key]
        elif kind == "repeat" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == "replace":
            holder[key] = value
        else:
            close = similar_values(holder[key])
            holder[key] = close[which % len(close)]
        if not result:
            break
    return result


FEW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=600)


def try_manifest(files: Files, todo: list[Any], check_command: CommandChecker, folder: Path) -> None:
    """The manifest is refused, or training on it works or is refused."""
    write_shards_directory(with_manifest(files, changed(manifest_of(files), todo)), folder)
    if check_command(*DRY, given=todo).exit_code == 0:
        train(check_command, todo, folder)


@FEW
@given(kind=st.sampled_from(["plain", "exported"]), todo=changes())
def test_some_changed_manifests(check_command, shard_files, tmp_path, kind, todo):
    try_manifest(shard_files[kind], todo, check_command, tmp_path)


@pytest.mark.slow
@MANY
@given(kind=st.sampled_from(["plain", "exported"]), todo=changes())
def test_many_changed_manifests(check_command, shard_files, tmp_path, kind, todo):
    try_manifest(shard_files[kind], todo, check_command, tmp_path)


@pytest.mark.parametrize("key", ["seed", "image_shape", "class_names", "examples", "clients", "public", "settings"])
@pytest.mark.parametrize(
    "value",
    [None, True, -1, -(10**400), "x", [], [[]], {"a": 1}, [0, 0, 0], [10**15] * 3],
    ids=lambda value: repr(value)[:20],
)
def test_manifest_value_of_wrong_type_is_refused(check_command, shard_files, tmp_path, key, value):
    files = shard_files["plain"]
    write_shards_directory(with_manifest(files, {**manifest_of(files), key: value}), tmp_path)
    assert check_command(*DRY, given=(key, value)).exit_code == 2


def test_manifest_without_a_key_is_refused_or_works(check_command, shard_files, tmp_path):
    """A missing key is detected at once, not after the run."""
    files = shard_files["plain"]
    for place in [place for place in places(manifest_of(files)) if place[0] not in ("parameters", "settings")]:
        content = manifest_of(files)
        *above, key = place
        holder: Any = content
        for step in above:
            holder = holder[step]
        del holder[key]
        write_shards_directory(with_manifest(files, content), tmp_path)
        if check_command(*DRY, given=place).exit_code == 0:
            assert train(check_command, place, tmp_path) == 0


@pytest.mark.parametrize("number", [-1, 1, True, 0.0, "0", "../000", "/client-000", 10**18, None])
def test_wrong_client_id_is_refused(check_command, shard_files, tmp_path, number):
    files = shard_files["plain"]
    content = manifest_of(files)
    content["clients"][0]["id"] = number
    content["files"] |= {"client-001.npz": content["files"]["client-000.npz"]}
    write_shards_directory(with_manifest(files, content), tmp_path)
    assert check_command(*DRY, given=number).exit_code == 2


def to_npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=True)
    return content.getvalue()


def npy(kind: str, shape: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """Return an array file with an arbitrary header."""
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def to_zip(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # duplicate names
        for name, data in members:
            archive.writestr(name, data)
    return content.getvalue()


def with_valid_digests(files: Files, name: str, data: bytes, arrays: Arrays | None = None) -> Files:
    """Replace a file and update its digest, and the sizes and digest of its `arrays`, in the manifest."""
    content = manifest_of(files)
    content["files"][name] = sha256(data)
    if arrays is not None:
        entry = content["public"] if name == PUBLIC else content["clients"][CLIENTS.index(name)]
        described = {"index": entry} if name == PUBLIC else entry
        for part, array in arrays.items():
            size = len(array) if array.ndim else 0
            described[part] |= {"size": size, "class_counts": [size, *[0] * 9]}
        entry["sha256"] = arrays_digest(arrays)
    return {**with_manifest(files, content), name: data}


class TouchOnUnpickle:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


ZEROS = 10**8 // 8
CODE = b"__import__('pathlib').Path('executed').touch()\n"
MEMBERS = {
    "objects": to_npy(np.array([TouchOnUnpickle()], dtype=object)),
    "objects that are none": npy("|O", "(1,)", bytes(8)),
    "far too many": npy("<i8", f"({10**15},)", bytes(8)),
    "far too many of nothing": npy("|V0", f"({10**15},)"),
    "none of far too many": npy("<i8", f"(0, {10**15})"),
    "none of more than can be counted": npy("<i8", f"(0, {10**30})"),
    "fewer than none": npy("<i8", "(-1, -8)", bytes(64)),
    "a number": npy("<i8", "()", bytes(8)),
    "a shape of text": npy("<i8", "'xy'", bytes(16)),
    "no shape": npy("<i8", "None", bytes(8)),
    "no kind": npy("nonsense", "(1,)", bytes(8)),
    "code": b"\x93NUMPY\1\0" + struct.pack("<H", len(CODE)) + CODE,
    "deep": b"\x93NUMPY\1\0" + struct.pack("<H", 8000) + b"(" * 8000,
    "another version": npy("<i8", "(1,)", bytes(8), b"\3\0"),
    "an unknown version": npy("<i8", "(1,)", bytes(8), b"\x09\0"),
    "nothing": b"",
    "no array": b"x" * 100,
    "a alias_bomb": npy("<i8", f"({ZEROS},)", bytes(8 * ZEROS)),
}


@pytest.mark.parametrize("what", MEMBERS)
def test_hostile_arrays_are_refused(check_command, shard_files, tmp_path, what):
    """Test hostile arrays in place of indices and of images, which are read later."""
    method = zipfile.ZIP_DEFLATED if what == "a alias_bomb" else zipfile.ZIP_STORED
    for name, key in ((PUBLIC, "index"), (CLIENTS[1], "train")):
        data = to_zip([(f"{key}.npy", MEMBERS[what]), ("test.npy", to_npy(np.arange(3)))], method)
        write_shards_directory(with_valid_digests(shard_files["plain"], name, data), tmp_path)
        assert check_command(*DRY, given=what).exit_code == 2
    index = np.load(io.BytesIO(shard_files["exported"][PUBLIC]))["index"]
    data = to_zip([("index.npy", to_npy(index)), ("images.npy", MEMBERS[what])], method)
    write_shards_directory(with_valid_digests(shard_files["exported"], PUBLIC, data), tmp_path)
    assert train(check_command, what, tmp_path) == 2
    assert not (tmp_path / "executed").exists()


def test_extra_archive_members_are_not_extracted(check_command, shard_files, tmp_path):
    """Paths outside the directory have no effect, because nothing is extracted."""
    index = to_npy(np.load(io.BytesIO(shard_files["plain"][PUBLIC]))["index"])
    strangers = ["../outside.npy", str(tmp_path / "absolute.npy"), "a/../../b.npy", "index.npy/x", "C:\\x.npy"]
    write_shards_directory(
        with_valid_digests(
            shard_files["plain"],
            PUBLIC,
            to_zip([("index.npy", index), *((name, MEMBERS["objects"]) for name in strangers)]),
        ),
        tmp_path,
    )
    before = sorted(tmp_path.parent.rglob("*"))
    check_command(*DRY)
    assert sorted(tmp_path.parent.rglob("*")) == before
    twice = to_zip([("index.npy", index), ("index.npy", to_npy(np.arange(3)))])
    write_shards_directory(with_valid_digests(shard_files["plain"], PUBLIC, twice), tmp_path)
    assert check_command(*DRY).exit_code == 2


# Every difference is positive because of overflow, but the values are out of range.
AROUND = [5, 2**63 - 1, -(2**63) + 1, -(2**62), 100]
STRANGE = {
    "fractions": lambda index: index.astype(float),
    "none of them numbers": lambda index: np.full(len(index), np.nan),
    "without a sign": lambda index: index.astype("u8"),
    "the other arguments round": lambda index: index.astype(">i8"),
    "short": lambda index: index.astype("i4"),
    "texts": lambda index: index.astype("S8"),
    "dates": lambda index: index.astype("m8[s]"),
    "records": lambda index: np.zeros(len(index), dtype=[("a", "i8"), ("b", "f4")]),
    "not in order": lambda index: index[::-1].copy(),
    "one twice": lambda index: np.sort(np.r_[index[:-1], index[0]]),
    "a table": lambda index: index.reshape(2, -1),
    "too large": lambda index: np.r_[index[:-1], 10**15],
    "negative": lambda index: np.r_[-1, index[1:]],
    "around the corner": lambda index: np.array(AROUND),
    "nobody": lambda index: index[:0],
}


@pytest.mark.parametrize("what", STRANGE)
def test_invalid_indices_are_refused(check_command, shard_files, tmp_path, what):
    """A large number of claimed examples must not allocate memory."""
    files = shard_files["plain"]
    array = STRANGE[what](np.load(io.BytesIO(files[PUBLIC]))["index"])
    changed = with_valid_digests(files, PUBLIC, to_zip([("index.npy", to_npy(array))]), {"index": array})
    for examples in (1797, 10**12):
        write_shards_directory(with_manifest(changed, {**manifest_of(changed), "examples": examples}), tmp_path)
        assert check_command(*DRY, given=what).exit_code == 2


def test_index_beyond_the_data_set_is_refused(check_command, shard_files, tmp_path):
    """A wrong number of examples is detected when the data set is loaded."""
    files = shard_files["plain"]
    index = np.load(io.BytesIO(files[PUBLIC]))["index"]
    index[-1] = 10**11
    changed = with_valid_digests(files, PUBLIC, to_zip([("index.npy", to_npy(index))]), {"index": index})
    write_shards_directory(with_manifest(changed, {**manifest_of(changed), "examples": 10**12}), tmp_path)
    assert train(check_command, "a far index", tmp_path) == 2


def try_arrays(seed: int, check_command: CommandChecker, shard_files: ShardFiles, folder: Path) -> None:
    """Change some splits of a client, with valid digests."""
    rng = random.Random(f"arrays {seed}")
    name = rng.choice(CLIENTS)
    files = shard_files["plain"]
    arrays = {part: array.copy() for part, array in np.load(io.BytesIO(files[name])).items()}
    for part in rng.sample(sorted(arrays), rng.randint(1, 2)):
        index = arrays[part]
        variants = {
            "shift": index + rng.choice([-5000, -1, 1, 3, 2**40]),
            "fewer": index[: rng.randrange(len(index))],
            "some": np.sort(np.array(rng.sample(range(1797), rng.randint(1, 50)))),
            "shuffle": np.array(rng.sample(index.tolist(), len(index))),
            "other kind": index.astype(rng.choice(["i4", "u8", "f8", "?", "c16", ">i8", "U4"])),
            "shape": index[: len(index) // 2 * 2].reshape(rng.choice([(2, -1), (-1, 2), (1, -1, 1)])),
        }
        arrays[part] = variants[rng.choice(list(variants))]
    data = to_zip([(f"{part}.npy", to_npy(array)) for part, array in arrays.items()])
    write_shards_directory(with_valid_digests(files, name, data, arrays), folder)
    if check_command(*DRY, given=seed).exit_code == 0:
        train(check_command, seed, folder)


def test_some_changed_arrays(check_command, shard_files, tmp_path):
    for seed in range(40):
        try_arrays(seed, check_command, shard_files, tmp_path)


@pytest.mark.slow
def test_many_changed_arrays(check_command, shard_files, tmp_path):
    for seed in range(1_000, 1_200):
        try_arrays(seed, check_command, shard_files, tmp_path)
