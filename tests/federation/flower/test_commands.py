"""Complete federations by command line: TLS, keys, three sites on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from fedmosaic_cli.federation.flower.superlink import free_port
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.runs import RunDirectory
from tests.conftest import fedmosaic
from tests.federation.flower.commands import Command, is_listening
from tests.waiting import wait_until

pytestmark = pytest.mark.flower
pytest.importorskip("flwr")

METHODS = ("fedmosaic", "fedct", "perfedckt", "fedavg")
SHORT = ("--shards", "shards", "--set", "train.local_steps=3", "--set", "train.workers=1")
SHORT += ("--name", "shards", "--tag", "")
FLOATS = ("--set", "methods.fedmosaic.expertise_bits=float32")


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory) -> Path:
    """Create a directory with shards for three clients."""
    folder = tmp_path_factory.mktemp("work")
    options = ("--alpha", "0.5", "--clients", "3", "--public-size", "60", "--export", "--out", "shards")
    done = fedmosaic("partition", "--scheme", "dirichlet", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def run_directory(folder: Path, runs: str, method: str = "fedmosaic-frequency") -> RunDirectory:
    return RunDirectory(folder / runs / "shards" / method / "seed-0")


def run_locally(work_dir: Path, runs: str, *options: str, methods: tuple[str, ...] = ("fedmosaic",)) -> None:
    """Make the same runs with all clients in one process."""
    arguments = (*methods, *SHORT, "--execution", "threads", "--runs-dir", runs, "--quiet", *options)
    done = fedmosaic("baseline", *arguments, cwd=work_dir)
    assert done.returncode == 0, done.stderr


def assert_equal_runs(one: RunDirectory, other: RunDirectory) -> None:
    """Two runs have the same log, server state and models."""
    assert (one.path / "rounds.jsonl").read_bytes() == (other.path / "rounds.jsonl").read_bytes()
    assert one.read_summary()["models"] == other.read_summary()["models"]
    states = [checkpoints.read_newest_checkpoint(files.checkpoints_dir)[0] for files in (one, other)]
    servers = [
        {name: a.tobytes() for name, a in state.arrays.items() if name.startswith("server/")} for state in states
    ]
    assert servers[0] == servers[1]
    assert servers[0]


def test_a_federation_with_tls_equals_the_local_run(work_dir):
    run_locally(work_dir, "here", "--rounds", "3", methods=METHODS)
    options = (*SHORT, "--rounds", "3", "--engine", "flower", "--simulate-sites", "3", "--runs-dir", "there")
    command = Command("baseline", *METHODS, *options, cwd=work_dir)
    assert command.wait() == 0, command.stderr
    command.require_no_descendants()
    for method in ("fedmosaic-frequency", *METHODS[1:]):
        assert_equal_runs(run_directory(work_dir, "here", method), run_directory(work_dir, "there", method))
        summary = run_directory(work_dir, "there", method).read_summary()
        assert summary["federation"] == {"engine": "flower", "sites": 3, "models": "at the sites"}
        for name, digest in summary["models"].items():
            [model] = work_dir.glob(f"sites/shards/*/runs/shards/{method}/*/*/models/{name}")
            assert hashlib.sha256(model.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_ended_coordinator_leaves_no_process_and_can_be_resumed(work_dir, number):
    runs, reference = f"ended-{number.name}", "uninterrupted"
    if not (work_dir / reference).exists():
        run_locally(work_dir, reference, "--rounds", "5")
    options = ("train", *SHORT, "--rounds", "5", "--engine", "flower", "--simulate-sites", "3", "--runs-dir", runs)
    command = Command(*options, cwd=work_dir)
    command.wait_for("round 2/5")
    command.process.send_signal(number)
    assert command.wait() == (-9 if number == signal.SIGKILL else 128 + number)
    command.require_no_descendants()
    assert not run_directory(work_dir, runs).is_finished()
    again = Command(*options, "--resume", cwd=work_dir)
    assert again.wait() == 0, again.stderr
    assert "resumed after round" in again.stderr
    again.require_no_descendants()
    assert_equal_runs(run_directory(work_dir, reference), run_directory(work_dir, runs))


class ManualFederation:
    """A coordinator's directory and three site directories, set up command by command."""

    def __init__(self, folder: Path, work_dir: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.superlink = f"127.0.0.1:{self.port}"
        self.commands: list[Command] = []
        self.shards = folder / "shards"
        self.shards.mkdir()
        for name in ("manifest.json", "public.npz"):  # the coordinator has no client file
            shutil.copy(work_dir / "shards" / name, self.shards)
        self.run_command("federation", "init", "--host", "127.0.0.1")
        for client in range(3):
            shard_dir = self.site(client) / "shard"
            shard_dir.mkdir(parents=True)
            for name in ("manifest.json", "public.npz", f"client-{client:03d}.npz"):
                shutil.copy(work_dir / "shards" / name, shard_dir)
            self.init(client)
            name = f"client-{client:03d}.pub"
            shutil.copy(self.site(client) / "site" / name, folder / "federation" / "keys" / name)

    def site(self, client: int) -> Path:
        return self.folder / f"hospital-{client}"

    def run_command(self, *arguments: str, cwd: Path | None = None) -> str:
        done = fedmosaic(*arguments, cwd=cwd or self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def init(self, client: int) -> None:
        """Set up a site. Its metrics are exact, so that logs can be compared with those of a simulation."""
        shard = f"shard/client-{client:03d}.npz"
        exact = ("--metrics", "exact-unprotected")
        self.run_command(
            "site", "init", "--shard", shard, "--allow-upload", "models", *exact, "--allow-root", cwd=self.site(client)
        )

    def start(self, client: int) -> Command:
        ca = self.folder / "federation" / "ca.crt"
        command = Command(
            "site", "start", "--superlink", self.superlink, "--ca", str(ca), "--allow-root", cwd=self.site(client)
        )
        self.commands.append(command)
        return command

    def train(self, *options: str) -> Command:
        arguments = ("--engine", "flower", "--superlink", self.superlink, "--runs-dir", "runs")
        command = Command("train", *SHORT, *arguments, *options, cwd=self.folder)
        self.commands.append(command)
        return command

    def close(self) -> None:
        for command in self.commands:
            if command.process.poll() is None:
                command.process.terminate()
        for command in self.commands:
            command.wait()
        for command in self.commands:
            command.require_no_descendants()
        assert not is_listening(self.port)


@pytest.fixture
def manual(tmp_path, work_dir):
    federation = ManualFederation(tmp_path, work_dir)
    yield federation
    federation.close()


def test_a_killed_and_restarted_site_does_not_change_the_run(manual, work_dir):
    """No client fails, because rounds wait for the restarted site."""
    if not (work_dir / "uninterrupted").exists():
        run_locally(work_dir, "uninterrupted", "--rounds", "5")
    sites = {client: manual.start(client) for client in range(3)}
    command = manual.train("--rounds", "5", "--round-timeout", "900")
    command.wait_for("round 1/5")
    status = json.loads(manual.run_command("site", "status", "--json", cwd=manual.site(1)))
    assert status["running"]
    assert status["connection"] == "connected"
    sites[1].process.send_signal(signal.SIGKILL)
    assert sites[1].wait() == -9
    sites[1].require_no_descendants()
    assert not json.loads(manual.run_command("site", "status", "--json", cwd=manual.site(1)))["running"]
    manual.start(1)
    assert command.wait() == 0, command.stderr
    assert_equal_runs(run_directory(work_dir, "uninterrupted"), run_directory(manual.folder, "runs"))
    [run] = json.loads(manual.run_command("site", "status", "--json", cwd=manual.site(1)))["runs"]
    assert run["round"] == 5
    assert Path(manual.site(1) / run["model"]).is_file()


def test_an_offline_site_fails_rounds_and_may_return(manual):
    sites = {client: manual.start(client) for client in range(3)}
    command = manual.train("--rounds", "6", "--round-timeout", "12")
    command.wait_for("round 1/6")
    sites[2].process.send_signal(signal.SIGKILL)
    command.wait_for("warning: lost in round")
    manual.start(2)
    assert command.wait() in (0, 1), command.stderr
    if command.process.returncode:  # the site returned after the last round: resume the run
        assert "repeat the command" in command.stderr
        wait_until(lambda: not is_listening(manual.port))
        again = manual.train("--rounds", "6", "--resume", "--round-timeout", "900")
        assert again.wait() == 0, again.stderr
    rows = run_directory(manual.folder, "runs").read_rounds()
    lost = [row for row in rows if "lost" in row]
    assert lost
    assert 2 in {row["client"] for row in lost}, "on a slow machine other clients may be late, too"
    assert len(rows) == 18


def test_invalid_responses_of_a_registered_site_are_rejected(manual):
    for client in (0, 1):
        manual.start(client)
    shard, folder = manual.site(2) / "shard" / "client-002.npz", manual.site(2) / "site"
    ca = manual.folder / "federation" / "ca.crt"
    program = ("-m", "tests.federation.flower.hostile_site", str(shard), str(folder), manual.superlink, str(ca))
    manual.commands.append(Command(cwd=Path.cwd(), program=program))
    command = manual.train("--rounds", "6", *FLOATS)
    assert command.wait() == 0, command.stderr
    rows = [row for row in run_directory(manual.folder, "runs").read_rounds() if row["client"] == 2]
    statuses = [row.get("lost") or row.get("message") for row in rows]
    assert statuses == ["accepted", "future_round", "wrong_public_set", "expertise_nonfinite", "too_large", "accepted"]


def test_a_killed_superlink_does_not_change_the_run(manual, work_dir):
    if not (work_dir / "uninterrupted").exists():
        run_locally(work_dir, "uninterrupted", "--rounds", "5")
    for client in range(3):
        manual.start(client)
    command = manual.train("--rounds", "5", "--round-timeout", "900")
    command.wait_for("round 2/5")
    [superlink] = [line for line in command.descendants() if "flower-superlink" in line]
    os.kill(int(superlink.split()[0]), signal.SIGKILL)
    assert command.wait() == 0, command.stderr
    assert_equal_runs(run_directory(work_dir, "uninterrupted"), run_directory(manual.folder, "runs"))


def test_an_unknown_key_is_refused_and_a_missing_key_is_named(manual):
    (manual.folder / "federation" / "keys" / "client-001.pub").unlink()
    done = fedmosaic("train", *SHORT, "--engine", "flower", "--superlink", manual.superlink, cwd=manual.folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: no key of client-001.pub")
    own = manual.site(1) / "site"
    for name in ("client-001", "client-001.pub"):
        shutil.move(own / name, own / f"old-{name}")
    shutil.copy(own / "old-client-001.pub", manual.folder / "federation" / "keys" / "client-001.pub")
    manual.init(1)  # creates a key that the coordinator does not know
    for client in range(2):
        manual.start(client)
    command = manual.train("--join-timeout", "45")
    assert command.wait() == 1
    # On a slow machine client 0 may be late, too.
    joined = r"[01] of 3 clients joined within 45 s \(--join-timeout\), .*client 1, client 2"
    assert re.search(joined, command.lines[-1])
    assert "refused" in manual.commands[1].stderr
