"""The Typer application: lazy loading of commands, and error messages with their exit codes."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from fedmosaic_cli import __version__
from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.cli.help import HelpCommand, HelpGroup
from fedmosaic_cli.cli.interrupt import InterruptedBySignal
from fedmosaic_cli.errors import FedMosaicError, ResourceError
from fedmosaic_cli.safe_text import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

# Typer uses click up to 0.2x and a vendored copy later; the base classes of BadParameter are the same in both.
ClickException = typer.BadParameter.__mro__[2]
# An impossible path is a wrong request; a forbidden path is a problem of the machine.
INVALID_PATH_ERRORS = (NotADirectoryError, FileExistsError, IsADirectoryError, FileNotFoundError)
BROKEN_PIPE_EXIT_CODE = 128 + signal.SIGPIPE
INVALID_PATH_ERRNOS = (errno.ENAMETOOLONG, errno.ELOOP)
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
OUT_OF_MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory")
MAX_LINE_CHARS = 2000

# In order of use. The lines repeat the first line of each command's help, so that listing them imports no command.
COMMANDS = {
    "partition": "Partition a data set into shards, with class counts and plots.",
    "train": "Train FedMosaic, or another method with --method.",
    "baseline": "Train baselines for comparison with FedMosaic, on the same shards.",
    "reproduce": "Execute the runs of a study, e.g. of a table or figure of the paper, and report them.",
    "watch": "Show the progress of runs that other processes execute, read from their files.",
    "evaluate": "Evaluate the saved personal models of finished runs, without training.",
    "forecast": "Forecast what collaboration brings to each client, from the exchange of labels of a run.",
    "report": "Compare methods across settings: mean (std) over seeds, in the colours of the paper.",
    "check-method": "Check that a method keeps the contract: short runs, resume, remote sites, traffic and memory.",
    "presets": "List, show and copy presets of experiments.",
    "site": "One client of a federation on its own machine: set it up, start it, and show its status.",
    "federation": "Prepare the coordinator of a federation: certificates, the sites' keys, shared shards.",
    "fetch": "Download data sets, checked by size and SHA-256; an interrupted download is resumed.",
    "doctor": "Show versions, devices, data sets, disk and threads of this machine.",
}


class LazyCommandGroup(HelpGroup):
    """Imports only the command that is called, and turns every failure into one line on stderr and an exit code."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = {name: TyperCommand(name, help=line) for name, line in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if command is not None and name else command, rest

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]
        given_args = list(sys.argv[1:] if args is None else args)
        if not kwargs.pop("standalone_mode", True):
            return super().main(given_args, standalone_mode=False, **kwargs)
        try:
            result = super().main(given_args, standalone_mode=False, **kwargs)
        except (Exception, InterruptedBySignal) as error:
            exit_with_error(error, given_args)
        except SystemExit as error:
            # Typer exits with 1 when the reader closes the pipe (fedmosaic --help | head).
            if isinstance(error.__context__, BrokenPipeError):
                sys.exit(BROKEN_PIPE_EXIT_CODE)
            raise
        sys.exit(result if isinstance(result, int) else 0)


def exit_with_error(error: BaseException, args: list[str]) -> NoReturn:
    """Print an error as one line and exit."""
    if "--debug" in args:
        with suppress(OSError):
            sys.stderr.write(escape_control_characters("".join(traceback.format_exception(error))))
    line, code = describe_error(error, args)
    print_stderr(f"error: {printable_line(line)}")
    try:
        sys.stdout.flush()
    except OSError:  # the interpreter would try to flush again at exit, and complain
        os._exit(code)
    sys.exit(code)


