"""The paper's tables: their columns and rows, and the overview table of all groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import unknown_name_error
from fedmosaic_cli.methods.registry import BASELINES, EXTENDED_METHODS
from fedmosaic_cli.report.captions import format_seeds, privacy_notes, table_caption, table_notes, table_summary
from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, ENTROPY_KEY, FREQUENCY_KEY, LOCAL_KEY, ORACLE_KEY
from fedmosaic_cli.report.comparison_table import (
    ACCURACY_DECIMALS,
    OVERVIEW_NAME,
    ComparisonTable,
    TableColumn,
    build_rows,
)
from fedmosaic_cli.report.missing_runs import add_missing_run_commands
from fedmosaic_cli.report.paper_results import full_scale_preset, published_domains

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.comparison_table import TableRow

SCHEME_HEADINGS = {"pathological": "Pathological non-IID", "dirichlet": "Practical non-IID", "iid": "IID"}
# The heading and label of the paper's column for each preset.
PAPER_COLUMNS = {
    "pathological-fashion-mnist": ("Pathological non-IID", "Fashion-MNIST"),
    "pathological-cifar10": ("Pathological non-IID", "CIFAR-10"),
    "practical-fashion-mnist": ("Practical non-IID", "Fashion-MNIST"),
    "practical-cifar10": ("Practical non-IID", "CIFAR-10"),
    "feature-shift-office10": ("Office-10", ""),
    "feature-shift-domainnet": ("DomainNet", ""),
    "hybrid-domainnet": ("", "DomainNet"),
    "hybrid-domainnet-vit": ("", "DomainNet (ViT)"),
    "hybrid-office10": ("", "Office-10"),
}

QUICK_PRESET_NOTE = (
    "Quick presets use part of the data, a smaller network and fewer rounds than the presets without -quick, to which "
    "the published results belong: do not compare the absolute accuracies."
)

GATED_KEY: MethodKey = ("gated", "")
OTHER_METHOD_KEYS: tuple[MethodKey, ...] = tuple((name, "") for name in BASELINES)
COMPACT_METHODS = ("centralized", "fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "fedphp", "local")


@dataclass(frozen=True)
class PaperTableSpec:
    """One of the paper's tables.

    `presets` are the paper's columns; groups with one of the `schemes` are added as further columns. `method_keys` are
    the rows; with `only_listed`, only variants of FedMosaic are added. `quickstart_preset` is a preset for the table
    that needs no download.
    """

    title: str
    presets: tuple[str, ...]
    schemes: tuple[str, ...]
    quickstart_preset: str
    method_keys: tuple[MethodKey, ...]
    by_domain: bool = False
    only_listed: bool = False


PAPER_TABLES = {
    "label-skew": PaperTableSpec(
        "label skew",
        ("pathological-fashion-mnist", "pathological-cifar10", "practical-fashion-mnist", "practical-cifar10"),
        ("pathological", "dirichlet", "iid"),
        "quickstart-label-skew",
        (*OTHER_METHOD_KEYS, FREQUENCY_KEY, GATED_KEY),
    ),
    "feature-shift": PaperTableSpec(
        "feature shift, by domain",
        ("feature-shift-office10", "feature-shift-domainnet"),
        ("domain",),
        "quickstart-feature-shift",
        (*OTHER_METHOD_KEYS, ENTROPY_KEY, GATED_KEY),
        by_domain=True,
    ),
    "hybrid": PaperTableSpec(
        "label skew and feature shift at once",
        ("hybrid-domainnet", "hybrid-domainnet-vit", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*OTHER_METHOD_KEYS, FREQUENCY_KEY, ENTROPY_KEY, GATED_KEY),
    ),
    "compact": PaperTableSpec(
        "label skew and feature shift at once, in brief",
        ("hybrid-domainnet", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*((name, "") for name in COMPACT_METHODS), FREQUENCY_KEY, GATED_KEY),
        only_listed=True,
    ),
}


def select_tables(
    name: str | None, groups: Sequence[ComparisonGroup], with_published: bool
) -> tuple[list[ComparisonTable], list[str]]:
    """Build the overview table (None), one of the paper's tables, or `all` of them.

    Returns:
        The tables, and the names of those without columns.

    Raises:
        RequestError: There is no table of this name.
    """
    if name is None:
        return [overview_table(groups, with_published)], []
    if name not in (*PAPER_TABLES, "all"):
        raise unknown_name_error("table", name, [*PAPER_TABLES, "all"], "table")
    names = list(PAPER_TABLES) if name == "all" else [name]
    by_name = {each: paper_table(each, groups, with_published) for each in names}
    return [table for table in by_name.values() if table], [each for each, table in by_name.items() if not table]


def overview_table(
    groups: Sequence[ComparisonGroup],
    with_published: bool,
    baselines: tuple[MethodKey, ...] = (CENTRALIZED_KEY, LOCAL_KEY),
) -> ComparisonTable:
    """Build a table with one column per group and one row per method with runs, plus the baselines."""
    columns = [TableColumn(group.label, group, full_scale_preset(group.name)) for group in groups]
    table = build_table(OVERVIEW_NAME, "", columns, requested_rows(groups) or baselines, with_published)
    if requested_rows(groups):
        return table
    # A baseline without runs is not a row. The table still has the command that makes it.
    missing = tuple(row for row in table.rows if not row.has_results)
    return replace(table, rows=tuple(row for row in table.rows if row.has_results), missing_rows=missing)


def row_order(groups: Sequence[ComparisonGroup]) -> tuple[MethodKey, ...] | None:
    """Return the selected rows of the groups in their order; None for the order of the table."""
    return next((group.selected.order for group in groups if group.selected), None)


def requested_rows(groups: Sequence[ComparisonGroup]) -> tuple[MethodKey, ...]:
    """Return the rows that were requested by name, () for all."""
    return next((group.selected.order for group in groups if group.selected and group.selected.is_requested), ())


def paper_table(
    name: str,
    groups: Sequence[ComparisonGroup],
    with_published: bool,
    with_missing_columns: bool = True,
    extended: bool = False,
) -> ComparisonTable | None:
    """Build one of the paper's tables; None if it has no columns.

    Groups of quick presets are placed beside or instead of the full-scale preset. With `with_published` and
    `with_missing_columns`, the table also contains the paper's columns that have no runs. With `extended`, methods that
    the paper does not compare follow in a separate group.
    """
    spec = PAPER_TABLES[name]
    columns: list[TableColumn] = []
    for preset in spec.presets:
        matching = [group for group in groups if full_scale_preset(group.name) == preset]
        columns += [column for group in matching for column in group_columns(group, spec)]
        if with_published and with_missing_columns and not matching:
            heading, label = PAPER_COLUMNS[preset]
            domains = published_domains(preset)
            columns += [
                TableColumn(domain_label(domain, domains) if domain else label, None, preset, heading, domain)
                for domain in domains or [""]
            ]
    others = [g for g in groups if full_scale_preset(g.name) not in PAPER_COLUMNS and g.scheme in spec.schemes]
    others.sort(key=lambda group: spec.schemes.index(group.scheme))
    columns += [column for group in others for column in group_columns(group, spec)]
    headings = [column.heading for column in columns]
    columns.sort(key=lambda column: headings.index(column.heading))  # columns that share a heading must be adjacent
    if not columns:
        return None
    # Variants of the listed methods get rows of their own, methods that the paper does not compare do not.
    extra_methods = {"fedmosaic"} if spec.only_listed else {method for method, _ in spec.method_keys}
    listed = {method for method, _ in spec.method_keys}
    more = tuple((method, "") for method in EXTENDED_METHODS if extended and method not in listed)
    method_keys = spec.method_keys
    if requested := requested_rows(groups):
        method_keys, extra_methods = requested, set()
    return build_table(name, spec.title, columns, method_keys, with_published, extra_methods, more)


def oracle_notes(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Return a sentence for each group in which true labels of the public set bring nothing."""
    notes = []
    for group in groups:
        runs, local = (group.runs_by_method.get(key) for key in (ORACLE_KEY, LOCAL_KEY))
        if runs is None or local is None:
            continue
        by_seed = [frame.set_index("seed").accuracy for frame in (runs, local)]
        seeds = sorted(set(by_seed[0].index) & set(by_seed[1].index))
        gain = float((by_seed[0][seeds] - by_seed[1][seeds]).mean()) if seeds else 0.0
        if seeds and round(gain, ACCURACY_DECIMALS) <= 0:
            notes.append(
                f"{group.label}: even with the true labels of the public set (oracle), accuracy does not exceed Local "
                f"({100 * gain:+.2f} points), so better votes are unlikely to help here."
            )
    return notes


