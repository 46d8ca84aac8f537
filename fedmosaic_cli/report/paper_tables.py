"""The paper's tables: which settings are their columns, which methods their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.methods.registry import BASELINES
from fedmosaic_cli.report.captions import privacy_notes, table_caption, table_notes
from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, LOCAL_KEY
from fedmosaic_cli.report.comparison_table import OVERVIEW_NAME, ComparisonTable, TableColumn, build_rows
from fedmosaic_cli.report.missing_runs import add_missing_run_commands
from fedmosaic_cli.report.paper_results import full_scale_preset, published_domains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey

SCHEME_HEADINGS = {"pathological": "Pathological non-IID", "dirichlet": "Practical non-IID", "iid": "IID"}
# The heading and the label of what the paper has a column for.
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
    "Quick presets use part of the data, a smaller network and fewer rounds than those of the same name without "
    "-quick, which the paper's numbers belong to: differences in level between the two say nothing."
)

FEDMOSAIC_FREQUENCY_KEY, FEDMOSAIC_ENTROPY_KEY, GATED_KEY = (
    ("fedmosaic", "frequency"),
    ("fedmosaic", "entropy"),
    ("gated", ""),
)
OTHER_METHOD_KEYS: tuple[MethodKey, ...] = tuple((name, "") for name in BASELINES)
COMPACT_METHODS = ("centralized", "fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "fedphp", "local")


@dataclass(frozen=True)
class PaperTableSpec:
    """One of the paper's tables: what stands above it, the presets of its columns, whose runs fit in beside them, the
    preset of embedded data that does, and its rows. With `only`, nothing but these and FedMosaic's."""

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
        "quickstart",
        (*OTHER_METHOD_KEYS, FEDMOSAIC_FREQUENCY_KEY, GATED_KEY),
    ),
    "feature-shift": PaperTableSpec(
        "feature shift, by domain",
        ("feature-shift-office10", "feature-shift-domainnet"),
        ("domain",),
        "quickstart-feature-shift",
        (*OTHER_METHOD_KEYS, FEDMOSAIC_ENTROPY_KEY, GATED_KEY),
        by_domain=True,
    ),
    "hybrid": PaperTableSpec(
        "label skew and feature shift at once",
        ("hybrid-domainnet", "hybrid-domainnet-vit", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*OTHER_METHOD_KEYS, FEDMOSAIC_FREQUENCY_KEY, FEDMOSAIC_ENTROPY_KEY, GATED_KEY),
    ),
    "compact": PaperTableSpec(
        "label skew and feature shift at once, in brief",
        ("hybrid-domainnet", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*((name, "") for name in COMPACT_METHODS), FEDMOSAIC_FREQUENCY_KEY, GATED_KEY),
        only_listed=True,
    ),
}


def overview_table(
    groups: Sequence[ComparisonGroup],
    with_published: bool,
    baselines: tuple[MethodKey, ...] = (CENTRALIZED_KEY, LOCAL_KEY),
) -> ComparisonTable:
    """All settings in one table: the methods that were run in any of them, and the baselines they are judged by."""
    columns = [TableColumn(setting.label, setting, full_scale_preset(setting.name)) for setting in groups]
    return build_table(OVERVIEW_NAME, "", columns, baselines, with_published)


def paper_table(
    name: str, groups: Sequence[ComparisonGroup], with_published: bool, with_missing_columns: bool = True
) -> ComparisonTable | None:
    """One of the paper's tables from these settings; None where there is nothing to put in it.

    With `paper` and `absent`, columns that nobody ran are there as well. Quick presets stand beside those they stand in
    for, or in their place.
    """
    form = PAPER_TABLES[name]
    columns: list[TableColumn] = []
    for preset in form.presets:
        same = [setting for setting in groups if full_scale_preset(setting.name) == preset]
        columns += [column for setting in same for column in group_columns(setting, form)]
        columns += missing_columns(preset) if with_published and with_missing_columns and not same else []
    others = [s for s in groups if full_scale_preset(s.name) not in PAPER_COLUMNS and s.scheme in form.schemes]
    others.sort(key=lambda setting: form.schemes.index(setting.scheme))
    columns += [column for setting in others for column in group_columns(setting, form)]
    headings = [column.heading for column in columns]
    columns.sort(key=lambda column: headings.index(column.heading))  # neighbours share a heading
    return (
        build_table(name, form.title, columns, form.method_keys, with_published, form.only_listed) if columns else None
    )


