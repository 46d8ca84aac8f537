"""The command line. Commands parse, call one function below, and show what it yields."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """The console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        from fedmosaic_cli.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="fedmosaic")
