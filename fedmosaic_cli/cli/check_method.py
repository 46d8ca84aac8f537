"""`fedmosaic check-method`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, PluginOption
from fedmosaic_cli.cli.completion import complete_assignment, complete_method
from fedmosaic_cli.cli.console import print_json, print_stdout
from fedmosaic_cli.errors import RunFailedError
from fedmosaic_cli.plugins import load_named_plugins, resolve_method


def check_method(
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="FILE.py:NAME, or the name of a method.", autocompletion=complete_method),
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override one value, e.g. methods.ditto.mu=0.1.",
            autocompletion=complete_assignment,
        ),
    ] = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check that a method keeps the contract: short runs, resume, remote sites, traffic and memory.

    Trains three clients on the embedded digits for a few rounds, in a temporary directory. Takes seconds to a minute.

    \b
    [bold]Examples[/bold]
    fedmosaic check-method ./my_method.py:MyMethod
    fedmosaic check-method ./my_method.py:MyMethod --set methods.my-method.mu=0.5
    fedmosaic check-method ditto --json
    """
    load_named_plugins(plugin or ())
    name = resolve_method(method)
    from fedmosaic_cli.method_checks.checks import check_method as run_checks

    results = []
    for result in run_checks(name, tuple(assignments or ())):
        results.append(result)
        if not as_json:
            mark = "failed" if result.problem else "skipped" if result.skipped else "ok"
            detail = f": {result.problem or result.skipped}" if result.problem or result.skipped else ""
            print_stdout(f"{mark:8}{result.name}{detail}")
    if as_json:
        print_json([asdict(result) for result in results])
    failed = [result for result in results if result.problem]
    if failed:
        raise RunFailedError(f"{len(failed)} of {len(results)} checks failed ({name}): correct the method")
