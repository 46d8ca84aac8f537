"""Links and words of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
SEARCHED_TERMS = (
    *("aggregate", "baseline", "broadcast", "Byzantine clients", "checkpoint", "consensus", "evaluate", "execute"),
    *("expertise", "feature shift", "gated", "helped, hurt clients", "kB", "label skew", "membership inference"),
    *("non-IID", "oracle", "partition", "personalization", "proximal term", "pseudo-label", "public set", "resume"),
    *("seed", "shard", "student", "trust (lambda)", "upload", "W and U variants"),
)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    broken = []
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_glossary_is_alphabetical_and_has_the_terms_that_readers_search():
    rows = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = [row.split(" | ")[0].removeprefix("| ") for row in rows if row.startswith("| ")][1:]
    assert terms == sorted(terms, key=str.lower)
    assert set(SEARCHED_TERMS) <= set(terms)
