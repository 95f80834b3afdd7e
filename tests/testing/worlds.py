"""Two places where a program of calls takes effect, in memory and on Redis, and what happens there:
see test_against_redis.py and test_database_against_redis.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from django_redisqueue import (
    Backoff,
    For,
    Gather,
    Job,
    JobQueue,
    Limit,
    RateLimited,
    Replace,
    Retry,
    Task,
    Workflow,
    find_jobs,
    listener,
    send_event,
    set_limit,
    task,
)
from django_redisqueue.broker.base import CommandBase
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.client.schedules import code_schedules
from django_redisqueue.conf import get_settings
from django_redisqueue.core import ids
from django_redisqueue.core.ports import ports
from django_redisqueue.exceptions import (
    NotCommitted,
    ParentNotFound,
    RedisQueueError,
    WaitTimeout,
    WorkflowNotFound,
)
from django_redisqueue.models import Approval
from django_redisqueue.outbox import rows
from django_redisqueue.testing import capture_jobs, expectations
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.maintenance.schedules import ScheduleDeployment, Scheduler
from django_redisqueue.worker.maintenance.upkeep import set_aging
from django_redisqueue.worker.options import WorkerOptions
from tests.app.models import Order

from ..support.burst import kept_signals

T0 = 1_700_000_000_000
NUMBERS = count()  # of ids, in all programs: blocks that have ended keep their jobs
KEYS = count()  # of gathers
ID = re.compile(r"(?:job|flow|gather)_\d+_\d{9}_0")
NOT_COMPARED = {"id", "child", "lease", "seq", "ran", "error", "result_file"}
Call = tuple[Any, ...]
now_ms = [T0]
seen: list[Any] = []
world: World


class RolledBack(Exception):
    """Ends an ``atomic`` block of a program."""


def perform(context: Any, *actions: Call) -> Any:
    """The body of all tasks: one action for each attempt, the last also for later ones."""
    now_ms[0] += 1
    attempt = context.attempt, context.max_attempts
    seen.append(("run", context.job.id, *attempt, context.due_at, context.previous_due_at))
    kind, *args = actions[min(context.attempt, len(actions)) - 1] if actions else ("return",)
    return ACTIONS[kind](context, *args)


def fail(context: Any, *_: Any) -> Any:
    raise ValueError(context.step("fails", lambda: context.attempt))


def retry(context: Any, delay: int) -> Any:
    raise Retry("again", delay=delay)


def raise_error(context: Any, kind: str) -> Any:
    raise ERRORS[kind]()


def write(context: Any, then: str, atomic: bool) -> Any:
    """Write a row, in a step and outside; then run ``then``."""
    add_row(len(seen))
    row = context.step("row", add_row, len(seen), atomic=atomic)
    return ACTIONS[then](context, 4), row


def add_row(total: int) -> int:
    Order.objects.create(total=total)
    return total


def walk(context: Any, size: int, fails_at: int) -> None:
    for item in context.iterate(range(size), chunk=2):
        add_row(item)
        if item == fails_at and context.attempt == 1:
            raise ValueError(item)


def ask(context: Any, name: str, timeout: int | None) -> Any:
    decision = context.approval(name, timeout=timeout)
    return decision.approved, decision.by


def call(context: Any, *calls: Call) -> None:
    for one in calls:
        world.call(one)


ACTIONS: dict[str, Callable[..., Any]] = {
    "return": lambda _, *args: args,
    "fail": fail,
    "retry": retry,
    "raise": raise_error,
    "sleep": lambda context, seconds: context.sleep(seconds),
    "wait": lambda context, event: context.wait_for(event, timeout=7),
    "parents": lambda context, *_: context.parent_results,
    "large": lambda _: "x" * 3000,
    "write": write,
    "walk": walk,
    "ask": ask,
    "call": call,
}
ERRORS: dict[str, Callable[[], BaseException]] = {
    "key": partial(KeyError, "k"),
    "connection": partial(ConnectionError, "c"),
    "exit": partial(SystemExit, 3),
    "limited": partial(RateLimited, retry_after=3),
    "group": lambda: ExceptionGroup("two", [Retry("a", delay=2), Retry("b", delay=5)]),
    "wrong": lambda: Retry("wrong", delay=-1),
}


def make(name: str, **options: Any) -> Task[..., Any]:
    def body(context: Any, key: int, *actions: Call) -> Any:
        return perform(context, *actions)

    async def async_body(context: Any, key: int, *actions: Call) -> Any:
        return await sync_to_async(perform)(context, *actions)

    body = async_body if name == "async" else body  # type: ignore[assignment]
    body.__qualname__ = body.__name__ = name
    return task(name=f"against.{name}", takes_context=True, **{"backoff": [3], **options})(body)


TASKS = {
    "plain": make("plain"),
    "tries": make("tries", max_attempts=3, backoff=Backoff(base=2, jitter=0)),
    "high": make("high", priority=5, expires="9s"),
    "fair": make("fair", fair_by="key", max_attempts=2),
    "limited": make("limited", concurrency=Limit(1, key="key")),
    "discarded": make("discarded", concurrency=Limit(1), on_conflict="discard"),
    "newest": make("newest", concurrency=Limit(1), on_conflict="cancel_oldest"),
    "started": make("started", unique="until_started", unique_by="key", max_attempts=2),
    "finished": make("finished", unique="until_finished", unique_by="key"),
    "last": make("last", unique="keep_last", unique_by="key", max_attempts=2),
    "replaced": make("replaced", unique=Replace(4, 9), unique_by="key", max_attempts=2),
    "hourly": make("hourly", unique=For("20s"), unique_by="key"),
    "picky": make("picky", max_attempts=4, backoff=[1, 4], no_retry_on=(ConnectionError,)),
    "async": make("async", max_attempts=2),
    "once": make("once", exactly_once=True, max_attempts=3),
    "elsewhere": make("elsewhere", exactly_once=True, using="other", max_attempts=2),
    "stored": make("stored", outbox=True, max_attempts=2),
}


@listener("against", takes_context=True)
def first(context: Any, action: Call) -> Any:
    return perform(context, action)


@listener("against", takes_context=True, max_attempts=2, backoff=[2])
def second(context: Any, action: Call) -> Any:
    return perform(context, action)


class World:
    """Where a program takes effect. ``run`` runs what is due, ``travel`` moves the clock by
    seconds."""

    def __init__(
        self,
        run: Callable[[], object],
        travel: Callable[[int], object],
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        self._verbs = {"run": run, "travel": travel}
        self._settle = settle
        self.jobs: list[Job] = []
        self.flows: list[Workflow] = []

    def call(self, call: Call) -> None:
        """Make one call, and note what it returns or raises."""
        now_ms[0] += 1
        verb, *args = call
        if verb in self._verbs:
            self._verbs[verb](*args)
            return
        with suppress(ZeroDivisionError):  # there is no job or workflow yet
            try:
                made = getattr(self, verb)(*args)
            except RedisQueueError as error:
                # These messages say what to do, which differs.
                text = "" if isinstance(error, WaitTimeout | ParentNotFound) else str(error)
                made = (type(error).__name__, text)
            seen.append((verb, made, isinstance(made, Job) and made.is_duplicate))
        self._settle()

    def enqueue(self, name: str, options: dict[str, Any], *args: Any) -> Job:
        known = [self.jobs[n % len(self.jobs)] for n in options.get("after", ())]
        after = [job for job in known if not job.is_deferred]
        task = TASKS[name].using(**{**options, "after": after or None})
        self.jobs.append(task.enqueue(*args))
        return self.jobs[-1]

    def enqueue_many(self, name: str, *args: Any) -> None:
        self.jobs += TASKS[name].enqueue_many([args, args])

    def aenqueue(self, name: str, *args: Any) -> None:
        self.jobs.append(async_to_sync(TASKS[name].aenqueue)(*args))

    def aact(self, verb: str, n: int, *args: Any) -> Any:
        return async_to_sync(getattr(self.jobs[n % len(self.jobs)], verb))(*args)

    def atomic(self, alias: str, rolls_back: bool, *calls: Call) -> None:
        with suppress(RolledBack), transaction.atomic(using=alias):
            for one in calls:
                self.call(one)
            if rolls_back:
                raise RolledBack

    def find(self, query: dict[str, Any]) -> Any:
        return [(job.id, job.status, job.tags) for job in find_jobs(status="unfinished", **query)]

    def decide(self, n: int, approved: bool) -> Any:
        """Between two runs: on Redis, a job carries the decision, in its turn."""
        self._verbs["run"]()
        asked = Approval.objects.order_by("pk")
        user, _ = User.objects.get_or_create(username="boss", is_superuser=True)
        asked[n % len(asked)].decide(user, approved=approved)
        self._verbs["run"]()

    def act(self, verb: str, n: int, *args: Any) -> Any:
        return getattr(self.jobs[n % len(self.jobs)], verb)(*args)

    def control(self, verb: str, n: int) -> Any:
        return getattr(self.flows[n % len(self.flows)], verb)()

    def queue(self, verb: str, options: dict[str, Any]) -> Any:
        return getattr(JobQueue(), verb)(**options)

    def push(self, *nodes: tuple[str, tuple[int, ...], str, Call]) -> None:
        done = TASKS["plain"].s(0)
        flow = Workflow(on_complete=done, on_failure=done)
        added: list[Job] = []
        for name, after, on_failure, action in nodes:
            parents, what = [added[n] for n in after], TASKS[name].s(0, action)
            added.append(flow.add(what, after=parents, on_failure=on_failure))
        flow.push()
        self.flows.append(flow)
        self.jobs += added

    def gather(self, threshold: int, action: Call) -> None:
        then, key = TASKS["plain"].s(1), f"key{next(KEYS)}"
        self.jobs += Gather.start(
            key, topic="against", payload={"action": action}, threshold=threshold, then=then,
            on_failure=then, polls=1000,
        ).jobs()  # fmt: skip

    send_event = staticmethod(send_event)
    set_limit = staticmethod(set_limit)


def use_clock(patch: pytest.MonkeyPatch, clock: Callable[[], int]) -> None:
    patch.setattr(timezone, "now", lambda: datetime.fromtimestamp(clock() / 1000, UTC))
    patch.setattr(rows, "real_ms", clock)


@contextmanager
def in_memory(patch: pytest.MonkeyPatch) -> Iterator[World]:
    with capture_jobs() as jobs:
        use_clock(patch, jobs.now_ms)
        jobs.travel()  # its schedules count from here
        yield World(jobs.run_due, lambda seconds: jobs.travel(seconds=seconds))


@contextmanager
def on_redis(patch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = property(lambda _: now_ms[0], lambda *_: None)
    patch.setattr(CommandBase, "now_ms", clock, raising=False)
    use_clock(patch, lambda: now_ms[0])
    commands, settings, state = Commands(worker_connection()), get_settings(), ChildState(0, 1)
    # A child that claims nothing when it reports: each job is chosen after the end of the last.
    options = WorkerOptions(queues=("default",), burst=True, max_jobs=1)
    scheduler = Scheduler(commands)
    ScheduleDeployment(commands, code_schedules()).run_once()
    set_aging(commands)

    def settle() -> None:
        while commands.advance():
            pass

    def run() -> None:
        with kept_signals():
            while not Child("burst", state, options, settings, lambda: None).run():
                settle()

    def travel(seconds: int) -> None:
        end_ms = now_ms[0] + seconds * 1000
        while True:
            due = commands.promote(["default"])
            if due.schedule_ms == 0:
                scheduler.run_once()
                continue
            left = [ms for ms in (due.next_ms, due.schedule_ms) if ms >= 0]
            if not left or min(left) > end_ms - now_ms[0]:
                break
            now_ms[0] += min(left)
            settle()
        now_ms[0] = end_ms

    yield World(run, travel, settle)
    state.close()
    commands.connection.close_all()


def data_of(handle: Job | Workflow) -> Any:
    try:
        data = asdict(handle.data)
    except WorkflowNotFound:
        return "cleaned"
    except NotCommitted:
        return "rolled back"
    if isinstance(handle, Job):
        data["result"] = handle.result
    return data["id"], {name: one for name, one in data.items() if name not in NOT_COMPARED}


def history(made: World, program: list[Call]) -> list[str]:
    """What happens, line by line, with the ids by their order."""
    global world, KEYS
    world, KEYS = made, count()
    seen.clear()
    for one in [*program, ("queue", "resume", {}), *[("travel", 30), ("run",)] * 4]:
        made.call(one)
    for job in made.jobs:
        with suppress(NotCommitted):
            job.refresh()
            seen.append((job.id, str(job.error)))
    seen.append([order.total for order in Order.objects.order_by("pk")])
    asked = Approval.objects.order_by("pk")
    seen.append([(one.job_id, one.name, one.status, one.decided_by) for one in asked])
    lines = "\n".join(map(repr, [*seen, *map(data_of, [*made.jobs, *made.flows])]))
    known: dict[str, str] = {}
    return ID.sub(lambda found: known.setdefault(found[0], f"#{len(known)}"), lines).splitlines()


def compare(program: list[Call], patch: pytest.MonkeyPatch) -> None:
    """Fail unless the program has the same history in memory as on Redis."""
    patch.setattr(expectations, "real_ms", lambda: now_ms[0])
    patch.setattr(ids, "_unique", lambda: f"{T0}_{next(NUMBERS):09}")
    histories = []
    for place in on_redis, in_memory:
        now_ms[0] = T0
        ports.ended.clear()  # runs of schedules have the same ids in each place
        for model in Order, Approval:
            model.objects.all().delete()
        with patch.context() as own, place(own) as made:
            histories.append(history(made, program))
    expected, found = histories
    differs = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
    shown = "\n".join(map(repr, [*program, "in memory, on Redis:", *differs[:1]]))
    assert found == expected, shown
