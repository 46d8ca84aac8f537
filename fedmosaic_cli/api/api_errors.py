"""Warnings of the Python API, and errors of the runner in the words of the Python API."""

from __future__ import annotations

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
    "--device": "device",
    "--name": "name",
    "--on-nan": "train.on_nan",
    "--preset": "preset",
    "--resume": "resume=True",
    "--run-dir": "out",
    "--runs-dir": "out",
    "--set": "overrides",
    "--shards": "shards",
    "(METHOD)": "(method)",
}
OPTION_PATTERN = re.compile(r"--[a-z][a-z-]*|\(METHOD\)")


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
        text = OPTION_PATTERN.sub(lambda match: PARAMETER_NAMES.get(match[0], match[0]), str(error))
        raise type(error)(text) from None
