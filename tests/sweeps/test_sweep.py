"""The runs of a study on other machines, as far as that can be told without any."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import deque

import pytest

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.common_options import DeviceChoice
from fedmosaic_cli.cli.reproduce_engines import SweepEngine, SweepExecutionOptions
from fedmosaic_cli.cli.views import reproduce_view
from fedmosaic_cli.storage.lock import directory_lock
from fedmosaic_cli.sweeps.jobs import JobFailure, JobRunner
from fedmosaic_cli.sweeps.ray_cluster import JobResources, RemoteCommand, WorkerActor, sweep_marker
from tests.conftest import fedmosaic
from tests.sweeps.small_studies import STUDY, results_in

SLURM = 'sed -n "${SLURM_ARRAY_TASK_ID}p" commands.txt | bash'
# The shell's own name for it: the commands find the program that is tested, whatever is installed.
FUNCTION = f'fedmosaic() {{ {sys.executable} -m fedmosaic_cli "$@"; }}; export -f fedmosaic'


def asked(*arguments):
    """The exit code of a request, made in this process."""
    with pytest.raises(SystemExit) as leaving:
        app(["reproduce", *arguments])
    return leaving.value.code


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Commands for another scheduler


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """A study that was made by its printed commands, all at the same moment, as an array of jobs would be."""
    folder = tmp_path_factory.mktemp("by hand") / "it's here"
    folder.mkdir()
    said = fedmosaic("reproduce", *STUDY, "--print-commands", cwd=folder)
    assert said.returncode == 0, said.stderr
    (folder / "commands.txt").write_text(said.stdout)
    tasks = [
        subprocess.Popen(
            ["bash", "-c", f"{FUNCTION}; {SLURM}"],
            cwd=folder,
            env={**os.environ, "SLURM_ARRAY_TASK_ID": str(number)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(1, len(said.stdout.splitlines()) + 1)
    ]
    for task in tasks:
        _, errors = task.communicate(timeout=120)
        assert task.returncode == 0, errors
    return folder, said


def test_printed_commands_are_one_a_run_and_nothing_else(by_hand):
    _, said = by_hand
    lines = said.stdout.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("fedmosaic baseline ") and line.endswith(" --resume") for line in lines)
    assert [line.split("--seeds ")[1][0] for line in lines] == ["0", "1", "2"] * 2
    assert said.stderr.splitlines()[-1] == "6 of 6 runs remain: call the commands in this directory"


def test_printed_commands_make_what_the_study_makes(by_hand, tmp_path):
    """All at once, though they deal the same shards. Of workers, a run that has the machine to itself has all (0)."""
    folder, _ = by_hand
    assert fedmosaic("reproduce", *STUDY, cwd=tmp_path).returncode == 0
    made = results_in(tmp_path)
    assert len(made) > 6 * 4
    found = {name: re.sub(rb"\bworkers: 0\n", b"workers: 1\n", content) for name, content in results_in(folder).items()}
    assert found == made


def test_after_them_nothing_remains(by_hand, monkeypatch, capsys):
    folder, _ = by_hand
    monkeypatch.chdir(folder)
    assert asked(*STUDY, "--print-commands") == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == "0 of 6 runs remain: call the commands in this directory"
    assert asked(*STUDY, "--engine", "ray") == 0, "for nothing, Ray is not even looked for"
    assert "all 6 runs are done" in capsys.readouterr().err


def test_printed_commands_name_the_runs_directory_of_the_variable(here, monkeypatch, capsys):
    monkeypatch.setenv("FEDMOSAIC_RUNS", "some where")
    assert asked(*STUDY, "--print-commands") == 0
    assert capsys.readouterr().out.count("--runs-dir 'some where' --resume\n") == 6


def test_a_run_that_is_being_made_is_in_no_command(here, capsys):
    assert asked(*STUDY, "--dry-run", "--json") == 0
    first = json.loads(capsys.readouterr().out)["runs"][0]["path"]
    with directory_lock(here / first):
        assert asked(*STUDY, "--print-commands") == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 5
    assert "without 1 runs that another process is making" in said.err


def test_a_run_ends_well_while_another_process_makes_its_local_run(here):
    short = ("--preset", "quickstart", "--rounds", "2")
    assert fedmosaic("baseline", "local", *short, "--quiet", cwd=here).returncode == 0
    local = here / "runs" / "quickstart" / "local" / "seed-0"
    (local / "summary.json").unlink()
    with directory_lock(local):
        done = fedmosaic("baseline", "fedct", *short, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "note: another process is making the Local run (runs/quickstart/local/seed-0): " in done.stderr


# Requests


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--job-cpus", "2"), "--job-cpus 2 is about Ray: add --engine ray, or leave it out"),
        (("--ray-address", "auto"), "--ray-address auto is about Ray: add --engine ray, or leave it out"),
        (("--job-gpus", "0.5"), "--job-gpus 0.5 is about Ray: add --engine ray, or leave it out"),
        (("--engine", "ray", "--job-gpus", "1.5"), "1.5 GPUs for a run (--job-gpus): it must be a part of one, or"),
        (("--engine", "ray", "--job-gpus", "1", "--device", "cpu"), "1 GPUs for a run on cpu (--job-gpus, --device)"),
        (("--engine", "ray", "--job-gpus", "0", "--device", "cuda"), "0 GPUs for a run on cuda (--job-gpus, --device)"),
        (("--engine", "ray", "--ray-address", "ray://there:1"), "cannot join 'ray://there:1' (--ray-address): call"),
        (("--engine", "slurm"), "Invalid value for '--engine'"),
        (("--engine", "ray", "--retries", "-1"), "Invalid value for '--retries'"),
        (("--print-commands", "--json"), "commands are all there is to show (--print-commands)"),
        (("--print-commands", "--engine", "ray"), "commands are all there is to show (--print-commands)"),
    ],
)
def test_wrong_requests_are_refused(arguments, line, here, capsys):
    assert asked(*STUDY, *arguments) == 2
    (error,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert error.startswith(f"error: {line}")
    assert list(here.iterdir()) == []


def test_without_the_package_nothing_is_begun(here, monkeypatch, capsys):
    monkeypatch.setattr("fedmosaic_cli.sweeps.ray_session.find_spec", lambda name: None)
    assert asked(*STUDY, "--engine", "ray") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: the package ray is not installed (--engine ray): pip install 'fedmosaic[cluster]'"
    )
    assert list(here.iterdir()) == []


def way(*, jobs=None, address=None, cpus=None, gpus=None, device=DeviceChoice.auto, retries=None):
    return SweepExecutionOptions(SweepEngine.ray, address, jobs, cpus, gpus, retries, device)


def test_a_run_gets_the_cores_that_others_leave_and_a_gpu_if_it_asks(monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.cli.reproduce_engines.num_available_cores", lambda: 8)
    assert way().cpus == 1
    assert way().at_once() == 8
    assert way(jobs=3).cpus == 2
    assert way(jobs=3, address="auto").cpus == 1, "nobody knows how many cores are there"
    assert way(cpus=4).at_once() == 2
    assert way(cpus=4).workers(2) == 4
    assert (way().gpus, way().device) == (0, DeviceChoice.cpu)
    assert (way(device=DeviceChoice.cuda).gpus, way(device=DeviceChoice.cuda).device) == (1, DeviceChoice.cuda)
    assert way(gpus=0.25).device is DeviceChoice.cuda
    assert (way().max_retries, way(retries=0).max_retries) == (2, 0)
    alone = SweepExecutionOptions(SweepEngine.local, None, None, None, None, None, DeviceChoice.auto)
    assert (alone.max_retries, alone.device, alone.max_parallel_jobs(), alone.workers_per_job(4)) == (
        0,
        DeviceChoice.auto,
        8,
        2,
    )


# On a worker


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def test_there_is_room_where_cores_and_gpus_are_on_one_machine():
    nodes = [node(CPU=8.0, GPU=2.0), node(CPU=7.0), node(memory=1.0), node(alive=False, CPU=64.0)]
    assert JobResources(2, 0).capacity(nodes) == 4 + 3
    assert JobResources(1, 1).capacity(nodes) == 2
    assert JobResources(1, 0.3).capacity(nodes) == 6
    assert JobResources(3, 0.5).capacity(nodes) == 2
    assert JobResources(1, 4).capacity(nodes) == 0


def test_a_worker_makes_nothing_where_the_runs_directory_is_another(tmp_path):
    words = ("presets", "list")
    with sweep_marker(tmp_path / "runs") as marker:
        assert RemoteCommand(words, tmp_path, marker, {}).incompatibility("there") == ""
        assert (
            RemoteCommand(words, tmp_path / "none", marker, {})
            .incompatibility("there")
            .startswith("the working directory is not ")
        )
        assert RemoteCommand(words, tmp_path, marker, {}, "0").incompatibility("there").startswith("fedmosaic is ")
    assert not marker.exists()
    word = WorkerActor(RemoteCommand(words, tmp_path, marker, {})).poll()
    assert word.pid is None
    assert word.incompatibility == (
        f"the runs directory is not this sweep's on {word.host} ({tmp_path / 'runs'}): every machine needs it under "
        "the same path, on a file system that all of them share"
    )


def test_a_worker_s_command_has_directory_and_variables_of_whoever_sent_it(tmp_path):
    with sweep_marker(tmp_path / "elsewhere") as marker:
        variables = {"FEDMOSAIC_RUNS": "elsewhere"}
        hand = WorkerActor(
            RemoteCommand(("train", "--preset", "quickstart", "--rounds", "1"), tmp_path, marker, variables)
        )
        word = hand.poll()
        assert word.exit_code is None
        assert word.pid
        while word.exit_code is None:
            word = hand.poll()
    assert word.exit_code == 0
    assert list(tmp_path.glob("elsewhere/quickstart/*/seed-0/summary.json"))
    assert not (tmp_path / "runs").exists()


# What is shown


class Distant:
    """A process on another machine."""

    code, said, host, pid = None, b"", "node7", 4711


def test_it_is_told_where_runs_are_made(capsys, monkeypatch):
    assert reproduce_view.process_location(Distant()) == "  on node7, process 4711"
    monkeypatch.setattr(Distant, "host", None)
    assert reproduce_view.process_location(Distant()) == "  waits for room"
    monkeypatch.setattr(Distant, "host", "")
    assert reproduce_view.process_location(Distant()) == ""


def test_a_line_tells_what_was_dealt_again(capsys):
    class Job:
        title = "quickstart, fedavg"

    class Plan:
        remaining = 1

    crew = JobRunner(deque(), None, 1, 1, 1.0, crashes=[JobFailure(Job(), "its worker on node7 was lost (Ray)")])
    lines = reproduce_view.SweepProgressLines(Plan())
    lines.update(crew, [])
    lines.update(crew, [])
    assert capsys.readouterr().err == (
        "crashed, and dealt again: quickstart, fedavg: its worker on node7 was lost (Ray)\n"
    )
