"""The first section: how much there is, and what came out in each setting, in words and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import CENTRALIZED, LOCAL, title_of, weighs_trust
from fedmosaic_cli.report.comparison_table import Result, results_of
from fedmosaic_cli.report.html.markup import Markup, counted, joined, percent, points, scrolling, tag
from fedmosaic_cli.report.statistics import compare_with_local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.collect import Skipped
    from fedmosaic_cli.report.comparison import Key, Setting
    from fedmosaic_cli.report.statistics import Comparison

MOST_OPEN = 6
"""So many settings are unfolded from the start."""
CAPTION = (
    "Accuracy in %, mean (standard deviation) over seeds. Against Local: percentage points, mean over clients, on the "
    "same shards and seed. Where seeds deal the data anew, their clients are others, and all of them are counted. "
    "Bars: the clients helped, left as they were, and hurt."
)


def overview(settings: Sequence[Setting], skipped: Sequence[Skipped]) -> Markup:
    """The section's content."""
    cards = [card(setting, number < MOST_OPEN) for number, setting in enumerate(settings)]
    caption = tag("p", CAPTION, class_="caption") if settings else ""
    return joined([tiles(settings, skipped), caption, *cards, left_out(skipped)])


def tiles(settings: Sequence[Setting], skipped: Sequence[Skipped]) -> Markup:
    """The numbers at the top."""
    methods = {key for setting in settings for key in setting.methods}
    seeds = {seed for setting in settings for seed in setting.seeds}
    numbers = {
        "run": sum(len(setting.runs) for setting in settings),
        "setting": len(settings),
        "method": len(methods),
        "seed": len(seeds),
    }
    shown = [(f"{thing}{'' if number == 1 else 's'}", number) for thing, number in numbers.items()]
    if skipped:
        shown.append(("left out", len(skipped)))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", f"{number:,}")) for name, number in shown), class_="tiles")


def card(setting: Setting, is_open: bool) -> Markup:
    """A setting: sentences, and a line a method."""
    results = results_of(setting.methods, [key for key in setting.methods if key not in (LOCAL, CENTRALIZED)])
    gains = {line.method: line for line in compare_with_local(setting)}
    heading = tag("summary", tag("h3", setting.label), tag("span", facts(setting), class_="facts"))
    told = tag("ul", *(tag("li", sentence) for sentence in sentences(results, gains)), class_="told")
    table = scrolling(method_lines(results, gains), f"Methods beside Local training in {setting.label}")
    return tag("details", heading, told, table, class_="card", open=is_open)


def facts(setting: Setting) -> str:
    clients = {len(marks) for marks in setting.runs.per_client if marks is not None}
    parts = [
        setting.dataset,
        setting.scheme,
        setting.model,
        counted(clients.pop(), "client") if len(clients) == 1 else "",
        counted(len(setting.methods), "method"),
        counted(len(setting.seeds), "seed"),
    ]
    return " · ".join(filter(None, parts))


def sentences(results: Mapping[Key, Result], gains: Mapping[str, Comparison]) -> list[Markup]:
    """What came out: the baselines, the best of the others, and FedMosaic (or the only other) beside Local."""
    baselines = [
        tag("span", title_of(key), " reaches ", tag("b", number(results[key])))
        if key in results
        else tag("span", f"{title_of(key)} was not run")
        for key in (LOCAL, CENTRALIZED)
    ]
    told = [joined([joined(baselines, "; "), "."])]
    others = {key: result for key, result in results.items() if key not in (LOCAL, CENTRALIZED)}
    if len(others) > 1:
        told.append(best_of(others, results.get(LOCAL)))
    return told + [
        joined([tag("b", title_of(key)), " ", beside_local(result, gains.get(title_of(key)))])
        for key, result in others.items()
        if weighs_trust(key) or len(others) == 1
    ]


def best_of(others: Mapping[Key, Result], local: Result | None) -> Markup:
    """Which methods are best, and whether that is less than Local reaches."""
    best = {title_of(key): percent(result.mean) for key, result in others.items() if result.best}
    highest = next(iter(best.values()))
    beside = ", less than Local training" if local and float(highest) < float(percent(local.mean)) else ""
    return joined([f"Best of the {len(others)} others: ", tag("b", ", ".join(best)), f" with {highest}{beside}."])


def number(result: Result) -> str:
    return percent(result.mean) + (f" ({percent(result.std)})" if result.std is not None else "")


def beside_local(result: Result, gain: Comparison | None) -> str:
    """A method in words, as the end of a sentence."""
    if gain is None:
        return f"reaches {number(result)}; there is no run of Local training on the same shards and seed."
    size = f"{points(gain.mean_gain)} points against Local training" if gain.mean_gain else "as much as Local training"
    clients = f"helped {gain.helped:,} of {gain.clients:,} clients, left {gain.unharmed:,} as they were"
    return f"reaches {number(result)}: {size}. It {clients}, hurt {gain.hurt:,}."


def method_lines(results: Mapping[Key, Result], gains: Mapping[str, Comparison]) -> Markup:
    """A line a method: accuracy, difference to Local, and how many clients it helped and hurt."""
    heads = ("Method", "Accuracy", "Against Local", "Helped", "Unharmed", "Hurt")
    head = tag(
        "tr",
        tag("th", heads[0], scope="col", data_sort="text", class_="method"),
        *(tag("th", name, scope="col", data_sort="number") for name in heads[1:]),
        tag("th", "Clients", scope="col", class_="barhead"),
    )
    body = [method_line(key, result, gains.get(title_of(key))) for key, result in results.items()]
    return tag("table", tag("thead", head), tag("tbody", *body), class_="sortable")


def method_line(key: Key, result: Result, gain: Comparison | None) -> Markup:
    cells = [
        tag("th", title_of(key), scope="row", class_="method"),
        tag("td", number(result), data_value=repr(result.mean)),
    ]
    if gain is None:
        why = "reference" if key == LOCAL else "no run to compare with"
        return tag("tr", *cells, tag("td", why, colspan="5", class_="none"))
    cells.append(tag("td", points(gain.mean_gain), data_value=repr(gain.mean_gain)))
    counts = (gain.helped, gain.unharmed, gain.hurt)
    cells += [tag("td", f"{count:,}", data_value=count) for count in counts]
    return tag("tr", *cells, tag("td", bar(gain), class_="barcell"))


def bar(gain: Comparison) -> Markup:
    """Shares of clients as lengths; the numbers stand beside it."""
    parts = (("helped", gain.helped), ("same", gain.unharmed), ("hurt", gain.hurt))
    pieces = [tag("i", class_=name, style=f"flex-grow:{count}") for name, count in parts if count]
    return tag("span", *pieces, class_="bar", aria_hidden="true")


def left_out(skipped: Sequence[Skipped]) -> Markup:
    """The runs that are not in any number on the page, and why."""
    if not skipped:
        return Markup("")
    lines = [tag("li", tag("code", run.path), tag("span", run.reason)) for run in skipped]
    heading = tag("summary", tag("h3", f"{counted(len(skipped), 'run')} left out"))
    return tag("details", heading, tag("ul", *lines, class_="skipped"), class_="card", open=len(skipped) <= 20)
