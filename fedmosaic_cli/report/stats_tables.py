"""Text tables of statistics, and their output formats."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.report.comparison import file_name_part
from fedmosaic_cli.report.comparison_table import format_percent
from fedmosaic_cli.report.formats.latex import (
    COLUMN_GAP_POINTS,
    escape_latex,
    float_environment,
    heading_width_points,
    latex_float,
    latex_heading,
    split_columns,
    text_width_points,
)
from fedmosaic_cli.report.formats.table_grid import GridLabel
from fedmosaic_cli.report.formats.text_formats import EMPTY_CELL, escape_markdown, records_to_csv
from fedmosaic_cli.report.statistics import MethodComparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from fedmosaic_cli.report.statistics import MethodRanking

MAX_LATEX_ROWS = 40
"""The number of rows of a float in LaTeX."""
COMPARISON_HEADER = ("Method", "helped", "unharmed", "hurt", "mean gain", "median gain", "effect", "p (Holm)")
COMPARISON_NOTE = (
    "Number of clients whose model is more accurate than their local model with the same shards and seed (helped), as "
    "accurate (unharmed) and less accurate (hurt). The clients of all seeds are counted: each client once per seed, or "
    "once if its shards are the same in several seeds. Gains in percentage points. Effect: rank-biserial correlation "
    "over clients, from -1 to 1. p: two-sided Wilcoxon signed-rank test over clients with Holm correction over the "
    "methods of a setting; - where fewer than 6 clients differ. Clients of one federation are not independent and "
    "small test sets make large gains by chance: p is descriptive. There is no test over seeds, because they are too "
    "few."
)


@dataclass(frozen=True)
class TextTable:
    """A table of text. The first column is left-aligned, the others are numbers.

    `svg` is a diagram for the page, `name` the end of the label in LaTeX.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    svg: str = ""
    name: str = ""


def build_statistics_tables(comparisons: Sequence[MethodComparison], ranking: MethodRanking | None) -> list[TextTable]:
    """Return one table of comparisons per group, the first with a note, and the table of ranks if there is one."""
    tables = []
    for group_label, group_comparisons in groupby(comparisons, key=lambda comparison: comparison.setting):
        rows = tuple(
            (
                line.method,
                *map(str, (line.helped, line.unharmed, line.hurt)),
                *(format_percent(gain, signed=True) for gain in (line.mean_gain, line.median_gain)),
                EMPTY_CELL if line.effect is None else f"{line.effect:+.2f}",
                EMPTY_CELL if line.p_value is None else format_p_value(line.p_value),
            )
            for line in group_comparisons
        )
        title = f"Comparison with local training, client by client: {group_label}"
        tables.append(TextTable(title, COMPARISON_HEADER, rows, name=f"comparison-{file_name_part(group_label)}"))
    if tables:
        tables[0] = replace(tables[0], note=COMPARISON_NOTE)
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
        f"Mean rank over {len(ranking.settings)} settings ({', '.join(ranking.settings)}), 1 is best. Nemenyi critical "
        f"difference at 5 %: {ranking.critical_difference:.2f}. Friedman test: p {format_p_value(ranking.p_value)}. "
        "Settings that differ only in the public set count once; means are over the seeds that all ranked methods "
        "have. Centralized is not ranked, because it trains on the data of all clients."
    )
    return TextTable("Average ranks", ("Method", "average rank"), rows, note, name="ranks")


def format_p_value(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def text_table_to_markdown(table: TextTable) -> str:
    lines = [f"**{escape_markdown(table.title)}**", "", "| " + " | ".join(table.header) + " |"]
    lines.append("|---|" + "---:|" * (len(table.header) - 1))
    lines += ["| " + " | ".join(map(escape_markdown, row)) + " |" for row in table.rows]
    return "\n".join([*lines, *(["", escape_markdown(table.note)] if table.note else [])]) + "\n"


def text_table_to_latex(table: TextTable) -> str:
    """Return a float, or several if there are many rows. It needs the packages of comparison tables."""
    label_width, *widths = text_column_widths_points(table)
    parts = [[0, *(number + 1 for number in part)] for part in split_columns(label_width, widths)]
    caption = f"{escape_latex(table.title)}. {latex_math(escape_latex(table.note))}".strip()
    max_rows = MAX_LATEX_ROWS // len(parts)
    lines: list[str] = []
    for start in range(0, max(len(table.rows), 1), max_rows):
        rows = table.rows[start : start + max_rows]
        lines += latex_float(
            float_environment(label_width + sum(widths)),
            f"{escape_latex(table.title)} (continued)." if start else caption,
            f"tab:fedmosaic-{table.name}" if table.name and not start else "",
            [text_tabular([table.header[n] for n in part], [[row[n] for n in part] for row in rows]) for part in parts],
            is_continued=start > 0,
        )
    return "\n".join([*lines, ""])


def text_tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a tabular with bold headings, in several lines where they are long."""
    headings = [latex_math(latex_heading(GridLabel(text))) for text in header]
    return [
        f"\\begin{{tabular}}{{@{{}}l{'r' * (len(header) - 1)}@{{}}}}",
        "  \\toprule",
        f"  {' & '.join(headings)} \\\\",
        "  \\midrule",
        *(f"  {' & '.join(map(latex_text_cell, row))} \\\\" for row in rows),
        "  \\bottomrule",
        "\\end{tabular}",
    ]


def text_column_widths_points(table: TextTable) -> list[float]:
    """Estimate the widths of the columns at \\footnotesize, each with the gap before it."""
    widths = [
        max([heading_width_points(heading), *(text_width_points(row[number]) for row in table.rows)])
        for number, heading in enumerate(table.header)
    ]
    return [widths[0], *(width + COLUMN_GAP_POINTS for width in widths[1:])]


def latex_text_cell(text: str) -> str:
    """Return the text of a cell. A hyphen before a digit becomes a minus sign, an empty cell a dash."""
    return "--" if text == EMPTY_CELL else latex_math(escape_latex(text))


def latex_math(text: str) -> str:
    """Return escaped LaTeX with lambda, p, signed numbers and powers of ten as formulas."""
    text = re.sub(r"\b[Ll]ambda\b", r"$\\lambda$", text)
    text = re.sub(r"\b1e-0?(\d+)", r"$10^{-\1}$", text)
    text = re.sub(r"\\textless\{\} ?(\d\.\d+)", r"$<\1$", text)
    text = text.replace("\\textless{}", "$<$")
    text = re.sub(r"(?<![\w.$^{])-(\d+(?:\.\d+)?)", r"$-\1$", text)
    text = text.replace("; - where", "; -- where")
    return re.sub(r"(?<![\w\\-])p(?=[ :])", r"$p$", text)


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
