"""The garbage collector runs rarely while modules load, and as usual during a run. Commands that train start twice."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedmosaic_cli import machine
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.machine import (
    RESTARTED_VARIABLE,
    STARTUP_GC_THRESHOLDS,
    TUNABLES,
    TUNABLES_VARIABLE,
    USUAL_GC_THRESHOLDS,
    collect_as_usual,
    collect_rarely,
    restart_without_malloc_caches,
)


@pytest.fixture(autouse=True)
def unchanged_collector():
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.unit
def test_the_collector_is_as_usual_once_a_run_starts():
    collect_rarely()
    assert gc.get_threshold() == STARTUP_GC_THRESHOLDS
    collect_as_usual()
    assert gc.get_threshold() == USUAL_GC_THRESHOLDS
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


@pytest.mark.unit
def test_a_caller_of_the_api_keeps_its_collector():
    gc.set_threshold(123, 4, 5)
    frozen = gc.get_freeze_count()
    collect_as_usual()
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((123, 4, 5), frozen)


def test_a_run_ends_the_rare_collection(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    collect_rarely()
    assert CliRunner().invoke(app, ["train", "--preset", "quickstart", "--rounds", "1", "-q"]).exit_code == 0
    assert gc.get_threshold() == USUAL_GC_THRESHOLDS


@pytest.fixture
def restarts(monkeypatch):
    """Return a function that starts a process with these words and returns the words and environments of restarts."""

    def start(*words, arguments):
        started = []
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, *words, *arguments])
        monkeypatch.setattr(sys, "argv", ["fedmosaic", *arguments])
        monkeypatch.setattr(os, "execve", lambda path, *rest: started.append(rest))
        restart_without_malloc_caches({"train"})
        return started

    monkeypatch.setattr(machine, "find_glibc", object)
    for name in (TUNABLES_VARIABLE, RESTARTED_VARIABLE):
        # A variable that is not set now is removed again after the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return start


COMMAND, TRAIN = ("-m", "fedmosaic_cli"), ["train", "--preset", "quickstart"]


@pytest.mark.unit
@pytest.mark.parametrize("words", [COMMAND, ("-u", *COMMAND), ("/opt/bin/fedmosaic",)], ids=str)
@pytest.mark.parametrize(
    ("own", "expected"),
    [(None, TUNABLES), ("glibc.malloc.arena_max=2", f"glibc.malloc.arena_max=2:{TUNABLES}")],
    ids=["unset", "set"],
)
def test_a_command_that_trains_is_started_again_once_and_restores_the_environment(
    restarts, words, own, expected, monkeypatch
):
    if own is not None:
        monkeypatch.setenv(TUNABLES_VARIABLE, own)
    [(command, environment)] = restarts(*words, arguments=TRAIN)
    assert command == [sys.executable, *words, *TRAIN]
    assert environment[TUNABLES_VARIABLE] == expected
    assert (os.environ.get(TUNABLES_VARIABLE), os.environ.get(RESTARTED_VARIABLE)) == (own, None)
    for name in (TUNABLES_VARIABLE, RESTARTED_VARIABLE):
        monkeypatch.setenv(name, environment[name])
    assert restarts(*words, arguments=TRAIN) == []
    assert (os.environ.get(TUNABLES_VARIABLE), os.environ.get(RESTARTED_VARIABLE)) == (own, None)


@pytest.mark.unit
def test_a_restarted_process_without_the_option_is_not_started_again(restarts, monkeypatch):
    """The option may be removed on the way: by glibc, a wrapper of Python or `sitecustomize`."""
    [(_, environment)] = restarts(*COMMAND, arguments=TRAIN)
    monkeypatch.setenv(RESTARTED_VARIABLE, environment[RESTARTED_VARIABLE])
    assert restarts(*COMMAND, arguments=TRAIN) == []
    assert not {TUNABLES_VARIABLE, RESTARTED_VARIABLE} & os.environ.keys()


@pytest.mark.unit
def test_a_command_that_cannot_be_started_again_runs_as_it_is(restarts, monkeypatch):
    assert restarts(*COMMAND, arguments=TRAIN)
    before, attempts = dict(os.environ), []

    def fail(*arguments):
        attempts.append(arguments)
        raise PermissionError

    monkeypatch.setattr(os, "execve", fail)
    restart_without_malloc_caches({"train"})
    assert len(attempts) == 1
    assert dict(os.environ) == before


@pytest.mark.unit
def test_nothing_is_started_again_without_glibc(restarts, monkeypatch):
    monkeypatch.setattr(machine, "find_glibc", lambda: None)
    assert restarts(*COMMAND, arguments=TRAIN) == []


@pytest.mark.unit
def test_another_c_library_is_not_taken_for_glibc(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert machine.find_glibc() is None


@pytest.mark.unit
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "cProfile", "-m", "fedmosaic_cli"),
        ("-m", "pytest"),
        ("-c", "work()"),
        ("-X", "dev", "-m", "fedmosaic_cli"),
    ],
    ids=str,
)
def test_other_programs_are_not_started_again(restarts, words):
    assert restarts(*words, arguments=["train"]) == []


@pytest.mark.unit
@pytest.mark.parametrize("arguments", [["--help"], ["report"], []], ids=str)
def test_other_commands_are_not_started_again(restarts, arguments):
    assert restarts(*COMMAND, arguments=arguments) == []


@pytest.mark.unit
def test_the_number_of_cached_blocks_that_the_user_has_set_is_kept(restarts, monkeypatch):
    monkeypatch.setenv(TUNABLES_VARIABLE, "glibc.malloc.arena_max=2:glibc.malloc.tcache_count=5")
    assert restarts(*COMMAND, arguments=TRAIN) == []


SEEN_BY_A_PLUGIN = """
import json, os, sys
from pathlib import Path
first = Path("/proc/self/environ").read_text().replace("\\0", ":")  # glibc separates the options that it has read
seen = {"first": first, "now": os.environ.get("GLIBC_TUNABLES"), "pid": os.getpid(), "arguments": sys.argv[1:]}
Path("seen.json").write_text(json.dumps(seen))
raise SystemExit
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or machine.find_glibc() is None, reason="needs glibc on Linux")
@pytest.mark.parametrize("own", [{}, {TUNABLES_VARIABLE: "glibc.malloc.arena_max=64"}], ids=["unset", "set"])
def test_a_command_starts_with_the_option_as_the_same_process_with_the_same_arguments(own, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES_VARIABLE}
    arguments = ["train", "--preset", "quickstart", "--plugin", "own.py", "--dry-run"]
    (tmp_path / "own.py").write_text(SEEN_BY_A_PLUGIN)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedmosaic_cli", *arguments],
        cwd=tmp_path,
        env={**environment, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    process.wait()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert f"{TUNABLES_VARIABLE}={':'.join([*own.values(), TUNABLES])}" in seen.pop("first")
    assert seen == {"now": own.get(TUNABLES_VARIABLE), "pid": process.pid, "arguments": arguments}
