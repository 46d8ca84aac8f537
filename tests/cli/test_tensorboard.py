"""`--tensorboard` writes the metrics of each round as event files and changes nothing else."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.runner.tensorboard_log import round_scalars

TRAIN = (
    *("train", "--preset", "quickstart", "--runs-dir", "runs", "--set", "train.checkpoint_every=2"),
    *("--set", "methods.fedmosaic.warmup_rounds=1", "--set", "train.local_steps=1", "--set", "train.execution=threads"),
    *("--name", "quickstart", "--tag", ""),
)
RUN = Path("runs/quickstart/fedmosaic-entropy/seed-0")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Calls a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def events(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Read steps and values by tag, as TensorBoard does."""
    board = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Compute the same from the log: every number per client, and the mean or sum over clients."""
    scalars: dict[str, list[tuple[int, float]]] = {}
    by_round: dict[tuple[str, int], list[float]] = {}
    for line in (run / "rounds.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name in row.keys() - {"round", "client"}:
            if isinstance(row[name], int | float):
                scalars.setdefault(f"{name}/client-{row['client']:03d}", []).append((row["round"], row[name]))
                by_round.setdefault((name, row["round"]), []).append(row[name])
    for (name, number), values in by_round.items():
        if name.startswith("bits_"):
            scalars.setdefault(f"sum/{name}", []).append((number, sum(values)))
        else:
            scalars.setdefault(f"mean/{name}", []).append((number, sum(values) / len(values)))
    return scalars


def assert_all_rounds_once(run: Path) -> None:
    written, logged = events(run), expected(run)
    assert written.keys() == logged.keys()
    for tag, values in logged.items():
        assert [step for step, _ in written[tag]] == [step for step, _ in values], tag
        assert [value for _, value in written[tag]] == pytest.approx([value for _, value in values], rel=1e-6), tag


def test_event_files_contain_the_log_and_results_do_not_change(invoke, tmp_path):
    done = invoke(*TRAIN, "--rounds", 4, "--tensorboard")
    assert done.exit_code == 0, done.stderr
    assert "baseline all --preset quickstart --rounds 4 --name quickstart --tensorboard" in done.stdout
    assert_all_rounds_once(RUN)
    scalars = events(RUN)
    assert {"lambda/client-003", "mean/accuracy", "mean/loss_public", "mean/agreement", "sum/bits_up"} <= scalars.keys()
    # The first round is a warm-up without public loss.
    assert [step for step, _ in scalars["loss_public/client-003"]] == [2, 3, 4]
    written = results_of(tmp_path)
    shutil.rmtree("runs")
    assert invoke(*TRAIN, "--rounds", 4).exit_code == 0
    assert not (RUN / "tensorboard").exists()
    assert results_of(tmp_path) == written


def results_of(folder: Path) -> dict[str, bytes]:
    kept = [RUN / "rounds.jsonl", RUN / "summary.json", *sorted((RUN / "models").iterdir())]
    return {str(path): (folder / path).read_bytes() for path in kept}


@pytest.mark.parametrize("between", ["with", "without"])
def test_after_resume_every_round_is_written_once(between, invoke):
    """The run is resumed twice, the first time with or without event files."""
    assert invoke(*TRAIN, "--rounds", 3, "--tensorboard").exit_code == 0
    # The state after a kill: a round is logged and written, but not in the last checkpoint.
    shutil.rmtree(RUN / "checkpoints" / "round-00003")
    (RUN / "summary.json").unlink()
    more = ["--tensorboard"] if between == "with" else []
    assert invoke(*TRAIN, "--rounds", 5, "--resume", *more).exit_code == 0
    if between == "with":
        assert_all_rounds_once(RUN)
    assert invoke(*TRAIN, "--rounds", 7, "--resume", "--tensorboard").exit_code == 0
    assert_all_rounds_once(RUN)
    assert [step for step, _ in events(RUN)["mean/accuracy"]] == [1, 2, 3, 4, 5, 6, 7]
    assert len(list((RUN / "tensorboard").iterdir())) <= 2


def test_event_files_from_the_future_do_not_hide_new_ones(invoke):
    """The clock was set back, or the run moved to a machine whose clock is behind."""
    assert invoke(*TRAIN, "--rounds", 3, "--tensorboard").exit_code == 0
    [first] = (RUN / "tensorboard").iterdir()
    first.rename(first.with_name("events.out.tfevents.9999999999.elsewhere.1.0"))
    assert invoke(*TRAIN, "--rounds", 5, "--resume", "--tensorboard").exit_code == 0
    assert_all_rounds_once(RUN)


def test_an_open_reader_discards_repeated_rounds(invoke):
    assert invoke(*TRAIN, "--rounds", 3, "--tensorboard").exit_code == 0
    board = EventAccumulator(str(RUN / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    assert len(board.Scalars("mean/accuracy")) == 3
    time.sleep(1)  # the names of event files contain seconds
    assert invoke(*TRAIN, "--rounds", 5, "--resume", "--tensorboard").exit_code == 0
    board.Reload()
    assert [event.step for event in board.Scalars("mean/accuracy")] == [1, 2, 3, 4, 5]


def test_a_finished_run_gets_event_files_and_is_otherwise_unchanged(invoke, tmp_path):
    assert invoke(*TRAIN, "--rounds", 2).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in RUN.rglob("*") if path.is_file()}
    assert invoke(*TRAIN, "--rounds", 2, "--resume", "--tensorboard").exit_code == 0
    assert_all_rounds_once(RUN)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_without_tensorboard_nothing_is_started(invoke, tmp_path, monkeypatch):
    real_find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "fedmosaic_cli.runner.tensorboard_log.find_spec",
        lambda name: None if name == "tensorboard" else real_find_spec(name),
    )
    done = invoke(*TRAIN, "--rounds", 2, "--tensorboard")
    assert done.exit_code == 2
    assert done.stderr == (
        "error: the package tensorboard is not installed (--tensorboard): python -m pip install -e "
        "'.[tensorboard]' in a checkout of fedmosaic\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_import_error_is_reported_before_anything_is_written(invoke, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = invoke(*TRAIN, "--rounds", 2, "--tensorboard")
    assert done.exit_code == 2
    assert "cannot be imported" in done.stderr
    assert "python -m pip install -e '.[tensorboard]' in a checkout of fedmosaic" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_directory_affects_only_the_event_files(invoke, tmp_path):
    assert invoke(*TRAIN, "--rounds", 2).exit_code == 0
    (RUN / "tensorboard").write_text("in the way")
    done = invoke(*TRAIN, "--rounds", 4, "--resume", "--tensorboard")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("warning: cannot write for TensorBoard") == 1
    written = results_of(tmp_path)
    shutil.rmtree("runs")
    assert invoke(*TRAIN, "--rounds", 4).exit_code == 0
    assert results_of(tmp_path) == written


def test_a_later_disk_error_affects_only_the_event_files(invoke, monkeypatch):
    """The library writes in a thread: an error there gives one warning and no traceback."""
    from tensorboard.summary.writer import record_writer

    write, hook, calls = record_writer.RecordWriter.write, threading.excepthook, []

    def failing(self, data):
        calls.append(len(data))
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(record_writer.RecordWriter, "write", failing)
    done = invoke(*TRAIN, "--rounds", 4, "--tensorboard")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("warning: cannot write for TensorBoard, No space left on device") == 1
    assert "Traceback" not in done.stderr
    assert (RUN / "summary.json").is_file()
    assert threading.excepthook is hook


def test_scalars_skip_other_types_and_sum_counts():
    rows = [
        {"round": 3, "client": 0, "accuracy": 0.5, "lambda": None, "bits_up": 10, "left_out": 1, "note": "text"},
        {"round": 3, "client": 12, "accuracy": 1.0, "lambda": 0.25, "bits_up": 30},
    ]
    assert dict(round_scalars(rows)) == {
        "accuracy/client-000": 0.5,
        "accuracy/client-012": 1.0,
        "mean/accuracy": 0.75,
        "lambda/client-012": 0.25,
        "mean/lambda": 0.25,
        "bits_up/client-000": 10,
        "bits_up/client-012": 30,
        "sum/bits_up": 40,
        "left_out/client-000": 1,
        "sum/left_out": 1,
    }
