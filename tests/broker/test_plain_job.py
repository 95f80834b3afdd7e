"""A single plain job is created by its own path, which has the same result as create_jobs().

Each case runs twice: once as it is, and once with that path shut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.exceptions import RedisQueueError, WrongKeyType

from .harness import BrokerHarness, invariants
from .planted import plant_bug
from .test_single_run import without_instants

AS_OTHERS = ("is_usual, tokens = not is_general,", "is_usual, tokens = false,")
STEP = 5000  # events between two entries of the trim index

Spoil = Callable[[BrokerHarness], object]
KEYS: dict[str, Callable[[BrokerHarness], str]] = {
    "meta": lambda broker: broker.keys.meta,
    "job": lambda broker: broker.keys.job("a"),
    "meta of the queue": lambda broker: broker.keys.queue("default").meta,
    "queued": lambda broker: broker.keys.queue("default").queued,
    "wake": lambda broker: broker.keys.queue("default").wake,
}
NUMBERS = ("much", "007", "9" * 19, "1.5", "-1", "0", "1", "")


def _replace(key: Callable[[BrokerHarness], str]) -> Spoil:
    def spoil(broker: BrokerHarness) -> None:
        broker.redis.set(key(broker), "theirs")

    return spoil


def _events(number: str) -> Spoil:
    return lambda broker: broker.redis.hset(broker.keys.meta, "events", number)


def _total(number: str) -> Spoil:
    return lambda broker: broker.redis.hset(
        KEYS["meta of the queue"](broker), "enqueued_total", number
    )


CASES: dict[str, Spoil] = {
    **{f"{name} is of another type": _replace(key) for name, key in KEYS.items()},
    **{f"events are {number!r}": _events(number) for number in NUMBERS},
    **{f"the total is {number!r}": _total(number) for number in NUMBERS},
    "a token": lambda broker: None,
    "no token": lambda broker: broker.pop_token(),
    "known": lambda broker: broker.add("a"),
    "known, no token": lambda broker: [broker.add("a"), broker.pop_token()],
    "no events": lambda broker: broker.redis.hdel(broker.keys.meta, "events"),
    "a new queue": lambda broker: broker.redis.delete(
        KEYS["meta of the queue"](broker), broker.keys.queues
    ),
    "an entry is due for the trim index": _events(str(STEP - 1)),
    "an entry was due": _events(str(STEP)),
}


def _second(broker: BrokerHarness, spoil: Spoil) -> tuple[object, ...]:
    """The reply to a second job of a queue and what the job leaves, after something was
    corrupted."""
    broker.redis.flushdb()
    broker.add("first")
    spoil(broker)
    before = broker.dump()
    found: Any
    try:
        found = broker.add("a")
    except RedisQueueError as error:
        found = str(error)
        assert broker.dump() == before, "half written"
    return found, {key: without_instants(*value) for key, value in broker.dump().items()}


@pytest.mark.parametrize("case", CASES)
def test_a_plain_job_has_the_same_result_as_any_job(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    found = _second(broker, CASES[case])
    plant_bug(monkeypatch, *AS_OTHERS)
    assert found == _second(broker, CASES[case])


def test_it_is_undone_when_the_stream_is_of_another_type(broker: BrokerHarness) -> None:
    broker.add("first")
    with broker.refused_over(broker.keys.events, "stream"):
        broker.add("a")


def test_it_does_not_read_the_trim_index(broker: BrokerHarness) -> None:
    """Another call that adds an entry checks its type."""
    broker.add("first")
    _replace(lambda broker: broker.keys.trim_index)(broker)
    assert broker.add("a") == [True]
    with pytest.raises(WrongKeyType, match="holds a string where a list belongs"):
        broker.add("b", "c")
    broker.redis.delete(broker.keys.trim_index)
    invariants(broker)


BUGS = {
    "the id stays": ("redis.call('LPOP', queued_key)", "redis.call('LLEN', queued_key)"),
    "the sums stay": ("'HINCRBY', key, counter, '-1'", "'HINCRBY', key, counter, '0'"),
    "a first sum stays": ("redis.call('HDEL', key, counter)", "redis.call('HLEN', key)"),
    "a known job is made again": ("is_usual = known == 0 or", "is_usual = true or"),
    "a known job counts as a token": ("== 'number' and tokens > 0  --", "== 'number'  --"),
    "the trim index gets no entry": ("total > 1 and total % STEP > 0", "true"),
    "no token is left": ("if tokens == 0 then", "if tokens == 9 then"),
    "the queue does not become known": ("'number' and enqueued_total > 1", "'number'"),
    "the event has another number": ("':n', total - 1", "':n', total"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(broker: BrokerHarness, bug: str) -> None:
    def found(spoil: Spoil, right: str, wrong: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            plant_bug(patch, right, wrong)
            return _second(broker, spoil)

    def differs(spoil: Spoil) -> bool:
        try:
            return bool(found(spoil, *BUGS[bug]) != found(spoil, *AS_OTHERS))
        except AssertionError:
            return True  # half written

    stream = _replace(lambda broker: broker.keys.events)
    assert any(differs(spoil) for spoil in (*CASES.values(), stream))
