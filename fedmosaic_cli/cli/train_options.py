"""The options of `train` and `baseline`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedmosaic_cli.cli.common_options import (
    AugmentChoice,
    DataDirOption,
    DebugOption,
    DeviceChoice,
    DeviceOption,
    ExecutionChoice,
    JsonOption,
    NanPolicy,
    PluginOption,
    PresetOption,
    PrivacyUnit,
    QuietOption,
    RunsDirOption,
    TrainEngine,
    VerboseOption,
    deprecated_aliases,
    set_signature,
)

if TYPE_CHECKING:
    from collections.abc import Callable


flower_option = partial(typer.Option, rich_help_panel="Clients at remote sites (--engine flower)")

RENAMED_OPTIONS = {
    "--grace": "--stop-timeout",
    "--wait": "--join-timeout",
    "--deadline": "--round-timeout",
    "--local-sites": "--simulate-sites",
    "--expose": "--allow-unauthenticated-network",
    "--label": "--tag",
}


@dataclass(frozen=True)
class TrainOptions:
    """The options of a training command. Each field is an option, declared by its annotation."""

    preset: PresetOption = None
    shards: Annotated[Path | None, typer.Option(help="Train on these shards, made by 'fedmosaic partition'.")] = None
    model: Annotated[
        str | None,
        typer.Option(help="Model of all clients: a name, or FILE.py:NAME for your own.", show_default="the preset's"),
    ] = None
    dataset: Annotated[
        str | None,
        typer.Option(help="Data set: a name, or FILE.py:NAME for your own.", show_default="the preset's"),
    ] = None
    plugin: PluginOption = None
    expertise: Annotated[
        str | None,
        typer.Option(
            help="Expertise rule of fedmosaic: frequency, entropy, count, count-confidence or uniform.",
            show_default="the preset's",
        ),
    ] = None
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.", show_default="the preset's")] = None
    eval_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Evaluate every k-th round, and always the last one.",
            show_default="the preset's, or 1",
        ),
    ] = None
    augment: Annotated[
        AugmentChoice | None,
        typer.Option(
            help="Augment the images of training batches: flip them, crop them after padding, or both.",
            show_default="the preset's, or none",
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="One seed.", show_default="0")] = None
    seeds: Annotated[str | None, typer.Option(help="Several seeds, one run each, e.g. 0,1,2 or 0-2.")] = None
    config: Annotated[Path | None, typer.Option(help="YAML file that overrides the preset.")] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override one value, e.g. train.lr=0.01. Several values, e.g. train.lr=0.1,0.01, make one run each. "
            "May be repeated.",
        ),
    ] = None
    dp: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Differential privacy of uploads: krr or xor for labels; append ',gaussian', ',histogram' or ',none' "
            "for expertise. The cost grows with public examples x rounds; histogram costs least.",
            show_default="off",
        ),
    ] = None
    dp_epsilon: Annotated[
        str | None,
        typer.Option(
            metavar="EPSILON", help="Total privacy budget over all rounds; inf: no noise.", show_default=False
        ),
    ] = None
    dp_delta: Annotated[float | None, typer.Option(help="Delta of the privacy guarantee.", show_default="1e-05")] = None
    dp_unit: Annotated[
        PrivacyUnit | None,
        typer.Option(
            help="Protected unit: all data of a client, or a record under the assumption privacy.changed_rows.",
            show_default="client",
        ),
    ] = None
    dp_max_eps: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Refuse runs that would spend more.", show_default=False)
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the experiment in directories and reports.",
            show_default="that of the preset or shards, and the values that differ from it",
        ),
    ] = None
    tag: Annotated[
        str | None,
        typer.Option(
            help="Suffix of the method's name in directories.", show_default="the hyper-parameters that differ"
        ),
    ] = None
    data_dir: DataDirOption = None
    runs_dir: RunsDirOption = Path("runs")
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of a single run.", show_default="<runs-dir>/<preset>/<method>/seed-<seed>"),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Add rounds to runs with fewer rounds than requested. Other runs continue without it."
        ),
    ] = False
    execution: Annotated[
        ExecutionChoice | None,
        typer.Option(help="Train clients one by one (threads) or together (stacked).", show_default="auto"),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(help="Number of threads, without effect on results.", show_default="0: one per core or GPU"),
    ] = None
    on_nan: Annotated[
        NanPolicy | None,
        typer.Option(help="If a client diverges: stop the run, or skip the client in that round.", show_default="stop"),
    ] = None
    stop_timeout: Annotated[
        float, typer.Option(help="Seconds to let the current round finish after Ctrl-C before it is aborted.")
    ] = 30.0
    allow_nonidentical: Annotated[
        bool,
        typer.Option(
            "--allow-nonidentical",
            help="Continue a run in spite of other versions, devices or hyper-parameters; reports mark such runs.",
        ),
    ] = False
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")] = False
    device: DeviceOption = DeviceChoice.auto
    engine: Annotated[
        TrainEngine, flower_option(help="Run clients in this process, or at remote sites through Flower.")
    ] = TrainEngine.local
    simulate_sites: Annotated[
        int | None, flower_option(min=1, max=64, help="Start this number of sites on this machine.", show_default=False)
    ] = None
    superlink: Annotated[
        str | None,
        flower_option(metavar="HOST:PORT", help="Address to listen on for sites.", show_default="127.0.0.1:9443"),
    ] = None
    federation: Annotated[
        Path | None,
        flower_option(help="Directory with certificates and the keys of the sites.", show_default="federation"),
    ] = None
    quorum: Annotated[
        int | None, flower_option(min=1, help="Number of clients that a round needs.", show_default="all but one")
    ] = None
    round_timeout: Annotated[
        float | None,
        flower_option(
            min=1,
            help="Maximum seconds per round.",
            show_default="3600 for the first, then 90 or 3 times the usual duration",
        ),
    ] = None
    join_timeout: Annotated[
        float | None, flower_option(min=1, help="Maximum seconds until all sites have joined.", show_default="600")
    ] = None
    insecure: Annotated[bool, flower_option("--insecure", help="No TLS and no keys; allowed on this machine only.")] = (
        False
    )
    allow_unauthenticated_network: Annotated[
        bool,
        flower_option(
            "--allow-unauthenticated-network",
            help="Listen on a non-loopback address without the proxy. Anyone who can reach the port can submit runs; "
            "use on trusted networks only.",
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show configuration and planned work; write nothing.")] = (
        False
    )
    as_json: JsonOption = False
    quiet: QuietOption = False
    verbose: VerboseOption = False
    debug: DebugOption = False


def with_train_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add all options of `TrainOptions` to a command, which receives them as its argument `request`."""
    hints = get_type_hints(TrainOptions, include_extras=True) | get_type_hints(command, include_extras=True)
    parameters = [p for name, p in inspect.signature(command).parameters.items() if name != "request"]
    parameters += [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in fields(TrainOptions)
    ]

    @wraps(command)
    def with_request(**values: Any) -> None:
        request = TrainOptions(**{field.name: values.pop(field.name) for field in fields(TrainOptions)})
        command(request=request, **values)

    set_signature(with_request, parameters, hints)
    return deprecated_aliases(RENAMED_OPTIONS)(with_request)
