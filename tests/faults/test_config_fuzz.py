"""Fuzzing configurations: each is accepted, or refused quickly and in one line."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmosaic_cli.cli import main
from fedmosaic_cli.config.layers import CONFIG_SECTIONS, field_names
from fedmosaic_cli.config.presets import presets_directory
from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.data.datasets import DATASETS
from fedmosaic_cli.methods.registry import METHODS
from tests.faults.command_checker import CommandChecker
from tests.faults.conftest import CommandResult

FILE = "fuzzed.yaml"
AS_CONFIG = ("train", "--preset", "quickstart", "--config", FILE, "--dry-run")
AS_PRESET = ("train", "--preset", FILE, "--dry-run")
EXTENDED = ("train", "--preset", "child.yaml", "--dry-run")
SET = ("train", "--preset", "quickstart", "--dry-run", "--set")
PRESETS = sorted(presets_directory().glob("*.yaml"))
KINDS: dict[str, Any] = {**CONFIG_SECTIONS, **{f"methods.{name}": method for name, method in METHODS.items()}}
KEYS = sorted(f"{section}.{key}" for section, kind in KINDS.items() for key in field_names(kind))

# Values at and around limits.
NUMBERS = ["0", "-1", "1", "2", "3.0", "100000", "100001", "1000000", "10000000", "65536", "65537", "4096", "1e30"]
NUMBERS += ["1e-300", "1e308", "5e-324", "1e999", "-1e999", "9223372036854775808", "9" * 400, "9" * 5000, "0x7f", "1_0"]
NUMBERS += [".nan", ".inf", "-.inf", "-0.0", "1e5", "01", "1:30", "+1", "0.5", "0.1"]
VALUES = ["true", "no", "null", "~", "'1'", '"0.1"', "[]", "{}", "[1, 2]", "[[[]]]", "{a: b}", "{1: 2}", "'mlp'", "''"]
VALUES += ["k" * 10_000, "'\u202e'", '"\\e[2J"', '"\\0"', '"\\ud800"', "é", "2020-01-01", "!!int ''", "!!bool maybe"]
VALUES += ["!!timestamp no", "!!python/name:os.system", "!!set {a}", "!!omap [a: 1]", "!!binary '?'", "! x", "&a [*a]"]
VALUES += ["*nobody", "<<", "=", "|", ">", "- ", "? ", "%", "@", "`", "\t", "{", "]", "'", '"', "# "]
TOKENS = [*NUMBERS, *VALUES]


def alias_bomb(first: str, link: str, times: int, generations: int = 12) -> str:
    """Return anchors that each refer to the previous one many times."""
    later = [
        f"a{n}: &a{n} {link.format(', '.join([f'*a{n - 1}'] * times))}"
        for n in range(1, min(generations, 100 // times))
    ]
    return "\n".join([f"a0: &a0 {first}", *later])


# Complete hostile documents.
DOCUMENTS = {
    "code": "!!python/object/apply:os.system ['touch executed']",
    "code below a key": "train: {lr: !!python/object/apply:os.system ['touch executed']}",
    "an object": "train: !!python/object/new:os.system ['touch executed']",
    "lists of lists": alias_bomb("[x, x, x]", "[{}]", times=9),
    "mappings merged": alias_bomb("{x: 1}", "{{<<: [{}]}}", times=4, generations=30),
    "one long list, often": alias_bomb(f"[{'0, ' * 5000}]", "[{}]", times=49),
    "more aliases than anybody needs": f"a: &a 1\nb: [{'*a, ' * 500}]",
    "in itself": "train: &a {lr: *a}",
    "merged into itself": "train: &a {<<: [*a, *a]}",
    "deep lists": "train: " + "[" * 50_000,
    "deep mappings": "train: " + "{a: " * 5_000 + "1" + "}" * 5_000,
    "deep blocks": "".join(" " * depth + "a:\n" for depth in range(700)),
    "deep keys": "? " * 50_000,
    "a key twice": "train: {lr: 0.1, lr: 0.2}",
    "a section twice": "train: {lr: 0.1}\ntrain: {lr: 0.2}",
    "keys of other types": "methods: {5: {mu: 1}, null: {}, .nan: {}}",
    "no key": "clients: {'': {lr: 0.1}}",
    "a list as a key": "? [a]\n: 1",
    "numbers as sections": "{1: 2, 3: 4}",
    "many clients": "data: {dataset: cifar10, clients: 100000, public_size: 10000000}",
    "many clients of many kinds": "data: {dataset: cifar10, clients: 100000}\nclients:\n"
    + "".join(f"  {n}: {{lr: 0.{n + 1:04d}}}\n" for n in range(50)),
    "many clients in many domains": "data: {dataset: domainnet, scheme: domain, clients_per_domain: 100000}",
    "all clients there could be": "clients: {0-999999999999999999: {lr: 0.1}}",
    "many layers": f"model: {{hidden: [{'1, ' * 5000}]}}",
    "wide layers": "model: {hidden: [65536, 65536, 65536]}\ntrain: {batch_size: 1000000}",
    "many patches": "data: {dataset: office10, scheme: domain, image_size: 4096}\nmodel: {name: vit, patch: 1}\n"
    "train: {batch_size: 1000000}",
    "many flips": f"data: {{flip_labels: [{'1, ' * 100_000}]}}",
    "skewed without measure": "data: {alpha: 5e-324, public_alpha: 1e308}",
    "large": "#" * (1 << 21),
    "many blank lines": "\n" * 300_000,
    "a long key": f"? {'k' * 100_000}\n: 1",
    "steering a terminal": '"\\e[2J\\b\\0": 1',
    "no characters": b"train: {lr: \xff}",
    "sixteen bits": "train: {lr: 0.5}".encode("utf-16"),
    "a zero": b"train:\0 {lr: 0.5}",
    "two documents": "train: {}\n---\ntrain: {}",
    "no YAML of ours": "%YAML 9.9\n---\ntrain: {}",
    "extends in a layer": "extends: quickstart",
    "nothing": "",
    "no mapping": "train",
}

# Values of `extends`.
PARENTS = [
    *("quickstart", "quickstart-mixed", "nobody", "child.yaml", "../child.yaml", "/etc/passwd.yaml", "folder.yaml"),
    *('"a\\0.yaml"', '"\\ud800.yaml"', '"\\e.yaml"', f"{'a' * 5000}.yaml", "[quickstart]", "{a: b}", "5", "null", "''"),
]

ASSIGNMENTS = [
    *("", "=", "=1", "train", "train=1", ".lr=1", "train.=1", "train.lr", "clients..lr=1", "methods..mu=1", "a.b=1"),
    *(f"train.lr.{'a.' * 2000}b=1", f"clients.0.model.name.{'a.' * 2000}b=1", f"{'.' * 5000}=1", "train.lr=&a [*a]"),
    *("train.\udcff=1", "train.lr=\0", "train.lr=!!int ''", "train.lr=[", "clients.0.model=cnn", "clients.0=cnn"),
]


def test_command_checker_detects_violations(run_command, tmp_path):
    """Check that each violated guarantee fails the checker."""
    for broken in (
        CommandResult(1, "", "error: x\n"),
        CommandResult(2, "", "x\n"),
        CommandResult(2, "", "warning: x\nerror: x\n"),
    ):
        with pytest.raises(AssertionError):
            CommandChecker(lambda *_, result=broken: result, tmp_path)("train")

    def leave_file(*arguments):
        (tmp_path / "leave_file").touch()
        return CommandResult(2, "", "error: x\n")

    with pytest.raises(AssertionError):
        CommandChecker(leave_file, tmp_path)("train")
    with pytest.raises(AssertionError, match=r"\d s, "):
        CommandChecker(run_command, tmp_path)("presets", "list", max_seconds=0.0)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_hostile_document(check_command, tmp_path, name):
    content = DOCUMENTS[name]
    (tmp_path / FILE).write_bytes(content if isinstance(content, bytes) else content.encode())
    for arguments in (AS_CONFIG, AS_PRESET):
        check_command(*arguments, given=content)
    assert not (tmp_path / "executed").exists()


def test_invalid_parents(check_command, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    for parent in PARENTS:
        (tmp_path / "child.yaml").write_text(f"extends: {parent}\n")
        check_command(*EXTENDED, given=parent)


def test_invalid_assignments(check_command):
    for assignment in ASSIGNMENTS:
        check_command(*SET, assignment)


@pytest.mark.parametrize("name", ["a\0.yaml", f"{'a' * 5000}.yaml", "\ud800.yaml", ".yaml", "", ".", "/"])
def test_invalid_file_names_are_refused(check_command, name):
    assert check_command("train", "--preset", name, "--dry-run").exit_code == 2
    assert check_command("train", "--preset", "quickstart", "--config", name, "--dry-run").exit_code == 2


def test_file_name_that_is_not_utf8_is_accepted(warm_up, tmp_path, monkeypatch):
    """The output must show the name although it accepts only text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedmosaic_cli.cli.install_signal_handlers", lambda: None)
    monkeypatch.setattr("sys.argv", ["fedmosaic", "train", "--preset", "ours.yaml", "--dry-run"])
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="utf-8"))
    (tmp_path / "ours.yaml").write_text('extends: "\\udcff.yaml"\n')
    (tmp_path / "\udcff.yaml").write_text("train: {rounds: 3}\n")
    with pytest.raises(SystemExit, match="0"):
        main()
    assert rb"\udcff" in shown.getvalue()


def flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.choices(range(len(data) + 1), k=2))
    return data[:start] + (data[end:] if rng.random() < 0.5 else b"")


def insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    new = rng.randbytes(rng.randint(1, 20)) if rng.random() < 0.3 else rng.choice(TOKENS).encode()
    return data[:at] + new + data[at:]


def by_lines(data: bytes, rng: random.Random) -> bytes:
    """Duplicate, swap or indent lines."""
    lines = data.splitlines()
    here, there = (rng.randrange(len(lines)) for _ in range(2))
    kind = rng.randrange(3)
    if kind == 0:
        lines.insert(there, lines[here])
    elif kind == 1:
        lines[here], lines[there] = lines[there], lines[here]
    else:
        lines[here] = b" " * rng.randint(1, 4) + lines[here]
    return b"\n".join(lines)


def other_value(data: bytes, rng: random.Random) -> bytes:
    """Replace the value of a key by a hostile one or by that of another key."""
    lines = data.splitlines()
    keyed = [number for number, line in enumerate(lines) if b": " in line]
    if not keyed:
        return insert(data, rng)
    here, there = rng.choice(keyed), rng.choice(keyed)
    value = rng.choice(TOKENS).encode() if rng.random() < 0.8 else lines[there].partition(b": ")[2]
    lines[here] = lines[here].partition(b": ")[0] + b": " + value
    return b"\n".join(lines)


