"""Options shared by several commands, and aliases for options that were renamed."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from fedmosaic_cli.cli.completion import complete_preset
from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.cli.help import GENERAL_PANEL, choices
from fedmosaic_cli.errors import RequestError


class DeviceChoice(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class ExecutionChoice(StrEnum):
    auto = "auto"
    threads = "threads"
    stacked = "stacked"


class AugmentChoice(StrEnum):
    none = "none"
    flip = "flip"
    crop = "crop"
    crop_flip = "crop-flip"


class NanPolicy(StrEnum):
    stop = "stop"
    skip = "skip"


class PrivacyUnit(StrEnum):
    client = "client"
    record_assumed = "record-assumed"


class TrainEngine(StrEnum):
    local = "local"
    flower = "flower"


MAX_LISTED_INTEGERS = 10_000
UNPROTECTED_SUFFIX = "-unprotected"


class UploadLevelChoice(StrEnum):
    """What a site may upload. From predictions and models, a coordinator can reconstruct training examples."""

    labels = "labels"
    predictions = "predictions-unprotected"
    models = "models-unprotected"
    # Names of earlier versions.
    old_predictions = "predictions"
    old_models = "models"

    @property
    def upload_level(self) -> str:
        return self.value.removesuffix(UNPROTECTED_SUFFIX)


DeviceOption = Annotated[
    DeviceChoice,
    typer.Option(metavar=choices(DeviceChoice), help="Device for training; auto uses a GPU if available."),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODULE",
        help="Import FILE.py or an installed module that registers methods, models or data sets. May be repeated.",
        show_default=False,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        envvar="FEDMOSAIC_DATA",
        metavar="DIR",
        help="Directory of data sets, or your own images or arrays.",
        show_default="data",
    ),
]
RunsDirOption = Annotated[Path, typer.Option(envvar="FEDMOSAIC_RUNS", metavar="DIR", help="Directory of runs.")]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document to stdout instead of text.", rich_help_panel=GENERAL_PANEL),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=GENERAL_PANEL)]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show more detail, e.g. the accuracy of each client.",
        rich_help_panel=GENERAL_PANEL,
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Print tracebacks of errors.", rich_help_panel=GENERAL_PANEL)
]
PresetOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of a preset, or a YAML file; 'fedmosaic presets list' shows all.",
        autocompletion=complete_preset,
    ),
]


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """Parse names such as amazon,dslr."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise RequestError(f"cannot read '{text}' ({option}): write names such as amazon,dslr")
    return parts


def parse_integers(text: str, option: str) -> tuple[int, ...]:
    """Parse distinct non-negative integers and ranges such as 0,1,2 or 0,3-5."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:\s*-\s*([0-9]{1,18}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not 0 <= last - first < MAX_LISTED_INTEGERS:
            numbers.clear()
            break
        numbers += range(first, last + 1)
    if not 0 < len(set(numbers)) == len(numbers) <= MAX_LISTED_INTEGERS:
        raise RequestError(f"cannot read '{text}' ({option}): write distinct whole numbers such as 0,1,2 or 0-2")
    return tuple(numbers)


def parse_counts(text: str, option: str) -> int | tuple[int, ...]:
    """Parse one whole number such as 5, or several such as 4,1,2."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise RequestError(f"cannot read '{text}' ({option}): write a whole number such as 5, or several such as 4,1,2")
    return int(parts[0]) if len(parts) == 1 else tuple(map(int, parts))


def group_options(groups: Mapping[str, tuple[str, ...]], hints: dict[str, Any]) -> list[str]:
    """Put options into the groups of the help.

    Args:
        groups: Headings, with the names of parameters in the order of the help.
        hints: The annotations of the parameters; those of grouped options are replaced.

    Returns:
        The names of all parameters, in the order of the help.
    """
    for heading, names in groups.items():
        for name in names:
            if name in hints:
                value_type, option, *others = get_args(hints[name])
                option = copy.copy(option)
                option.rich_help_panel = heading
                hints[name] = Annotated[value_type, option, *others]
    grouped = [name for names in groups.values() for name in names if name in hints]
    return [*grouped, *(name for name in hints if name not in grouped)]


def with_option_groups(groups: Mapping[str, tuple[str, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show the options of a command in groups; see `group_options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters = inspect.signature(command).parameters

        @wraps(command)
        def with_groups(**values: Any) -> None:
            command(**values)

        order = [name for name in group_options(groups, hints) if name in parameters]
        set_signature(with_groups, [parameters[name] for name in order], hints)
        return with_groups

    return decorate


def deprecated_aliases(renamed: Mapping[str, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Accept the old names of options as hidden aliases that print a note on stderr.

    Args:
        renamed: The new name of each old one, e.g. `{"--grace": "--stop-timeout"}`. The command declares the new
            option; the alias copies its type and its limits.

    Returns:
        A decorator for a Typer command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters = list(inspect.signature(command).parameters.values())
        targets = {old: option_parameter(new, parameters, hints) for old, new in renamed.items()}
        aliases = {old: f"deprecated_{old.lstrip('-').replace('-', '_')}" for old in renamed}

        @wraps(command)
        def with_aliases(**values: Any) -> None:
            for old, new in renamed.items():
                value = values.pop(aliases[old])
                if value is None:
                    continue
                if values[targets[old].name] != targets[old].default:
                    raise RequestError(f"both {old} and {new} are given (fedmosaic): use {new}")
                print_stderr(f"note: {old} is now {new}")
                values[targets[old].name] = value
            command(**values)

        for old, target in targets.items():
            value_type, option = get_args(hints[target.name])
            hidden = copy.copy(option)
            # In an annotation, Typer reads the first name of an option from `default`.
            hidden.default, hidden.param_decls, hidden.hidden, hidden.envvar = old, None, True, None
            hints[aliases[old]] = Annotated[value_type | None, hidden]
            parameters.append(inspect.Parameter(aliases[old], inspect.Parameter.KEYWORD_ONLY, default=None))
        set_signature(with_aliases, parameters, hints)
        return with_aliases

    return decorate


def option_parameter(option: str, parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> inspect.Parameter:
    """The parameter of a command that declares the option."""
    for parameter in parameters:
        info = (*get_args(hints[parameter.name]), None)[1]
        declared = (getattr(info, "default", ...), *(getattr(info, "param_decls", None) or ()))
        if option in declared or option == f"--{parameter.name.replace('_', '-')}":
            return parameter
    raise LookupError(f"the command has no option {option}")


def set_signature(command: Callable[..., None], parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> None:
    """Give a wrapper the signature and annotations from which Typer derives its options."""
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in parameters]
    )
    command.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
