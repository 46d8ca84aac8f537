"""Each run: what came of it, where it lies, how it was made and how to look at it again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import CAVEATS
from fedmosaic_cli.report.comparison import title_of
from fedmosaic_cli.report.html.markup import Markup, copied, counted, joined, percent, tag
from fedmosaic_cli.storage.files import read_file
from fedmosaic_cli.storage.runs import CONFIG, RunFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.collect import Skipped
    from fedmosaic_cli.report.comparison import Key, Setting

LARGEST_CONFIG = 200_000
MOST_BYTES = 10_000_000
"""Of all configurations together."""


class Texts:
    """Configurations, each kept once, as far as there is room."""

    def __init__(self, room: int = MOST_BYTES) -> None:
        self._numbers: dict[str, int] = {}
        self._room = room
        self.left_out = 0

    def number(self, text: str) -> int | None:
        """Under which number a text is kept; None if there was no room for it."""
        if text not in self._numbers:
            if len(text) > self._room:
                self.left_out += 1
                return None
            self._room -= len(text)
            self._numbers[text] = len(self._numbers)
        return self._numbers[text]

    def all(self) -> list[str]:
        return list(self._numbers)


@dataclass(frozen=True)
class Line:
    """What the frame knows of a run."""

    title: str
    seed: int
    accuracy: float
    caveats: str
    device: str
    digest: str
    path: Path


def run_list(
    settings: Sequence[Setting], skipped: Sequence[Skipped], no_curves: Mapping[Path, str], texts: Texts
) -> Markup:
    """The section's content. `no_curves` says why a run has none; configurations go into `texts`."""
    groups = [
        tag(
            "details",
            tag("summary", tag("h3", setting.label), tag("span", counted(len(setting.runs), "run"), class_="facts")),
            *(entry(line, no_curves.get(line.path), texts) for line in lines(setting)),
            class_="card runs",
            open=len(settings) == 1,
        )
        for setting in settings
    ]
    if skipped:
        heading = tag("summary", tag("h3", "Left out"), tag("span", counted(len(skipped), "run"), class_="facts"))
        groups.append(tag("details", heading, *map(skipped_entry, skipped), class_="card runs"))
    return joined(groups)


def lines(setting: Setting) -> list[Line]:
    """The runs of a setting, by method and seed."""
    found = []
    for key, runs in setting.methods.items():
        columns = (runs.seed, runs.accuracy, runs.caveats, runs.device, runs.digest, runs.path)
        found += [line_of(key, values) for values in zip(*columns, strict=True)]
    return found


def line_of(key: Key, values: tuple[int, float, str, str, str, Path]) -> Line:
    seed, accuracy, caveats, device, digest, path = values
    return Line(title_of(key), int(seed), float(accuracy), caveats, device, digest, path)


def entry(line: Line, no_curves: str | None, texts: Texts) -> Markup:
    files = RunFiles(line.path)
    heading = tag(
        "summary",
        tag("b", line.title),
        tag("span", f"seed {line.seed}"),
        tag("span", f"{percent(line.accuracy)}%{line.caveats}"),
        tag("span", "finished", class_="state"),
        tag("span", line.device or "device not recorded", class_="device"),
    )
    facts = [
        ("Directory", tag("code", line.path)),
        ("Shards", tag("code", line.digest or "no digest")),
        *((f"Note {mark}", CAVEATS[mark]) for mark in line.caveats),
        *([("Curves", no_curves)] if no_curves else []),
        ("Made by", made_by(files)),
        ("Examine", copied(shlex.join(["fedmosaic", "evaluate", str(line.path)]))),
    ]
    listed = tag("dl", *(piece for name, value in facts for piece in (tag("dt", name), tag("dd", value))))
    return tag("details", heading, listed, configuration(files, texts), class_="run")


def made_by(files: RunFiles) -> Markup:
    """The command that made a run, as far as the run tells."""
    try:
        arguments = files.environment().get("arguments")
    except (RequestError, OSError):
        arguments = None
    if not isinstance(arguments, list) or not arguments or not all(isinstance(word, str) for word in arguments):
        return tag("span", "not recorded", class_="none")
    return copied(shlex.join(["fedmosaic", *arguments]))


def configuration(files: RunFiles, texts: Texts) -> Markup:
    """A place for the configuration, which is shown when it is asked for."""
    try:
        files.check(CONFIG)
        number = texts.number(read_file(files.config, LARGEST_CONFIG).decode(errors="replace"))
    except RequestError as error:
        return tag("p", f"The configuration is not shown: {error}", class_="none")
    except OSError as error:
        return tag("p", f"The configuration cannot be read: {error.strerror}", class_="none")
    if number is None:
        return tag("p", f"There was no room for the configuration; it is in {files.config}.", class_="none")
    place = tag("pre", f"in {files.config}", data_text=number, tabindex="0", aria_label="Configuration")
    return tag("details", tag("summary", "Configuration"), place, class_="config")


def skipped_entry(run: Skipped) -> Markup:
    heading = tag("summary", tag("b", run.path.name), tag("span", "left out", class_="state out"))
    facts = tag("dl", tag("dt", "Directory"), tag("dd", tag("code", run.path)), tag("dt", "Why"), tag("dd", run.reason))
    return tag("details", heading, facts, class_="run")
