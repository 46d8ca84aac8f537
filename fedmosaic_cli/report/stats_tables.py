"""Statistics as plain sheets: a title, a head, lines of text, and what to bear in mind."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.formats.latex import SHRINK_TO_LINE_WIDTH, escape_latex
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL, escape_markdown
from fedmosaic_cli.report.statistics import MethodComparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from fedmosaic_cli.report.statistics import MethodRanking

COMPARISON_HEADER = ("Method", "helped", "unharmed", "hurt", "mean gain", "median gain", "effect", "p (Holm)")
COMPARISON_NOTE = (
    "A client is helped if its model gets more test examples right than the one it trained alone on the same shards "
    "and seed, hurt if fewer. Gains in percentage points. Effect: rank-biserial correlation over clients, -1 to 1. "
    "p: Wilcoxon's signed-rank test over clients, two-sided, Holm's correction over a setting's methods; - where fewer "
    "than 6 clients differ. Clients of one federation are not independent of each other, and a test part of few "
    "examples makes large gains by chance: read p as a description. There is no test over seeds, they are too few."
)


@dataclass(frozen=True)
class TextTable:
    """A small table of text; numbers are aligned to the right, the first column to the left. `picture` is an SVG
    document of ours."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    svg: str = ""


def build_statistics_tables(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> list[TextTable]:
    """A sheet of comparisons for every setting, and one of ranks over all of them where there are several."""
    sheets = [
        local_comparison_table(setting, list(lines))
        for setting, lines in groupby(comparisons, key=lambda line: line.setting)
    ]
    if sheets:  # once is enough
        sheets[-1] = replace(sheets[-1], note=COMPARISON_NOTE)
    return [*sheets, *([ranking_table(ranking)] if ranking else [])]


def statistics_to_json(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> dict[str, Any]:
    """All of it in full precision."""
    return {"comparisons": list(map(asdict, comparisons)), "ranking": ranking and asdict(ranking)}


def statistics_to_csv(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> str:
    """A line a comparison, and then a line a method with its rank over all settings."""
    text = io.StringIO()
    names = [*(field.name for field in fields(MethodComparison)), "average_rank"]
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, comparisons))
    writer.writerows(
        {"method": method, "average_rank": rank} for method, rank in (ranking.ranks if ranking else {}).items()
    )
    return text.getvalue()


def local_comparison_table(group_label: str, comparisons: Sequence[MethodComparison]) -> TextTable:
    rows = tuple(
        (
            line.method,
            *map(str, (line.helped, line.unharmed, line.hurt)),
            *(f"{100 * gain:+.2f}" for gain in (line.mean_gain, line.median_gain)),
            EMPTY_CELL if line.effect is None else f"{line.effect:+.2f}",
            EMPTY_CELL if line.p_value is None else format_p_value(line.p_value),
        )
        for line in comparisons
    )
    return TextTable(f"Against Local, client by client: {group_label}", COMPARISON_HEADER, rows)


def ranking_table(ranking: MethodRanking) -> TextTable:
    rows = tuple((title, f"{rank:.2f}") for title, rank in sorted(ranking.ranks.items(), key=lambda pair: pair[1]))
    note = (
        f"Mean rank over {len(ranking.settings)} settings ({', '.join(ranking.settings)}), 1 is best. Ranks that "
        f"differ by less than {ranking.critical_difference:.2f} cannot be told apart (Nemenyi, 5 %). Friedman's test "
        f"of all being alike: p {format_p_value(ranking.p_value)}. Of settings that differ in the public set alone one "
        "counts; means are over the seeds that all methods here have. Centralized is left out: it has everybody's data."
    )
    return TextTable("Average ranks", ("Method", "average rank"), rows, note)


def format_p_value(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def text_table_to_markdown(table: TextTable) -> str:
    lines = [f"**{escape_markdown(table.title)}**", "", "| " + " | ".join(table.header) + " |"]
    lines.append("|---|" + "---:|" * (len(table.header) - 1))
    lines += ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in table.rows]
    return "\n".join([*lines, *(["", escape_markdown(table.note)] if table.note else [])]) + "\n"


def text_table_to_latex(table: TextTable) -> str:
    """A float; it needs booktabs and graphicx."""
    rows = ["    " + " & ".join(map(latex_text_cell, row)) + " \\\\" for row in (table.header, *table.rows)]
    return "\n".join(
        [
            "\\begin{table}[t]",
            "  \\centering\\small",
            f"  \\caption{{{escape_latex(f'{table.title}. {table.note}'.strip())}}}",
            "  \\smallskip",
            *SHRINK_TO_LINE_WIDTH,
            f"  \\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            "    \\toprule",
            rows[0],
            "    \\midrule",
            *rows[1:],
            "    \\bottomrule",
            "  \\end{tabular}}",
            "\\end{table}",
            "",
        ]
    )


def latex_text_cell(text: str) -> str:
    """Text, or a number: in front of one a hyphen is a minus."""
    return f"$-${text[1:]}" if text.startswith("-") and text[1:2].isdigit() else escape_latex(text)


def text_table_to_terminal(table: TextTable) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(box=box.SIMPLE_HEAD, title=Text(table.title), title_justify="left", padding=(0, 1, 0, 0))
    view.add_column(table.header[0], overflow="fold")
    for number, head in enumerate(table.header[1:], start=1):
        # Headings are wrapped, numbers never.
        room = max((len(row[number]) for row in table.rows), default=0)
        view.add_column(head, justify="right", min_width=max(room, *map(len, head.split())))
    for row in table.rows:
        view.add_row(*map(Text, row))
    return Group(view, *([Text(table.note, style="dim")] if table.note else []))
