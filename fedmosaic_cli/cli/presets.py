"""`fedmosaic presets`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import DebugOption
from fedmosaic_cli.cli.console import print_stdout, stdout_console
from fedmosaic_cli.config.presets import load_preset, preset_names, preset_path
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import write_atomic

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a preset, e.g. quickstart.")]
app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)


@app.callback(invoke_without_command=True)
def presets(context: typer.Context) -> None:
    """List, show and copy presets of experiments."""
    if context.invoked_subcommand is None:
        list_presets()


@app.command("list")
def list_presets(debug: DebugOption = False) -> None:
    """List all presets."""
    table = Table("preset", "description", box=None, pad_edge=False)
    for name in preset_names():
        table.add_row(name, load_preset(name).description)
    stdout_console().print(table)


@app.command()
def show(
    name: NameArgument,
    debug: DebugOption = False,
) -> None:
    """Show the text of a preset.

    \b
    [bold]Example[/bold]
    fedmosaic presets show quickstart
    """
    print_stdout(load_preset(name).path.read_text(encoding="utf-8"))


@app.command()
def copy(
    name: NameArgument,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="New file.", show_default="NAME.yaml")] = None,
    debug: DebugOption = False,
) -> None:
    """Copy a preset to a file, to edit it.

    \b
    [bold]Example[/bold]
    fedmosaic presets copy quickstart mine.yaml
    """
    target = file or Path(f"{name}.yaml")
    source = preset_path(name)
    if target.exists():
        raise RequestError(f"the file exists ({target}): choose another name")
    if not target.parent.is_dir():
        raise RequestError(f"the directory does not exist ({target.parent}): create it first")
    write_atomic(target, source.read_bytes())
    print_stdout(f"copied to {target}\nnext: fedmosaic train --preset {target}")
