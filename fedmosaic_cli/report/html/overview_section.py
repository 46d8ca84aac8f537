"""The first section: how much there is, and what came out in each setting, in words and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY, has_client_trust, method_title
from fedmosaic_cli.report.comparison_table import MethodResult, method_results
from fedmosaic_cli.report.html.markup import (
    Markup,
    format_percent,
    format_percentage_points,
    join_markup,
    pluralize,
    scrollable,
    tag,
)
from fedmosaic_cli.report.statistics import compare_methods_with_local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.statistics import MethodComparison

MAX_EXPANDED_GROUPS = 6
"""So many settings are unfolded from the start."""
OVERVIEW_CAPTION = (
    "Accuracy in %, mean (standard deviation) over seeds. Against Local: percentage points, mean over clients, on the "
    "same shards and seed. Where seeds deal the data anew, their clients are others, and all of them are counted. "
    "Bars: the clients helped, left as they were, and hurt."
)


def overview_section(groups: Sequence[ComparisonGroup], skipped: Sequence[SkippedRun]) -> Markup:
    """The section's content."""
    cards = [group_card(setting, number < MAX_EXPANDED_GROUPS) for number, setting in enumerate(groups)]
    caption = tag("p", OVERVIEW_CAPTION, class_="caption") if groups else ""
    return join_markup([summary_tiles(groups, skipped), caption, *cards, skipped_runs_card(skipped)])


def summary_tiles(groups: Sequence[ComparisonGroup], skipped: Sequence[SkippedRun]) -> Markup:
    """The numbers at the top."""
    methods = {key for setting in groups for key in setting.runs_by_method}
    seeds = {seed for setting in groups for seed in setting.seeds}
    numbers = {
        "run": sum(len(setting.runs) for setting in groups),
        "setting": len(groups),
        "method": len(methods),
        "seed": len(seeds),
    }
    shown = [(f"{thing}{'' if number == 1 else 's'}", number) for thing, number in numbers.items()]
    if skipped:
        shown.append(("left out", len(skipped)))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", f"{number:,}")) for name, number in shown), class_="tiles")


def group_card(group: ComparisonGroup, is_expanded: bool) -> Markup:
    """A setting: sentences, and a line a method."""
    results = method_results(
        group.runs_by_method, [key for key in group.runs_by_method if key not in (LOCAL_KEY, CENTRALIZED_KEY)]
    )
    gains = {line.method: line for line in compare_methods_with_local(group)}
    heading = tag("summary", tag("h3", group.label), tag("span", group_facts(group), class_="facts"))
    told = tag("ul", *(tag("li", sentence) for sentence in result_sentences(results, gains)), class_="told")
    table = scrollable(method_table(results, gains), f"Methods beside Local training in {group.label}")
    return tag("details", heading, told, table, class_="card", open=is_expanded)


def group_facts(group: ComparisonGroup) -> str:
    clients = {len(marks) for marks in group.runs.per_client if marks is not None}
    parts = [
        group.dataset,
        group.scheme,
        group.model,
        pluralize(clients.pop(), "client") if len(clients) == 1 else "",
        pluralize(len(group.runs_by_method), "method"),
        pluralize(len(group.seeds), "seed"),
    ]
    return " · ".join(filter(None, parts))


def result_sentences(results: Mapping[MethodKey, MethodResult], gains: Mapping[str, MethodComparison]) -> list[Markup]:
    """What came out: the baselines, the best of the others, and FedMosaic (or the only other) beside Local."""
    baselines = [
        tag("span", method_title(key), " reaches ", tag("b", format_result(results[key])))
        if key in results
        else tag("span", f"{method_title(key)} was not run")
        for key in (LOCAL_KEY, CENTRALIZED_KEY)
    ]
    told = [join_markup([join_markup(baselines, "; "), "."])]
    others = {key: result for key, result in results.items() if key not in (LOCAL_KEY, CENTRALIZED_KEY)}
    if len(others) > 1:
        told.append(best_method_sentence(others, results.get(LOCAL_KEY)))
    return told + [
        join_markup([tag("b", method_title(key)), " ", local_comparison_text(result, gains.get(method_title(key)))])
        for key, result in others.items()
        if has_client_trust(key) or len(others) == 1
    ]


