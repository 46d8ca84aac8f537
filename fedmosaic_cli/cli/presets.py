"""`fedmosaic presets`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedmosaic_cli.cli.common_options import DataDirOption, DebugOption, JsonOption
from fedmosaic_cli.cli.completion import complete_preset
from fedmosaic_cli.cli.console import print_command, print_json, print_stdout
from fedmosaic_cli.config.presets import load_preset, preset_names, preset_path
from fedmosaic_cli.data.data_dirs import DEFAULT_DATA_DIR
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.files import write_atomic

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a preset, e.g. quickstart.", autocompletion=complete_preset)
]
app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)


@app.callback(invoke_without_command=True)
def presets(context: typer.Context) -> None:
    """List, show and copy presets of experiments."""
    if context.invoked_subcommand is None:
        list_presets()


@app.command("list")
def list_presets(data_dir: DataDirOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """List all presets: how long a run takes, and whether its data set is here.

    \b
    [bold]Examples[/bold]
    fedmosaic presets list
    fedmosaic presets list --json | jq -r '.[] | select(.dataset_found) | .name'
    """
    from fedmosaic_cli.cli.views.presets_view import preset_facts, show_presets

    facts = [preset_facts(load_preset(name), data_dir or DEFAULT_DATA_DIR) for name in preset_names()]
    if as_json:
        print_json([asdict(each) for each in facts])
    else:
        show_presets(facts)


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
    print_stdout(f"copied to {target}")
    print_command(f"fedmosaic train --preset {target}", "next:")
