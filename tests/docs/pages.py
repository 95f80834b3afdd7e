"""The pages that users read, and their contents: code blocks, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.imports import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
_BLOCK = re.compile(r"^( *)```(.*?)\n(.*?)^ *```$", re.M | re.S)
_HEADING = re.compile(r"^#+ (.+)$", re.M)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str, page: Path | None = None) -> list[Block]:
    """All blocks in a language, on all pages or on one."""
    pages = PAGES if page is None else [page]
    return [block for one in pages for block in all_blocks(one) if block.language == language]


def all_blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in reading order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        indent = len(found[1])
        lines = "".join(line[indent:] or "\n" for line in found[3].splitlines(keepends=True))
        yield Block(page, text[: found.start()].count("\n") + 1, found[2], lines)


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub and MkDocs generate them."""
    return {_anchor(heading) for heading in _HEADING.findall(prose(page))}


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower())
    return kept.strip().replace(" ", "-")


def assert_lists(place: str, listed: Iterable[str], existing: Iterable[str]) -> None:
    """Check that a place of the documentation lists what exists, and nothing else."""
    missing = sorted({*existing} - {*listed})
    assert not missing, f"{place} lacks {', '.join(missing)}"
    unknown = sorted({*listed} - {*existing})
    assert not unknown, f"{place} lists what does not exist: {', '.join(unknown)}"


def links(page: Path) -> list[str]:
    """The targets of its links to other pages and headings."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]
