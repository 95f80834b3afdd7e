"""Calls as users write them. ``test_typing`` expects a message of mypy about each line with
a comment, which contains its text, and none about any other line."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_type

from django_redisqueue import (
    Backoff,
    Chunk,
    ChunkItem,
    Job,
    JobQueue,
    Limit,
    RateLimited,
    Retry,
    Task,
    Workflow,
    chain,
    listener,
    task,
)

if TYPE_CHECKING:
    from django_redisqueue.worker.child.chunks import ChunkContext
    from django_redisqueue.worker.child.context import JobContext


@task
def send(number: int, name: str = "") -> str:
    return name * number


@task(max_attempts=3, retry_on=(OSError,), backoff=Backoff(base=1), unique="until_started")
async def fetch(url: str) -> bytes:
    return url.encode()


@task(takes_context=True, timeout=timedelta(minutes=1), concurrency=Limit(2), every="5m")
def report(context: JobContext, day: str = "today") -> None:
    context.progress(1, 2)
    for number in context.iterate([1, 2], chunk=1, total=2):
        assert_type(number, int)
    context.iterate([1, 2], chunks=1)  # wrong: No overload variant of "iterate"


@task(takes_context=True)
async def walk(context: JobContext, names: list[str]) -> None:
    async for name in context.aiterate(names, max_runtime="5m"):
        assert_type(name, str)


@task(takes_context=True, chunk=Chunk(10, parameters=("document_id",)))
def index(context: Any, items: list[ChunkItem]) -> None: ...


@task(takes_context=True, chunk=Chunk(10))
def count(context: ChunkContext, items: list[ChunkItem]) -> None:
    context.retry(0, delay="5m")
    context.retry(0, delay=b"5m")  # wrong: incompatible type "bytes"
    context.progress(1, 2)  # wrong: has no attribute "progress"


@task(expires=60)
def five(a: int, b: int, c: int, d: int, e: int) -> None: ...


@task
def six(a: int, b: int, c: int, d: int, e: int, f: int) -> None: ...


@task(max_atempts=3)  # wrong: did you mean "max_attempts"?
def misspelt() -> None: ...


@task(redact="card")  # wrong: No overload variant of "task"
def bare_string(card: str) -> None: ...


assert_type(send.enqueue(1, name="x"), Job)
send.enqueue("1")  # wrong: incompatible type "str"; expected "int"
send.enqueue()  # wrong: Missing positional argument "number"
send.enqueue(1, nam="x")  # wrong: did you mean "name"?
send.enqueue(1, "x", 2)  # wrong: Too many arguments
send.delay(1)  # wrong: has no attribute "delay"
report.enqueue("monday")
report.enqueue(1)  # wrong: incompatible type "int"; expected "str"
index.enqueue(1)
index.enqueue(document_id=1)

send.enqueue_many([(1, "x"), (2, "y")])
send.enqueue_many((number,) for number in range(3))
send.enqueue_many([[1], [2, "x"]])
send.enqueue_many([("1",)])  # wrong: expected "tuple[
send.enqueue_many([(1, 2)])  # wrong: expected "tuple[
send.enqueue_many([(1, "x", 2)])  # wrong: expected "tuple[
send.enqueue_many([1])  # wrong: expected "tuple[
fetch.enqueue_many([("/",), ("/a",)])
fetch.enqueue_many([(1,)])  # wrong: expected "tuple[
report.enqueue_many([(), ()])
report.enqueue_many([("monday",)])
report.enqueue_many([(1,)])  # wrong: expected "tuple[
index.enqueue_many([(1,), (2,)])
five.enqueue_many([(1, 2, 3, 4, 5)])
six.enqueue_many([(1, 2, 3, 4, 5, 6)])

send.using(expires="5m", run_after=1).enqueue(1)
send.using(priority=1, run_after=timedelta(1), after=[send.enqueue(1)], queue_name=None).enqueue(1)
send.using(priority=1).enqueue("1")  # wrong: incompatible type "str"; expected "int"
report.using(tags={"tenant": "42"}).enqueue(1)  # wrong: expected "str"
send.using(priorty=1)  # wrong: did you mean "priority"?
RateLimited("busy", retry_after=timedelta(1))
RateLimited()  # wrong: Missing named argument "retry_after"
Retry(delay="5m")
Retry(delay=datetime.now())  # wrong: incompatible type "datetime"
send.using(timeout=b"5m")  # wrong: incompatible type "bytes"

assert_type(send(1), str)
assert_type(send.call(1), str)
assert_type(fetch.call("/"), bytes)
send("1")  # wrong: expected "int"
send.call(name="x")  # wrong: argument
report.call(None, "monday")
report("monday", 1)  # wrong: expected "str"
index(None, [])


async def use_async() -> None:
    assert_type(await send.aenqueue(1, name="x"), Job)
    await send.aenqueue("1")  # wrong: expected "int"
    coroutine: Coroutine[Any, Any, bytes] = fetch("/")
    assert_type(await coroutine, bytes)
    assert_type(await fetch.acall("/"), bytes)
    assert_type(await send.acall(1), str)
    await send.acall("1")  # wrong: expected "int"


chain(send.s(1), send.s(), send.s(name="x"), send.s("x"), report.s(), fetch.s())
send.s(1).taking_result()
send.s(nam="x")  # wrong: did you mean "name"?
send.s(1, 2)  # wrong: No overload variant of "s"
with Workflow(on_complete=report) as flow:
    flow.add(report.s("monday"), after=flow.add(send, 1))
    flow.add(send, 1, name="x")
    flow.add(send, 1, after=[flow.add(report)], on_failure="skip")
    flow.add(send, 1, on_failure="go_on")
    flow.add(index, 1)
    flow.add(send, "1")  # wrong: No overload variant of "add"
    flow.add(send, nam="x")  # wrong: No overload variant of "add"
    flow.add(send.s(1), 2)  # wrong: No overload variant of "add"
    flow.add(send, 1, after="a")  # wrong: "after" for "add"

JobQueue().add_job("shop.tasks.send", 1)
JobQueue().add_job(send, 1, name="x")
JobQueue().add_job(send, "1")  # wrong: No overload variant of "add_job"


@listener("topic")
def users(record_id: int) -> int:
    return record_id


@listener("topic", takes_context=True)
def orders(context: JobContext, record_id: int) -> int:
    return record_id


@listener("topic", listens_as="visits")
@task(queue_name="slow")
def visits(record_id: int) -> int:
    return record_id


users.enqueue("1")  # wrong: expected "int"
orders.enqueue("1")  # wrong: expected "int"
visits.enqueue("1")  # wrong: expected "int"


def any_task(one: Task, other: Task[..., Any], numbers: Task[[int], object]) -> None:
    one.enqueue("x", 1)
    numbers.enqueue("x")  # wrong: expected "int"


any_task(send, report, users)
any_task(index, fetch, users)
any_task(index, fetch, fetch)  # wrong: incompatible type
every_task: list[Task] = [send, report, index, fetch]
OPTIONS: dict[str, Any] = {"priority": 1}


@task(**OPTIONS)
def with_options(number: int) -> None: ...


with_options.enqueue(1)
