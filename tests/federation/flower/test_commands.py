"""Whole federations by the commands that people type: TLS, keys, three sites on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from fedmosaic_cli.federation.flower.superlink import free_port
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.runs import RunDirectory
from tests.conftest import fedmosaic
from tests.federation.flower.commands import Command, listening
from tests.federation.flower.federation import wait

pytestmark = pytest.mark.flower
pytest.importorskip("flwr")

METHODS = ("fedmosaic", "fedct", "perfedckt", "fedavg")
SHORT = ("--shards", "shards", "--set", "train.local_steps=3", "--set", "train.workers=1")
FLOATS = ("--set", "methods.fedmosaic.expertise_bits=float32")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with shards for three clients."""
    folder = tmp_path_factory.mktemp("place")
    options = ("--alpha", "0.5", "--clients", "3", "--public-size", "60", "--export", "--out", "shards")
    done = fedmosaic("partition", "--scheme", "dirichlet", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def run_of(folder: Path, runs: str, method: str = "fedmosaic-frequency") -> RunDirectory:
    return RunDirectory(folder / runs / "shards" / method / "seed-0")


def here(place: Path, runs: str, *options: str, methods: tuple[str, ...] = ("fedmosaic",)) -> None:
    """The same runs with all clients in one process."""
    arguments = (*methods, *SHORT, "--execution", "threads", "--runs-dir", runs, "--quiet", *options)
    done = fedmosaic("baseline", *arguments, cwd=place)
    assert done.returncode == 0, done.stderr


def same(one: RunDirectory, other: RunDirectory) -> None:
    """Two runs tell the same of every round, came to the same consensus, and to the same models."""
    assert (one.path / "rounds.jsonl").read_bytes() == (other.path / "rounds.jsonl").read_bytes()
    assert one.read_summary()["models"] == other.read_summary()["models"]
    states = [checkpoints.read_newest_checkpoint(files.checkpoints_dir)[0] for files in (one, other)]
    servers = [
        {name: a.tobytes() for name, a in state.arrays.items() if name.startswith("server/")} for state in states
    ]
    assert servers[0] == servers[1]
    assert servers[0]


def test_a_federation_with_tls_is_the_run_in_one_process(place):
    here(place, "here", "--rounds", "3", methods=METHODS)
    options = (*SHORT, "--rounds", "3", "--engine", "flower", "--simulate-sites", "3", "--runs-dir", "there")
    command = Command("baseline", *METHODS, *options, cwd=place)
    assert command.ended(600) == 0, command.said
    command.nothing_is_left()
    for method in ("fedmosaic-frequency", *METHODS[1:]):
        same(run_of(place, "here", method), run_of(place, "there", method))
        summary = run_of(place, "there", method).read_summary()
        assert summary["federation"] == {"engine": "flower", "sites": 3, "models": "at the sites"}
        for name, digest in summary["models"].items():
            [model] = place.glob(f"sites/shards/*/runs/shards/{method}/*/*/models/{name}")
            assert hashlib.sha256(model.read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_coordinator_that_ends_takes_everything_along_and_goes_on(place, number):
    runs, reference = f"ended-{number.name}", "uninterrupted"
    if not (place / reference).exists():
        here(place, reference, "--rounds", "5")
    options = ("train", *SHORT, "--rounds", "5", "--engine", "flower", "--simulate-sites", "3", "--runs-dir", runs)
    command = Command(*options, cwd=place)
    command.wait_for("round 2/5")
    command.process.send_signal(number)
    assert command.ended() == (-9 if number == signal.SIGKILL else 128 + number)
    command.nothing_is_left(30)
    assert not run_of(place, runs).is_finished()
    again = Command(*options, "--resume", cwd=place)
    assert again.ended() == 0, again.said
    assert "resumed after round" in again.said
    again.nothing_is_left()
    same(run_of(place, reference), run_of(place, runs))


class Hand:
    """A federation as people make one: a coordinator's directory, and three of sites."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.superlink = f"127.0.0.1:{self.port}"
        self.commands: list[Command] = []
        self.shards = folder / "shards"
        self.shards.mkdir()
        for name in ("manifest.json", "public.npz"):  # all that a coordinator has
            shutil.copy(place / "shards" / name, self.shards)
        self.typed("federation", "init", "--host", "127.0.0.1")
        for client in range(3):
            own = self.site(client) / "shard"
            own.mkdir(parents=True)
            for name in ("manifest.json", "public.npz", f"client-{client:03d}.npz"):
                shutil.copy(place / "shards" / name, own)
            self.init(client)
            name = f"client-{client:03d}.pub"
            shutil.copy(self.site(client) / "site" / name, folder / "federation" / "keys" / name)

    def site(self, client: int) -> Path:
        return self.folder / f"hospital-{client}"

    def typed(self, *arguments: str, cwd: Path | None = None) -> str:
        done = fedmosaic(*arguments, cwd=cwd or self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def init(self, client: int) -> None:
        shard = f"shard/client-{client:03d}.npz"
        self.typed("site", "init", "--shard", shard, "--share", "models", cwd=self.site(client))

    def start(self, client: int) -> Command:
        ca = self.folder / "federation" / "ca.crt"
        site = Command("site", "start", "--superlink", self.superlink, "--ca", str(ca), cwd=self.site(client))
        self.commands.append(site)
        return site

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
            command.ended(60)
        for command in self.commands:
            command.nothing_is_left(30)
        assert not listening(self.port)


@pytest.fixture
def hand(tmp_path, place):
    federation = Hand(tmp_path, place)
    yield federation
    federation.close()


def test_a_federation_by_hand_survives_the_death_of_a_site(hand, place):
    """The site is killed while it could be asked at any time, and is started again: nobody is lost, as rounds wait."""
    if not (place / "uninterrupted").exists():
        here(place, "uninterrupted", "--rounds", "5")
    sites = {client: hand.start(client) for client in range(3)}
    command = hand.train("--rounds", "5", "--round-timeout", "150")
    command.wait_for("round 1/5")
    told = json.loads(hand.typed("site", "status", "--json", cwd=hand.site(1)))
    assert told["running"]
    assert told["connection"] == "connected"
    sites[1].process.send_signal(signal.SIGKILL)
    assert sites[1].ended() == -9
    sites[1].nothing_is_left(30)
    assert not json.loads(hand.typed("site", "status", "--json", cwd=hand.site(1)))["running"]
    hand.start(1)
    assert command.ended(400) == 0, command.said
    same(run_of(place, "uninterrupted"), run_of(hand.folder, "runs"))
    [run] = json.loads(hand.typed("site", "status", "--json", cwd=hand.site(1)))["runs"]
    assert run["round"] == 5
    assert Path(hand.site(1) / run["model"]).is_file()


def test_a_site_that_stays_away_is_left_out_and_may_come_back(hand):
    sites = {client: hand.start(client) for client in range(3)}
    command = hand.train("--rounds", "6", "--round-timeout", "12")
    command.wait_for("round 1/6")
    sites[2].process.send_signal(signal.SIGKILL)
    command.wait_for("warning: lost in round")
    hand.start(2)
    assert command.ended(400) in (0, 1), command.said
    if command.process.returncode:  # too late for the end of the last round: then it goes on
        assert "continue with --resume" in command.said
        wait(lambda: not listening(hand.port), 30)
        again = hand.train("--rounds", "6", "--resume", "--round-timeout", "150")
        assert again.ended(400) == 0, again.said
    rows = run_of(hand.folder, "runs").read_rounds()
    lost = [row for row in rows if "lost" in row]
    assert lost
    assert {row["client"] for row in lost} == {2}
    assert len(rows) == 18


def test_a_hostile_site_is_heard_and_not_believed(hand):
    for client in (0, 1):
        hand.start(client)
    shard, folder = hand.site(2) / "shard" / "client-002.npz", hand.site(2) / "site"
    ca = hand.folder / "federation" / "ca.crt"
    program = ("-m", "tests.federation.flower.hostile_site", str(shard), str(folder), hand.superlink, str(ca))
    hand.commands.append(Command(cwd=Path.cwd(), program=program))
    command = hand.train("--rounds", "6", *FLOATS)
    assert command.ended(400) == 0, command.said
    rows = [row for row in run_of(hand.folder, "runs").read_rounds() if row["client"] == 2]
    fates = [row.get("lost") or row.get("message") for row in rows]
    assert fates == ["accepted", "future_round", "wrong_public_set", "expertise_nonfinite", "too_large", "accepted"]


def test_the_superlink_dies_in_the_middle_and_nobody_notices(hand, place):
    if not (place / "uninterrupted").exists():
        here(place, "uninterrupted", "--rounds", "5")
    for client in range(3):
        hand.start(client)
    command = hand.train("--rounds", "5", "--round-timeout", "300")
    command.wait_for("round 2/5")
    [victim] = [line for line in command.left() if "flower-superlink" in line]
    os.kill(int(victim.split()[0]), signal.SIGKILL)
    assert command.ended(500) == 0, command.said
    same(run_of(place, "uninterrupted"), run_of(hand.folder, "runs"))


def test_a_stranger_is_refused_and_a_missing_key_is_named(hand):
    (hand.folder / "federation" / "keys" / "client-001.pub").unlink()
    done = fedmosaic("train", *SHORT, "--engine", "flower", "--superlink", hand.superlink, cwd=hand.folder)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: no key of client-001.pub")
    own = hand.site(1) / "site"
    for name in ("client-001", "client-001.pub"):
        shutil.move(own / name, own / f"old-{name}")
    shutil.copy(own / "old-client-001.pub", hand.folder / "federation" / "keys" / "client-001.pub")
    hand.init(1)  # another key than the coordinator knows
    for client in range(2):
        hand.start(client)
    command = hand.train("--join-timeout", "45")
    assert command.ended() == 1
    assert "not everybody joined within 45 s (--join-timeout), client 1, client 2" in command.lines[-1]
    assert "refused" in hand.commands[1].said