def other_key(data: bytes, rng: random.Random) -> bytes:
    """Add a setting of an existing or a new section."""
    section, _, key = rng.choice(KEYS).rpartition(".")
    wrong = rng.random() < 0.2
    nested = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(section.split(".")))
    depth = "  " * (section.count(".") + 1)
    return data + f"\n{nested}{depth}{key}{'x' if wrong else ''}: {rng.choice(TOKENS)}\n".encode()


MUTATIONS = (flip, cut, insert, by_lines, other_value, other_value, other_value, other_key)


def mutated(rng: random.Random) -> bytes:
    """Return a preset without most comments, changed in one or a few positions."""
    text = rng.choice(PRESETS).read_text()
    data = "\n".join(line for line in text.splitlines() if not line.startswith("#")).encode()
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        data = rng.choice(MUTATIONS)(data or b"train: {}", rng)
    return data


def try_mutation(seed: int, check_command: CommandChecker, folder: Path) -> None:
    rng = random.Random(f"configuration {seed}")
    arguments = rng.choice([AS_CONFIG, AS_CONFIG, AS_CONFIG, AS_PRESET, AS_PRESET, EXTENDED, SET])
    if arguments is SET:
        key = rng.choice(KEYS) if rng.random() < 0.9 else rng.choice(KEYS)[rng.randrange(5) :]
        check_command(*SET, f"{key}={rng.choice(TOKENS)}", given=seed)
        return
    data = mutated(rng)
    if arguments is AS_CONFIG:  # a layer neither extends anything nor describes itself
        data = b"\n".join(line for line in data.splitlines() if not line.startswith((b"extends", b"description")))
    (folder / FILE).write_bytes(data)
    (folder / "child.yaml").write_text(f"extends: {FILE}\ntrain: {{rounds: 3}}\n")
    check_command(*arguments, given=(seed, data))


