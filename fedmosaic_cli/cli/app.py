"""The application: its commands, and how failures end."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fedmosaic_cli import __version__
from fedmosaic_cli.cli import doctor, evaluate, fetch, partition, presets, report, train
from fedmosaic_cli.errors import FedMosaicError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Typer stands on click up to 0.2x and on a copy of its own later; both spell the ancestors of BadParameter the same.
ClickException = typer.BadParameter.__mro__[2]
# A path that cannot be is a wrong request; a path that may not be is a matter of the machine.
WRONG_PATH = (NotADirectoryError, FileExistsError, IsADirectoryError, FileNotFoundError)
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class OneLineErrors(TyperGroup):
    """Ends every failure in one line on stderr and the exit code that the documentation promises."""

    def main(self, args: Sequence[str] | None = None, **more: Any) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        if not more.pop("standalone_mode", True):
            return super().main(given, standalone_mode=False, **more)
        try:
            result = super().main(given, standalone_mode=False, **more)
        except (Exception, KeyboardInterrupt) as error:
            fail(error, given)
        sys.exit(result if isinstance(result, int) else 0)


def fail(error: BaseException, given: list[str]) -> NoReturn:
    """Say what went wrong with the arguments `given`, in one line, and leave."""
    if "--debug" in given:
        traceback.print_exception(error)
    line, code = describe(error, given)
    with suppress(OSError):
        sys.stderr.write(f"error: {' '.join(line.split())}\n")
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except OSError:  # what is left cannot be written; the interpreter would try once more, and complain
        os._exit(code)
    sys.exit(code)


def describe(error: BaseException, given: list[str]) -> tuple[str, int]:  # noqa: PLR0911 - a return a kind
    """The line and the exit code of a failure."""
    if isinstance(error, FedMosaicError):
        return str(error), error.exit_code
    if isinstance(error, ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedmosaic"
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        value = refused_value(error, given)
        remark = f" in '{value}'" if value and value not in message else ""
        return f"{message}{remark} ({command}): see '{command} --help'", 2
    if isinstance(error, BrokenPipeError):
        return "the reader of the output is gone (stdout): what was written before is complete", 141
    if isinstance(error, WRONG_PATH):
        return f"{error.strerror} ({error.filename}): name another path", 2
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename or 'output'}): make room or choose another place", (
            ResourceError.exit_code
        )
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY):
        return "not enough memory (model and data): see --dry-run, use a smaller model", ResourceError.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted (fedmosaic): what a checkpoint held is kept", 130
    advice = "please report it" if "--debug" in given else "run again with --debug and report it"
    return f"{type(error).__name__}: {error} (a bug in fedmosaic): {advice}", 1


def refused_value(error: BaseException, given: list[str]) -> str:
    """What stood behind the option that was refused; not every version of typer says it."""
    names = getattr(getattr(error, "param", None), "opts", [])
    for name, value in zip(given, [*given[1:], ""], strict=True):
        option, _, attached = name.partition("=")
        if option in names:
            return attached or value
    return ""


app = typer.Typer(
    name="fedmosaic",
    cls=OneLineErrors,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Personalized federated learning by co-training.

    Clients share predictions on a public data set, never data or models.

    \b
    [bold]Start with[/bold]
    fedmosaic train --preset quickstart
    fedmosaic baseline all --preset quickstart
    fedmosaic report
    """
    if version:
        typer.echo(f"fedmosaic {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(partition.partition)
app.command()(train.train)
app.command()(train.baseline)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.add_typer(presets.app, name="presets")
app.command()(fetch.fetch)
app.command()(doctor.doctor)
