"""The paper's tables: which settings are their columns, which methods their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.captions import blocks_of, caption_of, notes_of
from fedmosaic_cli.report.comparison import CENTRALIZED, LOCAL
from fedmosaic_cli.report.comparison_table import OVERVIEW, Column, Table, rows_of
from fedmosaic_cli.report.missing_runs import with_commands
from fedmosaic_cli.report.paper_results import published_domains, stands_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison import Key, Setting

SCHEMES = {"pathological": "Pathological non-IID", "dirichlet": "Practical non-IID", "iid": "IID"}
# The heading and the label of what the paper has a column for.
PAPER = {
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

QUICK_NOTE = (
    "Quick presets use part of the data, a smaller network and fewer rounds than those of the same name without "
    "-quick, which the paper's numbers belong to: differences in level between the two say nothing."
)

FEDMOSAIC_W, FEDMOSAIC_U, GATED = ("fedmosaic", "frequency"), ("fedmosaic", "entropy"), ("gated", "")
OTHERS: tuple[Key, ...] = tuple((name, "") for name in METHODS if name not in ("fedmosaic", "gated"))
FEW = ("centralized", "fedavg", "fedprox", "perfedavg", "pfedme", "apfl", "fedphp", "local")


@dataclass(frozen=True)
class Form:
    """One of the paper's tables: what stands above it, the presets of its columns, whose runs fit in beside them, the
    preset of embedded data that does, and its rows. With `only`, nothing but these and FedMosaic's."""

    title: str
    presets: tuple[str, ...]
    schemes: tuple[str, ...]
    stand_in: str
    rows: tuple[Key, ...]
    by_domain: bool = False
    only: bool = False


FORMS = {
    "label-skew": Form(
        "label skew",
        ("pathological-fashion-mnist", "pathological-cifar10", "practical-fashion-mnist", "practical-cifar10"),
        ("pathological", "dirichlet", "iid"),
        "quickstart",
        (*OTHERS, FEDMOSAIC_W, GATED),
    ),
    "feature-shift": Form(
        "feature shift, by domain",
        ("feature-shift-office10", "feature-shift-domainnet"),
        ("domain",),
        "quickstart-feature-shift",
        (*OTHERS, FEDMOSAIC_U, GATED),
        by_domain=True,
    ),
    "hybrid": Form(
        "label skew and feature shift at once",
        ("hybrid-domainnet", "hybrid-domainnet-vit", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*OTHERS, FEDMOSAIC_W, FEDMOSAIC_U, GATED),
    ),
    "compact": Form(
        "label skew and feature shift at once, in brief",
        ("hybrid-domainnet", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*((name, "") for name in FEW), FEDMOSAIC_W, GATED),
        only=True,
    ),
}


def overview(settings: Sequence[Setting], paper: bool, baselines: tuple[Key, ...] = (CENTRALIZED, LOCAL)) -> Table:
    """All settings in one table: the methods that were run in any of them, and the baselines they are judged by."""
    columns = [Column(setting.label, setting, stands_for(setting.name)) for setting in settings]
    return made(OVERVIEW, "", columns, baselines, paper)


def paper_table(name: str, settings: Sequence[Setting], paper: bool, absent: bool = True) -> Table | None:
    """One of the paper's tables from these settings; None where there is nothing to put in it.

    With `paper` and `absent`, columns that nobody ran are there as well. Quick presets stand beside those they stand in
    for, or in their place.
    """
    form = FORMS[name]
    columns: list[Column] = []
    for preset in form.presets:
        same = [setting for setting in settings if stands_for(setting.name) == preset]
        columns += [column for setting in same for column in columns_of(setting, form)]
        columns += absent_columns(preset) if paper and absent and not same else []
    others = [s for s in settings if stands_for(s.name) not in PAPER and s.scheme in form.schemes]
    others.sort(key=lambda setting: form.schemes.index(setting.scheme))
    columns += [column for setting in others for column in columns_of(setting, form)]
    headings = [column.heading for column in columns]
    columns.sort(key=lambda column: headings.index(column.heading))  # neighbours share a heading
    return made(name, form.title, columns, form.rows, paper, form.only) if columns else None


def columns_of(setting: Setting, form: Form) -> list[Column]:
    """The columns of a setting: one, or one for each of its domains."""
    preset = stands_for(setting.name)
    heading, label = PAPER.get(preset, ("", ""))
    quick = " (quick)" if setting.name != preset and (heading or label) else ""
    addition = quick + setting.label.removeprefix(setting.name)
    if not form.by_domain:
        heading = heading or SCHEMES.get(setting.scheme, "")
        return [Column((label or setting.name) + addition, setting, preset, heading)]
    digests = list(dict.fromkeys(setting.runs.digest))
    domains = dict.fromkeys(domain for digest in digests for domain in setting.domains(digest) if domain)
    known = published_domains(preset)
    ordered = [*(domain for domain in known if domain in domains), *(d for d in domains if d not in known)]
    above = (heading or setting.name) + addition
    if not ordered:
        return [Column("all", setting, "", above)]
    return [Column(initial(domain, known), setting, preset, above, domain) for domain in ordered]


def absent_columns(preset: str) -> list[Column]:
    """What the paper has for a preset that was not run here."""
    heading, label = PAPER[preset]
    domains = published_domains(preset)
    if not domains:
        return [Column(label, None, preset, heading)]
    return [Column(initial(domain, domains), None, preset, heading, domain) for domain in domains]


def initial(domain: str, known: Sequence[str]) -> str:
    """A domain as the paper heads its column; others keep their name."""
    return domain[0].upper() if domain in known else domain


def made(
    name: str, title: str, columns: Sequence[Column], keys: tuple[Key, ...], paper: bool, only: bool = False
) -> Table:
    """The table of these columns, with the commands for what is missing."""
    rows, commands = with_commands(columns, rows_of(columns, keys, paper, only))
    settings = [column.setting for column in columns if column.setting]
    once = list({setting.label: setting for setting in settings}.values())
    letters = [f"{c.label} = {c.domain}" for c in columns if c.domain and c.label != c.domain]
    notes = [f"{', '.join(dict.fromkeys(letters))}."] if letters else []
    if any(setting.name != stands_for(setting.name) for setting in once):
        notes.append(QUICK_NOTE)
    by_domain = {column.setting.label: column.setting for column in columns if column.setting and column.domain}
    notes += [note for setting in by_domain.values() if (note := without_domains(setting))]
    beside = any(cell.published for row in rows for cell in row.cells)
    caption = caption_of(title, once, beside)
    return Table(name, tuple(columns), rows, caption, (*notes, *notes_of(once)), commands, beside, blocks_of(once))


def without_domains(setting: Setting) -> str:
    """A note on seeds that are in no column by domain, as none of their runs kept the manifest of its shards."""
    unknown = setting.runs[~setting.runs.digest.isin(setting.manifests)]
    seeds = ", ".join(map(str, sorted(set(unknown.seed))))
    return (
        f"{setting.label}: runs with seed {seeds} kept no manifest that tells who is of which domain." if seeds else ""
    )
