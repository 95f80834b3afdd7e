"""Steps: done once in the life of a job, whatever happens to its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_redisqueue import Retry, task
from django_redisqueue.exceptions import InvalidArguments, JobAbandoned, PayloadTooLarge, StepError
from django_redisqueue.testing import capture_jobs
from django_redisqueue.worker.child import steps as steps_module
from django_redisqueue.worker.child.context import JobContext
from tests.worker.parts import claimed

CALLS: list[str] = []


class Memory:
    """Keeps steps in a dict, and accepts them as long as ``code`` is 1."""

    def __init__(self, code: int = 1) -> None:
        self.code = code
        self.fields: dict[str, str] = {}
        self.loads = 0

    def load(self, job: object) -> dict[str, str]:
        self.loads += 1
        return dict(self.fields)

    def save(self, job: object, field: str, value: str) -> int:
        if self.code == 1:
            self.fields[field] = value
        return self.code


def run(memory: Memory | None = None, lease: int = 1) -> JobContext:
    """The context of a run."""
    return JobContext(claimed(lease=lease), lambda _: True, memory or Memory())


def call(name: str, result: Any = None) -> Any:
    CALLS.append(name)
    return result


class Later:
    """An awaitable."""

    def __await__(self) -> Any: ...


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def test_a_step_is_done_once_and_its_result_is_what_json_returns() -> None:
    memory = Memory()
    assert run(memory).step("s", call, "one", result=(1, {"a": None})) == [1, {"a": None}]
    assert memory.fields == {"step:s": '[1,{"a":null}]'}
    assert run(memory, lease=2).step("s", call, "two") == [1, {"a": None}]
    assert CALLS == ["one"]


def test_what_is_remembered_is_read_once_and_never_in_a_first_run() -> None:
    memory = Memory()
    first, second = run(memory), run(memory, lease=2)
    for context in (first, second):
        for name in "abc":
            context.step(name, call, name)
    assert memory.loads == 1
    assert CALLS == ["a", "b", "c"]


def test_a_step_that_raises_is_not_done() -> None:
    memory = Memory()
    with pytest.raises(ZeroDivisionError):
        run(memory).step("s", lambda: 1 / 0)
    assert memory.fields == {}


def test_its_key_is_the_same_in_every_run() -> None:
    context = run()
    assert context.step("charge", lambda: context.step_key) == "job_1:charge"
    assert run(lease=7).step_key_for("charge") == "job_1:charge"
    with pytest.raises(StepError, match=r"step_key is the key of the step that is running"):
        _ = context.step_key


def test_a_name_may_occur_once_in_a_run() -> None:
    context = run()
    context.step("s", call, "one")
    with pytest.raises(StepError, match=r"the step 's' occurs twice in one run of a.task"):
        context.step("s", call, "two")
    assert CALLS == ["one"]


BAD: list[tuple[Callable[[JobContext], object], type[Exception], str]] = [
    (lambda c: c.step("", call), StepError, "name of a step must be text of 1 to 100 letters"),
    (lambda c: c.step("a\n", call), StepError, r"not 'a\\n'"),
    (lambda c: c.step("x" * 101, call), StepError, "1 to 100 letters"),
    (lambda c: c.step(7, call), StepError, "not 7"),  # type: ignore[arg-type]
    (lambda c: c.step("s", 5), StepError, "step 's' needs a function and its arguments, not 5"),  # type: ignore[arg-type]
    (lambda c: c.step("s", asyncio.sleep), StepError, r"use await context.astep\(...\)"),
    (lambda c: c.step("s", object), InvalidArguments, "the result of step 's' of a.task is a"),
    (lambda c: c.step("s", Later), InvalidArguments, r"\.Later: await it first"),
    (lambda c: c.step_key_for(""), StepError, "name of a step"),
]


@pytest.mark.parametrize(("bad", "kind", "words"), BAD)
def test_incorrect_use_is_reported(
    bad: Callable[[JobContext], object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        bad(run())


def test_a_result_that_is_too_large_names_the_step_and_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(steps_module.get_settings(), max_result_bytes=10)
    monkeypatch.setattr(steps_module, "get_settings", lambda: small)
    words = r"the result of step 's' of a.task would be 22 bytes.*REDISQUEUE\['MAX_RESULT_BYTES'\]"
    with pytest.raises(PayloadTooLarge, match=words):
        run().step("s", call, "x", result="x" * 20)
    words = r"the step s of a.task is too large.*REDISQUEUE\['MAX_RESULT_BYTES'\] \(10\)"
    with pytest.raises(PayloadTooLarge, match=words):
        run(Memory(-1)).step("s", call, "x")


def test_a_stale_run_ends() -> None:
    with pytest.raises(JobAbandoned, match="job job_1 was taken over by another worker"):
        run(Memory(0)).step("s", call, "x")


# -- async tasks


async def acall(name: str, result: Any = None) -> Any:
    return call(name, result)


def call_later(name: str, result: Any = None) -> Any:
    """Not a coroutine function, but a function that returns a coroutine, like a manager's
    methods."""
    return acall(name, result)


@pytest.mark.parametrize("func", [call, acall, call_later])
def test_async_tasks_await_their_steps(func: Callable[..., Any]) -> None:
    memory = Memory()
    assert asyncio.run(run(memory).astep("s", func, "one", result=(1,))) == [1]
    assert asyncio.run(run(memory, lease=2).astep("s", func, "two")) == [1]
    assert CALLS == ["one"]


def test_the_keys_of_async_steps_that_run_together() -> None:
    context = run()

    async def key() -> str:
        await asyncio.sleep(0)
        return context.step_key

    async def both() -> list[str]:
        return await asyncio.gather(context.astep("a", key), context.astep("b", key))

    assert asyncio.run(both()) == ["job_1:a", "job_1:b"]


def test_an_async_step_cannot_be_atomic() -> None:
    with pytest.raises(StepError, match="step 's' is atomic, so it runs in a database transaction"):
        asyncio.run(run().astep("s", acall, "x", atomic=True))


# -- in an application's tests


@task(takes_context=True, max_attempts=3)
def order(context: Any, fails: int) -> list[Any]:
    charge = context.step("charge", call, "charge", result={"id": 7})
    if context.attempt <= fails:
        raise Retry
    return [charge, context.step("mail", call, "mail", result="sent")]


@task(takes_context=True, max_attempts=2)
async def aorder(context: Any) -> Any:
    charge = await context.astep("charge", acall, "charge", result=7)
    if context.attempt == 1:
        raise Retry
    return charge


def test_in_memory_it_is_the_same() -> None:
    with capture_jobs() as jobs:
        job, other = order.enqueue(2), aorder.enqueue()
        jobs.drain()
        assert job.result == [{"id": 7}, "sent"]
        assert other.result == 7
    assert sorted(CALLS) == ["charge", "charge", "mail"]


def test_in_memory_a_requeue_continues_unless_the_steps_are_forgotten() -> None:
    with capture_jobs() as jobs:
        job = order.enqueue(3)
        jobs.drain()
        assert job.status == "failed"
        job.requeue()
        jobs.drain()
        assert CALLS == ["charge"]
        job.refresh()
        job.forget_steps()
        job.requeue()
        jobs.drain()
        assert CALLS == ["charge", "charge"]
