"""Flower's version check, and `flwr` commands that run one after another in one process.

`flwr` takes a second to load and a federation may register many sites. Therefore
`python -m fedmosaic_cli.federation.flower.flwr_commands` reads one JSON list of arguments per line and runs `flwr` with
each of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError, RunFailedError, install_command
from fedmosaic_cli.federation.flower.flower_processes import flower_environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUPPORTED_VERSION = "1.41"
INSTALL_COMMAND = install_command("flower")
COMMAND_TIMEOUT_SECONDS = 120.0


def installed_flower_version() -> str | None:
    """Return the installed version of Flower, or None."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        return None


def require_flower(required_by: str = "--engine flower") -> str:
    """Return Flower's version. Raise `RequestError` unless it is the supported minor, since its commands change."""
    installed = installed_flower_version()
    if installed is None:
        raise RequestError(f"flwr is not installed ({required_by}): {INSTALL_COMMAND}")
    if installed.split(".")[:2] != SUPPORTED_VERSION.split("."):
        raise RequestError(
            f"flwr {installed} is installed, and {SUPPORTED_VERSION} is needed ({required_by}): {INSTALL_COMMAND}"
        )
    return installed


def run_flwr(runtime_dir: Path, *commands: Sequence[str]) -> list[dict[str, Any]]:
    """Run `flwr` commands and return the JSON document that each prints. Raise `RunFailedError` if one fails."""
    lines = [json.dumps([*command, "--format", "json"]) for command in commands]
    try:
        completed = subprocess.run(
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
            f"no answer in {COMMAND_TIMEOUT_SECONDS:g} s (flwr {commands[0][0]}): check the load of this machine"
        ) from None
    documents = parse_json_documents(completed.stdout)
    for command, document in zip(commands, documents, strict=False):
        if not document.get("success", True):
            reason = last_nonempty_line(str(document.get("error-message")))
            raise RunFailedError(f"{reason} (flwr {command[0]}): check the flwr installation")
    if len(documents) < len(commands):
        reason = last_nonempty_line(completed.stderr or completed.stdout)
        raise RunFailedError(f"{reason} (flwr {commands[len(documents)][0]}): check the flwr installation")
    return documents


def parse_json_documents(text: str) -> list[dict[str, Any]]:
    """Return the JSON documents at the start of a text, up to the first text that is not JSON."""
    decoder, documents, text = json.JSONDecoder(), [], text.lstrip()
    while text:
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            break
        documents.append(document)
        text = text[end:].lstrip()
    return documents


def last_nonempty_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")


def run_commands_from_stdin() -> None:
    """Run each command that stdin contains, as if it were typed."""
    flwr = next(iter(entry_points(group="console_scripts", name="flwr"))).load()
    for line in sys.stdin:
        with suppress(SystemExit):
            flwr(json.loads(line))


if __name__ == "__main__":
    run_commands_from_stdin()
