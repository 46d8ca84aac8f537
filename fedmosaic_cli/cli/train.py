"""`fedmosaic train` and `fedmosaic baseline`: one function, two doors."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.console import out, say_json
from fedmosaic_cli.cli.launch import Request, launch
from fedmosaic_cli.cli.options import (
    DebugOption,
    Device,
    DeviceOption,
    JsonOption,
    PresetOption,
    QuietOption,
    RunsDirOption,
    VerboseOption,
)
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods import METHODS

ShardsOption = Annotated[Path | None, typer.Option(help="Shards of 'fedmosaic partition' to train on.")]
ExpertiseOption = Annotated[
    str | None, typer.Option(help="fedmosaic: frequency, entropy or uniform votes.", show_default="the preset's")
]
RoundsOption = Annotated[int | None, typer.Option(help="Communication rounds.")]
SeedOption = Annotated[int | None, typer.Option(min=0, help="One seed.", show_default="0")]
SeedsOption = Annotated[str | None, typer.Option(help="Several seeds, a run each, e.g. 0,1,2.")]
ConfigOption = Annotated[Path | None, typer.Option(help="A YAML file laid over the preset.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One value, e.g. train.lr=0.01. May be repeated.")
]
RunDirOption = Annotated[
    Path | None,
    typer.Option(help="Where to write the one run.", show_default="<runs-dir>/<preset>/<method>/seed-<seed>"),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on from checkpoints; finished runs are left alone.")]
WorkersOption = Annotated[int | None, typer.Option(help="Threads; results do not depend on it.", show_default="cores")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show configuration and planned work, write nothing.")]


def train(
    preset: PresetOption = None,
    shards: ShardsOption = None,
    expertise: ExpertiseOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    run_dir: RunDirOption = None,
    resume: ResumeOption = False,
    workers: WorkersOption = None,
    device: DeviceOption = Device.auto,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Train FedMosaic.

    \b
    [bold]Examples[/bold]
    fedmosaic train --preset quickstart
    fedmosaic train --preset quickstart --expertise frequency --seeds 0,1,2
    fedmosaic train --preset quickstart --set methods.fedmosaic.trust=paper --runs-dir paper-trust
    fedmosaic train --shards shards/digits-dirichlet-s0 --rounds 50 --dry-run
    """
    launch(Request(["fedmosaic"], **without_methods(locals())))


def baseline(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help="Methods, or 'all' for all but fedmosaic.")
    ] = None,
    list_methods: Annotated[bool, typer.Option("--list", help="List the methods and exit.")] = False,
    preset: PresetOption = None,
    shards: ShardsOption = None,
    expertise: ExpertiseOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    runs_dir: RunsDirOption = Path("runs"),
    run_dir: RunDirOption = None,
    resume: ResumeOption = False,
    workers: WorkersOption = None,
    device: DeviceOption = Device.auto,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Train the methods that FedMosaic is compared with, on the same shards.

    \b
    [bold]Examples[/bold]
    fedmosaic baseline --list
    fedmosaic baseline local centralized --preset quickstart --seeds 0,1,2
    fedmosaic baseline all --preset quickstart --resume
    """
    if list_methods:
        show_methods(as_json)
        return
    if not methods:
        raise RequestError("no method is named (fedmosaic baseline): add one or 'all'; --list shows them")
    everything = [name for name in METHODS if name != "fedmosaic"]
    chosen = list(dict.fromkeys(name for word in methods for name in (everything if word == "all" else [word])))
    launch(Request(chosen, **without_methods(locals())))


def without_methods(given: dict[str, Any]) -> dict[str, Any]:
    """What both commands take, of all that one of them was given."""
    return {field.name: given[field.name] for field in fields(Request) if field.name != "methods"}


def show_methods(as_json: bool) -> None:
    """The methods, with what travels and where they come from."""
    keys = ("name", "title", "family", "travels", "evaluated", "citation")
    methods = [{key: getattr(method, key) for key in keys} for method in METHODS.values()]
    if as_json:
        say_json(methods)
        return
    view = Table("method", "family", "what travels", "citation", box=None, pad_edge=False)
    for method in methods:
        view.add_row(method["name"], method["family"], method["travels"], method["citation"])
    out().print(view)
