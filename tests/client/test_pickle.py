"""Tasks and signatures travel between processes by the names of their tasks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Task, task
from django_redisqueue.client import registry
from django_redisqueue.exceptions import UnknownTask
from django_redisqueue.testing import capture_jobs
from tests.worker import context_tasks


@task(queue_name="default", aliases=["former.name"])
def charge(order: int, amount: int = 1) -> int:
    return order * amount


def sent(task: Task[..., Any]) -> Any:
    """The task as another process gets it."""
    return pickle.loads(pickle.dumps(task))


def test_a_task_arrives_as_itself() -> None:
    assert sent(charge) is charge
    assert copy.copy(charge) is charge
    assert copy.deepcopy({"do": [charge]}) == {"do": [charge]}
    assert pickle.dumps(charge).count(b"order") == 0, "the function is not sent"


def test_the_options_of_one_call_arrive() -> None:
    with capture_jobs():
        parent = charge.enqueue(1)
    made = charge.using(
        priority=7, run_after=timedelta(minutes=5), timeout="2m", max_attempts=3,
        tags={"tenant": "42"}, after=[parent], unique="until_started", outbox=False,
    )  # fmt: skip
    assert sent(made) == made
    assert copy.deepcopy(made) == made
    assert sent(charge.using(unique=False)) == charge.using(unique=False)


def test_a_signature_arrives() -> None:
    assert sent(charge.using(priority=3).s(2, amount=5)) == charge.using(priority=3).s(2, amount=5)


ELSEWHERE = """
import django, pickle, sys
django.setup()
assert "tests.worker.context_tasks" not in sys.modules
made = pickle.loads(sys.stdin.buffer.read())
print(made.name, made.priority)
"""


def test_another_process_imports_the_module_of_the_task() -> None:
    """As Django's setup does not import tasks."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickle.dumps(context_tasks.here.using(priority=7)),
        stdout=subprocess.PIPE, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.decode().split() == [context_tasks.here.name, "7"]


def test_a_task_that_is_not_registered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = pickle.dumps(charge)
    monkeypatch.delitem(registry._tasks, charge.name)
    with pytest.raises(UnknownTask, match=f"no task '{charge.name}' is registered"):
        pickle.loads(text)


def test_the_error_shows_why_its_module_could_not_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = pickle.dumps(charge).replace(__name__.encode(), b"x" * len(__name__))
    monkeypatch.delitem(registry._tasks, charge.name)
    with pytest.raises(UnknownTask) as caught:
        pickle.loads(text)
    assert isinstance(caught.value.__context__, ModuleNotFoundError)