def group_columns(group: ComparisonGroup, spec: PaperTableSpec) -> list[TableColumn]:
    """Return the column of a group, or the columns of its domains."""
    preset = full_scale_preset(group.name)
    heading, label = PAPER_COLUMNS.get(preset, ("", ""))
    suffix = " (quick)" if group.name != preset and (heading or label) else ""
    suffix += group.suffix
    is_renamed = group.label != group.full_name
    if not spec.by_domain:
        heading = heading or SCHEME_HEADINGS.get(group.scheme, "")
        return [TableColumn(group.label if is_renamed else (label or group.name) + suffix, group, preset, heading)]
    digests = list(dict.fromkeys(group.runs.digest))
    domains = dict.fromkeys(domain for digest in digests for domain in group.client_domains(digest) if domain)
    known = published_domains(preset)
    ordered = [*(domain for domain in known if domain in domains), *(d for d in domains if d not in known)]
    heading = group.label if is_renamed else (heading or group.name) + suffix
    if not ordered:
        return [TableColumn("all", group, "", heading)]
    return [TableColumn(domain_label(domain, known), group, preset, heading, domain) for domain in ordered]


def domain_label(domain: str, paper_domains: Sequence[str]) -> str:
    """Return the initial of a domain of the paper; other domains keep their name."""
    return domain[0].upper() if domain in paper_domains else domain


