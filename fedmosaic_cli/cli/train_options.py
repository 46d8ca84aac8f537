"""What `train` and `baseline` can be asked for: their options, declared once."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedmosaic_cli.cli.common_options import (
    DataDirOption,
    DebugOption,
    DeviceChoice,
    DeviceOption,
    ExecutionChoice,
    JsonOption,
    NanPolicy,
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


FLOWER_HELP_PANEL = "Clients at sites (--engine flower)"
"""The heading of what concerns nobody else, in help texts."""

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
    """The options of a training command. A field is an option: its annotation says how it looks on the command line."""

    preset: PresetOption = None
    shards: Annotated[Path | None, typer.Option(help="Shards of 'fedmosaic partition' to train on.")] = None
    expertise: Annotated[
        str | None,
        typer.Option(
            help="fedmosaic: frequency, entropy, count, count-confidence or uniform votes.", show_default="the preset's"
        ),
    ] = None
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.", show_default="the preset's")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="One seed.", show_default="0")] = None
    seeds: Annotated[str | None, typer.Option(help="Several seeds, a run each, e.g. 0,1,2.")] = None
    config: Annotated[Path | None, typer.Option(help="A YAML file laid over the preset.")] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One value, e.g. train.lr=0.01. May be repeated."),
    ] = None
    dp: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Noise in what clients send: krr or xor labels; ',gaussian', ',histogram' or ',none' for expertise. "
            "What is paid for is public examples times rounds, and worst-case totals that mean anything leave little "
            "of the consensus: histogram, fewer public examples and fewer rounds cost least.",
            show_default="off",
        ),
    ] = None
    dp_epsilon: Annotated[
        str | None,
        typer.Option(metavar="EPSILON", help="Its whole budget over all rounds; inf: no noise.", show_default=False),
    ] = None
    dp_delta: Annotated[float | None, typer.Option(help="Its delta.", show_default="1e-05")] = None
    dp_unit: Annotated[
        PrivacyUnit | None,
        typer.Option(
            help="What may change unseen: all data of a client; or a record, on your word (privacy.changed_rows).",
            show_default="client",
        ),
    ] = None
    dp_max_eps: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Refuse what would spend more.", show_default=False)
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            help="What this setting is called, in directories and reports.", show_default="the preset's or shards' name"
        ),
    ] = None
    tag: Annotated[
        str | None,
        typer.Option(
            help="A word behind the method's name in directories, for runs with other hyper-parameters.",
            show_default=False,
        ),
    ] = None
    data_dir: DataDirOption = None
    runs_dir: RunsDirOption = Path("runs")
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Where to write the one run.", show_default="<runs-dir>/<preset>/<method>/seed-<seed>"),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on from checkpoints; finished runs are left alone.")] = (
        False
    )
    execution: Annotated[
        ExecutionChoice | None, typer.Option(help="Clients one by one (threads) or together.", show_default="auto")
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="Threads; results do not depend on it.", show_default="0: one a core or GPU")
    ] = None
    on_nan: Annotated[
        NanPolicy | None,
        typer.Option(help="If a client diverges: stop, or skip its part in the round.", show_default="stop"),
    ] = None
    stop_timeout: Annotated[
        float, typer.Option(help="Told to stop, seconds to wait for the round to end before it is dropped.")
    ] = 30.0
    allow_nonidentical: Annotated[
        bool,
        typer.Option(
            "--allow-nonidentical",
            help="With --resume: go on under other versions, devices or hyper-parameters; reports mark such a run.",
        ),
    ] = False
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write each round's values for TensorBoard, beside the run.")
    ] = False
    device: DeviceOption = DeviceChoice.auto
    engine: Annotated[
        TrainEngine,
        typer.Option(
            rich_help_panel=FLOWER_HELP_PANEL,
            help="Clients in this process, or at sites of their own by way of Flower.",
        ),
    ] = TrainEngine.local
    simulate_sites: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            rich_help_panel=FLOWER_HELP_PANEL,
            help="Rehearse with so many sites on this machine.",
            show_default=False,
        ),
    ] = None
    superlink: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            rich_help_panel=FLOWER_HELP_PANEL,
            help="Where to listen for sites.",
            show_default="127.0.0.1:9443",
        ),
    ] = None
    federation: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FLOWER_HELP_PANEL, help="Certificates, and keys of the sites.", show_default="federation"
        ),
    ] = None
    quorum: Annotated[
        int | None,
        typer.Option(
            min=1, rich_help_panel=FLOWER_HELP_PANEL, help="How many clients a round needs.", show_default="all but one"
        ),
    ] = None
    round_timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            rich_help_panel=FLOWER_HELP_PANEL,
            help="Seconds that a round may take.",
            show_default="3600 for the first, then 90 or 3 times what rounds take",
        ),
    ] = None
    join_timeout: Annotated[
        float | None,
        typer.Option(
            min=1, rich_help_panel=FLOWER_HELP_PANEL, help="Seconds until all sites must be there.", show_default="600"
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", rich_help_panel=FLOWER_HELP_PANEL, help="No TLS and no keys; on this machine alone."
        ),
    ] = False
    allow_unauthenticated_network: Annotated[
        bool,
        typer.Option(
            "--allow-unauthenticated-network",
            rich_help_panel=FLOWER_HELP_PANEL,
            help="Listen where others could start runs too: trusted networks.",
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show configuration and planned work, write nothing.")] = (
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
