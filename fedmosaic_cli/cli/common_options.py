"""Options that several commands share, spelt and explained once."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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


class NanPolicy(StrEnum):
    stop = "stop"
    skip = "skip"


class PrivacyUnit(StrEnum):
    client = "client"
    record_assumed = "record-assumed"


class TrainEngine(StrEnum):
    local = "local"
    flower = "flower"


class SharingLevel(StrEnum):
    labels = "labels"
    predictions = "predictions"
    models = "models"


DeviceOption = Annotated[DeviceChoice, typer.Option(help="Where to compute; auto takes a GPU if there is one.")]
DataDirOption = Annotated[
    Path | None,
    typer.Option(envvar="FEDMOSAIC_DATA", help="Where data sets lie; your own images or arrays.", show_default="data"),
]
RunsDirOption = Annotated[Path, typer.Option(envvar="FEDMOSAIC_RUNS", help="Where run directories lie.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="More detail: every client's accuracy.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Tracebacks on failure.")]
PresetOption = Annotated[
    str | None, typer.Option(help="A preset's name, or a YAML file; 'fedmosaic presets list' shows all.")
]


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """The names of a list such as amazon,dslr."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise RequestError(f"cannot read '{text}' ({option}): write names such as amazon,dslr")
    return parts


def parse_integers(text: str, option: str) -> tuple[int, ...]:
    """The numbers of a list such as 0,1,2, each at least 0 and none twice."""
    parts = [part.strip() for part in text.split(",")]
    fine = all(re.fullmatch(r"[0-9]{1,18}", part) for part in parts)
    if not fine or len(set(map(int, parts))) < len(parts):
        raise RequestError(f"cannot read '{text}' ({option}): write different whole numbers such as 0,1,2")
    return tuple(map(int, parts))
