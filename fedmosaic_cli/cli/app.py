"""The application: its commands, and how failures end."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from fedmosaic_cli import __version__
from fedmosaic_cli.cli.interrupt import InterruptedBySignal
from fedmosaic_cli.errors import FedMosaicError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Typer stands on click up to 0.2x and on a copy of its own later; both spell the ancestors of BadParameter the same.
ClickException = typer.BadParameter.__mro__[2]
# A path that cannot be is a wrong request; a path that may not be is a matter of the machine.
INVALID_PATH_ERRORS = (NotADirectoryError, FileExistsError, IsADirectoryError, FileNotFoundError)
BROKEN_PIPE_EXIT_CODE = 128 + signal.SIGPIPE
INVALID_PATH_ERRNOS = (errno.ENAMETOOLONG, errno.ELOOP)
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OUT_OF_MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory")
MAX_LINE_CHARS = 2000


class CommandEntry(NamedTuple):
    """Where a command is, and the line that stands for it in the list of all."""

    module: str
    function: str
    help_line: str


# In the order of their use. The line is the first of the command's own help: to read it there would be to load it.
COMMANDS = {
    "partition": CommandEntry("partition", "partition", "Deal a data set to clients: shards, counts and pictures."),
    "train": CommandEntry("train", "train", "Train FedMosaic, or another method with --method."),
    "baseline": CommandEntry(
        "train", "baseline", "Train the methods that FedMosaic is compared with, on the same shards."
    ),
    "reproduce": CommandEntry(
        "reproduce", "reproduce", "Make the runs of one of the paper's tables or figures, and report them."
    ),
    "watch": CommandEntry("watch", "watch", "Show how far runs are, from their files alone, while others make them."),
    "evaluate": CommandEntry(
        "evaluate", "evaluate", "Examine the saved personal models of finished runs, without training."
    ),
    "report": CommandEntry(
        "report", "report", "Compare methods over settings: mean (std) over seeds, in the colours of the paper."
    ),
    "presets": CommandEntry(
        "presets", "app", "Ready-made experiments: list them, read them, copy them to change them."
    ),
    "site": CommandEntry(
        "site", "app", "One client of a federation on its own machine: prepare it, start it, look after it."
    ),
    "federation": CommandEntry(
        "federation", "app", "The coordinator's side of a federation: certificates, and whose keys are known."
    ),
    "fetch": CommandEntry(
        "fetch", "fetch", "Download data sets, checked by size and SHA-256; a broken download goes on where it stopped."
    ),
    "doctor": CommandEntry(
        "doctor",
        "doctor",
        "Versions, devices, data sets, disk and threads of this machine. Example: fedmosaic doctor --json",
    ),
}


class LazyCommandGroup(TyperGroup):
    """Loads a command when it is called, and no other: a list of all is there at once.

    Ends every failure in one line on stderr and the exit code that the documentation promises.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = {name: TyperCommand(name, help=entry.help_line) for name, entry in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if command is not None and name else command, rest

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        given = list(sys.argv[1:] if args is None else args)
        if not kwargs.pop("standalone_mode", True):
            return super().main(given, standalone_mode=False, **kwargs)
        try:
            result = super().main(given, standalone_mode=False, **kwargs)
        except (Exception, InterruptedBySignal) as error:
            exit_with_error(error, given)
        except SystemExit as leaving:
            # The library takes it for a failure that somebody has read enough (fedmosaic --help | head).
            if isinstance(leaving.__context__, BrokenPipeError):
                sys.exit(BROKEN_PIPE_EXIT_CODE)
            raise
        sys.exit(result if isinstance(result, int) else 0)


def exit_with_error(error: BaseException, args: list[str]) -> NoReturn:
    """Say what went wrong with the arguments `given`, in one line, and leave."""
    if "--debug" in args:
        traceback.print_exception(error)
    line, code = describe_error(error, args)
    with suppress(OSError):
        sys.stderr.write(f"error: {printable_line(line)}\n")
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except OSError:  # what is left cannot be written; the interpreter would try once more, and complain
        os._exit(code)
    sys.exit(code)


def printable_line(text: str) -> str:
    """A message that names what others wrote: that must neither steer the terminal nor flood it."""
    line = " ".join(text.split())
    if len(line) > MAX_LINE_CHARS:
        line = f"{line[: MAX_LINE_CHARS // 2]} ... {line[-MAX_LINE_CHARS // 2 :]}"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def describe_error(error: BaseException, args: list[str]) -> tuple[str, int]:  # noqa: PLR0911 - a return a kind
    """The line and the exit code of a failure."""
    if isinstance(error, FedMosaicError):
        return str(error), error.exit_code
    if isinstance(error, ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedmosaic"
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        value = rejected_value(error, args)
        remark = f" in '{value}'" if value and value not in message else ""
        return f"{message}{remark} ({command}): see '{command} --help'", 2
    if isinstance(error, BrokenPipeError):
        return "the reader of the output is gone (stdout): what was written before is complete", BROKEN_PIPE_EXIT_CODE
    if isinstance(error, INVALID_PATH_ERRORS) or (isinstance(error, OSError) and error.errno in INVALID_PATH_ERRNOS):
        return f"{error.strerror} ({error.filename}): name another path", 2
    if isinstance(error, OSError):
        way_out = (
            "make room" if error.errno in DISK_FULL_ERRNOS else "choose another place, or see what is wrong with it"
        )
        return f"{error.strerror or error} ({error.filename or 'output'}): {way_out}", ResourceError.exit_code
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in OUT_OF_MEMORY_PHRASES):
        return out_of_memory_message(error), ResourceError.exit_code
    if isinstance(error, InterruptedBySignal):
        return "stopped on request (fedmosaic): what was finished is kept", error.exit_code
    advice = "please report it" if "--debug" in args else "run again with --debug and report it"
    return f"{type(error).__name__}: {error} (a bug in fedmosaic): {advice}", 1


def out_of_memory_message(error: BaseException) -> str:
    """Whose memory was too small, and what to do. A GPU's is told by the error's name: torch is not loaded here."""
    if type(error).__name__ == "OutOfMemoryError":
        ways = "--set train.images=host, --execution threads or a smaller train.batch_size"
        return f"not enough memory (GPU): see --dry-run, use {ways}"
    return "not enough memory (model and data): see --dry-run, use a smaller model"


def rejected_value(error: BaseException, args: list[str]) -> str:
    """What stood behind the option that was refused; not every version of typer says it."""
    names = getattr(getattr(error, "param", None), "opts", [])
    for name, value in zip(args, [*args[1:], ""], strict=True):
        option, _, attached = name.partition("=")
        if option in names:
            return attached or value
    return ""


def load_command(name: str) -> Any:
    """The command itself."""
    entry = COMMANDS[name]
    target = getattr(import_module(f"fedmosaic_cli.cli.{entry.module}"), entry.function)
    if not isinstance(target, typer.Typer):
        alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
        alone.command(name)(target)
        target = alone
    command = typer.main.get_command(target)
    command.name = name
    return command


app = typer.Typer(
    name="fedmosaic",
    cls=LazyCommandGroup,
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
