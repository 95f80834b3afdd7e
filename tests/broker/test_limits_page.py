"""The timelines in docs/limits.md show what the in-memory queue does (and Redis, where jobs run at
the same time)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import Limit, Rate, Task, task
from django_redisqueue.client import registry
from django_redisqueue.testing import capture_jobs, run_inline

from .harness import BrokerHarness, outcome

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
TIMELINE = re.compile(r"<!-- timeline: (\w+) -->\n```text\n(.*?)```", re.S)
SEEN: list[Any] = []


def note(tenant: str, n: int) -> None:
    SEEN.append(f"{tenant}{n}")


@pytest.fixture
def make() -> Iterator[Callable[..., Task]]:
    """Register a task with options; the task is removed afterwards."""
    SEEN.clear()
    known = dict(registry._tasks)
    numbers = iter(range(100))
    yield lambda **options: task(name=f"tests.note{next(numbers)}", **options)(note)
    registry._tasks.clear()
    registry._tasks.update(known)


def told(name: str) -> str:
    return dict(TIMELINE.findall(PAGE.read_text(encoding="utf-8")))[name]


def runs(made: Task, calls: list[tuple[str, int]]) -> list[str]:
    SEEN.clear()
    with capture_jobs(raises=True) as jobs:
        made.enqueue_many(calls)
        jobs.drain()
    return list(SEEN)


def test_conflicts(make: Callable[..., Task]) -> None:
    found = {}
    for choice in ("wait", "discard", "cancel_oldest"):
        made = make(concurrency=Limit(1, key="tenant"), on_conflict=choice)
        found[choice] = ", ".join(f"{run} runs" for run in runs(made, [("", n) for n in (1, 2, 3)]))
    text = "".join(f"{choice:17}{line}\n" for choice, line in found.items())
    assert text == told("conflict")


def test_shares(make: Callable[..., Task], settings: Any) -> None:
    calls = [*(("a", n) for n in range(1, 7)), ("b", 1), ("b", 2)]
    without, fair = runs(make(), calls), runs(make(fair_by="tenant"), calls)
    settings.REDISQUEUE = {**settings.REDISQUEUE, "WEIGHTS": {"a": 2}}
    weighted = runs(make(fair_by="tenant"), calls)
    assert told("fair") == "".join(
        f"{label:17}{' '.join(found)}\n"
        for label, found in (("without", without), ("fair_by", fair), ("a has weight 2", weighted))
    )


def test_shares_in_redis(broker: BrokerHarness, make: Callable[..., Task], settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "WEIGHTS": {"a": 2}}
    rule = make(fair_by="tenant").lane_rule
    for tenant, n in [*(("a", n) for n in range(1, 7)), ("b", 1), ("b", 2)]:
        broker.add(f"{tenant}{n}", lane=rule.lane((tenant, n), {}))
    assert f"{'a has weight 2':17}{' '.join(broker.taken(jobs=8))}\n" in told("fair")


def test_rates(make: Callable[..., Task]) -> None:
    text = ""
    for burst in (1, 2):
        made = make(rate=Rate(3, "1m", burst=burst))
        SEEN.clear()
        with run_inline() as jobs:
            made.enqueue_many([("", n) for n in range(1, 6)])
            steps = []
            for second in range(0, 100, 10):
                if SEEN:
                    steps.append(f"{second} s: {', '.join(SEEN)}")
                    SEEN.clear()
                jobs.travel(seconds=10.01)
        text += f"{f'burst={burst}':17}{'   '.join(steps)}\n"
    assert text == told("rate")


def test_concurrency(broker: BrokerHarness) -> None:
    def starts() -> str:
        ids = broker.taken("c1", jobs=9)
        return f"{', '.join(ids) or 'nothing'} start{'s' if len(ids) < 2 else ''}"

    broker.add("1", "2", "3", "4", lane="|c:t: c:t=2")
    held = broker.claim("c1", 9).jobs
    text = f"{'claim':17}{', '.join(job.id for job in held)} start\n"
    text += f"{'claim':17}{starts()}\n"
    for job, kind, word in zip(held, ("completed", "failed"), ("ends", "fails"), strict=True):
        broker.finish(outcome(job, kind))
        text += f"{f'{job.id} {word}':17}{starts()}\n"
    assert text == told("concurrency")


def test_aging(broker: BrokerHarness) -> None:
    lines = {}
    for label, aging in (("without", None), ("AGING is 15", 15_000)):
        broker.redis.flushdb()
        broker.store.set_aging({"default": aging})
        broker.add("plain")
        steps = []
        for n, name in enumerate("abcde"):
            broker.add(name, priority=2)
            steps.append(f"{10 * n} s: {broker.take().id}")
            broker.advance(10_000)
        lines[label] = "   ".join(steps)
    assert "".join(f"{label:17}{line}\n" for label, line in lines.items()) == told("aging")
