"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io
import signal
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedmosaic_cli.cli import interrupt
from fedmosaic_cli.cli.data_dir_options import DataProgressLines
from fedmosaic_cli.cli.interrupt import StopRequest
from fedmosaic_cli.cli.views.progress_view import RunProgressBars, shorten_title
from fedmosaic_cli.runner.events import RoundCompleted
from fedmosaic_cli.runner.plan import PlannedRun

TITLE = "fedmosaic-frequency seed 1, 15 clients"


@pytest.fixture
def console(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None, legacy_windows=False)


def round_event(number, accuracy=0.9606, trust=0.5):
    return RoundCompleted(number, accuracy, trust, 0.1, [], {}, [])


def shown_lines(bars, console):
    """The lines that the display shows now."""
    with console.capture() as capture:
        console.print(bars._progress.get_renderable())
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_bar_is_visible_at_80_columns(console):
    bars = RunProgressBars(3, console)
    bars.on_prepare(TITLE, 200)
    bars.on_round(round_event(100))
    runs, rounds = shown_lines(bars, console)
    assert runs.startswith("runs ")
    assert "0/3" in runs
    assert rounds.count("━") == 4, "half of eight columns"
    assert rounds.startswith("fedmosaic-frequency seed 1")
    assert "100/200" in rounds
    assert "acc 96.06%  lambda 0.500" in rounds
    assert all(len(line) <= 80 for line in (runs, rounds))


def test_shards_are_written_without_a_remaining_time_of_the_run_before(console):
    bars = RunProgressBars(2, console)
    bars.on_prepare(TITLE, 30)
    for number in range(1, 31):
        bars.on_round(round_event(number))
    assert "eta" not in shown_lines(bars, console)[1], "nothing remains of a finished run"
    bars.on_write_shards()
    runs, rounds = shown_lines(bars, console)
    assert "1/2" in runs
    assert rounds.startswith("writing shards")
    assert not {"30/30", "eta", "acc"} & set(rounds.split())
    bars.on_prepare(TITLE, 30)
    runs, rounds = shown_lines(bars, console)
    assert "1/2" in runs, "the preparation of a run is not counted as a run"
    assert "0/30" in rounds
    assert "preparing" in rounds


@pytest.mark.parametrize(
    ("title", "width", "shown"),
    [
        (TITLE, 60, TITLE),
        (TITLE, 30, "fedmosaic-frequency seed 1"),
        (TITLE, 20, "fedmosaic...y seed 1"),
    ],
)
def test_a_long_title_keeps_its_start_and_its_seed(title, width, shown):
    assert shorten_title(title, width) == shown


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def progress_lines(monkeypatch):
    """Enable the progress lines of slow operations, which tests disable elsewhere."""
    monkeypatch.setattr("fedmosaic_cli.cli.data_dir_options.PROGRESS_LINE_SECONDS", 10.0)


@pytest.mark.usefixtures("progress_lines")
def test_a_short_task_prints_nothing_in_a_pipe(capsys):
    clock = Clock()
    with DataProgressLines(clock) as lines:
        for number in range(1, 101):
            clock.now += 0.05
            lines("reading runs", number, 100)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("progress_lines")
def test_a_long_task_ends_with_100_percent_in_a_pipe(capsys):
    clock = Clock()
    with DataProgressLines(clock) as lines:
        for number in range(10):
            clock.now += 5
            lines("writing shards", number, 10)
        clock.now += 1
        lines("writing shards", 10, 10)
    assert capsys.readouterr().err.splitlines() == [
        f"writing shards  {percent}%" for percent in (10, 30, 50, 70, 90, 100)
    ]


@pytest.mark.usefixtures("progress_lines")
def test_a_task_that_does_not_report_its_end_is_completed_by_the_next_one_and_at_the_end(capsys):
    clock = Clock()
    with DataProgressLines(clock) as lines:
        clock.now = 20
        lines("reading runs", 1, 2)
        lines("reading logs", 0, 2)
        clock.now = 40
        lines("reading logs", 1, 2)
    assert capsys.readouterr().err.splitlines() == [
        "reading runs  50%",
        "reading runs  100%",
        "reading logs  50%",
        "reading logs  100%",
    ]


@pytest.mark.usefixtures("progress_lines")
def test_an_error_is_not_shown_as_a_completed_task(capsys):
    clock = Clock()
    lines = DataProgressLines(clock)
    clock.now = 20
    lines("reading runs", 1, 2)
    lines.__exit__(ValueError, ValueError("broken"), None)
    assert capsys.readouterr().err == "reading runs  50%\n"


@pytest.mark.parametrize("num_lines", [1, 2])
def test_the_stop_message_is_a_line_above_the_progress(monkeypatch, num_lines):
    """It replaces the echoed ^C, and the display, which clears the lines that it had, does not remove it."""
    written = []
    monkeypatch.setattr(interrupt, "write_stderr_unbuffered", written.append)
    monkeypatch.setattr(interrupt.sys, "stderr", TerminalStderr())
    stop = StopRequest(0.0)
    monkeypatch.setattr(stop, "on_timeout", lambda *_: None)
    stop.num_live_lines = num_lines
    stop.on_signal(signal.SIGINT, None)
    [text] = written
    start, _, end = text.partition("stopping after")
    assert start.startswith("\r\x1b[2K")
    assert start.count("\x1b[1A\x1b[2K") == num_lines - 1
    assert end.count("\n") == num_lines - 1


def test_the_stop_message_in_a_pipe_has_no_control_characters(monkeypatch):
    written = []
    monkeypatch.setattr(interrupt, "write_stderr_unbuffered", written.append)
    monkeypatch.setattr(interrupt.sys, "stderr", io.StringIO())
    stop = StopRequest(0.0)
    monkeypatch.setattr(stop, "on_timeout", lambda *_: None)
    stop.on_signal(signal.SIGINT, None)
    assert written[0].startswith("stopping after this round")
    assert "\x1b" not in written[0]


class TerminalStderr(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("num_clients", "label"), [(1, "ditto seed 3, 1 client"), (2, "ditto seed 3, 2 clients")])
def test_the_label_of_a_run_counts_clients(num_clients, label):
    data, method = SimpleNamespace(clients=num_clients), SimpleNamespace(variant="ditto")
    config = SimpleNamespace(data=data, method=method, seed=3)
    assert PlannedRun(config, files=None, shards_name="").label == label