def group_columns(group: ComparisonGroup, spec: PaperTableSpec) -> list[TableColumn]:
    """The columns of a setting: one, or one for each of its domains."""
    preset = full_scale_preset(group.name)
    heading, label = PAPER_COLUMNS.get(preset, ("", ""))
    quick = " (quick)" if group.name != preset and (heading or label) else ""
    addition = quick + group.label.removeprefix(group.name)
    if not spec.by_domain:
        heading = heading or SCHEME_HEADINGS.get(group.scheme, "")
        return [TableColumn((label or group.name) + addition, group, preset, heading)]
    digests = list(dict.fromkeys(group.runs.digest))
    domains = dict.fromkeys(domain for digest in digests for domain in group.client_domains(digest) if domain)
    known = published_domains(preset)
    ordered = [*(domain for domain in known if domain in domains), *(d for d in domains if d not in known)]
    above = (heading or group.name) + addition
    if not ordered:
        return [TableColumn("all", group, "", above)]
    return [TableColumn(domain_label(domain, known), group, preset, above, domain) for domain in ordered]


def missing_columns(preset: str) -> list[TableColumn]:
    """What the paper has for a preset that was not run here."""
    heading, label = PAPER_COLUMNS[preset]
    domains = published_domains(preset)
    if not domains:
        return [TableColumn(label, None, preset, heading)]
    return [TableColumn(domain_label(domain, domains), None, preset, heading, domain) for domain in domains]


def domain_label(domain: str, paper_domains: Sequence[str]) -> str:
    """A domain as the paper heads its column; others keep their name."""
    return domain[0].upper() if domain in paper_domains else domain


def build_table(
    name: str,
    title: str,
    columns: Sequence[TableColumn],
    method_keys: tuple[MethodKey, ...],
    with_published: bool,
    only_listed: bool = False,
) -> ComparisonTable:
    """The table of these columns, with the commands for what is missing."""
    rows, commands = add_missing_run_commands(columns, build_rows(columns, method_keys, with_published, only_listed))
    settings = [column.group for column in columns if column.group]
    once = list({setting.label: setting for setting in settings}.values())
    letters = [f"{c.label} = {c.domain}" for c in columns if c.domain and c.label != c.domain]
    notes = [f"{', '.join(dict.fromkeys(letters))}."] if letters else []
    if any(setting.name != full_scale_preset(setting.name) for setting in once):
        notes.append(QUICK_PRESET_NOTE)
    by_domain = {column.group.label: column.group for column in columns if column.group and column.domain}
    notes += [note for setting in by_domain.values() if (note := missing_manifest_note(setting))]
    beside = any(cell.published for row in rows for cell in row.cells)
    caption = table_caption(title, once, beside)
    return ComparisonTable(
        name, tuple(columns), rows, caption, (*notes, *table_notes(once)), commands, beside, privacy_notes(once)
    )


def missing_manifest_note(group: ComparisonGroup) -> str:
    """A note on seeds that are in no column by domain, as none of their runs kept the manifest of its shards."""
    unknown = group.runs[~group.runs.digest.isin(group.manifests_by_digest)]
    seeds = ", ".join(map(str, sorted(set(unknown.seed))))
    return f"{group.label}: runs with seed {seeds} kept no manifest that tells who is of which domain." if seeds else ""
