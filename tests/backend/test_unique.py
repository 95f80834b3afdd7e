"""Django's own tasks with ``unique`` and ``unique_by``."""

from __future__ import annotations

import os
from typing import Any

import django
import pytest
from django.db import transaction

from django_redisqueue import For, Replace, get_job
from tests.support.hand import Hand

if django.VERSION < (6, 0) and not os.environ.get("CI"):
    pytest.importorskip("django_tasks", reason="Django 5.2 needs the django-tasks package")

from tests.app import django_tasks as tasks
from tests.app.django_api import (
    TAKES_OPTIONS,
    InvalidTask,
    TaskResultStatus,
    default_task_backend,
    task,
    task_enqueued,
)

needs_options = pytest.mark.skipif(not TAKES_OPTIONS, reason="Django 6.0's @task takes none")
MODES = ["until_started", "until_finished", "keep_last", For("1h"), Replace(wait=10)]


@pytest.fixture
def sent() -> Any:
    """The ids of the signal task_enqueued."""
    ids: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_enqueued.connect(note)
    yield ids
    task_enqueued.disconnect(note)


@pytest.mark.parametrize("mode", MODES)
def test_a_second_enqueue_returns_the_first_result(hand: Hand, mode: Any, sent: list[str]) -> None:
    once = tasks.add.using(unique=mode, unique_by="a")
    first = once.enqueue(1, 2)
    second = once.enqueue(1, 2)
    assert second.id == first.id
    assert default_task_backend.get_result(second.id).id == first.id
    assert once.enqueue(2, 2).id != first.id
    assert len(sent) == 2
    assert once.using(unique=False).enqueue(1, 2).id != first.id


def test_a_duplicate_shows_the_job_as_it_is(hand: Hand) -> None:
    once = tasks.add.using(unique=For("1h"))
    once.enqueue(1, 2)
    hand.complete_one("3")
    again = once.enqueue(1, 2)
    assert (again.status, again.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert [one.id for one in once.enqueue_many([(1, 2), (1, 2)])] == [again.id] * 2


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_after_a_commit(hand: Hand, sent: list[str]) -> None:
    once = tasks.add.using(unique="until_finished")
    first = once.enqueue(1, 2)
    with transaction.atomic():
        second = once.enqueue(1, 2)
    assert sent == [first.id]
    assert get_job(second.id).data.id == first.id
    hand.complete_one("3")
    second.refresh()
    assert second.return_value == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "ever"}, "unique must be one of"),
        ({"unique": "keep_last", "unique_by": "c"}, "names 'c', which is no parameter"),
        ({"unique_by": "a"}, "has unique_by, but not unique"),
        ({"unique": "keep_last", "unique_by": 5}, "unique_by must be"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        tasks.add.using(**options).enqueue(1, 2)


@needs_options
def test_options_of_the_definition(hand: Hand) -> None:
    made = task(unique="until_finished", unique_by=["name"])(_named)
    assert made.enqueue("a", 1).id == made.enqueue("a", 2).id
    assert made.enqueue("b", 1).id != made.enqueue("a", 2).id


def _named(name: str, number: int) -> None: ...
