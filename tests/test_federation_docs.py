"""docs/security.md and docs/federation.md cite tests for attacks and failures: these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("security.md", "federation.md")}
TEST_FILES = {
    f"/{path.relative_to(ROOT).as_posix()}": path.read_text(encoding="utf-8")
    for path in (ROOT / "tests").rglob("test_*.py")
}
FILE_PATTERN = re.compile(r"(?:\w+/)*test_\w+\.py")
PAIR_PATTERN = re.compile(rf"({FILE_PATTERN.pattern})::(test_\w+)")
BARE_NAME_PATTERN = re.compile(r"(?<![:\w/])(test_\w+)(?![\w.])")

pytestmark = pytest.mark.unit


def cited(pattern):
    """Return the sorted citations of a kind in all pages, each with the name of the page."""
    return sorted({(page, match) for page, text in PAGES.items() for match in pattern.findall(text)})


def files_named(name):
    """Return the texts of the test files whose path ends with a name, such as `flower/test_federation.py`."""
    return [text for path, text in TEST_FILES.items() if path.endswith(f"/{name}")]


@pytest.mark.parametrize(("page", "name"), cited(FILE_PATTERN))
def test_a_cited_test_file_exists(page, name):
    assert len(files_named(name)) == 1, page


@pytest.mark.parametrize(("page", "citation"), cited(PAIR_PATTERN))
def test_a_cited_test_exists_in_its_file(page, citation):
    file_name, test_name = citation
    assert any(f"def {test_name}(" in text for text in files_named(file_name)), page


@pytest.mark.parametrize(("page", "name"), cited(BARE_NAME_PATTERN))
def test_a_test_that_is_cited_without_a_file_exists(page, name):
    assert any(f"def {name}(" in text for text in TEST_FILES.values()), page


def test_a_citation_without_a_file_name_is_not_used():
    for page, text in PAGES.items():
        assert "...::" not in text, page


def test_every_actor_has_a_table_of_protections():
    page = PAGES["security.md"]
    for actor in ("Curious coordinator", "Malicious coordinator", "Malicious site", "Other users on the same machine"):
        section = page.split(f"### {actor}\n")[1].split("\n#")[0]
        assert re.search(r"\| test \|\n", section), actor


def test_every_failure_has_a_test():
    section = PAGES["federation.md"].split("## Failures and recovery\n")[1].split("\n## ")[0]
    table = section.split("| event | result | test |\n")[1].split("\n\n")[0]
    for row in table.splitlines()[1:]:
        assert PAIR_PATTERN.search(row.rsplit("|", 2)[1]), row
