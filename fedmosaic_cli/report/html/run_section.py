"""Each run: what came of it, where it lies, how it was made and how to look at it again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.html.markup import Markup, copyable_command, format_percent, join_markup, pluralize, tag
from fedmosaic_cli.storage.files import read_regular_file
from fedmosaic_cli.storage.runs import CONFIG_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

MAX_CONFIG_BYTES = 200_000
MAX_TOTAL_CONFIG_CHARS = 10_000_000
"""Of all configurations together."""


class ConfigTexts:
    """Configurations, each kept once, as far as there is room."""

    def __init__(self, max_chars: int = MAX_TOTAL_CONFIG_CHARS) -> None:
        self._index_by_text: dict[str, int] = {}
        self._remaining_chars = max_chars
        self.num_omitted = 0

    def index_of(self, text: str) -> int | None:
        """Under which number a text is kept; None if there was no room for it."""
        if text not in self._index_by_text:
            if len(text) > self._remaining_chars:
                self.num_omitted += 1
                return None
            self._remaining_chars -= len(text)
            self._index_by_text[text] = len(self._index_by_text)
        return self._index_by_text[text]

    def as_list(self) -> list[str]:
        return list(self._index_by_text)


@dataclass(frozen=True)
class RunListItem:
    """What the frame knows of a run."""

    title: str
    seed: int
    accuracy: float
    caveats: str
    device: str
    digest: str
    path: Path


def run_section(
    comparison_groups: Sequence[ComparisonGroup],
    skipped: Sequence[SkippedRun],
    omitted_curves: Mapping[Path, str],
    config_texts: ConfigTexts,
) -> Markup:
    """The section's content. `no_curves` says why a run has none; configurations go into `texts`."""
    groups = [
        tag(
            "details",
            tag("summary", tag("h3", setting.label), tag("span", pluralize(len(setting.runs), "run"), class_="facts")),
            *(run_card(line, omitted_curves.get(line.path), config_texts) for line in run_list_items(setting)),
            class_="card runs",
            open=len(comparison_groups) == 1,
        )
        for setting in comparison_groups
    ]
    if skipped:
        heading = tag("summary", tag("h3", "Left out"), tag("span", pluralize(len(skipped), "run"), class_="facts"))
        groups.append(tag("details", heading, *map(skipped_run_card, skipped), class_="card runs"))
    return join_markup(groups)


def run_list_items(group: ComparisonGroup) -> list[RunListItem]:
    """The runs of a setting, by method and seed."""
    found = []
    for key, runs in group.runs_by_method.items():
        columns = (runs.seed, runs.accuracy, runs.caveats, runs.device, runs.digest, runs.path)
        found += [run_list_item(key, values) for values in zip(*columns, strict=True)]
    return found


def run_list_item(key: MethodKey, values: tuple[int, float, str, str, str, Path]) -> RunListItem:
    seed, accuracy, caveats, device, digest, path = values
    return RunListItem(method_title(key), int(seed), float(accuracy), caveats, device, digest, path)


def run_card(item: RunListItem, omitted_reason: str | None, config_texts: ConfigTexts) -> Markup:
    files = RunDirectory(item.path)
    heading = tag(
        "summary",
        tag("b", item.title),
        tag("span", f"seed {item.seed}"),
        tag("span", f"{format_percent(item.accuracy)}%{item.caveats}"),
        tag("span", "finished", class_="state"),
        tag("span", item.device or "device not recorded", class_="device"),
    )
    facts = [
        ("Directory", tag("code", item.path)),
        ("Shards", tag("code", item.digest or "no digest")),
        *((f"Note {mark}", CAVEAT_DESCRIPTIONS[mark]) for mark in item.caveats),
        *([("Curves", omitted_reason)] if omitted_reason else []),
        ("Made by", recorded_command(files)),
        ("Examine", copyable_command(shlex.join(["fedmosaic", "evaluate", str(item.path)]))),
    ]
    listed = tag("dl", *(piece for name, value in facts for piece in (tag("dt", name), tag("dd", value))))
    return tag("details", heading, listed, config_block(files, config_texts), class_="run")


def recorded_command(files: RunDirectory) -> Markup:
    """The command that made a run, as far as the run tells."""
    try:
        arguments = files.read_environment().get("arguments")
    except (RequestError, OSError):
        arguments = None
    if not isinstance(arguments, list) or not arguments or not all(isinstance(word, str) for word in arguments):
        return tag("span", "not recorded", class_="none")
    return copyable_command(shlex.join(["fedmosaic", *arguments]))


def config_block(files: RunDirectory, config_texts: ConfigTexts) -> Markup:
    """A place for the configuration, which is shown when it is asked for."""
    try:
        files.verify_files(CONFIG_FILE)
        number = config_texts.index_of(read_regular_file(files.config_path, MAX_CONFIG_BYTES).decode(errors="replace"))
    except RequestError as error:
        return tag("p", f"The configuration is not shown: {error}", class_="none")
    except OSError as error:
        return tag("p", f"The configuration cannot be read: {error.strerror}", class_="none")
    if number is None:
        return tag("p", f"There was no room for the configuration; it is in {files.config_path}.", class_="none")
    place = tag("pre", f"in {files.config_path}", data_text=number, tabindex="0", aria_label="Configuration")
    return tag("details", tag("summary", "Configuration"), place, class_="config")


def skipped_run_card(run: SkippedRun) -> Markup:
    heading = tag("summary", tag("b", run.path.name), tag("span", "left out", class_="state out"))
    facts = tag("dl", tag("dt", "Directory"), tag("dd", tag("code", run.path)), tag("dt", "Why"), tag("dd", run.reason))
    return tag("details", heading, facts, class_="run")
