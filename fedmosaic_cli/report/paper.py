"""The paper's tables: which settings are their columns, which methods their rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.captions import caption_of, notes_of
from fedmosaic_cli.report.commands import USUAL_SEEDS, commands_for, conditions_of
from fedmosaic_cli.report.published import published_domains
from fedmosaic_cli.report.table import OVERVIEW, Column, Table, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.settings import Key, Setting
    from fedmosaic_cli.report.table import Row

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

FEDMOSAIC_W, FEDMOSAIC_U = ("fedmosaic", "frequency"), ("fedmosaic", "entropy")
EVERYBODY: tuple[Key, ...] = tuple((name, "") for name in METHODS if name != "fedmosaic")
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
        (*EVERYBODY, FEDMOSAIC_W),
    ),
    "feature-shift": Form(
        "feature shift, by domain",
        ("feature-shift-office10", "feature-shift-domainnet"),
        ("domain",),
        "quickstart-feature-shift",
        (*EVERYBODY, FEDMOSAIC_U),
        by_domain=True,
    ),
    "hybrid": Form(
        "label skew and feature shift at once",
        ("hybrid-domainnet", "hybrid-domainnet-vit", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*EVERYBODY, FEDMOSAIC_W, FEDMOSAIC_U),
    ),
    "compact": Form(
        "label skew and feature shift at once, in brief",
        ("hybrid-domainnet", "hybrid-office10"),
        ("hybrid",),
        "quickstart-hybrid",
        (*((name, "") for name in FEW), FEDMOSAIC_W),
        only=True,
    ),
}


def overview(settings: Sequence[Setting], paper: bool) -> Table:
    """All settings in one table, with the methods that were run in any of them."""
    columns = [Column(setting.label, setting, setting.name) for setting in settings]
    return made(OVERVIEW, "", columns, (), paper)


def paper_table(name: str, settings: Sequence[Setting], paper: bool) -> Table | None:
    """One of the paper's tables from these settings; None where there is nothing to put in it.

    With `paper`, columns that nobody ran are there as well.
    """
    form = FORMS[name]
    columns: list[Column] = []
    for preset in form.presets:
        same = [setting for setting in settings if setting.name == preset]
        columns += [column for setting in same for column in columns_of(setting, form)]
        columns += absent_columns(preset) if paper and not same else []
    others = [setting for setting in settings if setting.name not in PAPER and setting.scheme in form.schemes]
    others.sort(key=lambda setting: (form.schemes.index(setting.scheme), setting.label))
    columns += [column for setting in others for column in columns_of(setting, form)]
    headings = [column.heading for column in columns]
    columns.sort(key=lambda column: headings.index(column.heading))  # neighbours share a heading
    return made(name, form.title, columns, form.rows, paper, form.only) if columns else None


def columns_of(setting: Setting, form: Form) -> list[Column]:
    """The columns of a setting: one, or one for each of its domains."""
    heading, label = PAPER.get(setting.name, ("", ""))
    addition = setting.label.removeprefix(setting.name)
    if not form.by_domain:
        heading = heading or SCHEMES.get(setting.scheme, "")
        return [Column((label or setting.name) + addition, setting, setting.name, heading)]
    digests = list(dict.fromkeys(setting.runs.digest))
    domains = dict.fromkeys(domain for digest in digests for domain in setting.domains(digest) if domain)
    known = published_domains(setting.name)
    ordered = [*(domain for domain in known if domain in domains), *(d for d in domains if d not in known)]
    above = (heading or setting.name) + addition
    if not ordered:
        return [Column("all", setting, "", above)]
    return [Column(initial(domain, known), setting, setting.name, above, domain) for domain in ordered]


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
    rows = rows_of(columns, keys, paper)
    if only:  # of FedMosaic, whatever was run
        rows = tuple(row for row in rows if row.key in keys or row.key[0] == "fedmosaic")
    rows, commands = with_commands(columns, rows)
    settings = [column.setting for column in columns if column.setting]
    once = list({setting.label: setting for setting in settings}.values())
    letters = [f"{c.label} = {c.domain}" for c in columns if c.domain and c.label != c.domain]
    notes = (f"{', '.join(dict.fromkeys(letters))}.",) if letters else ()
    return Table(name, tuple(columns), rows, caption_of(title, once, paper), notes + notes_of(once), commands, paper)


def with_commands(columns: Sequence[Column], rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows with a command in every empty cell, and all that is missing in as few commands as can be."""
    conditions = {column: conditions_of_column(column) for column in columns}
    together: dict[str, dict[Key, tuple[int, ...]]] = {}
    for number, column in enumerate(columns):
        wanted = column.setting.seeds if column.setting else USUAL_SEEDS
        for row in rows:
            done = row.cells[number].ours
            lacking = tuple(seed for seed in wanted if not done or seed not in done.seeds)
            # What was run with hyper-parameters of its own is nothing that others lack, and where nobody ran anything
            # the paper's rows are enough.
            expected = column.setting or row.cells[number].published
            if lacking and expected and "=" not in row.key[1]:
                together.setdefault(conditions[column], {})[row.key] = lacking
    filled = tuple(
        replace(
            row,
            cells=tuple(
                cell
                if cell.ours or not (missing := together.get(conditions[column], {}).get(row.key))
                else replace(cell, command=commands_for(conditions[column], {row.key: missing})[0])
                for column, cell in zip(columns, row.cells, strict=True)
            ),
        )
        for row in rows
    )
    return filled, tuple(text for where, missing in together.items() for text in commands_for(where, missing))


def conditions_of_column(column: Column) -> str:
    return conditions_of(column.setting) if column.setting else f"--preset {column.preset}"
