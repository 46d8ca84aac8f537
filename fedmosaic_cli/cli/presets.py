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

app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)


@app.callback(invoke_without_command=True)
def presets(context: typer.Context) -> None:
    """Ready-made experiments: list them, read them, copy them to change them."""
    if context.invoked_subcommand is None:
        list_presets()


@app.command("list")
def list_presets(debug: DebugOption = False) -> None:
    """All presets, a line each."""
    view = Table("preset", "what it is", box=None, pad_edge=False)
    for name in preset_names():
        view.add_row(name, load_preset(name).description)
    stdout_console().print(view)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, e.g. quickstart.")], debug: DebugOption = False
) -> None:
    """The text of a preset. Example: fedmosaic presets show quickstart"""
    print_stdout(load_preset(name).path.read_text(encoding="utf-8"))


@app.command()
def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A preset, e.g. quickstart.")],
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to.", show_default="NAME.yaml")] = None,
    debug: DebugOption = False,
) -> None:
    """A copy of a preset, to change. Example: fedmosaic presets copy quickstart mine.yaml"""
    target = file or Path(f"{name}.yaml")
    source = preset_path(name)
    if target.exists():
        raise RequestError(f"file exists already ({target}): choose another name")
    if not target.parent.is_dir():
        raise RequestError(f"no such directory ({target.parent}): create it first")
    write_atomic(target, source.read_bytes())
    print_stdout(f"copied to {target}\nnext: fedmosaic train --preset {target}")
