"""The wheel contains its presets and works in a new virtual environment and an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRESETS = {path.name for path in (ROOT / "presets").glob("*.yaml")}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return a directory with a source distribution and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    completed = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return folder


def test_presets_are_in_both_distributions(distributions):
    [wheel], [source] = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.removeprefix("fedmosaic_cli/presets/") for name in names if "/presets/" in name} == PRESETS
    with tarfile.open(source) as archive:
        packed = [name.split("/", 1)[-1] for name in archive.getnames()]
    assert {name.removeprefix("presets/") for name in packed if name.startswith("presets/")} == PRESETS


def test_report_page_is_in_both_distributions(distributions):
    folder = ROOT / "fedmosaic_cli" / "report" / "html"
    page_files = {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.suffix in (".html", ".css", ".js")}
    assert len(page_files) > 3
    [wheel], [source] = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert page_files <= set(archive.namelist())
    with tarfile.open(source) as archive:
        assert page_files <= {name.split("/", 1)[-1] for name in archive.getnames()}


def test_installed_wheel_finds_its_presets_in_an_empty_directory(distributions, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    [wheel] = distributions.glob("*.whl")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    # The dependencies come from this environment; fedmosaic itself comes from the wheel only.
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    completed = subprocess.run(
        [tmp_path / "venv" / "bin" / "fedmosaic", "presets", "list"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert all(name.removesuffix(".yaml") in completed.stdout for name in PRESETS)
    origin = subprocess.run(
        [python, "-c", "import fedmosaic_cli; print(fedmosaic_cli.__file__)"],
        cwd=empty,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert str(tmp_path) in origin
