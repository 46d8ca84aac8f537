"""`fedmosaic train` and `fedmosaic baseline`: one function, two doors."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from fedmosaic_cli.cli.console import print_json, stdout_console
from fedmosaic_cli.cli.train_options import TrainOptions, with_train_options
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.execute import launch_runs


@with_train_options
def train(
    request: TrainOptions,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="Method to train, as in 'baseline METHOD'.", show_default="fedmosaic"),
    ] = None,
) -> None:
    """Train FedMosaic, or another method with --method.

    \b
    [bold]Examples[/bold]
    fedmosaic train --preset quickstart
    fedmosaic train --preset quickstart --expertise frequency --seeds 0,1,2
    fedmosaic train --preset quickstart --set methods.fedmosaic.trust=paper --runs-dir paper-trust
    fedmosaic train --preset quickstart --set clients.0-4.model=random-forest
    fedmosaic train --preset quickstart --execution threads --workers 1
    fedmosaic train --preset quickstart --rounds 60 --resume --stop-timeout 5
    fedmosaic train --preset quickstart --rounds 90 --resume --set train.lr=0.001 --allow-nonidentical
    fedmosaic train --preset quickstart --tensorboard && tensorboard --logdir runs
    fedmosaic train --preset quickstart --expertise frequency --dp krr,histogram --dp-epsilon 8 --dry-run
    fedmosaic train --preset quickstart --set attack.kind=flip --set "attack.clients=[0,1]" --runs-dir attacked
    fedmosaic train --shards shards/digits-dirichlet-s0 --rounds 50 --dry-run
    fedmosaic train --preset quickstart --engine flower --simulate-sites 3 --rounds 6
    fedmosaic train --shards shards/ours --engine flower --quorum 2 --round-timeout 300 --join-timeout 900
    """
    launch_runs(*select_methods(method or ["fedmosaic"]), request)


@with_train_options
def baseline(
    request: TrainOptions,
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help="Methods, or 'all' for all but fedmosaic.")
    ] = None,
    list_methods: Annotated[bool, typer.Option("--list", help="List the methods and exit.")] = False,
) -> None:
    """Train the methods that FedMosaic is compared with, on the same shards.

    \b
    [bold]Examples[/bold]
    fedmosaic baseline --list
    fedmosaic baseline local centralized --preset quickstart --seeds 0,1,2
    fedmosaic baseline ditto --preset quickstart --set methods.ditto.mu=0.1
    fedmosaic baseline gated local --preset quickstart --seeds 0,1,2
    fedmosaic baseline fedavg --preset quickstart --set train.clients_per_round=5
    fedmosaic baseline all --preset quickstart --resume --on-nan skip
    """
    if list_methods:
        show_methods(request.as_json)
        return
    if not methods:
        raise RequestError("no method is named (fedmosaic baseline): add one or 'all'; --list shows them")
    launch_runs(*select_methods(methods), request)


def select_methods(words: list[str]) -> tuple[list[str], set[str]]:
    """The methods that the words name, and those among them that only 'all' names."""
    baselines = [name for name in METHODS if name != "fedmosaic"]
    selected = list(dict.fromkeys(name for word in words for name in (baselines if word == "all" else [word])))
    return selected, set(selected) - set(words)


def show_methods(as_json: bool) -> None:
    """The methods, with what travels and where they come from."""
    keys = ("name", "title", "family", "travels", "evaluated", "citation")
    methods = [{key: getattr(method, key) for key in keys} for method in METHODS.values()]
    if as_json:
        print_json(methods)
        return
    view = Table("method", "family", "what travels", "citation", box=None, pad_edge=False)
    for method in methods:
        view.add_row(method["name"], method["family"], method["travels"], method["citation"])
    stdout_console().print(view)
