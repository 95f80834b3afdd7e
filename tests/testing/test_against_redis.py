"""Random programs have the same effects in memory as on Redis: the same jobs run in the same order,
with the same states, results, errors and exceptions.

Rates and chunks are left out: the order between their jobs and others may differ (docs/testing.md).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from typing import Any

import pytest

from django_redisqueue import (
    Backoff,
    For,
    Gather,
    Job,
    JobQueue,
    Limit,
    Replace,
    Retry,
    Task,
    Workflow,
    listener,
    send_event,
    set_limit,
    task,
)
from django_redisqueue.broker.base import CommandBase
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.conf import get_settings
from django_redisqueue.core import ids
from django_redisqueue.exceptions import RedisQueueError, WaitTimeout, WorkflowNotFound
from django_redisqueue.testing import capture_jobs, expectations
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import ChildState
from django_redisqueue.worker.options import WorkerOptions

from ..support.burst import kept_signals

T0 = 1_700_000_000_000
NUMBERS = count()  # of ids, in all programs: blocks that have ended keep their jobs
ID = re.compile(r"(?:job|flow|gather)_\d+_\d{9}_0")
NOT_COMPARED = {"id", "child", "lease", "seq", "ran", "error"}
Call = tuple[Any, ...]
now_ms = [T0]
seen: list[Any] = []
world: World


def perform(context: Any, *actions: Call) -> Any:
    """The body of all tasks: one action for each attempt, the last also for later ones."""
    now_ms[0] += 1
    seen.append(("run", context.job.id, context.attempt, context.max_attempts))
    kind, *args = actions[min(context.attempt, len(actions)) - 1] if actions else ("return",)
    if kind == "fail":
        raise ValueError(context.step("fails", lambda: context.attempt))
    if kind == "retry":
        raise Retry("again", delay=args[0])
    if kind == "sleep":
        context.sleep(args[0])
    if kind == "wait":
        return context.wait_for(*args, timeout=7)
    if kind == "parents":
        return context.parent_results
    if kind == "call":
        world.call(args[0])
    return args


def make(name: str, **options: Any) -> Task[..., Any]:
    def body(context: Any, key: int, *actions: Call) -> Any:
        return perform(context, *actions)

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
                # The message of a timeout says what to do, which differs.
                text = "" if isinstance(error, WaitTimeout) else str(error)
                made = (type(error).__name__, text)
            seen.append((verb, made, isinstance(made, Job) and made.is_duplicate))
        self._settle()

    def enqueue(self, name: str, options: dict[str, Any], *args: Any) -> Job:
        after = [self.jobs[n % len(self.jobs)] for n in options.get("after", ())]
        self.jobs.append(TASKS[name].using(**{**options, "after": after or None}).enqueue(*args))
        return self.jobs[-1]

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
        then, key = TASKS["plain"].s(1), f"key{len(self.jobs)}"
        self.jobs += Gather.start(
            key, topic="against", payload={"action": action}, threshold=threshold, then=then,
            on_failure=then, polls=1000,
        ).jobs()  # fmt: skip

    send_event = staticmethod(send_event)
    set_limit = staticmethod(set_limit)


@contextmanager
def in_memory() -> Iterator[World]:
    with capture_jobs() as jobs:
        yield World(jobs.run_due, lambda seconds: jobs.travel(seconds=seconds, periodic=False))


@contextmanager
def on_redis(patch: pytest.MonkeyPatch) -> Iterator[World]:
    clock = property(lambda _: now_ms[0], lambda *_: None)
    patch.setattr(CommandBase, "now_ms", clock, raising=False)
    commands, settings, state = Commands(worker_connection()), get_settings(), ChildState(0, 1)
    # A child that claims nothing when it reports: each job is chosen after the end of the last.
    options = WorkerOptions(queues=("default",), burst=True, max_jobs=1)

    def settle() -> None:
        while commands.advance():
            pass

    def run() -> None:
        with kept_signals():
            while not Child("burst", state, options, settings, lambda: None).run():
                settle()

    def travel(seconds: int) -> None:
        end_ms = now_ms[0] + seconds * 1000
        while 0 <= (left := commands.promote(["default"]).next_ms) <= end_ms - now_ms[0]:
            now_ms[0] += left
            settle()
        now_ms[0] = end_ms

    yield World(run, travel, settle)
    state.close()
    commands.connection.close_all()


def random_action(chance: random.Random) -> Call:
    kind = chance.choice(["fail", "retry", "sleep", "wait", "parents", "return", "call"])
    if kind == "call":
        return kind, random_call(chance, inner=True)
    return kind, f"e{chance.randrange(2)}" if kind == "wait" else chance.choice([1, 4])


def random_node(chance: random.Random, n: int) -> Call:
    after = tuple(sorted({chance.randrange(n) for _ in range(chance.randrange(3))} if n else ()))
    name = chance.choice(["plain", "tries", "high", "fair"])
    return name, after, chance.choice(["fail", "skip", "go_on"]), random_action(chance)


def random_call(chance: random.Random, *, inner: bool = False) -> Call:
    """A call of a program; ``inner``: one that a job makes."""
    pick, n, name = chance.choice, chance.randrange(30), chance.choice([*TASKS])
    actions = [] if inner else [random_action(chance) for _ in range(chance.randrange(3))]
    options: dict[str, Any] = {}
    if chance.random() < 0.3:
        options["priority"] = pick([0, 5, -5])
    if chance.random() < 0.2:
        options["after"] = [n, chance.randrange(30)]
        options["on_parent_failure"] = pick(["wait", "skip", "go_on"])
    if chance.random() < 0.2 and name != "replaced":
        options["run_after"] = pick([1, 3, 15])
    calls: list[Call] = [
        *[("enqueue", name, options, chance.randrange(2), *actions)] * 5,
        ("act", pick(["cancel", "requeue", "forget_steps", "refresh"]), n),
        ("act", "wait", n, 0),
        ("send_event", f"e{chance.randrange(2)}", n),
        ("control", pick(["pause", "release", "cancel", "cleanup"]), n),
    ]
    if not inner:
        part = pick([{}, {"share": 1}, {"limit": "against.limited", "key": 1}])
        calls += [
            *[("run",), ("travel", pick([1, 5, 13]))] * 2,
            ("queue", pick(["pause", "resume"]), part),
            ("queue", "get_pauses", {}),
            ("set_limit", "against.newest", pick([1, 2, None])),
            ("push", *[random_node(chance, at) for at in range(1 + chance.randrange(4))]),
            ("gather", 1 + chance.randrange(2), random_action(chance)),
        ]
    return pick(calls)


def data_of(handle: Job | Workflow) -> Any:
    try:
        data = asdict(handle.data)
    except WorkflowNotFound:
        return "cleaned"
    return data["id"], {name: one for name, one in data.items() if name not in NOT_COMPARED}


def history(made: World, program: list[Call]) -> list[str]:
    """What happens, line by line, with the ids by their order."""
    global world
    world, now_ms[0] = made, T0
    seen.clear()
    for one in [*program, ("queue", "resume", {}), *[("travel", 30), ("run",)] * 4]:
        made.call(one)
    for job in made.jobs:
        job.refresh()
        seen.append((job.id, str(job.error)))
    lines = "\n".join(map(repr, [*seen, *map(data_of, [*made.jobs, *made.flows])]))
    known: dict[str, str] = {}
    return ID.sub(lambda found: known.setdefault(found[0], f"#{len(known)}"), lines).splitlines()


@pytest.mark.one_shard("the order of jobs is that of one queue in one shard")
@pytest.mark.django_db(databases=["default", "other"])  # forget_steps() deletes receipts
@pytest.mark.parametrize("seed", range(10))
def test_a_random_program(
    seed: int, queue_settings: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With an index, because a job without options is sent with the time of the first one.
    settings.REDISQUEUE = {**queue_settings, "BATCH_WINDOW_MS": 0, "INDEXED": ["task"]}
    monkeypatch.setattr(expectations, "real_ms", lambda: now_ms[0])
    monkeypatch.setattr(ids, "_unique", lambda: f"{T0}_{next(NUMBERS):09}")
    chance = random.Random(seed)
    program = [random_call(chance) for _ in range(30)]
    with monkeypatch.context() as patch, on_redis(patch) as made:
        expected = history(made, program)
    with in_memory() as made:
        found = history(made, program)
    differs = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
    shown = "\n".join(map(repr, [*program, "in memory, on Redis:", *differs[:1]]))
    assert found == expected, f"seed {seed}:\n{shown}"
