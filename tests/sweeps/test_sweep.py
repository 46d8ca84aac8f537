"""Sweeps for other machines: printed commands, Ray options and workers, without a Ray cluster."""

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
from tests.waiting import read_outputs

SLURM = 'sed -n "${SLURM_ARRAY_TASK_ID}p" commands.txt | bash'
# A shell function, so that the commands call the tested program and not an installed one.
FUNCTION = f'fedmosaic() {{ {sys.executable} -m fedmosaic_cli "$@"; }}; export -f fedmosaic'


def exit_code_of(*arguments):
    """Call `reproduce` in this process."""
    with pytest.raises(SystemExit) as exit_info:
        app(["reproduce", *arguments])
    return exit_info.value.code


@pytest.fixture
def working_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Commands for another scheduler


@pytest.fixture(scope="module")
def printed_commands(tmp_path_factory):
    """A study whose printed commands have run at the same time, as an array of Slurm jobs."""
    folder = tmp_path_factory.mktemp("with space") / "it's quoted"
    folder.mkdir()
    printed = fedmosaic("reproduce", *STUDY, "--print-commands", cwd=folder)
    assert printed.returncode == 0, printed.stderr
    (folder / "commands.txt").write_text(printed.stdout)
    tasks = [
        subprocess.Popen(
            ["bash", "-c", f"{FUNCTION}; {SLURM}"],
            cwd=folder,
            env={**os.environ, "SLURM_ARRAY_TASK_ID": str(number)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(1, len(printed.stdout.splitlines()) + 1)
    ]
    for task in tasks:
        _, errors = read_outputs(task)
        assert task.returncode == 0, errors
    return folder, printed


def test_one_command_is_printed_per_run(printed_commands):
    _, printed = printed_commands
    lines = printed.stdout.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("fedmosaic baseline ") and line.endswith(" --resume") for line in lines)
    assert [line.split("--seeds ")[1][0] for line in lines] == ["0", "1", "2"] * 2
    assert printed.stderr.splitlines()[-1] == "6 of 6 runs remain: execute the commands in this directory"


def test_printed_commands_give_the_same_results_as_the_study(printed_commands, tmp_path):
    """They run at the same time and share shards. Without --workers the value is 0."""
    folder, _ = printed_commands
    assert fedmosaic("reproduce", *STUDY, cwd=tmp_path).returncode == 0
    expected = results_in(tmp_path)
    assert len(expected) > 6 * 4
    results = {
        name: re.sub(rb"\bworkers: 0\n", b"workers: 1\n", content) for name, content in results_in(folder).items()
    }
    assert results == expected


def test_after_the_printed_commands_nothing_remains(printed_commands, monkeypatch, capsys):
    folder, _ = printed_commands
    monkeypatch.chdir(folder)
    assert exit_code_of(*STUDY, "--print-commands") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "0 of 6 runs remain: execute the commands in this directory"
    assert exit_code_of(*STUDY, "--engine", "ray") == 0, "without remaining runs, Ray is not started"
    assert "all 6 runs are done" in capsys.readouterr().err


def test_printed_commands_contain_the_runs_directory_of_the_environment(working_dir, monkeypatch, capsys):
    monkeypatch.setenv("FEDMOSAIC_RUNS", "with space")
    assert exit_code_of(*STUDY, "--print-commands") == 0
    assert capsys.readouterr().out.count("--runs-dir 'with space' --resume\n") == 6


def test_locked_runs_are_not_printed(working_dir, capsys):
    assert exit_code_of(*STUDY, "--dry-run", "--json") == 0
    first = json.loads(capsys.readouterr().out)["runs"][0]["path"]
    with directory_lock(working_dir / first):
        assert exit_code_of(*STUDY, "--print-commands") == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 5
    assert "without 1 runs that another process is executing" in captured.err


def test_a_run_succeeds_while_another_process_executes_its_local_run(working_dir):
    short = ("--preset", "quickstart", "--rounds", "2", "--name", "quickstart")
    assert fedmosaic("baseline", "local", *short, "--quiet", cwd=working_dir).returncode == 0
    local = working_dir / "runs" / "quickstart" / "local" / "seed-0"
    (local / "summary.json").unlink()
    with directory_lock(local):
        done = fedmosaic("baseline", "fedct", *short, cwd=working_dir)
    assert done.returncode == 0, done.stderr
    assert "note: another process is making the Local run (runs/quickstart/local/seed-0): " in done.stderr


# Requests


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--job-cpus", "2"), "--job-cpus 2 requires Ray: add --engine ray, or leave it out"),
        (("--ray-address", "auto"), "--ray-address auto requires Ray: add --engine ray, or leave it out"),
        (("--job-gpus", "0.5"), "--job-gpus 0.5 requires Ray: add --engine ray, or leave it out"),
        (("--engine", "ray", "--job-gpus", "1.5"), "1.5 GPUs per run (--job-gpus): give a fraction below 1, or"),
        (("--engine", "ray", "--job-gpus", "1", "--device", "cpu"), "1 GPUs per run on cpu (--job-gpus, --device)"),
        (("--engine", "ray", "--job-gpus", "0", "--device", "cuda"), "0 GPUs per run on cuda (--job-gpus, --device)"),
        (("--engine", "ray", "--ray-address", "ray://there:1"), "cannot join 'ray://there:1' (--ray-address): run"),
        (("--engine", "slurm"), "'slurm' is not one of 'local', 'ray' (--engine)"),
        (("--engine", "ray", "--retries", "-1"), "'-1' is not at least 0 (--retries)"),
        (("--print-commands", "--json"), "commands are the only output (--print-commands)"),
        (("--print-commands", "--engine", "ray"), "commands are the only output (--print-commands)"),
    ],
)
def test_invalid_requests_are_refused(arguments, line, working_dir, capsys):
    assert exit_code_of(*STUDY, *arguments) == 2
    (error,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert error.startswith(f"error: {line}")
    assert list(working_dir.iterdir()) == []


def test_without_ray_nothing_is_started(working_dir, monkeypatch, capsys):
    monkeypatch.setattr("fedmosaic_cli.sweeps.ray_session.find_spec", lambda name: None)
    assert exit_code_of(*STUDY, "--engine", "ray") == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: the package ray is not installed (--engine ray): python -m pip install -e '.[cluster]' in a checkout "
        "of fedmosaic"
    )
    assert list(working_dir.iterdir()) == []


