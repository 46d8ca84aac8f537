"""Commands of Flower's, one after another in one process: `flwr` takes a second to load, and sites may be many.

`python -m fedmosaic_cli.federation.flower.flwr_commands` reads a list of arguments a line, in JSON, and runs `flwr` with each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RunFailedError
from fedmosaic_cli.federation.flower.flower_processes import flower_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COMMAND_TIMEOUT_SECONDS = 120.0
"""How long commands may take; each of many adds a little."""


def run_flwr(runtime_dir: Path, *commands: Sequence[str]) -> list[dict[str, Any]]:
    """What `flwr` answers to each of some commands. The first that fails is an error."""
    lines = [json.dumps([*command, "--format", "json"]) for command in commands]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fedmosaic_cli.federation.flower.flwr_commands"],
            env=flower_environment(runtime_dir),
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_SECONDS + len(commands),
        )
    except subprocess.TimeoutExpired:
        raise RunFailedError(
            f"no answer in {COMMAND_TIMEOUT_SECONDS:g} s (flwr {commands[0][0]}): is the machine busy?"
        ) from None
    answers = parse_json_documents(done.stdout)
    for command, answer in zip(commands, answers, strict=False):
        if not answer.get("success", True):
            raise RunFailedError(f"{last_nonempty_line(str(answer.get('error-message')))} (flwr {command[0]})")
    if len(answers) < len(commands):
        raise RunFailedError(f"{last_nonempty_line(done.stderr or done.stdout)} (flwr {commands[len(answers)][0]})")
    return answers


def parse_json_documents(text: str) -> list[dict[str, Any]]:
    """The JSON documents that stand one after another in a text, up to what is none."""
    decoder, found, text = json.JSONDecoder(), [], text.lstrip()
    while text:
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            break
        found.append(document)
        text = text[end:].lstrip()
    return found


def last_nonempty_line(text: str) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def run_commands_from_stdin() -> None:
    """Run the commands that are read, each as if it were typed."""
    command = next(iter(entry_points(group="console_scripts", name="flwr"))).load()
    for line in sys.stdin:
        with suppress(SystemExit):
            command(json.loads(line))


if __name__ == "__main__":
    run_commands_from_stdin()