def test_some_mutated_presets(check_command, tmp_path):
    for seed in range(150):
        try_mutation(seed, check_command, tmp_path)
    assert set(check_command.codes) == {0, 2}, "some are understood all the same"


@pytest.mark.slow
def test_thousands_of_mutated_presets(check_command, tmp_path):
    for seed in range(1_000, 5_000):
        try_mutation(seed, check_command, tmp_path)
    assert min(check_command.codes.values()) > 200


def choices(annotation: Any) -> list[str]:
    """Return the strings that a type allows."""
    return [word for part in get_args(annotation) for word in ([part] if isinstance(part, str) else choices(part))]


def plausible() -> dict[str, list[Any]]:
    """Return by key the values of presets and those that its type allows."""
    values: dict[str, list[Any]] = {key: [] for key in KEYS}
    for preset in PRESETS:
        for key, value in flatten_keys(read_yaml(preset)).items():
            if key in values:
                values[key].append(value)
    for section, kind in KINDS.items():
        fields = getattr(kind, "model_fields", None) or kind.__pydantic_fields__
        for key, described in fields.items():
            values[f"{section}.{key}"] += [described.default, *choices(described.annotation)]
    values["data.dataset"] += [*DATASETS]
    return values


PLAUSIBLE = plausible()
BOUNDS = [0, 1, 2, 10, 100, 4096, 65_536, 100_000, 1_000_000, 10_000_000, 0.0, 0.5, 1.0, 1e-300, 1e30, 1e308]
# A run in this process disables subnormal numbers.
FLOATS = st.floats(allow_subnormal=False)
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | st.text(max_size=20) | st.sampled_from(BOUNDS)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | SCALARS, inner, max_size=4),
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Generate existing keys with plausible values, most of them with an error."""
    wild = draw(st.integers(0, 3)) > 0
    content: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True)):
        *sections, name = key.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        likely = st.sampled_from(PLAUSIBLE[key])
        place[name] = draw(likely | st.sampled_from(BOUNDS) | ANYTHING if wild else likely)
    if wild and draw(st.booleans()):
        model = st.sampled_from(PLAUSIBLE["model.name"]) | ANYTHING
        client = st.fixed_dictionaries({}, optional={"model": model, "lr": SCALARS})
        content["clients"] = draw(st.dictionaries(st.sampled_from(["0", "0-4", "9-5", 1, "x"]), client, max_size=2))
    if draw(st.integers(0, 9)) == 0:
        content[draw(st.text(max_size=8))] = draw(ANYTHING)
    return content


FEW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=1_000)


def try_content(content: Any, check_command: CommandChecker, folder: Path) -> None:
    (folder / FILE).write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    check_command(*AS_CONFIG, given=content)


@FEW
@given(content=configurations())
def test_some_generated_configurations(check_command, tmp_path, content):
    try_content(content, check_command, tmp_path)


@pytest.mark.slow
@MANY
@given(content=configurations() | st.dictionaries(st.text(max_size=8), ANYTHING, max_size=3))
def test_many_generated_configurations(check_command, tmp_path, content):
    try_content(content, check_command, tmp_path)
