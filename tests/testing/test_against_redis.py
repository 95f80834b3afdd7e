"""Random programs have the same effects in memory as on Redis: the same jobs run in the same order,
with the same states, results, errors and exceptions.

Rates and chunks are left out: the order between their jobs and others may differ (docs/testing.md).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from .worlds import Call, compare

TASKS = [
    "plain", "tries", "high", "fair", "limited", "discarded", "newest", "started", "finished",
    "last", "replaced", "hourly",
]  # fmt: skip


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
    pick, n, name = chance.choice, chance.randrange(30), chance.choice(TASKS)
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


@pytest.mark.one_shard("the order of jobs is that of one queue in one shard")
@pytest.mark.django_db(databases=["default", "other"])  # forget_steps() deletes receipts
@pytest.mark.parametrize("seed", range(10))
def test_a_random_program(
    seed: int, queue_settings: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With an index, because a job without options is sent with the time of the first one.
    settings.REDISQUEUE = {**queue_settings, "BATCH_WINDOW_MS": 0, "INDEXED": ["task"]}
    chance = random.Random(seed)
    compare([random_call(chance) for _ in range(30)], monkeypatch)