def printable_line(text: str) -> str:
    """Make a message safe for the terminal: it may quote foreign text with control characters."""
    line = " ".join(text.split())
    if len(line) > MAX_LINE_CHARS:
        line = f"{line[: MAX_LINE_CHARS // 2]} ... {line[-MAX_LINE_CHARS // 2 :]}"
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def describe_error(error: BaseException, args: list[str]) -> tuple[str, int]:  # noqa: PLR0911 - one return per kind
    """Return the message and the exit code of a failure."""
    if isinstance(error, FedMosaicError):
        return str(error), error.exit_code
    if isinstance(error, ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedmosaic"
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        reason = rejected_value_reason(error)
        if reason is not None:
            return f"{reason} ({error.param.opts[0]}): see '{command} --help'", 2  # type: ignore[attr-defined]
        value = rejected_value(error, args)
        value_text = f" in '{value}'" if value and value not in message else ""
        return f"{message}{value_text} ({command}): {usage_advice(message, command)}", 2
    if isinstance(error, BrokenPipeError):
        return (
            "the reader has closed the pipe (stdout): results on disk are complete",
            BROKEN_PIPE_EXIT_CODE,
        )
    if isinstance(error, INVALID_PATH_ERRORS) or (isinstance(error, OSError) and error.errno in INVALID_PATH_ERRNOS):
        return f"{error.strerror} ({error.filename}): name another path", 2
    if isinstance(error, OSError):
        remedy = "free disk space" if error.errno in DISK_FULL_ERRNOS else "choose another path, or check this one"
        return f"{error.strerror or error} ({error.filename or 'output'}): {remedy}", ResourceError.exit_code
    if isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in OUT_OF_MEMORY_PHRASES):
        if type(error).__name__ == "OutOfMemoryError":  # torch's; torch is not imported here
            remedy = "--set train.image_device=host, --execution threads or a smaller train.batch_size"
            return f"not enough memory (GPU): see --dry-run, use {remedy}", ResourceError.exit_code
        return "not enough memory (model and data): see --dry-run, use a smaller model", ResourceError.exit_code
    if isinstance(error, InterruptedBySignal):
        return "stopped on request (fedmosaic): finished work is kept", error.exit_code
    advice = "please report it" if "--debug" in args else "run again with --debug and report it"
    return f"{type(error).__name__}: {error} (a bug in fedmosaic): {advice}", 1


def rejected_value_reason(error: BaseException) -> str | None:
    """Return why the value of an option was rejected; None if Typer does not give the reason in parts."""
    problems = getattr(error.__cause__, "errors", None)
    if problems is None or getattr(error, "param", None) is None:
        return None
    problem = problems()[0]
    context, value = problem.get("ctx", {}), problem["input"]
    limits = {
        "greater_than_equal": ("ge", "at least"),
        "greater_than": ("gt", "greater than"),
        "less_than_equal": ("le", "at most"),
        "less_than": ("lt", "less than"),
    }
    kinds = {"int_parsing": "an integer", "float_parsing": "a number", "bool_parsing": "true or false"}
    if problem["type"] in limits:
        key, words = limits[problem["type"]]
        return f"'{value}' is not {words} {context[key]}"
    if problem["type"] == "value_error":  # 'tpu' is not one of 'auto', 'cpu', 'cuda', 'mps'.
        return str(context["error"]).rstrip(".")
    return f"'{value}' is not {kinds.get(problem['type'], 'valid')}"


def usage_advice(message: str, command: str) -> str:
    """Return what to do about a wrong command line."""
    from fedmosaic_cli.config.presets import preset_names

    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((\S+)", message)
    name = extra[1].rstrip(")") if extra else ""
    if name in preset_names() or name.endswith((".yaml", ".yml")):
        return f"write --preset {name}"
    return f"see '{command} --help'"


def rejected_value(error: BaseException, args: list[str]) -> str:
    """Return the value of the rejected option; not every version of Typer reports it."""
    names = getattr(getattr(error, "param", None), "opts", [])
    for name, value in zip(args, [*args[1:], ""], strict=True):
        option, _, attached = name.partition("=")
        if option in names:
            return attached or value
    return ""


def load_command(name: str) -> Any:
    """Import a command."""
    function = name.replace("-", "_")
    module = import_module(f"fedmosaic_cli.cli.{'train' if name == 'baseline' else function}")
    target = getattr(module, "app", None) or getattr(module, function)
    if not isinstance(target, typer.Typer):
        single = typer.Typer(rich_markup_mode="rich", add_completion=False)
        single.command(name)(target)
        target = single
    target.info.cls = HelpGroup
    for registered in target.registered_commands:
        registered.cls = HelpCommand
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
