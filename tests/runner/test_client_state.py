"""`train.client_state=disk` changes where states are, and nothing in a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from fedmosaic_cli.runner.client_state_files import ClientStateFiles
from tests.toys import CPU, TOYS, Toy, from_disk

SHORT = ("train", "--preset", "quickstart", "--rounds", "3", "--set", "methods.fedmosaic.warmup_rounds=1", "-q")
NAMES = sorted(set(METHODS) - {"centralized", "oracle"})


class StoredToy(Toy):
    """A toy whose clients keep their states in a directory."""

    folder: Path

    def federation(self, method, seed=0, devices=(CPU,)):
        federation = super().federation(method, seed, devices)
        for client in federation.state.clients:
            client.state_store = ClientStateFiles(self.folder)
            client.release_state()
        return federation


def stored(toy, folder):
    folder.mkdir()
    copy = StoredToy(toy.dataset, toy.partition, toy.models, toy.message_sections, **toy.train)
    copy.folder, copy.dtype = folder, toy.dtype
    return copy


def rows_and_state(federation, rounds):
    with federation.worker_pool:
        rows = [record.rows for record in run_rounds(federation, rounds)]
    arrays, values = capture_state(federation.state)
    return rows, {name: array.tobytes() for name, array in arrays.items()}, values


@pytest.mark.parametrize("name", NAMES)
def test_results_of_all_methods_are_identical(name, tmp_path):
    method, toy = METHODS[name](), TOYS["even"]
    if method.needs.plain_sgd:
        toy = toy.changed(optimizer="sgd")
    expected = rows_and_state(toy.federation(method), 3)
    federation = stored(toy, tmp_path / "states").federation(method)
    found = rows_and_state(federation, 3)
    assert all(client.is_state_stored for client in federation.state.clients), "no idle client is in memory"
    assert found == expected
    assert list(found[1]) == list(expected[1])
    assert list(found[2]) == list(expected[2])


MANY_CLIENTS = """
import resource, sys
from pathlib import Path
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.checkpoint_state import capture_state
from fedmosaic_cli.runner.client_state_files import ClientStateFiles
from tests.toys import make_toy

federation = make_toy([2] * 150).federation(Local())
for client in federation.state.clients:
    client.state_store = ClientStateFiles(Path(sys.argv[1]))
    client.release_state()
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
arrays, _ = capture_state(federation.state)
print(len({name.partition("/")[0] for name, array in arrays.items() if array.size}))
"""


def test_a_checkpoint_of_more_clients_than_files_may_be_open(tmp_path):
    done = subprocess.run([sys.executable, "-c", MANY_CLIENTS, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("150\n", "")


@pytest.mark.parametrize("name", ["ditto", "fedmosaic", "fedavgft"])
def test_a_restored_run_is_identical(name, tmp_path):
    method, toy = METHODS[name](), TOYS["uneven"]
    expected = rows_and_state(toy.federation(method), 3)
    halfway = stored(toy, tmp_path / "first").federation(method)
    with halfway.worker_pool:
        next(run_rounds(halfway, 3))
    resumed = stored(toy, tmp_path / "second").federation(method)
    restore_state(resumed, *from_disk(capture_state(halfway.state)), 1)
    assert all(client.is_state_stored for client in resumed.state.clients)
    rows, *state = rows_and_state(resumed, 3)
    assert rows == expected[0][1:]
    assert tuple(state) == expected[1:]


@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_files_of_runs_are_identical_and_scratch_files_are_removed(execution, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = (*SHORT, "--execution", execution, "--set", "train.checkpoint_every=2")
    for folder, options in (("memory", ()), ("disk", ("--set", "train.client_state=disk"))):
        assert CliRunner().invoke(app, [*command, "--run-dir", folder, *options]).exit_code == 0
    patterns = ("rounds.jsonl", "summary.json", "models/*", "checkpoints/*/state.*")
    memory, disk = (
        {path.relative_to(folder): path.read_bytes() for pattern in patterns for path in folder.glob(pattern)}
        for folder in (Path("memory"), Path("disk"))
    )
    assert len(memory) > 10
    assert disk == memory
    assert not list(Path("disk").glob(".*.part"))
    assert not [path for path in Path("memory").rglob("*.yaml") if "client_state" in path.read_text()]


def test_a_stopped_run_continues_with_states_stored_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*SHORT, "--run-dir", "whole"]).exit_code == 0
    short = [*SHORT[:4], "2", *SHORT[5:], "--run-dir", "parts"]
    assert CliRunner().invoke(app, [*short, "--set", "train.client_state=disk"]).exit_code == 0
    assert CliRunner().invoke(app, [*SHORT, "--run-dir", "parts", "--resume"]).exit_code == 0
    for name in ("rounds.jsonl", "models/client-003.safetensors"):
        assert Path("whole", name).read_bytes() == Path("parts", name).read_bytes()
