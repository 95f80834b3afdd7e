"""Random programs have the same effects in memory as on Redis: transactions, the outbox,
``exactly_once``, steps with receipts, walks, approvals, retries, tags, async calls, and schedules.

Programs run in real transactions; a ``TestCase`` is left out, where hooks wait for the end of its
captureOnCommitCallbacks. Nor do jobs expire: see docs/testing.md for both.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from .worlds import ERRORS, Call, compare

TASKS = ["plain", "tries", "fair", "picky", "async", "once", "elsewhere", "stored", "finished"]
SCHEDULES: dict[str, dict[str, Any]] = {
    "often": {"task": "against.plain", "every": "5s", "args": [0]},
    "skips": {"task": "against.picky", "every": "7s", "overlap": "skip", "args": [0, ["sleep", 4]]},
    "cancels": {
        "task": "against.plain", "every": "11s", "overlap": "cancel", "args": [0, ["sleep", 30]],
        "priority": 3,
    },
    "later": {"task": "against.picky", "cron": "* * * * *", "jitter": 10, "args": [1, ["fail"]]},
    "unique": {"task": "against.finished", "every": "3s", "args": [1, ["sleep", 10]]},
    "last": {
        "task": "against.last", "every": "10s", "overlap": "cancel", "args": [1, ["sleep", 9]],
    },
    "limited": {"task": "against.newest", "every": "13s", "args": [1]},
}  # fmt: skip


def random_action(chance: random.Random) -> Call:
    pick = chance.choice
    kinds: list[Call] = [
        ("raise", pick(sorted(ERRORS))),
        ("write", pick(["return", "fail", "sleep", "retry"]), pick([True, False])),
        ("walk", 1 + chance.randrange(5), chance.randrange(5)),
        ("ask", pick("ab"), pick([None, 5, 9])),
        ("wait", "e0"),
        ("sleep", 4),
        ("large",),
        ("call", *[random_enqueue(chance) for _ in range(2)]),
        ("call", random_block(chance)),
    ]
    return pick(kinds)


def random_enqueue(chance: random.Random, *actions: Call) -> Call:
    pick, args = chance.choice, (pick_task(chance), chance.randrange(2), *actions)
    if chance.random() < 0.3:
        return pick(["enqueue_many", "aenqueue"]), *args
    options: dict[str, Any] = {"tags": {"t": pick("ab")}}
    if chance.random() < 0.2:
        options["after"] = [chance.randrange(30)]
    if chance.random() < 0.3:
        options |= pick([{"outbox": True}, {"on_commit": False}, {"max_attempts": 2}])
    if chance.random() < 0.2:
        options["run_after"] = pick([1, 15])
    return "enqueue", args[0], options, *args[1:]


def pick_task(chance: random.Random) -> str:
    return chance.choice(TASKS)


def random_block(chance: random.Random, *calls: Call) -> Call:
    inner = [*calls, *[random_enqueue(chance) for _ in range(chance.randrange(3))]]
    return "atomic", chance.choice(["default", "other"]), chance.random() < 0.3, *inner


def random_call(chance: random.Random) -> Call:
    pick, n = chance.choice, chance.randrange(30)
    kind = chance.random()
    if kind < 0.5:
        actions = [random_action(chance) for _ in range(chance.randrange(3))]
        return random_enqueue(chance, *actions)
    if kind < 0.65:
        return random_block(chance, random_block(chance), ("send_event", "e0", n))
    return pick(
        [
            ("run",),
            ("travel", pick([1, 4, 20])),
            ("decide", n, pick([True, False])),
            ("find", {"tags": {"t": pick("ab")}, "limit": pick([2, 100])}),
            ("aact", pick(["arefresh", "acancel"]), n),
            ("aact", "await_result", n, 0),
            ("act", pick(["cancel", "requeue", "forget_steps"]), n),
            ("act", "wait", n, 0),
        ]
    )


@pytest.mark.one_shard("the order of jobs is that of one queue in one shard")
@pytest.mark.django_db(databases=["default", "other"], transaction=True)
@pytest.mark.parametrize("seed", range(8))
def test_a_random_program(
    seed: int, queue_settings: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDISQUEUE = {
        **queue_settings,
        "BATCH_WINDOW_MS": 0,
        "INDEXED": ["task", "tags.t"],
        "MAX_RESULT_BYTES": 2000,
        "AGING": 2 if seed % 2 else None,
        "SCHEDULES": SCHEDULES if seed % 3 == 0 else {},
    }
    chance = random.Random(seed)
    compare([random_call(chance) for _ in range(20)], monkeypatch)
