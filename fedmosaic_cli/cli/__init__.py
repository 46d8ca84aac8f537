"""The command line. Commands parse options, call the packages below and print the results."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from fedmosaic_cli.cli.interrupt import InterruptedBySignal, install_signal_handlers, write_stderr_unbuffered
from fedmosaic_cli.machine import collect_rarely, die_with_parent, restart_without_malloc_caches

TRAINING_COMMANDS = {"train", "baseline"}


def main() -> None:
    """Run the console script."""
    restart_without_malloc_caches(TRAINING_COMMANDS)
    install_signal_handlers()
    collect_rarely()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - pathlib loads slowly
        if isinstance(getattr(sys, name), TextIOWrapper):  # file names may contain undecodable bytes
            getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        die_with_parent()
        from fedmosaic_cli.cli.app import app

        app(prog_name="fedmosaic")
    except InterruptedBySignal as error:
        write_stderr_unbuffered("stopped on request (fedmosaic): finished work is kept")
        sys.exit(error.exit_code)
