"""The package layout: which package may import which, and what must not import torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedmosaic_cli

ROOT = Path(fedmosaic_cli.__file__).parent

# Modules that every package but `cotraining` may import.
LEAVES = {
    "errors",
    "machine",
    "plugin_sources",
    "safe_text",
    "schema",
    "seeds",
    "storage.files",
    "storage.lock",
    "storage.syscalls",
    "",
}
# Each package may import itself, the packages listed here, and the leaves. Imports point one way.
ALLOWED = {
    "cotraining": set(),
    "data": set(),
    "models": set(),
    "engine": {"cotraining", "models"},
    "labels": {"cotraining", "engine"},
    "methods": {"cotraining", "engine", "labels"},
    "storage": {"data", "labels"},
    "config": {"data", "engine", "labels", "methods", "models"},
    "report": {"config", "data", "labels", "methods", "storage"},
    "runner": {"config", "cotraining", "data", "engine", "labels", "methods", "models", "report", "storage"},
    "federation": {"config", "data", "engine", "labels", "methods", "runner", "storage"},
    "audit": {"config", "cotraining", "data", "engine", "labels", "methods", "runner", "storage"},
    "sweeps": {"config", "data", "methods", "report", "runner", "storage"},
    "plugins": {"data", "engine", "methods", "models"},
    "method_checks": {"config", "data", "engine", "federation", "methods", "runner", "storage"},
    "cli": {
        *("audit", "config", "data", "engine", "federation", "labels", "method_checks"),
        *("methods", "plugins", "report", "runner", "storage", "sweeps"),
    },
    "api": {"config", "data", "engine", "method_checks", "methods", "models", "plugins", "report", "runner", "storage"},
    "errors": set(),
    "machine": set(),
    "plugin_sources": set(),
    "safe_text": set(),
    "schema": set(),
    "seeds": set(),
    "storage.files": set(),
    "storage.lock": set(),
    "storage.syscalls": set(),
}
# The formulas depend on nothing else of ours.
WITHOUT_LEAVES = {"cotraining"}

MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name not in ("__main__.py",))


def package_of(module: str) -> str:
    """The part of the package that a dotted module below `fedmosaic_cli` belongs to."""
    return module if module in ALLOWED else module.split(".", maxsplit=1)[0]


def imported_packages(path: Path) -> set[str]:
    """The parts of the package that a module imports, including imports for type checking."""
    modules = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            is_module = (ROOT.parent / node.module.replace(".", "/")).with_suffix(".py").exists()
            names = [node.module] if is_module else [f"{node.module}.{alias.name}" for alias in node.names]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        modules |= {name.partition(".")[2] for name in names if name.split(".")[0] == "fedmosaic_cli"}
    return {package_of(module) for module in modules if not module.startswith("__")}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_one_way(path):
    package = package_of(path.with_suffix("").as_posix().replace("/", ".").removesuffix("__init__").rstrip("."))
    if package == "":  # for type checking and lazy exports only: tests/test_api.py checks what an import loads
        assert imported_packages(path) <= {"api", "engine", "errors", "methods", "plugins"}
        return
    leaves = set() if package in WITHOUT_LEAVES else LEAVES
    assert imported_packages(path) <= ALLOWED[package] | leaves | {package}


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] == "methods"], ids=str)
def test_methods_use_the_contract_and_not_the_engine(path):
    """A method uses the contract, messages, loss terms and model arithmetic; the loop and the trainer are hidden."""
    text = (ROOT / path).read_text(encoding="utf-8")
    allowed = {"method", "context", "peers", "messages", "params", "losses"}
    engine = {path.stem for path in (ROOT / "engine").glob("*.py")} - {"__init__"}
    assert allowed < engine
    for module in engine - allowed:
        assert f"engine.{module} " not in text
        assert f"engine import {module}" not in text


@pytest.mark.parametrize("path", [path for path in MODULES if path.parts[0] != "cli"], ids=str)
def test_only_the_command_line_imports_typer(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    printing = {"typer"} if path.parts[0] == "report" else {"typer", "rich"}  # tables for a terminal are a format
    assert not {name.split(".")[0] for name in names} & printing


def test_the_loop_knows_nothing_of_labels_attacks_or_sites():
    text = (ROOT / "engine" / "rounds.py").read_text(encoding="utf-8").lower()
    assert len(text.splitlines()) <= 100
    assert not re.search("opinion|attack|lying|vote|pseudo|site", text)


def test_few_class_names_are_defined_twice():
    names = [
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


DIALECT = re.compile("[Ss]o many|is none|[Ss]omebody|[Nn]obody|[Aa]nybody|[Ww]hoever")


def test_the_package_is_written_in_plain_english():
    found = [
        f"{path}:{number}"
        for path in MODULES
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if DIALECT.search(line)
    ]
    assert len(found) < 30, found


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_flower_is_imported_only_by_the_modules_that_flower_loads(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    if any(name.split(".")[0] == "flwr" for name in names):
        assert path.as_posix() in (
            "federation/flower/relay_serverapp.py",
            "federation/flower/node_program.py",
            "federation/flower/flower_messages.py",
            "federation/flower/superexec.py",
        )


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_only_the_command_line_prints_and_exits(path):
    if path.parts[0] == "cli":
        return
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "sys.exit", "exit", "os.system", "torch.manual_seed", "np.random.seed"), (
                called
            )
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "a bare except"
        if isinstance(node, ast.Assert):
            pytest.fail("an assert as validation")


CHANGES_FILES = re.compile(
    r"(os|shutil)\.(open|write|replace|rename|link|mkdir|makedirs|unlink|remove|rmdir|rmtree|copy\w*|move|\w*truncate|\w*fallocate)"
    r"|.*\.(write_bytes|write_text|touch|unlink|rmdir|mkdir|hardlink_to|symlink_to|rename|open_memmap|tofile)"
)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_files_change_in_one_place_only(path):
    """Other writes could not be made to fail by a test. The image cache is written by many processes."""
    if path.name in ("syscalls.py", "image_cache.py"):
        return
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        modes = [ast.unparse(argument) for argument in node.args if "open" in called.split(".")[-1]]
        writes = any(re.fullmatch(r"'[wax]\+?b?'", mode) for mode in modes)
        allowed = called.startswith("syscalls.") or (called == "os.write" and path.name == "interrupt.py")
        harmless = called == "os.open" and "os.O_RDONLY" in ast.unparse(node)
        if not allowed and not harmless:
            assert not writes or "os.devnull" in ast.unparse(node), ast.unparse(node)
            assert not CHANGES_FILES.fullmatch(called), called


INSTANT = [
    [],
    ["--help"],
    ["--version"],
    *(
        [command, "--help"]
        for command in (
            *("partition", "train", "baseline", "reproduce", "watch"),
            *("evaluate", "forecast", "report", "presets", "doctor", "site", "federation"),
        )
    ),
    ["presets", "list"],
    ["presets", "show", "quickstart"],
    ["baseline", "--list"],
    ["reproduce"],
    ["reproduce", "no-such-table"],
    ["reproduce", "compact", "--methods", "fedpox"],
    ["reproduce", "label-skew", "--dry-run"],
    ["reproduce", "compact", "--dry-run", "--json"],
    ["reproduce", "compact", "--dry-run", "--engine", "ray", "--ray-address", "auto", "--job-cpus", "2"],
    ["reproduce", "compact", "--engine", "ray", "--methods", "fedpox"],
    ["reproduce", "compact", "--engine", "ray", "--job-gpus", "1.5"],
    ["reproduce", "compact", "--job-cpus", "2"],
    ["reproduce", "compact", "--print-commands"],
    ["report", "no-such-directory"],
    ["watch", "no-such-directory"],
    ["partition", "--scheme", "round-robin"],
    ["partition", "--scheme", "iid", "--clients", "0"],
    ["train"],
    ["train", "--preset", "quickstrat"],
    ["train", "--preset", "quickstart", "--set", "train.ruonds=3"],
    ["train", "--preset", "quickstart", "--set", "methods.fedmosaic.trsut=3"],
    ["train", "--preset", "quickstart", "--set", "data.public_size=100000"],
    ["train", "--preset", "quickstart", "--expertise", "guess"],
    ["train", "--preset", "quickstart", "--seeds", "0,x"],
    ["train", "--preset", "quickstart", "--bogus"],
    ["train", "--preset", "quickstart", "--simulate-sites", "3"],
    ["train", "--preset", "quickstart", "--engine", "flower", "--superlink", "0.0.0.0:9443"],
    ["site", "init", "--shard", "no-such-shard"],
    ["site", "start"],
    ["site", "status"],
    ["site", "pack", "--help"],
    ["site", "pack", "--client", "0"],
    ["federation", "public", "--images", "no-such-directory"],
    ["federation", "gather", "no-such.json", "--public", "no-such.npz", "--out", "ours"],
    ["train", "--preset", "quickstart", "--dp", "foo"],
    ["train", "--preset", "quickstart", "--dp", "krr"],
    ["train", "--preset", "quickstart", "--dp", "krr", "--dp-epsilon", "much"],
    ["train", "--preset", "quickstart", "--dp", "krr,histogram", "--dp-epsilon", "8", "--expertise", "entropy"],
    ["train", "--preset", "quickstart", "--dp", "krr", "--dp-epsilon", "8", "--dp-max-eps", "2"],
    ["baseline", "fedavg", "--preset", "quickstart", "--dp", "krr", "--dp-epsilon", "8"],
    ["baseline", "fedpox", "--preset", "quickstart"],
    ["evaluate", "no-such-run"],
    ["forecast"],
    ["forecast", "no-such-run"],
    ["evaluate", "no-such-run", "--lira"],
    ["evaluate", "no-such-run", "--privacy", "--lira", "--shadow-models", "1"],
    ["evaluate", "no-such-run", "--privacy", "--split", "test"],
]


def run_in_new_process(script: str, folder: Path) -> None:
    """Run a script in a new process."""
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_help_and_argument_errors_import_neither_torch_nor_ray(tmp_path):
    """One process runs all of them, which is faster."""
    script = (
        "import sys\n"
        "from fedmosaic_cli.cli.app import app\n"
        f"for arguments in {INSTANT!r}:\n"
        "    try:\n"
        "        app(arguments)\n"
        "    except SystemExit as leaving:\n"
        "        assert leaving.code in (0, 2), (arguments, leaving.code)\n"
        "    assert not {'torch', 'ray'} & sys.modules.keys(), arguments\n"
    )
    run_in_new_process(script, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_reporting_and_watching_real_runs_does_not_import_torch(tmp_path, finished_runs):
    script = (
        "import sys\n"
        "from fedmosaic_cli.cli.app import app\n"
        "for form in ([], ['--latex'], ['--markdown'], ['--csv'], ['--json']):\n"
        "    try:\n"
        f"        app(['report', {str(finished_runs)!r}, *form])\n"
        "    except SystemExit as leaving:\n"
        "        assert leaving.code == 0\n"
        "for form in ([], ['--json']):\n"
        "    try:\n"
        f"        app(['watch', {str(finished_runs)!r}, *form])\n"
        "    except SystemExit as leaving:\n"
        "        assert leaving.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    run_in_new_process(script, tmp_path)


def test_the_list_of_commands_shows_the_first_line_of_each_help():
    """The line is stored twice, so that listing the commands imports none of them."""
    from fedmosaic_cli.cli.app import COMMANDS, load_command

    for name, line in COMMANDS.items():
        assert load_command(name).help.splitlines()[0] == line, name


def test_the_list_of_commands_loads_none_of_them(tmp_path):
    script = (
        "import sys\n"
        "from fedmosaic_cli.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "loaded = {'numpy', 'pydantic', 'yaml', 'fedmosaic_cli.methods'} & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
    )
    run_in_new_process(script, tmp_path)


@pytest.mark.integration
def test_a_run_on_digits_loads_neither_scikit_learn_nor_torch_s_compiler(tmp_path):
    script = (
        "import sys\n"
        "from fedmosaic_cli.cli.app import app\n"
        "try:\n"
        "    app(['train', '--preset', 'quickstart', '--rounds', '2', '--quiet'])\n"
        "except SystemExit as leaving:\n"
        "    assert leaving.code == 0\n"
        "loaded = {'sklearn', 'scipy', 'torch._dynamo', 'torchvision'} & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
    )
    run_in_new_process(script, tmp_path)


def test_the_contract_of_methods_is_small():
    """A method author meets at most 16 members."""
    from fedmosaic_cli.engine.method import Method

    members = {name for name in vars(Method) if not name.startswith("_")} | set(Method.__annotations__)
    assert len(members) <= 16, sorted(members)
