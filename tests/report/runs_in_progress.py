"""Run directories as a run leaves them while it is made, without making one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.report.runs_by_hand import summary_of

CONFIG = "setting: quickstart\nseed: 0\nmethod: fedmosaic\ntrain:\n  lr: 0.1\n  rounds: {rounds}\nclients: {{}}\n"


def row(number: int, client: int, **more: object) -> dict[str, object]:
    """A line of rounds.jsonl; values tell round and client apart."""
    values = {"lambda": number / 100, "loss_private": 0.5, "loss_public": None, "accuracy": (number + client) / 100}
    return {"round": number, "client": client, **values, "agreement": 0.25, **more}


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(each) + "\n" for each in rows)


def play(run: Path, first: int, last: int, clients: int = 3) -> None:
    """Log rounds, as the run does."""
    for number in range(first, last + 1):
        with (run / "rounds.jsonl").open("a") as log:
            log.write(lines([row(number, client) for client in range(clients)]))
        with (run / "timings.jsonl").open("a") as timings:
            timings.write(json.dumps({"round": number, "seconds": 2.0}) + "\n")


def begin(run: Path, rounds: int, played: int = 0, clients: int = 3) -> Path:
    """A run of `rounds` rounds, of which some are played."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(CONFIG.format(rounds=rounds))
    for name in ("rounds.jsonl", "timings.jsonl"):
        (run / name).write_text("")
    play(run, 1, played, clients)
    return run


def end(run: Path, rounds: int, **changes: object) -> None:
    """Write the summary of a finished run."""
    summary = summary_of("quickstart", "fedmosaic-entropy", 0, [0.5], rounds=rounds, shards={"parameters": {}})
    (run / "summary.json").write_text(json.dumps({**summary, **changes}))
