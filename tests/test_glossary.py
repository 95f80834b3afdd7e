"""docs/glossary.md has every status, reason, option, verb, command and setting, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

import pytest

from django_redisqueue.conf import DEFAULTS
from django_redisqueue.core import statuses
from django_redisqueue.health.findings import FindingId, Level

from .docs.pages import assert_lists
from .support.imports import OWN, ROOT

TEXT = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.M | re.S)
SECTIONS = dict(SECTION.findall(TEXT))


def first_column(section: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", SECTIONS[section], re.M)


def values(*enums: type[StrEnum]) -> set[str]:
    return {member.value for one in enums for member in one} - {""}


def stems(folder: str, suffix: str) -> set[str]:
    return {path.stem for path in (ROOT / OWN / folder).glob(f"*{suffix}")} - {"__init__"}


EXPECTED = {
    "Statuses": values(
        statuses.Status,
        statuses.WorkflowStatus,
        statuses.WorkflowTransition,
        statuses.GatherStatus,
        statuses.ApprovalStatus,
    ),
    "Reasons": values(statuses.JobReason, statuses.GatherReason),
    "Options": values(
        statuses.OnFailure,
        statuses.OnParentFailure,
        statuses.Misfire,
        statuses.Overlap,
        statuses.Audit,
        statuses.OnConflict,
        statuses.UniqueMode,
    ),
    "Verbs": stems("broker/lua", ".lua"),
    "Commands": stems("management/commands", ".py"),
    "Settings": set(DEFAULTS),
}


def test_every_finding_is_listed_with_its_level_and_when_it_appears() -> None:
    page = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \|", page, re.M)
    names = [name for name, _ in listed]
    assert len(names) == len(set(names))
    assert_lists("the table in docs/health.md", names, FindingId)
    assert {level for _, level in listed} == set(Level)


@pytest.mark.parametrize(("section", "expected"), EXPECTED.items(), ids=EXPECTED)
def test_each_name_has_a_row(section: str, expected: Iterable[str]) -> None:
    listed = first_column(section)
    assert len(listed) == len(set(listed))
    assert_lists(f"docs/glossary.md, section {section},", listed, expected)


def test_every_enum_of_statuses_is_compared() -> None:
    found = {
        member.value
        for value in vars(statuses).values()
        if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
        for member in value
    }
    compared = EXPECTED["Statuses"] | EXPECTED["Reasons"] | EXPECTED["Options"]
    assert_lists("EXPECTED, in this file,", compared, found - {""})


def test_words_are_in_order_and_have_a_meaning() -> None:
    rows = re.findall(r"^\| ([a-z][\w ]*) \| (.+) \|$", SECTIONS["Words"], re.M)
    words = [word for word, _ in rows if word != "word"]
    assert len(words) > 40
    assert words == sorted(words)
    assert all(meaning.endswith(".") for word, meaning in rows if word != "word")
