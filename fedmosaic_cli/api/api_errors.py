"""Warnings of the Python API, and errors of the runner in the words of the Python API."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError, ResourceError, RunFailedError, RunStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# The runner names command-line options in its messages.
PARAMETER_NAMES = {
    "--data-dir": "data_dir",
    "--dataset": "dataset",
    "--device": "device",
    "--method": "method",
    "--model": "model",
    "--name": "name",
    "--on-nan": "train.on_nan",
    "--plugin": "fedmosaic.load_plugin",
    "--preset": "preset",
    "--resume": "resume=True",
    "--run-dir": "out",
    "--runs-dir": "out",
    "--set": "overrides",
    "--shards": "shards",
    "--tensorboard": "TensorBoard",
    "(METHOD)": "(method)",
}
ASSIGNMENT = r"--set [\w.-]+=[^\s,;:]+"
VALUE_OPTIONS = r"--(?:dataset|device|method|model|preset|shards) (?:auto|quickstart|DIR|FILE\.py:NAME)"
# Commands in quotes, assignments, options with a value, options.
OPTION_PATTERN = re.compile(
    rf"'fedmosaic [^']*'|{ASSIGNMENT}(?: {ASSIGNMENT})*|--on-nan \w+|{VALUE_OPTIONS}|--[a-z][a-z-]*|\(METHOD\)"
)


class FedMosaicWarning(UserWarning):
    """A warning about an experiment or about runs, e.g. that a configuration makes a method equal to another one."""


def warn(messages: Iterable[str]) -> None:
    """Issue a `FedMosaicWarning` for each message."""
    for message in messages:
        warnings.warn(message, FedMosaicWarning, stacklevel=3)


@contextmanager
def python_wording() -> Iterator[None]:
    """Replace command-line options in the messages of errors by the parameters of the Python API."""
    try:
        yield
    except (RequestError, ResourceError, RunFailedError, RunStateError) as error:
        text = OPTION_PATTERN.sub(lambda match: in_python(match[0]), str(error))
        raise type(error)(text) from None


def in_python(words: str) -> str:
    """Return words of a command line in the notation of Python: `--device auto` becomes `device="auto"`."""
    if words.startswith("'fedmosaic "):
        return words
    option, _, value = words.partition(" ")
    if option == "--set" and value:
        pairs = (assignment.partition("=") for assignment in words.replace("--set ", "").split())
        return "overrides={" + ", ".join(f'"{key}": {python_literal(text)}' for key, _, text in pairs) + "}"
    if option == "--on-nan" and value:
        return f'overrides={{"train.on_nan": "{value}"}}'
    name = PARAMETER_NAMES.get(option, option)
    return f'{name}="{value}"' if value else name


def python_literal(text: str) -> str:
    """Return the value of an assignment as Python code."""
    try:
        return repr(json.loads(text))
    except ValueError:
        return json.dumps(text)
