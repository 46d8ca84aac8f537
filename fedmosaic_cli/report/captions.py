"""What a reader must know of a table: what its numbers are, and under which protocol they came about."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.collect import CAVEATS
from fedmosaic_cli.report.comparison import differences, title_of
from fedmosaic_cli.report.noise_notes import noise_block
from fedmosaic_cli.report.rerun_commands import conditions_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.comparison import Setting

USUAL_MODEL = METHODS["local"].evaluated
WHAT = "mean over clients, each counting the same and examined on its own test part, model of the last round"


def caption_of(title: str, settings: Sequence[Setting], paper: bool) -> str:
    """What the numbers are. `title` tells which of the paper's tables this is, if it is one."""
    seeds = {setting.seeds for setting in settings}
    every = sorted({seed for each in seeds for seed in each})
    if not every:
        over = "nothing was run yet"
    elif len(every) == 1:
        over = f"seed {every[0]}"
    else:
        over = f"mean (sample standard deviation) over seeds {', '.join(map(str, every))}"
    marks = "".join(mark for setting in settings for mark in set("".join(setting.runs.caveats)))
    caveats = [f" {mark} {words}." for mark, words in CAVEATS.items() if mark in marks]
    beside = " In brackets: what the paper printed, and ours minus that." if paper else ""
    return f"Test accuracy (%){f' under {title}' if title else ''}: {WHAT}; {over}.{beside}{''.join(caveats)}"


def notes_of(settings: Sequence[Setting]) -> tuple[str, ...]:
    """The protocol of each setting, why some of one name are apart, and whose model was examined."""
    return (*map(protocol_of, settings), *differences(settings), *models_of(settings))


def blocks_of(settings: Sequence[Setting]) -> tuple[tuple[str, ...], ...]:
    """What the runs with noise in their messages gave away: lines for each row that has any."""
    blocks = [
        noise_block(f"{title_of(key)} in {setting.label}", runs)
        for setting in settings
        for key, runs in setting.methods.items()
    ]
    return tuple(filter(None, blocks))


def protocol_of(setting: Setting) -> str:
    """A setting in a sentence: data, shards, rounds, model, seeds, device."""
    terms, runs = setting.terms, setting.runs
    digests = runs.groupby("seed").digest.first()
    marks = list(dict.fromkeys(digest[:6] for digest in digests if digest))
    clients = {len(marks) for marks in runs.per_client if marks is not None}
    devices = sorted({device for device in runs.device if device})
    parts = [
        f"{terms['dataset']}, {terms['scheme']}",
        counted(clients.pop(), "client") if len(clients) == 1 else "",
        counted(terms["rounds"], "round") + (f" of {setting.model}" if setting.model else ""),
        f"seed{'s' * (len(setting.seeds) > 1)} {', '.join(map(str, setting.seeds))}",
        f"shards {' '.join(marks)}" if marks else "shards unknown",
        f"on {' and '.join(devices)}" if devices else "",
        attackers_in(setting),
        f"defence {told(setting.terms['defence'])}" if setting.terms.get("defence") else "",
        f"with {' and '.join(changed)}" if (changed := changes_in(setting)) else "",
    ]
    return f"{setting.label}: {', '.join(filter(None, parts))}."


def attackers_in(setting: Setting) -> str:
    """Who attacks, if anybody does, and that they are in the mean."""
    attack = setting.terms.get("attack")
    if not attack:
        return ""
    who, others = attack.get("clients", ()), {k: v for k, v in attack.items() if k not in ("kind", "clients")}
    details = f", {told(others)}" if others else ""
    return f"{counted(len(who), 'attacker')} ({attack.get('kind')}{details}), counted in the mean"


def told(settings: Mapping[str, Any]) -> str:
    """Settings in a few words: what is switched on, and what has a value."""
    return " and ".join(name if value is True else f"{name} {value}" for name, value in settings.items())


def changes_in(setting: Setting) -> list[str]:
    """What is other than in the preset, or than usual where there is none; attacks and defences are told apart."""
    words = conditions_in(setting)
    changed = [following for word, following in pairwise(words) if word == "--set"]
    return [change for change in changed if not change.startswith(("attack.", "defence."))]


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def models_of(settings: Sequence[Setting]) -> list[str]:
    """Which model is examined, where it is not simply the client's own."""
    names = {method for setting in settings for method, _ in setting.methods}
    by_model: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        if name in names and method.evaluated != USUAL_MODEL:
            by_model.setdefault(method.evaluated, []).append(method.title)
    if not by_model:
        return []
    words = "; ".join(f"{', '.join(titles)}: {model}" for model, titles in by_model.items())
    return [f"Examined is {USUAL_MODEL}, but for {words}."]
