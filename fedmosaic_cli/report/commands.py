"""How to fill what is missing: the commands, as somebody would type them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.records.runs import RunFiles
from fedmosaic_cli.report.settings import paper_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fedmosaic_cli.report.settings import Key, Setting

USUAL_SEEDS = (0, 1, 2)
# What a training command was told and another one for the same column has to be told as well.
PASSED_ON = {
    *("--preset", "--shards", "--rounds", "--config", "--set", "--data-dir", "--runs-dir"),
    *("--execution", "--workers", "--on-nan", "--grace", "--device"),
}
EVERY_BASELINE = {(name, "") for name in METHODS if name != "fedmosaic"}


def commands_for(conditions: str, missing: dict[Key, tuple[int, ...]]) -> list[str]:
    """The commands that make the runs that are missing: of each method, these seeds."""
    by_seeds: dict[tuple[int, ...], list[Key]] = {}
    for key in sorted(missing, key=paper_order):
        if missing[key]:
            by_seeds.setdefault(missing[key], []).append(key)
    return [text for seeds, keys in by_seeds.items() for text in commands_of(keys, conditions, seeds)]


def commands_of(keys: Iterable[Key], conditions: str, seeds: Sequence[int]) -> list[str]:
    """One command for all baselines, and one for every variant of FedMosaic."""
    keys = list(keys)
    names = [method for method, _ in keys if method != "fedmosaic"]
    every = set(keys) >= EVERY_BASELINE
    doors = [f"baseline {'all' if every else ' '.join(names)}"] if names else []
    variants = [detail.partition(",")[0] for method, detail in keys if method == "fedmosaic"]
    texts = [f"fedmosaic {door} {conditions}" for door in doors]
    texts += [f"fedmosaic train {conditions} --expertise {variant}" for variant in dict.fromkeys(variants)]
    return [f"{text} --seeds {','.join(map(str, seeds))}" for text in texts]


def conditions_of(setting: Setting) -> str:
    """The options under which the runs of a setting were made, but for methods and seeds."""
    for path in setting.runs.path:
        try:
            words = RunFiles(path).environment().get("arguments")
        except (RequestError, OSError):
            continue
        if isinstance(words, list) and (options := passed_on([str(word) for word in words])):
            return shlex.join(options)
    return shlex.join(["--preset", setting.name])


def passed_on(words: Sequence[str]) -> list[str]:
    """The options, with their values, that hold for any method and any seed."""
    kept: list[str] = []
    for number, word in enumerate(words):
        name, joined, _ = word.partition("=")
        if name in PASSED_ON:
            kept += [word] if joined else [word, *words[number + 1 : number + 2]]
    return kept
