"""The command `fedmosaic watch`."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.cli.views.watch_view import BLOCK_SYMBOLS, clock_text, render_watched_runs, shorten_name, sparkline
from fedmosaic_cli.report.run_progress import WatchedRuns
from fedmosaic_cli.storage.lock import LOCK_FILE, directory_lock
from tests.report.runs_in_progress import create_run, finish_run, log_rounds
from tests.waiting import read_outputs, wait_until

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def invoke(*arguments):
    return CliRunner().invoke(app, ["watch", *map(str, arguments)])


def rendered_lines(path: Path, width: int, height: int | None) -> list[str]:
    """Return the lines that a terminal of this size shows."""
    console, runs = Console(width=width, height=height or 1000, color_system=None, markup=False), WatchedRuns(path)
    with console.capture() as captured:
        console.print(render_watched_runs(runs.poll(), runs, console, height))
    return captured.get().splitlines()


class Terminal:
    """`fedmosaic watch` in a pseudo-terminal."""

    def __init__(self, *arguments: str, columns: int = 100, rows: int = 30) -> None:
        self._parent_fd, child_fd = pty.openpty()
        ioctl(child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-m", "fedmosaic_cli", "watch", *arguments]
        self.process = subprocess.Popen(command, stdin=child_fd, stdout=child_fd, stderr=subprocess.PIPE, text=True)
        os.close(child_fd)
        os.set_blocking(self._parent_fd, False)
        self.last = ""

    def wait_for(self, words: str) -> None:
        """Wait until new output contains the words."""
        new = ""

        def is_shown() -> bool:
            nonlocal new
            with suppress(BlockingIOError):
                new += CONTROL.sub("", os.read(self._parent_fd, 1 << 16).decode(errors="replace"))
            return words in " ".join(new.split())

        wait_until(is_shown)

    def wait_for_exit(self) -> tuple[int, str]:
        """Return exit code and stderr."""
        errors = read_outputs(self.process)[1]
        with suppress(OSError):  # all output has been read
            self.last = os.read(self._parent_fd, 1 << 16).decode(errors="replace")
        os.close(self._parent_fd)
        return self.process.returncode, errors


def test_on_a_terminal_it_updates_until_a_stopped_run_is_finished(tmp_path):
    run = create_run(tmp_path / "runs" / "a", rounds=3, finished=1)
    terminal = Terminal(str(tmp_path / "runs"), "--interval", "0.1")
    terminal.wait_for("stopped")
    with directory_lock(run):
        log_rounds(run, 2, 2)
        terminal.wait_for("running 2/3")
        log_rounds(run, 3, 3)
        finish_run(run, 3)
        terminal.wait_for("finished 3/3")
    assert terminal.wait_for_exit() == (0, "")


def test_ctrl_c_exits_silently_and_restores_the_cursor(tmp_path):
    run = create_run(tmp_path / "runs" / "a", rounds=3, finished=1)
    terminal = Terminal(str(run))
    terminal.wait_for("round 1 of 3")
    terminal.process.send_signal(signal.SIGINT)
    code, errors = terminal.wait_for_exit()
    assert code == 130
    assert errors == ""
    assert "\x1b[?25h" in terminal.last


def test_in_a_pipe_and_with_once_it_prints_one_view(tmp_path):
    run = create_run(tmp_path / "runs" / "a" / "seed-0", rounds=9, finished=4)
    done = invoke(tmp_path / "runs")
    assert done.exit_code == 0
    heading, line, counts = done.stdout.splitlines()
    assert heading.split() == ["run", "state", "round", "acc", "%", "lambda", "eta"]
    assert line.split() == ["a/seed-0", "stopped", "4/9", "5.00", "0.040", "-"]
    assert counts == "1 stopped"
    assert invoke(run, "--once").stdout == invoke(run).stdout
    terminal = Terminal(str(run), "--once")
    assert terminal.wait_for_exit() == (0, "")
    assert terminal.last.count("round 4 of 9") == 1


def test_a_single_run_shows_times_curves_and_clients(tmp_path):
    run = create_run(tmp_path / "run", rounds=20, finished=10, clients=2)
    with directory_lock(run):
        lines = rendered_lines(run, 100, None)
    assert lines[0].split() == [str(run), "running"]
    assert re.fullmatch(r"round 10 of 20  elapsed 0:20  eta 0:(19|20|18)", lines[1].strip())
    assert lines[2].split() == ["accuracy", "▁▂▃▃▄▅▆▆▇█", "1.50", "->", "10.50", "%"]
    assert lines[3].split() == ["lambda", "▁▂▃▃▄▅▆▆▇█", "0.010", "->", "0.100"]
    # No client has a public loss, so there is no such column.
    assert lines[4].split() == ["client", "accuracy", "%", "lambda", "private", "loss", "agreement"]
    assert [line.split() for line in lines[5:]] == [
        ["0", "10.00", "0.100", "0.500", "0.250"],
        ["1", "11.00", "0.100", "0.500", "0.250"],
    ]


@pytest.mark.parametrize(("width", "height"), [(60, 24), (60, 12), (100, 24)])
def test_the_view_fits_the_terminal(width, height, tmp_path):
    long = "a-setting-with-a-long-name/a-method-with-a-long-name"
    for seed in range(40):
        create_run(tmp_path / long / f"seed-{seed}", rounds=1000, finished=1, clients=40)
    (tmp_path / long / "seed-7" / "rounds.jsonl").write_text("nonsense\n")
    for path in (tmp_path, tmp_path / long / "seed-0"):
        lines = rendered_lines(path, width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    listed = rendered_lines(tmp_path, width, height)
    assert "seed-7 " in listed[1]  # damaged runs precede stopped ones
    assert re.search(r"1 damaged, 39 stopped, \d+ of them not shown", " ".join(" ".join(listed).split()))
    assert re.search(r"and \d+ more clients", rendered_lines(tmp_path / long / "seed-0", width, height)[-1])


def test_json_output_is_one_document(tmp_path):
    run = create_run(tmp_path / "runs" / "a", rounds=9, finished=2, clients=2)
    create_run(tmp_path / "runs" / "b", rounds=9)
    with directory_lock(run):
        found = json.loads(invoke(tmp_path / "runs", "--json").stdout)
        [alone] = json.loads(invoke(run, "--json").stdout)
    assert [each["state"] for each in found] == ["running", "stopped"]
    first = found[0]
    assert 12 <= first.pop("eta_seconds") <= 14
    assert first == {
        "path": str(run),
        "state": "running",
        "reason": None,
        "round": 2,
        "rounds": 9,
        "accuracy": pytest.approx(0.025),
        "lambda": pytest.approx(0.02),
        "elapsed_seconds": 4.0,
    }
    assert [point["round"] for point in alone["history"]] == [1, 2]
    assert [client["accuracy"] for client in alone["clients"]] == [0.02, 0.03]


def test_a_finished_run_has_the_values_of_its_summary(finished_runs):
    found = json.loads(invoke(finished_runs, "--json").stdout)
    assert len(found) > 10
    for each in found:
        summary = json.loads((Path(each["path"]) / "summary.json").read_text())
        assert each["state"] == "finished"
        assert (each["round"], each["rounds"]) == (summary["rounds"], summary["rounds"])
        assert each["accuracy"] == pytest.approx(summary["accuracy"]["client_mean"])


def test_an_unfinished_run_has_the_rounds_of_its_configuration(finished_runs, tmp_path):
    """The number of rounds comes from the configuration."""
    for name in ("config.yaml", "rounds.jsonl", "timings.jsonl"):
        source = finished_runs / "quickstart" / "fedmosaic-entropy" / "seed-0" / name
        (tmp_path / name).write_bytes(source.read_bytes())
    [found] = json.loads(invoke(tmp_path, "--json").stdout)
    assert (found["state"], found["round"], found["rounds"]) == ("stopped", 7, 7)


def test_a_wrong_request_gives_one_line(tmp_path):
    create_run(tmp_path / "runs" / "a", rounds=1)
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ([tmp_path / "nowhere"], "no such directory"),
        ([tmp_path / "empty"], "no runs here"),
        ([tmp_path / "runs", "--interval", "0"], "--interval"),
        ([tmp_path / "runs", "--interval", "nan"], "--interval"),
        ([tmp_path / "runs", "--interval", "1e9"], "--interval"),
    ):
        done = invoke(*arguments)
        assert done.exit_code == 2, arguments
        assert len(done.stderr.splitlines()) == 1
        assert words in done.stderr


@pytest.mark.parametrize("has_config", [True, False])
def test_problems_of_an_active_run_are_shown_beside_its_state(has_config, tmp_path):
    run = create_run(tmp_path / "runs" / "a", rounds=3, finished=1)
    (run / "rounds.jsonl").write_text("nonsense\n")
    if not has_config:
        (run / "config.yaml").unlink()
    with directory_lock(run):
        for path in (tmp_path / "runs", run):
            done = invoke(path)
            assert done.exit_code == 0
            assert ("running" if has_config else "waiting") in done.stdout
            assert "the file is damaged" in done.stdout


def test_control_characters_in_names_and_reasons_are_escaped(tmp_path):
    run = create_run(tmp_path / "runs" / "x\x1b[2Jy", rounds=1)
    (run / "crash.txt").write_text("ValueError: \x1b[2J")
    for path in (tmp_path / "runs", run):
        text = invoke(path).stdout
        assert "\x1b" not in text
        assert "ValueError: \\x1b[2J" in text


def test_watching_creates_no_lock_file(tmp_path):
    run = create_run(tmp_path / "runs" / "a", rounds=1)
    invoke(tmp_path / "runs")
    invoke(run)
    assert not (run / LOCK_FILE).exists()


def test_a_sparkline_spans_its_scale():
    assert sparkline([0.0, 0.5, 1.0], 10, BLOCK_SYMBOLS) == "▁▅█"
    assert sparkline([3.0, 3.0], 10, BLOCK_SYMBOLS) == "▁▁"
    assert sparkline([0.0] * 50 + [1.0] * 50, 10, BLOCK_SYMBOLS) == "▁▁▁▁▁█████"
    assert len(sparkline(list(range(7)), 5, BLOCK_SYMBOLS)) == 5


def test_durations_and_long_names_are_shortened():
    assert [clock_text(seconds) for seconds in (None, 0.0, 61.2, 3600.0, 100_000)] == [
        "-",
        "0:00",
        "1:01",
        "1:00:00",
        "27:46:40",
    ]
    assert shorten_name("a/b/seed-0", 10) == "a/b/seed-0"
    assert shorten_name("ab/b/seed-0", 10) == ".../seed-0"
