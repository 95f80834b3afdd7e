"""Chunk tasks as they are written and enqueued: lanes, and clear errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Chunk, ChunkItem, Workflow, chain, listener, task
from django_redisqueue.exceptions import (
    InvalidArguments,
    InvalidOption,
    InvalidTask,
    WorkflowError,
)
from django_redisqueue.testing import capture_jobs
from django_redisqueue.worker.child.chunks import ChunkContext
from tests.app import tasks


@task(chunk=Chunk(50, wait=1.5, by=("tenant", "kind")))
def by_names(items: list[ChunkItem]) -> None:
    pass


@task(chunk=Chunk(5, wait=timedelta(seconds=2), by=lambda number, **_: number % 2))
def by_parity(items: list[ChunkItem]) -> None:
    pass


@task(chunk=Chunk(5, by=object))
def by_object(items: list[ChunkItem]) -> None:
    pass


@task(chunk=Chunk(5))
def all_together(items: list[ChunkItem]) -> None:
    pass


@task(chunk=Chunk(5, by="tenant", parameters=("number", "tenant")), fair_by="tenant")
def with_parameters(items: list[ChunkItem]) -> None:
    pass


def lane(made: Any, *args: Any, **kwargs: Any) -> str:
    found: str = made.template(args, kwargs).lane
    return found


def test_jobs_of_equal_keys_have_the_same_lane() -> None:
    name = "k:tests.client.test_chunks"
    assert lane(by_parity, 3) == f"|{name}.by_parity:1 {name}.by_parity=5/2000"
    assert lane(by_parity, 3) == lane(by_parity, 5) != lane(by_parity, 4)
    assert lane(by_names, tenant=1, kind="a") == lane(by_names, 7, kind="a", tenant=1)
    assert lane(by_names, tenant=1, kind="a") != lane(by_names, tenant=1, kind="b")
    assert lane(by_names, tenant="1", kind="a") != lane(by_names, tenant=1, kind="a")
    assert lane(all_together, 1) == lane(all_together)
    long = lane(by_names, tenant="| =:" * 1000, kind="\n")
    assert len(long) < 200
    assert long.count(" ") == 1


def test_a_positional_argument_can_be_the_key() -> None:
    assert lane(with_parameters, 7, 42) == lane(with_parameters, 8, tenant=42)
    assert lane(with_parameters, 7, 42) != lane(with_parameters, 7, 43)
    assert lane(with_parameters, 7, 42).startswith("42|k:")
    with capture_jobs() as jobs:
        with_parameters.enqueue_many([(1, "a"), (2, "b"), (3, "a")])
        jobs.assert_enqueued(with_parameters, args=(2, "b"), count=1)
        with pytest.raises(InvalidArguments, match=r"it takes \(number, tenant\)"):
            with_parameters.enqueue(1)
        with pytest.raises(InvalidArguments, match=r"it takes \(number, tenant\)"):
            with_parameters.enqueue(1, 2, 3)


NOT_CHUNKS: list[tuple[Callable[[], object], str]] = [
    (lambda: Chunk(0), "the size of a Chunk must be a whole number from 1 to 100, not 0"),
    (lambda: Chunk(101), "from 1 to 100, not 101"),
    (lambda: Chunk(True), "not True"),
    (lambda: Chunk(5, wait=-1), "wait of a Chunk"),
    (lambda: Chunk(5, by=()), "a tuple of names, or a callable, not ()"),
    (lambda: Chunk(5, by="no name"), "by of a Chunk must be the name of an argument"),
    (lambda: Chunk(5, by=["a"]), "not ['a']"),  # type: ignore[arg-type]
    (lambda: Chunk(5, by="class"), "must be the name of an argument"),
    (lambda: Chunk(5, parameters="a"), "must be a tuple of different names, not 'a'"),  # type: ignore[arg-type]
    (lambda: Chunk(5, parameters=("a", "a")), "a tuple of different names, not ('a', 'a')"),
    (lambda: Chunk(5, parameters=("a", "class")), "a tuple of different names"),
    (
        lambda: Chunk(5, by="tenat", parameters=("number", "tenant")),
        "by of a Chunk has 'tenat', which is not among its parameters (did you mean 'tenant'?)",
    ),
    (lambda: task(chunk=100), "chunk must be a Chunk, such as Chunk(100, wait=5), not 100"),
]


@pytest.mark.parametrize(("make", "words"), NOT_CHUNKS)
def test_an_invalid_chunk_is_reported(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        make()(by_names.func)
    assert words in str(caught.value)


async def async_items(items: Any) -> None:
    pass


def two(first: Any, second: Any) -> None:
    pass


def only_context(context: Any) -> None:
    pass


def fine(items: Any) -> None:
    pass


BAD_TASKS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (async_items, {}, "has chunk=, which does not work for async functions"),
    (two, {}, "its arguments must be (items)"),
    (only_context, {"takes_context": True}, "its arguments must be (context, items)"),
    (fine, {"exactly_once": True}, "a receipt belongs to one job"),
    (fine, {"redact": ("items",)}, "the arguments of chunk jobs are not its parameters"),
]


@pytest.mark.parametrize(("func", "options", "words"), BAD_TASKS)
def test_a_function_that_cannot_be_a_chunk_task_is_reported(
    func: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((InvalidTask, InvalidOption)) as caught:
        task(chunk=Chunk(5), **options)(func)
    assert words in str(caught.value)


def test_a_job_without_its_key_is_refused_at_enqueue() -> None:
    with capture_jobs() as jobs:
        with pytest.raises(
            InvalidArguments, match="by 'kind', so every call needs it as a keyword"
        ):
            by_names.enqueue(tenant=1)
        with pytest.raises(InvalidArguments, match="a value that JSON cannot hold"):
            by_object.enqueue()
        assert jobs.jobs == []


@pytest.mark.parametrize(
    "use",
    [
        lambda: all_together.s(1),
        lambda: Workflow().add(all_together, 1),
        lambda: chain(tasks.noop.s(1), all_together.s()),
        lambda: Workflow(on_complete=all_together),
        lambda: listener("topic")(all_together),
    ],
)
def test_a_chunk_task_is_refused_where_each_job_is_one_call(use: Callable[[], object]) -> None:
    with pytest.raises(WorkflowError, match="all_together is a chunk task: one call runs many"):
        use()


@pytest.mark.parametrize("item", [2, -1, "0", True, ChunkItem("job_other", (), {})])
def test_an_item_of_another_chunk_is_refused(item: Any) -> None:
    context = ChunkContext([ChunkItem(f"job_{n}", (), {}) for n in range(2)], [])
    with pytest.raises(InvalidArguments, match="a chunk of 2 has the items 0 to 1"):
        context.fail(item)
    with pytest.raises(InvalidArguments, match="a chunk of 2 has the items 0 to 1"):
        context.retry(item)
