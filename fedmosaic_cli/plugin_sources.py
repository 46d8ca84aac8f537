"""Where plug-ins come from: the record that runs keep, and error messages that name file and line."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedmosaic_cli.errors import RequestError, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable

PluginKind = Literal["methods", "models", "datasets"]
MODULE_PREFIX = "fedmosaic_plugin_"
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True)
class PluginSource:
    """Where a plug-in comes from. Runs record it, and refuse to be resumed with another one.

    Attributes:
        file: Name of the source file; "" if it was defined interactively.
        digest: SHA-256 digest of the source file, or of the code if there is no file.
        distribution: Name and version of the installed package; "" for a single file.
    """

    file: str
    digest: str
    distribution: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the entries for env.json and summary.json."""
        return {"file": self.file, "sha256": self.digest, "distribution": self.distribution}


PLUGINS_VARIABLE = "FEDMOSAIC_PLUGINS"
"""Environment variable with plug-ins to import: modules or KIND=REFERENCE, separated by spaces or as a JSON list."""
REFERENCES: dict[str, None] = {}
"""The references that this process has imported, in order, as entries of that variable."""
SOURCES: dict[tuple[PluginKind, str], PluginSource] = {}
"""The sources of all registered plug-ins."""


def record_reference(reference: str, kind: PluginKind | None = None) -> None:
    """Keep a reference, so that processes that this one starts can import it, too."""
    place, separator, name = reference.rpartition(":")
    file = place or reference
    text = str(Path(file).absolute()) if file.endswith(".py") else file
    REFERENCES[f"{kind + '=' if kind else ''}{text}{separator}{name if separator else ''}"] = None


def child_environment() -> dict[str, str]:
    """Return the environment variable with which another process imports the same plug-ins; {} without plug-ins."""
    return {PLUGINS_VARIABLE: json.dumps(list(REFERENCES))} if REFERENCES else {}


def references_from_environment() -> list[str]:
    """Return the plug-ins that the environment variable FEDMOSAIC_PLUGINS names: a JSON list, or words."""
    text = os.environ.get(PLUGINS_VARIABLE, "")
    if not text.lstrip().startswith("["):
        return text.split()
    try:
        entries = json.loads(text)
    except ValueError:
        entries = None
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise RequestError(f"not a list of names ({PLUGINS_VARIABLE}): write names separated by spaces, or a JSON list")
    return entries


def plugin_failure(error: BaseException) -> RunFailedError | None:
    """Return a one-line error if an exception comes from the code of a plug-in; None otherwise.

    The line is the last one of the traceback that is in a plug-in.
    """
    files = {module.__file__ for name, module in list(sys.modules.items()) if is_plugin_module(name, module)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if not frames:
        return None
    last = frames[-1]
    return RunFailedError(
        f"{type(error).__name__} in {last.name}: {error} ({last.filename}, line {last.lineno}): correct the plug-in"
    )


def is_plugin_module(name: str, module: Any) -> bool:
    """Return whether a module defines a registered plug-in."""
    file = getattr(module, "__file__", None)
    if not file or name.partition(".")[0] == "fedmosaic_cli":
        return False
    return name.startswith(MODULE_PREFIX) or any(
        source.file and source.digest == file_digest(Path(file))
        for source in SOURCES.values()
        if source.file == Path(file).name
    )


def used_plugins(method: str, models: Iterable[str], dataset: str) -> dict[str, dict[str, str]]:
    """Return the sources of the plug-ins that a run uses, for its records; {} if all is built in."""
    keys: list[tuple[PluginKind, str]] = [("methods", method), *(("models", model) for model in models)]
    return {
        f"{kind}.{name}": SOURCES[kind, name].to_dict()
        for kind, name in [*keys, ("datasets", dataset)]
        if (kind, name) in SOURCES
    }


def require_free_name(kind: PluginKind, name: str, where: str, is_taken: bool) -> None:
    """Raise RequestError for a name that is taken or cannot be used in paths."""
    if not NAME_PATTERN.fullmatch(name):
        raise RequestError(
            f"'{name}' is not a valid name ({where or kind}): use lower-case letters, digits, '-' and '_'"
        )
    if is_taken:
        raise RequestError(f"the name '{name}' is taken ({where or kind}): choose another one")


def default_name(name: str) -> str:
    """Return a name in lower case with hyphens: MyMethod becomes my-method."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return re.sub(r"[^a-z0-9-]+", "-", words.lower()).strip("-")


def describe_location(target: Any) -> str:
    """Return file and line where a class or function is defined, or its name."""
    try:
        _, line = inspect.getsourcelines(target)
        return f"{inspect.getsourcefile(target)}, line {line}"
    except (OSError, TypeError):
        return str(getattr(target, "__qualname__", target))


def find_source(target: Any) -> PluginSource:
    """Return the source of a class or function: its file, or its code if it was defined interactively."""
    try:
        file = Path(inspect.getsourcefile(target) or "")
    except (OSError, TypeError):  # defined interactively
        file = Path()
    if file.is_file():
        return PluginSource(file.name, file_digest(file))
    return PluginSource("", hashlib.sha256(describe_code(target).encode()).hexdigest())


def describe_code(target: Any) -> str:
    """Return the code of a function, or of all functions and the defaults of a class, as text without addresses."""
    if isinstance(target, type):
        return "\n".join(f"{name}: {describe_code(value)}" for name, value in sorted(vars(target).items()))
    code = target if inspect.iscode(target) else getattr(target, "__code__", None)
    if code is None:
        return repr(target) if isinstance(target, (int, float, str, bool, tuple, type(None))) else ""
    constants = [describe_code(constant) for constant in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file; "" if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