def build_table(
    name: str,
    title: str,
    columns: Sequence[TableColumn],
    method_keys: tuple[MethodKey, ...],
    with_published: bool,
    extra_methods: Collection[str] | None = None,
    extended_keys: tuple[MethodKey, ...] = (),
) -> ComparisonTable:
    """Build the rows, commands, caption and notes of a table. Rows of `extended_keys` follow in a separate group."""
    groups = list({column.group.label: column.group for column in columns if column.group}.values())
    rows = build_rows(columns, method_keys, with_published, extra_methods, extended_keys, row_order(groups))
    rows, commands = add_missing_run_commands(columns, rows)
    initials = [f"{column.label} = {column.domain}" for column in columns if column.domain not in ("", column.label)]
    notes = [f"{', '.join(dict.fromkeys(initials))}."] if initials else []
    if any(group.name != full_scale_preset(group.name) for group in groups):
        notes.append(QUICK_PRESET_NOTE)
    for group in {column.group.label: column.group for column in columns if column.group and column.domain}.values():
        unknown = group.runs[~group.runs.digest.isin(group.manifests_by_digest)]
        if seeds := sorted(map(int, set(unknown.seed))):
            notes.append(f"{group.label}: the runs of {format_seeds(seeds)} have no valid manifest with domains.")
    has_published = any(cell.published for row in rows for cell in row.cells)
    return ComparisonTable(
        name,
        tuple(columns),
        rows,
        table_caption(title, columns, rows, groups, has_published),
        (*notes, *oracle_notes(groups), *table_notes(groups)),
        commands,
        has_published,
        privacy_notes(groups),
        table_summary(columns, rows),
        num_missing=count_missing_results(columns, rows),
    )


def count_missing_results(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> int:
    """Count the results with a command. All domains of a group lack the same runs and count once."""
    return len(
        {
            (row.method_key, column.group.label if column.group else column.preset)
            for row in rows
            for column, cell in zip(columns, row.cells, strict=True)
            if cell.command
        }
    )
