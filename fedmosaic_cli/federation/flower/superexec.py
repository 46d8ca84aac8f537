"""Flower's SuperExec, which starts the apps, without tokens on their command lines.

Flower passes the token of a task as an argument, and every user of the machine can read arguments. Here the app reads
it from an open file without a name. SuperLink and SuperNode find this program as `flower-superexec` in their PATH.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN_OPTION, TOKEN_FILE_OPTION = "--token", "--token-file"


def start_app(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start one of Flower's apps, with its token in a file that is open in the app and has no name."""
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


def main() -> None:
    """Run Flower's SuperExec with the arguments of this process."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor

    subprocess_executor.subprocess = HiddenTokenSubprocess  # type: ignore[attr-defined, unused-ignore]
    flower_superexec()


if __name__ == "__main__":
    main()
