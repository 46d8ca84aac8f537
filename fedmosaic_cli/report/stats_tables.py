"""Text tables of statistics, and their output formats."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.formats.latex import SHRINK_TO_LINE_WIDTH, escape_latex
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL, escape_markdown, records_to_csv
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
    """A table of text. The first column is left-aligned, the others are numbers. `svg` is a diagram for the page."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    svg: str = ""


def build_statistics_tables(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> list[TextTable]:
    """Return one table of comparisons per group, and the table of ranks if there is a ranking."""
    tables = []
    for group_label, group_comparisons in groupby(comparisons, key=lambda comparison: comparison.setting):
        rows = tuple(
            (
                line.method,
                *map(str, (line.helped, line.unharmed, line.hurt)),
                *(f"{100 * gain:+.2f}" for gain in (line.mean_gain, line.median_gain)),
                EMPTY_CELL if line.effect is None else f"{line.effect:+.2f}",
                EMPTY_CELL if line.p_value is None else format_p_value(line.p_value),
            )
            for line in group_comparisons
        )
        tables.append(TextTable(f"Against Local, client by client: {group_label}", COMPARISON_HEADER, rows))
    if tables:
        tables[-1] = replace(tables[-1], note=COMPARISON_NOTE)
    return [*tables, *([ranking_table(ranking)] if ranking else [])]


def statistics_to_json(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> dict[str, Any]:
    return {"comparisons": list(map(asdict, comparisons)), "ranking": ranking and asdict(ranking)}


def statistics_to_csv(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> str:
    """Return one line per comparison, then one line per ranked method."""
    names = [*(field.name for field in fields(MethodComparison)), "average_rank"]
    ranks = ranking.ranks if ranking else {}
    rank_records = [{"method": method, "average_rank": rank} for method, rank in ranks.items()]
    return records_to_csv(names, [*map(asdict, comparisons), *rank_records])


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
    """Return a float. It needs the packages booktabs and graphicx."""
    header, *body = ("    " + " & ".join(map(latex_text_cell, row)) + " \\\\" for row in (table.header, *table.rows))
    lines = [
        "\\begin{table}[t]",
        "  \\centering\\small",
        f"  \\caption{{{escape_latex(f'{table.title}. {table.note}'.strip())}}}",
        "  \\smallskip",
        *SHRINK_TO_LINE_WIDTH,
        f"  \\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        *("    \\toprule", header, "    \\midrule", *body, "    \\bottomrule"),
        *("  \\end{tabular}}", "\\end{table}", ""),
    ]
    return "\n".join(lines)


def latex_text_cell(text: str) -> str:
    """Escape text. A hyphen before a digit becomes a minus sign."""
    return f"$-${text[1:]}" if text.startswith("-") and text[1:2].isdigit() else escape_latex(text)


def text_table_to_terminal(table: TextTable) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    view = RichTable(box=box.SIMPLE_HEAD, title=Text(table.title), title_justify="left", padding=(0, 1, 0, 0))
    view.add_column(table.header[0], overflow="fold")
    for number, heading in enumerate(table.header[1:], start=1):
        # Headings may wrap, numbers may not.
        cell_width = max((len(row[number]) for row in table.rows), default=0)
        view.add_column(heading, justify="right", min_width=max(cell_width, *map(len, heading.split())))
    for row in table.rows:
        view.add_row(*map(Text, row))
    return Group(view, *([Text(table.note, style="dim")] if table.note else []))
