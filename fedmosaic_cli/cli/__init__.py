"""The command line. Commands parse, call one function below, and show what it yields."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from fedmosaic_cli.cli.interrupt import InterruptedBySignal, install_signal_handlers, write_stderr_unbuffered
from fedmosaic_cli.machine import die_with_parent


def main() -> None:
    """The console script."""
    install_signal_handlers()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - pathlib takes a while
        if isinstance(getattr(sys, name), TextIOWrapper):  # a file's name may be no text; it is shown all the same
            getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        die_with_parent()
        from fedmosaic_cli.cli.app import app

        app(prog_name="fedmosaic")
    except InterruptedBySignal as request:
        write_stderr_unbuffered("stopped on request (fedmosaic): what was finished is kept")
        sys.exit(request.exit_code)
