"""The fixtures that an application's tests get through pytest's entry point."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points

import pytest

from tests.support.imports import ROOT

pytest_plugins = ["pytester"]
PLUGIN = "django_redisqueue.pytest_plugin"
TESTS = """
from tests.app.tasks import add

def test_captured(redisqueue_jobs):
    job = add.using(run_after=60).enqueue(1, 2)
    assert redisqueue_jobs.run_due() == []
    redisqueue_jobs.travel(minutes=1)
    assert redisqueue_jobs.run_due() == [job]
    assert job.result == 3

def test_inline(redisqueue_inline):
    assert add.enqueue(1, 2).result == 3
    assert len(redisqueue_inline.jobs) == 1
"""


def test_the_fixtures_need_no_import(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    is_installed = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
    options = () if is_installed else ("-p", PLUGIN)
    result = pytester.runpytest_inprocess(*options, "-p", "no:django", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_the_package_declares_its_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"redisqueue": PLUGIN}
