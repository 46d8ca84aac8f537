"""The notebook in docs/ runs from top to bottom and is stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebooks" / "first-experiment.ipynb"


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def own_registry(monkeypatch):
    """Forget the methods that the notebook registers."""
    from fedmosaic_cli.methods.registry import METHODS
    from fedmosaic_cli.plugin_sources import SOURCES

    methods, sources = dict(METHODS), dict(SOURCES)
    yield
    for registry, content in ((METHODS, methods), (SOURCES, sources)):
        registry.clear()
        registry.update(content)


def test_the_notebook_is_stored_without_outputs():
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells())
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])


def test_the_method_of_the_notebook_has_at_most_ten_lines_of_code():
    (source,) = ["".join(cell["source"]) for cell in code_cells() if "@fedmosaic.method" in cell["source"][0]]
    assert len([line for line in source.splitlines() if line]) <= 10


def test_the_notebook_runs_in_an_empty_directory(tmp_path, monkeypatch, own_registry):
    import matplotlib as mpl

    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(code_cells()):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec", dont_inherit=True), namespace)
    namespace["plt"].close("all")
    result, local, mixture = (namespace[name] for name in ("result", "local", "mixture"))
    assert result.path == Path("runs/quickstart/fedmosaic-entropy/seed-0")
    assert (tmp_path / mixture.path / "summary.json").is_file()
    assert mixture.summary["method"] == "mixture"
    assert mixture.summary["hyperparameters"] == {"alpha": 0.3}
    assert len(result.rounds) == 15 * 10
    assert min(result.accuracy, local.accuracy, mixture.accuracy) > 0.8
    table = namespace["table"].set_index("method")
    assert list(table.index) == ["Local training", "FedMosaic-U", "Mixture (alpha=0.3)"]
    assert table.difference_points["Local training"] == 0
    assert table.difference_points["Mixture (alpha=0.3)"] == pytest.approx(
        100 * (mixture.accuracy - local.accuracy), abs=1e-9
    )
    assert (table[["helped", "unchanged", "hurt"]].sum(axis=1) == 10).all()
    assert [line.get_label() for line in namespace["axes"].lines] == ["fedmosaic-entropy", "local"]
