"""iterate and aiterate: a walk over many items resumes where the last run stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db.models import F, QuerySet

from django_redisqueue.exceptions import (
    InvalidOption,
    JobCancelled,
    JobSuspended,
    StepError,
)
from django_redisqueue.models import StepReceipt
from django_redisqueue.worker.child.context import JobContext
from django_redisqueue.worker.child.retry_policy import resolve_error
from tests.app.models import Counter
from tests.worker.parts import claimed

from .test_steps import Memory

NewRun = Callable[..., "Run"]
Act = Callable[[Any], object]


def nothing(item: object) -> None:
    """Stands for what a walk does with an item, where that does not matter."""


class Run(JobContext):
    """A run of a job, and its reports."""

    def __init__(self, memory: Memory, lease: int = 1) -> None:
        self.reports: list[tuple[int, int]] = []
        self.seen: list[Any] = []
        self.worker_stops = False
        super().__init__(claimed(lease=lease), self._keep, memory, lambda: self.worker_stops)

    def _keep(self, text: str) -> bool:
        found = json.loads(text)
        self.reports.append((found["done"], found["total"]))
        return True

    def walk(self, items: Any, act: Act = nothing, **options: Any) -> list[Any]:
        """Walk over the items, calling ``act`` on each; returns the items seen."""
        for item in self.iterate(items, **options):
            self.seen.append(item)
            act(item)
        return self.seen


class AsyncRun(Run):
    """A run of an async task. ``act`` runs in a thread, as its queries do."""

    def walk(self, items: Any, act: Act = nothing, **options: Any) -> list[Any]:
        return async_to_sync(self.awalk)(items, sync_to_async(act), **options)

    async def awalk(self, items: Any, act: Callable[..., Any], **options: Any) -> list[Any]:
        async for item in self.aiterate(items, **options):
            self.seen.append(item)
            await act(item)
        return self.seen


@pytest.fixture(params=[Run, AsyncRun])
def new_run(request: pytest.FixtureRequest) -> NewRun:
    """Creates a run of a sync or an async task."""
    made: NewRun = request.param
    return made


def walk(new_run: NewRun, items: Any, stop_at: int, **options: Any) -> list[list[Any]]:
    """Walk over all items, stopping after each of ``stop_at``; returns what each run saw."""
    memory, runs = Memory(), list[list[Any]]()
    for lease in range(1, 100):
        run = new_run(memory, lease)
        runs.append(run.seen)

        def stop(_: object, run: Run = run) -> None:
            run.worker_stops = len(run.seen) == stop_at

        try:
            run.walk(items, stop, **options)
        except JobSuspended:
            continue
        assert new_run(memory, lease + 1).walk(items, **options) == []
        return runs
    raise AssertionError(f"it goes on and on: {runs}")


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
@pytest.mark.parametrize("items", [range(10), list("abcdefghij"), (), [None]])
def test_a_sequence_is_seen_once_in_order(new_run: NewRun, items: Any, chunk: int) -> None:
    runs = walk(new_run, items, 3, chunk=chunk)
    assert [item for seen in runs for item in seen] == list(items)
    assert all(len(seen) <= 3 for seen in runs)


ORDERS: dict[str, Callable[[], QuerySet[Any]]] = {
    "none": Counter.objects.all,
    "pk": lambda: Counter.objects.order_by("-pk"),
    "a unique field": lambda: Counter.objects.order_by("name"),
    "a field and pk": lambda: Counter.objects.order_by("-value", "pk"),
    "both down": lambda: Counter.objects.order_by("value", "-name").filter(value__lt=3),
}


@pytest.mark.django_db
@pytest.mark.parametrize("order", ORDERS)
def test_a_queryset_is_seen_once_in_its_order(new_run: NewRun, order: str) -> None:
    Counter.objects.bulk_create(Counter(name=f"n{n}", value=n * 7 % 4) for n in range(11))
    queryset = ORDERS[order]()
    expected = list(queryset if queryset.ordered else queryset.order_by("pk"))
    for chunk in (1, 2, 5, 50):
        runs = walk(new_run, queryset, 4, chunk=chunk)
        assert [row for seen in runs for row in seen] == expected
    assert new_run(Memory()).walk(Counter.objects) == list(Counter.objects.order_by("pk"))


@pytest.mark.django_db
def test_a_page_costs_one_query_and_rows_may_be_deleted(
    new_run: NewRun, django_assert_num_queries: Any
) -> None:
    Counter.objects.bulk_create(Counter(name=f"n{n}") for n in range(10))
    with django_assert_num_queries(1 + 4):
        assert len(new_run(Memory()).walk(Counter.objects.all(), chunk=3)) == 10
    new_run(Memory()).walk(Counter.objects.all(), Counter.delete, chunk=3)
    assert not Counter.objects.exists()


def test_progress_follows_what_is_saved_and_is_counted_once(new_run: NewRun) -> None:
    memory = Memory()
    run = new_run(memory)

    def stop_at_5(item: int) -> None:
        run.worker_stops = item == 5

    with pytest.raises(JobSuspended):
        run.walk(range(10), stop_at_5, chunk=4)
    again = new_run(memory, 2)
    assert again.walk(range(10), chunk=4) == [6, 7, 8, 9]
    assert again.reports[-1] == (10, 10)
    reports = run.reports + again.reports
    assert reports == sorted(reports)
    assert new_run(Memory()).reports == []


def test_an_item_that_raises_is_repeated(new_run: NewRun) -> None:
    memory = Memory()
    for lease, expected in ((1, [0, 1, 2, 3, 4, 5]), (2, [4, 5])):
        run = new_run(memory, lease)
        with pytest.raises(ZeroDivisionError):
            run.walk(range(10), lambda item: 1 / (item - 5), chunk=4)
        assert run.seen == expected


def test_a_stop_releases_the_job_without_using_an_attempt(new_run: NewRun) -> None:
    run = new_run(Memory())
    run.worker_stops = True
    with pytest.raises(JobSuspended) as stopped:
        run.walk(range(3))
    options: Any = None
    settings: Any = None
    assert resolve_error(stopped.value, options, 0, 1, settings) == ("queued", "", "head")
    with pytest.raises(JobSuspended) as late:
        new_run(Memory()).walk(range(10**9), max_runtime=0.001)
    assert (late.value.kind, late.value.detail) == ("queued", "tail")


def test_a_cancel_waits_for_the_end_of_an_item(new_run: NewRun) -> None:
    memory = Memory()
    run = new_run(memory)

    def cancel_at_3(item: int) -> None:
        assert run.defers_cancel
        if item == 3:
            run.mark_cancelled()

    with pytest.raises(JobCancelled):
        run.walk(range(10), cancel_at_3)
    assert run.seen == [0, 1, 2, 3]
    assert not run.defers_cancel
    assert json.loads(memory.fields["cursor:iterate"])["done"] == 4


def test_two_walks_need_names(new_run: NewRun) -> None:
    run = new_run(Memory())
    assert run.walk(range(2)) == [0, 1]
    assert run.walk(range(2), name="again") == [0, 1, 0, 1]
    with pytest.raises(StepError, match="the cursor 'again' occurs twice in one run"):
        run.iterate(range(2), name="again")


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: 5, "needs a queryset, or a list, tuple or range, not 5"),
    (lambda: "abc", "not 'abc'"),
    (lambda: iter([1]), "it must find its place again in a later run"),
    (lambda: Counter.objects.all()[:5], "a queryset without slices and unions"),
    (lambda: Counter.objects.all().union(Counter.objects.all()), "without slices and unions"),
    (lambda: Counter.objects.order_by("pk").reverse(), r"reverse\(\) turns it around; name it"),
    (lambda: Counter.objects.order_by("?"), r"a unique order of Counter, such as .*'\?' is no"),
    (lambda: Counter.objects.order_by(F("name")), r"F\(name\) is not a field"),
    (lambda: Counter.objects.order_by("value"), "value may be equal in two rows; add 'pk' as the"),
    (lambda: LogEntry.objects.order_by("user", "pk"), "'user' is a relation; use 'user_id'"),
    (lambda: User.objects.order_by("last_login", "pk"), "'last_login' may be NULL, after which"),
    (lambda: User.objects.order_by("groups__name", "pk"), "'groups__name' is not a field of it"),
    (lambda: StepReceipt.objects.order_by("job_id"), "job_id may be equal in two rows"),
]


@pytest.mark.parametrize(("items", "words"), BAD)
def test_items_without_a_position_to_resume_from_are_refused_at_once(
    new_run: NewRun, items: Callable[[], Any], words: str
) -> None:
    with pytest.raises(StepError, match=words):
        new_run(Memory()).iterate(items())


def test_unique_together_is_an_order(new_run: NewRun) -> None:
    new_run(Memory()).iterate(StepReceipt.objects.order_by("job_id", "name"))


@pytest.mark.django_db
def test_values_are_refused(new_run: NewRun) -> None:
    Counter.objects.create(name="n")
    with pytest.raises(StepError, match=r"a queryset of rows, not of values such as {'name': 'n'}"):
        new_run(Memory()).walk(Counter.objects.values("name"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, "chunk must be a whole number from 1"),
        ({"chunk": "5"}, "chunk must be"),
        ({"total": -1}, "total must be"),
        ({"max_runtime": 0}, "max_runtime must be more than 0"),
        ({"max_runtime": "soon"}, "max_runtime must be seconds, a timedelta, or a text"),
    ],
)
def test_wrong_options(new_run: NewRun, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        new_run(Memory()).iterate(range(3), **options)


# -- only async tasks


def test_two_walks_of_one_job_take_turns() -> None:
    """A cancel waits for the end of an item as long as one of them is running."""
    run = AsyncRun(Memory())

    async def both() -> None:
        met = asyncio.Condition()

        async def wait_for_the_other(item: int) -> None:
            assert run.defers_cancel
            async with met:
                met.notify_all()
                await met.wait_for(lambda: run.seen.count(item) == 2)

        names = ("one", "other")
        walks = [run.awalk(range(3), wait_for_the_other, name=name) for name in names]
        await asyncio.wait_for(asyncio.gather(*walks), 10)

    asyncio.run(both())
    assert run.seen == [0, 0, 1, 1, 2, 2]
    assert not run.defers_cancel


def test_an_interrupt_within_an_item_leaves_the_cursor_before_its_chunk() -> None:
    memory = Memory()
    run = AsyncRun(memory)

    async def hang_at_5(item: int) -> None:
        if item == 5:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)

    with pytest.raises(TimeoutError):
        asyncio.run(run.awalk(range(10), hang_at_5, chunk=4))
    assert AsyncRun(memory, 2).walk(range(10), chunk=4) == [4, 5, 6, 7, 8, 9]


def test_iterate_on_an_event_loop_is_refused() -> None:
    async def iterate() -> object:
        return Run(Memory()).iterate(range(3))

    words = r"iterate would block the event loop; .* async for ... in context.aiterate\(...\)"
    with pytest.raises(StepError, match=words):
        asyncio.run(iterate())
    assert asyncio.run(sync_to_async(Run(Memory()).walk)(range(3))) == [0, 1, 2]
