"""Schedules defined by code: by the decorator and by settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Cron, Every, Task, task
from django_redisqueue.checks import check_settings
from django_redisqueue.client import registry
from django_redisqueue.client.schedules import code_schedules
from django_redisqueue.conf import load
from django_redisqueue.core.codec import decode_payload
from django_redisqueue.core.schedules import ScheduleDefinition, Source, set_digest
from django_redisqueue.exceptions import ConfigurationError, InvalidOption

Register = Callable[..., Task]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Registers tasks for one test; there are no others."""
    monkeypatch.setattr(registry, "_tasks", {})
    return lambda func, **options: task(**options)(func)


def report(region: str = "all", *, detailed: bool = False) -> None: ...


def needs(amount: int) -> None: ...


def with_context(context: Any) -> None: ...


def only() -> ScheduleDefinition:
    (found,) = code_schedules()
    return found


def test_a_task_that_runs_periodically(register: Register) -> None:
    made = register(report, cron="0 4 * * *", queue_name="default", priority=5)
    found = only()
    assert (found.name, found.source, found.error) == (made.name, Source.CODE, "")
    assert found.schedule == Cron("0 4 * * *", timezone="UTC")
    assert (found.job.task, found.job.priority, found.job.id) == (made.name, 5, "")
    assert decode_payload(found.job.payload) == ([], {})


def test_the_time_zone_is_that_of_django(register: Register, settings: Any) -> None:
    register(report, cron="0 4 * * *")
    settings.TIME_ZONE = "Asia/Tokyo"
    assert only().schedule.timing == "0 4 * * * Asia/Tokyo"


@pytest.mark.parametrize("every", ["5m", 300, timedelta(minutes=5), Every("5m")])
def test_intervals(register: Register, every: Any) -> None:
    register(report, every=every)
    assert only().schedule == Every("5m")


def test_further_options_are_those_of_the_schedule(register: Register) -> None:
    cron = Cron("0 4 * * *", timezone="Asia/Tokyo", misfire="all", overlap="skip", jitter="5m")
    made = register(report, cron=cron)
    assert only().schedule == cron
    assert only().job.when == f"+{cron.delay_ms(made.name)}"
    register(with_context, every="1m", takes_context=True)
    assert [one.error for one in code_schedules()] == ["", ""]


def test_settings_name_tasks_with_arguments(register: Register, settings: Any) -> None:
    made = register(report)
    settings.REDISQUEUE = {
        "QUEUES": {"default": {}, "slow": {}},
        "SCHEDULES": {
            "europe": {
                "task": made.name, "cron": "0 4 * * *", "timezone": "Europe/Berlin",
                "args": ["EU"], "kwargs": {"detailed": True}, "queue_name": "slow",
                "priority": -5, "misfire": "skip",
            },
        },
    }  # fmt: skip
    found = only()
    assert (found.name, found.error) == ("europe", "")
    assert found.schedule == Cron("0 4 * * *", timezone="Europe/Berlin", misfire="skip")
    assert (found.job.queue, found.job.priority) == ("slow", -5)
    assert decode_payload(found.job.payload) == (["EU"], {"detailed": True})
    assert check_settings() == []


def test_a_setting_replaces_the_schedule_of_its_name(register: Register, settings: Any) -> None:
    made = register(report, every="1h")
    settings.REDISQUEUE = {"SCHEDULES": {made.name: {"task": made.name, "every": "2h"}}}
    assert only().schedule == Every("2h")


def test_a_schedule_that_cannot_run_has_an_error_and_a_check(
    register: Register, settings: Any
) -> None:
    register(needs, name="app.needs")
    settings.REDISQUEUE = {
        "SCHEDULES": {
            "gone": {"task": "app.need", "every": "1h"},
            "calls": {"task": "app.needs", "every": "1h", "args": [1, 2]},
            "queue": {"task": "app.needs", "every": "1h", "args": [1], "queue_name": "slow"},
            "fine": {"task": "app.needs", "every": "1h", "args": [1]},
        },
    }
    errors = {one.name: one.error for one in code_schedules()}
    assert "no task 'app.need' is registered (did you mean 'app.needs'?)" in errors["gone"]
    assert "app.needs cannot be called like this: too many positional" in errors["calls"]
    assert "unknown queue 'slow'" in errors["queue"]
    assert errors["fine"] == ""
    messages = [one for one in check_settings() if one.id == "django_redisqueue.E023"]
    assert len(messages) == 3
    assert "The schedule 'calls' does not run: app.needs cannot be called" in messages[0].msg


def test_a_set_is_identified_by_its_definitions(register: Register) -> None:
    register(report, every="1h")
    digest = set_digest(code_schedules())
    assert digest == set_digest(code_schedules())
    register(report, every="1h", priority=1)
    assert digest != set_digest(code_schedules())


def test_a_task_that_needs_arguments_cannot_run_periodically_without_them(
    register: Register,
) -> None:
    with pytest.raises(InvalidOption, match=r"it takes \(amount\); give them defaults, or name"):
        register(needs, every="1h")
    with pytest.raises(InvalidOption, match="has both cron= and every="):
        register(report, every="1h", cron="* * * * *")
    with pytest.raises(InvalidOption, match="never fires"):
        register(report, cron="0 0 30 2 *")
    assert code_schedules() == []


WRONG: list[tuple[Any, str]] = [
    ([], "must be a dict of name to schedule"),
    ({"a b": {}}, "'a b' is not a valid schedule name"),
    ({"a": []}, r'REDISQUEUE\["SCHEDULES"\]\[\'a\'\] must be a dict, not list'),
    ({"a": {"task": "app.t"}}, "a schedule needs either cron or every"),
    ({"a": {"task": "app.t", "cron": "* * * * *", "every": 5}}, "either cron or every"),
    ({"a": {"cron": "* * * * *"}}, '"task" is missing'),
    ({"a": {"task": "app.t", "cron": "0 0 30 2 *"}}, "never fires"),
    ({"a": {"task": "app.t", "cron": "hourly"}}, "must be five fields"),
    ({"a": {"task": "app.t", "every": "soon"}}, "every must be seconds, a timedelta"),
    ({"a": {"task": "app.t", "every": 5, "timezone": "UTC"}}, "timezone belongs to cron"),
    ({"a": {"task": "app.t", "every": 5, "args": "EU"}}, "args must be a list, not 'EU'"),
    ({"a": {"task": "app.t", "every": 5, "kwargs": [1]}}, "kwargs must be a dict"),
    ({"a": {"task": "app.t", "crom": "* * * * *"}}, r"has no key 'crom' \(did you mean 'cron'"),
]


@pytest.mark.parametrize(("schedules", "message"), WRONG)
def test_wrong_settings_are_named(schedules: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load({"SCHEDULES": schedules})
