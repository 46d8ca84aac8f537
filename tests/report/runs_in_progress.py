"""Run directories in the state of an unfinished run."""

from __future__ import annotations

import json
from pathlib import Path

from tests.report.runs_by_hand import summary_of

CONFIG = "setting: quickstart\nseed: 0\nmethod: fedmosaic\ntrain:\n  lr: 0.1\n  rounds: {rounds}\nclients: {{}}\n"


def log_row(number: int, client: int, **more: object) -> dict[str, object]:
    """Return a row of rounds.jsonl with values that depend on round and client."""
    values = {"lambda": number / 100, "loss_private": 0.5, "loss_public": None, "accuracy": (number + client) / 100}
    return {"round": number, "client": client, **values, "agreement": 0.25, **more}


def to_jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(each) + "\n" for each in rows)


def log_rounds(run: Path, first: int, last: int, clients: int = 3) -> None:
    """Append rounds to the logs."""
    for number in range(first, last + 1):
        with (run / "rounds.jsonl").open("a") as log:
            log.write(to_jsonl([log_row(number, client) for client in range(clients)]))
        with (run / "timings.jsonl").open("a") as timings:
            timings.write(json.dumps({"round": number, "seconds": 2.0}) + "\n")


def create_run(run: Path, rounds: int, finished: int = 0, clients: int = 3) -> Path:
    """Create a run of `rounds` rounds, of which the first ones are finished."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(CONFIG.format(rounds=rounds))
    for name in ("rounds.jsonl", "timings.jsonl"):
        (run / name).write_text("")
    log_rounds(run, 1, finished, clients)
    return run


def finish_run(run: Path, rounds: int, **changes: object) -> None:
    """Write the summary of a finished run."""
    summary = summary_of("quickstart", "fedmosaic-entropy", 0, [0.5], rounds=rounds, shards={"parameters": {}})
    (run / "summary.json").write_text(json.dumps({**summary, **changes}))
