"""A call that the task could not take is refused where it is made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue import JobQueue, Workflow, chain, task
from django_redisqueue.client.registry import accepted_parameters
from django_redisqueue.exceptions import InvalidArguments
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("queue_settings")


def _adding_one(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func("added", *args, **kwargs)

    return wrapper


@task
@_adding_one
def decorated(added: str, n: int) -> int:
    return n


@task(takes_context=True)
def with_context(context: Any, n: int, *, shift: int = 0) -> int:
    return n + shift


def queued() -> int:
    return JobQueue().get_stats()["queued"]


@pytest.mark.parametrize(
    ("enqueue", "message"),
    [
        (lambda: tasks.add.enqueue(1), "missing a required argument: 'b'; it takes (a, b"),
        (lambda: tasks.add.enqueue(1, c=2), "tests.app.tasks.add cannot be called like this: "),
        (lambda: tasks.add.enqueue(*range(9)), "too many positional arguments"),
        (with_context.enqueue, "missing a required argument: 'n'; it takes (n, *, shift"),
        (lambda: with_context.enqueue(1, 2), "too many positional arguments"),
        (lambda: tasks.add.enqueue_many([(1, 2), (1,)]), "missing a required argument: 'b'"),
        (lambda: tasks.add.using(priority=3).enqueue(1), "missing a required argument: 'b'"),
        (lambda: JobQueue().add_job("tests.app.tasks.add", 1), "missing a required argument: 'b'"),
        (lambda: chain(tasks.add.s(1, 2), tasks.add.s()), "the first is its parent's result"),
        (lambda: Workflow().add(tasks.add, 1), "missing a required argument: 'b'"),
    ],
)
def test_the_task_and_its_arguments_are_named_and_nothing_is_queued(
    enqueue: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        enqueue()
    assert message in str(caught.value)
    assert queued() == 0


def test_the_message_shows_no_value() -> None:
    with pytest.raises(InvalidArguments) as caught:
        tasks.add.enqueue("secret", 2, oops="secret")
    assert "oops" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_fits_is_taken() -> None:
    with_context.enqueue(1)
    with_context.enqueue(n=1, shift=2)
    tasks.add.enqueue(1, b=2)
    chain(tasks.add.s(1, 2), tasks.add.s(3))
    assert queued() == 4


def test_a_decorator_may_add_arguments() -> None:
    decorated.enqueue(5)
    assert queued() == 1


def _needs_names(x: int, *, k: int) -> None: ...
def _takes_all(*args: int, **kwargs: int) -> None: ...
def _takes_more(x: int, /, *rest: int) -> None: ...


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "fits"),
    [
        (_needs_names, (1,), {}, False),
        (_needs_names, (1,), {"k": 2}, True),
        (_takes_all, (1, 2, 3), {"k": 2}, True),
        (_takes_more, (), {}, False),
        (_takes_more, (1, 2, 3), {}, True),
        (_takes_more, (), {"x": 1}, False),
    ],
)
def test_it_is_as_python_has_it(
    func: Callable[..., None], args: tuple[int, ...], kwargs: dict[str, int], fits: bool
) -> None:
    parameters = accepted_parameters(func)
    if fits:
        func(*args, **kwargs)
        parameters.check("t", args, kwargs)
        return
    with pytest.raises(TypeError):
        func(*args, **kwargs)
    with pytest.raises(InvalidArguments):
        parameters.check("t", args, kwargs)