def best_method_sentence(others: Mapping[MethodKey, MethodResult], local: MethodResult | None) -> Markup:
    """Which methods are best, and whether that is less than Local reaches."""
    best = {method_title(key): format_percent(result.mean) for key, result in others.items() if result.is_best}
    highest = next(iter(best.values()))
    beside = ", less than Local training" if local and float(highest) < float(format_percent(local.mean)) else ""
    return join_markup([f"Best of the {len(others)} others: ", tag("b", ", ".join(best)), f" with {highest}{beside}."])


def format_result(result: MethodResult) -> str:
    return format_percent(result.mean) + (f" ({format_percent(result.std)})" if result.std is not None else "")


def local_comparison_text(result: MethodResult, gain: MethodComparison | None) -> str:
    """A method in words, as the end of a sentence."""
    if gain is None:
        return f"reaches {format_result(result)}; there is no run of Local training on the same shards and seed."
    size = (
        f"{format_percentage_points(gain.mean_gain)} points against Local training"
        if gain.mean_gain
        else "as much as Local training"
    )
    clients = f"helped {gain.helped:,} of {gain.num_clients:,} clients, left {gain.unharmed:,} as they were"
    return f"reaches {format_result(result)}: {size}. It {clients}, hurt {gain.hurt:,}."


def method_table(results: Mapping[MethodKey, MethodResult], gains: Mapping[str, MethodComparison]) -> Markup:
    """A line a method: accuracy, difference to Local, and how many clients it helped and hurt."""
    heads = ("Method", "Accuracy", "Against Local", "Helped", "Unharmed", "Hurt")
    head = tag(
        "tr",
        tag("th", heads[0], scope="col", data_sort="text", class_="method"),
        *(tag("th", name, scope="col", data_sort="number") for name in heads[1:]),
        tag("th", "Clients", scope="col", class_="barhead"),
    )
    body = [method_row(key, result, gains.get(method_title(key))) for key, result in results.items()]
    return tag("table", tag("thead", head), tag("tbody", *body), class_="sortable")


def method_row(key: MethodKey, result: MethodResult, gain: MethodComparison | None) -> Markup:
    cells = [
        tag("th", method_title(key), scope="row", class_="method"),
        tag("td", format_result(result), data_value=repr(result.mean)),
    ]
    if gain is None:
        why = "reference" if key == LOCAL_KEY else "no run to compare with"
        return tag("tr", *cells, tag("td", why, colspan="5", class_="none"))
    cells.append(tag("td", format_percentage_points(gain.mean_gain), data_value=repr(gain.mean_gain)))
    counts = (gain.helped, gain.unharmed, gain.hurt)
    cells += [tag("td", f"{count:,}", data_value=count) for count in counts]
    return tag("tr", *cells, tag("td", client_outcome_bar(gain), class_="barcell"))


def client_outcome_bar(gain: MethodComparison) -> Markup:
    """Shares of clients as lengths; the numbers stand beside it."""
    parts = (("helped", gain.helped), ("same", gain.unharmed), ("hurt", gain.hurt))
    pieces = [tag("i", class_=name, style=f"flex-grow:{count}") for name, count in parts if count]
    return tag("span", *pieces, class_="bar", aria_hidden="true")


def skipped_runs_card(skipped: Sequence[SkippedRun]) -> Markup:
    """The runs that are not in any number on the page, and why."""
    if not skipped:
        return Markup("")
    lines = [tag("li", tag("code", run.path), tag("span", run.reason)) for run in skipped]
    heading = tag("summary", tag("h3", f"{pluralize(len(skipped), 'run')} left out"))
    return tag("details", heading, tag("ul", *lines, class_="skipped"), class_="card", open=len(skipped) <= 20)