def ray_options(*, jobs=None, address=None, cpus=None, gpus=None, device=DeviceChoice.auto, retries=None):
    return SweepExecutionOptions(SweepEngine.ray, address, jobs, cpus, gpus, retries, device)


def test_defaults_of_cores_gpus_and_retries(monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.cli.reproduce_engines.num_available_cores", lambda: 8)
    assert ray_options().cpus_per_job == 1
    assert ray_options().max_parallel_jobs() == 8
    assert ray_options(jobs=3).cpus_per_job == 2
    assert ray_options(jobs=3, address="auto").cpus_per_job == 1, "the cores of the cluster are unknown"
    assert ray_options(cpus=4).max_parallel_jobs() == 2
    assert ray_options(cpus=4).workers_per_job(2) == 4
    assert (ray_options().gpus_per_job, ray_options().device) == (0, DeviceChoice.cpu)
    assert (ray_options(device=DeviceChoice.cuda).gpus_per_job, ray_options(device=DeviceChoice.cuda).device) == (
        1,
        DeviceChoice.cuda,
    )
    assert ray_options(gpus=0.25).device is DeviceChoice.cuda
    assert (ray_options().max_retries, ray_options(retries=0).max_retries) == (2, 0)
    local = SweepExecutionOptions(SweepEngine.local, None, None, None, None, None, DeviceChoice.auto)
    assert (local.max_retries, local.device, local.max_parallel_jobs(), local.workers_per_job(4)) == (
        0,
        DeviceChoice.auto,
        8,
        2,
    )


# On a worker


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def test_capacity_counts_cores_and_gpus_of_the_same_machine():
    nodes = [node(CPU=8.0, GPU=2.0), node(CPU=7.0), node(memory=1.0), node(alive=False, CPU=64.0)]
    assert JobResources(2, 0).capacity(nodes) == 4 + 3
    assert JobResources(1, 1).capacity(nodes) == 2
    assert JobResources(1, 0.3).capacity(nodes) == 6
    assert JobResources(3, 0.5).capacity(nodes) == 2
    assert JobResources(1, 4).capacity(nodes) == 0


def test_a_worker_refuses_another_runs_directory(tmp_path):
    args = ("presets", "list")
    with sweep_marker(tmp_path / "runs") as marker:
        assert RemoteCommand(args, tmp_path, marker, {}).incompatibility("node") == ""
        assert (
            RemoteCommand(args, tmp_path / "none", marker, {})
            .incompatibility("node")
            .startswith("node does not have the working directory ")
        )
        assert RemoteCommand(args, tmp_path, marker, {}, "0").incompatibility("node").startswith("node has fedmosaic ")
    assert not marker.exists()
    status = WorkerActor(RemoteCommand(args, tmp_path, marker, {})).poll()
    assert status.pid is None
    assert status.incompatibility == (
        f"{status.host} has a different runs directory ({tmp_path / 'runs'}): every machine needs the same directory "
        "under the same path, on a shared file system"
    )


def test_a_worker_uses_the_directory_and_env_of_the_sender(tmp_path):
    with sweep_marker(tmp_path / "elsewhere") as marker:
        env = {"FEDMOSAIC_RUNS": "elsewhere"}
        actor = WorkerActor(RemoteCommand(("train", "--preset", "quickstart", "--rounds", "1"), tmp_path, marker, env))
        status = actor.poll()
        assert status.exit_code is None
        assert status.pid
        while status.exit_code is None:
            status = actor.poll()
    assert status.exit_code == 0
    assert list(tmp_path.glob("elsewhere/quickstart/*/seed-0/summary.json"))
    assert not (tmp_path / "runs").exists()


# What is shown


class RemoteProcess:
    """A process on another machine."""

    exit_code, stderr_tail, host, pid = None, b"", "node7", 4711


def test_the_machine_of_a_job_is_shown(capsys, monkeypatch):
    assert reproduce_view.process_location(RemoteProcess()) == "  on node7, process 4711"
    monkeypatch.setattr(RemoteProcess, "host", None)
    assert reproduce_view.process_location(RemoteProcess()) == "  waits for resources"
    monkeypatch.setattr(RemoteProcess, "host", "")
    assert reproduce_view.process_location(RemoteProcess()) == ""


def test_a_retry_is_reported_once(capsys):
    class Job:
        title = "quickstart, fedavg"

    class Schedule:
        num_remaining = 1

    runner = JobRunner(deque(), None, 1, 1, 1.0, crashes=[JobFailure(Job(), "its worker on node7 was lost (Ray)")])
    lines = reproduce_view.SweepProgressLines(Schedule())
    lines.update(runner, [])
    lines.update(runner, [])
    assert capsys.readouterr().err == (
        "crashed, will be retried: quickstart, fedavg: its worker on node7 was lost (Ray)\n"
    )
