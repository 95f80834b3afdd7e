"""docs/python-api.md names everything that jobs and queues offer, and every error."""

from __future__ import annotations

import inspect
import re

import pytest

from django_redisqueue import Job, JobQueue, exceptions
from tests.support.imports import ROOT

from .pages import assert_lists

PAGE = (ROOT / "docs/python-api.md").read_text(encoding="utf-8")
ERRORS = inspect.getmembers(
    exceptions,
    lambda one: (
        inspect.isclass(one)
        and issubclass(one, BaseException)
        and one.__module__ == exceptions.__name__
    ),
)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("offered", [Job, JobQueue])
def test_every_public_name_is_on_the_page(offered: type) -> None:
    names = {name for name in dir(offered) if not name.startswith("_")}
    found = {name for name in names if re.search(rf"`{name}\b", section(offered.__name__))}
    assert_lists(f"docs/python-api.md, section {offered.__name__},", found, names)


def test_every_error_is_on_the_page() -> None:
    names = {name for name, _ in ERRORS}
    found = {name for name in names if f"`{name}`" in section("Errors")}
    assert_lists("docs/python-api.md, section Errors,", found, names)


def test_the_three_groups_of_other_exceptions() -> None:
    others = [name for name, one in ERRORS if not issubclass(one, exceptions.RedisQueueError)]
    last = section("Errors").partition("A task itself may raise")[2]
    assert others
    assert [name for name in others if f"`{name}`" not in last] == []
