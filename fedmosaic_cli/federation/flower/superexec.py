"""Flower's SuperExec, which starts apps, limited to the relay of this coordinator and without tokens on command lines.

Flower's SuperExec starts every app that the SuperLink received, and every process that reaches the SuperLink's port can
send one. Here only one app is started: that with the same hash as the files in the coordinator's runtime directory.
Flower passes the token of a task as an argument, which every user of the machine can read. Here the app reads it from
an open file without a name.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.federation.flower.flower_processes import RUNTIME_DIR_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKEN_OPTION, TOKEN_FILE_OPTION = "--token", "--token-file"
APP_DIR = "app"
"""The directory of the relay app, in the runtime directory."""


def start_app(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start one of Flower's apps, with its token in a file that is open in the app and has no name.

    Raises:
        ValueError: The command has a token in another form, which other users could read.
    """
    if any(argument.startswith(f"{TOKEN_OPTION}=") for argument in command):
        raise ValueError("Flower passes a token as one argument (flwr): install the version that fedmosaic requires")
    if TOKEN_OPTION not in command:
        return subprocess.Popen(command, **options)
    position = command.index(TOKEN_OPTION)
    with tempfile.TemporaryFile() as file:
        file.write(command[position + 1].encode())
        file.flush()
        file.seek(0)
        token_file = [TOKEN_FILE_OPTION, f"/dev/fd/{file.fileno()}"]
        hidden = [*command[:position], *token_file, *command[position + 2 :]]
        return subprocess.Popen(hidden, pass_fds=[file.fileno()], **options)


class HiddenTokenSubprocess:
    """Stands in for the module `subprocess` in Flower's executor."""

    DEVNULL = subprocess.DEVNULL
    Popen = staticmethod(start_app)


def limit_to_app(launch: Callable[[Any, Any], Any], task_type: str, app_hash: str) -> Callable[[Any, Any], Any]:
    """Return a version of an executor's `launch` that refuses all tasks but those of one type and one app."""
    from flwr.supercore.superexec.executor import LaunchResult

    def launch_allowed(executor: Any, spec: Any) -> Any:
        if spec.task_type == task_type and spec.fab_hash == app_hash:
            return launch(executor, spec)
        return LaunchResult.failed(f"only the relay of this coordinator is started, not {str(spec.fab_hash)[:64]}")

    return launch_allowed


def main() -> None:
    """Run Flower's SuperExec with the arguments of this process."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import subprocess_executor

    app_hash = hashlib.sha256(build_fab_from_disk(Path(os.environ[RUNTIME_DIR_VARIABLE]) / APP_DIR)).hexdigest()
    executor: Any = subprocess_executor.SubprocessExecutor
    executor.launch = limit_to_app(executor.launch, TaskType.SERVER_APP, app_hash)
    subprocess_executor.subprocess = HiddenTokenSubprocess  # type: ignore[assignment, attr-defined, unused-ignore]
    flower_superexec()


if __name__ == "__main__":
    main()
