"""A log that another process changes during a run is noticed at the next checkpoint and never sealed."""

from __future__ import annotations

import shutil

import pytest

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.runner import experiment
from fedmosaic_cli.storage.runs import RunDirectory
from tests.faults.conftest import RUN, TRAIN, results

ROW = b'{"round": 99, "client": 0, "accuracy": 1.0}\n'


def append(path):
    path.write_bytes(path.read_bytes() + ROW)


def change_a_digit(path):
    """Keep the size and the time of the last change."""
    content = path.read_bytes()
    place = content.index(b'"round": 1') + len(b'"round": ')
    path.write_bytes(content[:place] + b"7" + content[place + 1 :])


def truncate(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


@pytest.mark.parametrize("change", [append, change_a_digit, truncate, remove])
@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
def test_a_log_changed_by_another_process_ends_the_run(reference_run, run_command, monkeypatch, tmp_path, change, name):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    path, real = tmp_path / RUN / name, experiment.next_round
    calls = []

    def next_round(*arguments):
        calls.append(1)
        if len(calls) == 3:  # after the checkpoint of round 2
            change(path)
        return real(*arguments)

    monkeypatch.setattr(experiment, "next_round", next_round)
    result = run_command(*TRAIN)
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1] == (
        f"error: another process changed the log during the run ({RUN / name}): "
        "stop that process, then repeat the command"
    )
    assert not (tmp_path / RUN / "summary.json").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run_command(*TRAIN).exit_code == 0
    expected = results(reference_run)
    assert {name: data for name, data in results(tmp_path).items() if RUN.name in name} == {
        name: data for name, data in expected.items() if RUN.name in name and "evaluation" not in name
    }


def test_a_log_changed_after_the_last_checkpoint_is_not_sealed(reference_run, run_command, monkeypatch, tmp_path):
    shutil.copytree(reference_run / "shards", tmp_path / "shards")
    real = experiment.save_personal_models

    def save_personal_models(files, federation):
        append(files.path / "rounds.jsonl")
        return real(files, federation)

    monkeypatch.setattr(experiment, "save_personal_models", save_personal_models)
    result = run_command(*TRAIN)
    assert result.exit_code == 3
    assert "another process changed the log" in result.stderr
    assert not (tmp_path / RUN / "summary.json").exists()


def test_digests_describe_what_was_written(tmp_path):
    from fedmosaic_cli.storage.runs import RunLogs

    logs = RunLogs(tmp_path, {})
    for number in (1, 2):
        logs.append_round([{"round": number, "client": 0}], {"round": number, "seconds": 0.5})
    assert logs.read_rounds() == [{"round": 1, "client": 0}, {"round": 2, "client": 0}]
    continued = RunLogs(tmp_path, logs.read_unchanged())
    assert continued.digests() == logs.digests()
    continued.append_round([{"round": 3, "client": 0}], {"round": 3, "seconds": 0.5})
    assert len(RunDirectory(tmp_path).read_rounds()) == 3
    with pytest.raises(RunStateError, match=r"changed the log during the run .*rounds\.jsonl"):
        logs.read_unchanged()
