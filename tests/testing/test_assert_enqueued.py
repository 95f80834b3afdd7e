"""assert_enqueued: what it finds, what it reports when it fails, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.exceptions import (
    InvalidArguments,
    InvalidName,
    InvalidOption,
    InvalidTask,
    PayloadTooLarge,
    UnknownQueue,
    UnknownTask,
)
from django_redisqueue.testing import capture_jobs
from tests.app import tasks

see = tasks.noop


@pytest.fixture
def three() -> Any:
    with capture_jobs() as queue:
        see.enqueue(1)
        see.enqueue(2)
        tasks.add.enqueue((1, 2), b={"c": 3})
        yield queue


@pytest.mark.parametrize(
    "check",
    [
        lambda queue: queue.assert_enqueued(see),
        lambda queue: queue.assert_enqueued(see, count=2),
        lambda queue: queue.assert_enqueued(see, args=[1], count=1),
        lambda queue: queue.assert_enqueued(see, args=(3,), count=0),
        lambda queue: queue.assert_enqueued(tasks.add, args=[(1, 2)], kwargs={"b": {"c": 3}}),
        lambda queue: queue.assert_enqueued("tests.app.tasks.add", queue_name="default"),
        lambda queue: queue.assert_enqueued("tests.old_name", count=0),
        lambda queue: queue.assert_enqueued(see, kwargs={}, count=2),
    ],
)
def test_assertions_that_hold(three: Any, check: Callable[[Any], list[Any]]) -> None:
    assert isinstance(check(three), list)


def test_matching_jobs_are_returned(three: Any) -> None:
    (job,) = three.assert_enqueued(see, args=(2,))
    assert job.args == (2,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"args": (3,)}, "expected at least 1 job of {see}, args=(3,); 0 found."),
        ({"count": 1}, "expected 1 job of {see}; 2 found."),
        ({"count": 3}, "expected 3 jobs of {see}; 2 found."),
        ({"queue_name": "low"}, "expected at least 1 job of {see}, queue_name='low'; 0 found."),
    ],
)
def test_assertions_that_fail_list_what_was_enqueued(
    three: Any, options: dict[str, Any], words: str, settings: Any
) -> None:
    settings.REDISQUEUE = {"QUEUES": {"default": {}, "low": {}}}
    with pytest.raises(AssertionError) as caught:
        three.assert_enqueued(see, **options)
    assert str(caught.value) == words.format(see=see.name) + (
        "\nEnqueued:"
        f"\n  {see.name}(1) on default, queued"
        f"\n  {see.name}(2) on default, queued"
        "\n  tests.app.tasks.add([1, 2], b={'c': 3}) on default, queued"
    )


SLIPS: list[tuple[list[Any], dict[str, Any], type[Exception], str]] = [
    (["tests.app.tasks.ad"], {}, UnknownTask, "did you mean 'tests.app.tasks.add'?); decorate"),
    ([""], {}, UnknownTask, "no task '' is registered"),
    ([3], {}, InvalidTask, "accepts a registered name or a function decorated with @task, not 3"),
    ([None], {}, InvalidTask, "or a function decorated with @task, not None"),
    ([tasks.add.func], {}, InvalidTask, "a function decorated with @task, not <function add"),
    ([tasks.add.s(1, 2)], {}, InvalidTask, "a function decorated with @task, not Signature("),
    ([see, 1], {}, TypeError, "takes 2 positional arguments but 3"),
    ([see], {"cuont": 1}, TypeError, "unexpected keyword argument 'cuont'"),
    ([see], {"args": 3}, InvalidArguments, "such as (3,), not 3"),
    ([see], {"args": "ab"}, InvalidArguments, "args must be a tuple of the job's arguments"),
    ([see], {"args": {"a": 1}}, InvalidArguments, "such as ({'a': 1},), not {'a': 1}"),
    ([see], {"args": (1, {1})}, InvalidArguments, "argument 2 of tests.app.tasks.noop is a buil"),
    (
        [see],
        {"args": [float("nan")]},
        InvalidArguments,
        "argument 1 of tests.app.tasks.noop is nan",
    ),
    ([see], {"args": [10**5000]}, InvalidArguments, "tests.app.tasks.noop cannot be written as"),
    ([see], {"args": ["x" * 50]}, PayloadTooLarge, "MAX_PAYLOAD_BYTES"),
    ([see], {"kwargs": 3}, InvalidArguments, 'such as {"amount": 100}, not 3'),
    ([see], {"kwargs": [1]}, InvalidArguments, "kwargs must be a dict of the job's arguments by"),
    ([see], {"kwargs": {1: 2}}, InvalidArguments, "by their names, such as"),
    ([see], {"kwargs": {"x": {1}}}, InvalidArguments, "argument 'x' of tests.app.tasks.noop is a"),
    ([see], {"queue_name": "defualt"}, UnknownQueue, "did you mean 'default'?"),
    ([see], {"queue_name": 3}, InvalidName, "3 is not a valid queue name"),
    ([see], {"count": "1"}, InvalidOption, "count must be a whole number from 0 to"),
    ([see], {"count": True}, InvalidOption, "not True"),
    ([see], {"count": -1}, InvalidOption, "not -1"),
]


@pytest.mark.parametrize(
    ("places", "options", "kind", "words"), SLIPS, ids=[words for *_, words in SLIPS]
)
def test_a_mistaken_assertion_is_an_error_and_never_passes(
    three: Any, places: Any, options: Any, kind: type[Exception], words: str, settings: Any
) -> None:
    settings.REDISQUEUE = {"MAX_PAYLOAD_BYTES": 50}
    for count in ({}, {"count": 0}):
        with pytest.raises(kind) as caught:
            three.assert_enqueued(*places, **{**count, **options})
        assert words in str(caught.value)
