"""The command line. Commands parse, call one function below, and show what it yields."""

from __future__ import annotations

from fedmosaic_cli.cli.app import app


def main() -> None:
    """The console script."""
    app(prog_name="fedmosaic")
