"""A single run is finished by its own path, which does the same as that of a batch.

Each history here runs twice: once as it is, and once with every call of ``finish`` as a batch.
Replies, messages and the whole keyspace must be the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.replies import ClaimedJob, FinishCode, Outcome
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import RedisQueueError

from .harness import ERROR, PAYLOAD, T0, BrokerHarness, invariants, outcome, with_implied_fields
from .planted import plant_bug

AS_BATCH = ("local is_usual = first > 11", "local is_usual = first == 0")
DEFAULT, BOTH = ("default",), ("default", "low")
STEP = 5000  # events between two entries of the trim index

History = Callable[[BrokerHarness], list[Any]]


def _played(broker: BrokerHarness, history: History, *, loosely: bool = False) -> tuple[Any, ...]:
    """The replies to a history's calls, the messages that clients hear, and the resulting keyspace.
    ``loosely`` applies when the batch takes the slow path, which writes the implied fields and
    counts their bytes."""
    broker.redis.flushall()
    broker.call, broker.store.now_ms = 0, T0
    with broker.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.psubscribe("*")
        pubsub.get_message(timeout=5)
        replies = history(broker)
        broker.redis.publish("end", "")
        heard = []
        while (message := pubsub.get_message(timeout=5) or {}).get("channel") != "end":
            if message:
                heard.append((message["channel"], message["data"]))
    kept = {key: without_instants(*value) for key, value in broker.dump().items()}
    if loosely:
        kept = {key: (kind, _loose(kind, value)) for key, (kind, value) in kept.items()}
    return replies, heard, kept


def _loose(kind: str, value: Any) -> Any:
    if kind != "hash":
        return value
    return {
        k: v for k, v in with_implied_fields(value).items() if k not in ("bytes", "finished_bytes")
    }


def without_instants(kind: str, value: Any) -> tuple[str, Any]:
    """A value without the ids of the stream's entries, which depend on Redis's own clock."""
    if kind == "stream":
        return kind, [fields for _, fields in value]
    if kind == "list":
        return kind, [re.sub(r"^\d+-\d+ ", "", entry) for entry in value]
    return kind, value


def _played_as_batch(
    broker: BrokerHarness, history: History, *, loosely: bool = False
) -> tuple[Any, ...]:
    with pytest.MonkeyPatch.context() as patch:
        plant_bug(patch, *AS_BATCH)
        return _played(broker, history, loosely=loosely)


def _finish(
    broker: BrokerHarness,
    *outcomes: Outcome,
    jobs: int = 1,
    queues: tuple[str, ...] = DEFAULT,
    **options: Any,
) -> Any:
    broker.call += 1
    request = ClaimRequest(options.pop("child", "c1"), queues, options.pop("min_priority", -100))
    try:
        return broker.store.finish(request, broker.call, outcomes, jobs, **options)
    except RedisQueueError as error:
        return str(error)


def _used(broker: BrokerHarness) -> None:
    """The queue and the stream have been used, and contain one more job, which a child holds."""
    broker.end("first")
    broker.pop_token()


def _is_single(broker: BrokerHarness) -> bool:
    """Whether the last call took the single path. The batch path begins with a DEL."""
    return broker.calls("del") == [0]


# -- calls that are single runs


def _usual(broker: BrokerHarness) -> ClaimedJob:
    _used(broker)
    broker.add("a", "b", "c")
    return broker.take()


def _long_result(broker: BrokerHarness) -> list[Any]:
    return [_finish(broker, outcome(_usual(broker), body='"' + "x" * 2000 + '"'))]


def _result_beyond_the_short(broker: BrokerHarness) -> list[Any]:
    return [_finish(broker, outcome(_usual(broker), body='"' + "x" * 70 + '"'))]


def _long_arguments_and_result(broker: BrokerHarness) -> list[Any]:
    _used(broker)
    broker.add("a", payload='["' + "x" * 80 + '"]')
    return [_finish(broker, outcome(broker.take(), body='"' + "x" * 80 + '"'))]


def _next_to_others(broker: BrokerHarness) -> list[Any]:
    """The queue has failed, cancelled, scheduled, retrying and waiting jobs; none is due."""
    broker.end("failed", kind="failed", body=ERROR)
    broker.end("retrying", kind="retrying", body=ERROR)
    broker.end("cancelled", kind="cancelled", body="")
    broker.add("later", when="+60000")
    broker.add("waiting", after="wait later")
    return [_finish(broker, outcome(_usual(broker)))]


def _with_options(broker: BrokerHarness) -> list[Any]:
    _used(broker)
    broker.add("a", options='{"max_attempts":2}', payload='["' + "x" * 80 + '"]')
    return [_finish(broker, outcome(broker.take())), _finish(broker)]


def _of_another_queue(broker: BrokerHarness) -> list[Any]:
    broker.end("first", queue="low")
    broker.add("a", "b", queue="low")
    job = broker.take(queues=("low",))
    return [_finish(broker, outcome(job), queues=("low",))]


def _of_two_queues(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.end("low", queue="low")
    return [_finish(broker, outcome(job), queues=BOTH)]


def _then_of_another(broker: BrokerHarness) -> list[Any]:
    """The finished run was from the last queue; the next job is from the first."""
    broker.end("first", queue="low")
    broker.add("a", queue="low")
    job = broker.take(queues=("low",))
    broker.add("b")
    return [_finish(broker, outcome(job), queues=BOTH, jobs=36)]


def _with_more_in_another(broker: BrokerHarness) -> list[Any]:
    """Each queue that still has jobs gets its token."""
    job = _usual(broker)
    broker.add("x", queue="low")
    for queue in BOTH:
        broker.pop_token(queue)
    return [_finish(broker, outcome(job), queues=BOTH)]


def _held_besides(held: int, at: int, jobs: int = 1) -> History:
    """The child holds this many jobs, as a child whose jobs overlap does, and one of them has
    ended."""

    def history(broker: BrokerHarness) -> list[Any]:
        _used(broker)
        broker.add(*(f"job-{n}" for n in range(held + 2)))
        claimed = broker.claim(jobs=held).jobs
        for _ in range(0 if jobs else 2):
            broker.take("other")
        return [_finish(broker, outcome(claimed[at]), jobs=1)]

    return history


PLACES = [(2, 0), (2, 1), (3, 2), (4, 2), (5, 3), (9, 8)]
BESIDES = [_held_besides(held, at, jobs) for held, at in PLACES for jobs in (0, 1)]
SINGLE: list[History] = [
    lambda broker: [_finish(broker, outcome(_usual(broker)))],
    lambda broker: [_used(broker), broker.add("a"), _finish(broker)],
    lambda broker: [_used(broker), broker.add("a", "b"), broker.pop_token(), _finish(broker)],
    lambda broker: [_used(broker), broker.add("a"), _finish(broker, jobs=36)],
    lambda broker: [_used(broker), _finish(broker)],
    lambda broker: [_used(broker), broker.add("a"), _finish(broker, outcome(broker.take()))],
    lambda broker: [_finish(broker, outcome(_usual(broker)), min_priority=0)],
    lambda broker: [broker.add("a"), _finish(broker, outcome(broker.take()))],
    lambda broker: [
        broker.end("first"), broker.add("a", queue="low"), _finish(broker, queues=BOTH),
    ],
    lambda broker: [_usual(broker), _finish(broker)],
    lambda broker: [_used(broker), broker.add(*"abcd"), broker.claim(jobs=2), _finish(broker)],
    _of_two_queues, _then_of_another, _with_more_in_another,
    _long_result, _result_beyond_the_short, _next_to_others, _with_options, _of_another_queue,
    _long_arguments_and_result,
]  # fmt: skip


@pytest.mark.parametrize("history", [*SINGLE, *BESIDES])
def test_a_single_run_has_the_same_result_as_a_batch(
    broker: BrokerHarness, history: History
) -> None:
    loosely = history in BESIDES
    expected = _played_as_batch(broker, history, loosely=loosely)
    assert not _is_single(broker)

    def measured(broker: BrokerHarness) -> list[Any]:
        run, seen = broker.connection.script, []

        def script(*args: Any) -> Any:
            broker.redis.config_resetstat()
            reply = run(*args)
            seen.append(_is_single(broker))
            return reply

        broker.connection.script = script  # type: ignore[method-assign]
        try:
            return history(broker)
        finally:
            del broker.connection.script
            assert seen[-1], "it was no single run"

    assert _played(broker, measured, loosely=loosely) == expected
    invariants(broker, tokens=False)


def test_it_takes_few_commands(broker: BrokerHarness) -> None:
    job = _usual(broker)
    broker.redis.config_resetstat()
    _finish(broker, outcome(job))
    stats = broker.redis.info("commandstats")
    inside = [name for name in stats if name[8:] not in ("evalsha", "config|resetstat", "info")]
    assert sum(stats[name]["calls"] for name in inside) <= 24
    assert broker.entries() == [f"{broker.call}:b {444 + len(PAYLOAD)}+ default app.task"]


# -- calls that look like one


def _other_runs_alone(broker: BrokerHarness) -> list[Any]:
    """The child holds a job that ran again after a crash, so it may not claim others besides."""
    _used(broker)
    broker.add("crashed")
    broker.take("dead")
    broker.store.reap("dead", None)
    broker.take()
    broker.add("a", "b")
    return [_finish(broker), _finish(broker, jobs=2)]


def _other_is_to_run_alone(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.add("audited", audit="final", priority=1)
    broker.redis.hset(broker.keys.job(broker.take().id), "recoveries", 1)
    return [_finish(broker, outcome(job))]


def _listed_while_it_runs(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.redis.rpush(broker.keys.queue("default").queued, broker.take("c2").id)
    return [_finish(broker, outcome(job))]


def _stale(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    return [_finish(broker, outcome(job)), _finish(broker, outcome(job))]


def _resent(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    first = _finish(broker, outcome(job))
    broker.call -= 1
    again = _finish(broker, outcome(job), resent=True)
    return [first, again, _finish(broker, outcome(again[1].jobs[0])), broker.claim(call=1)]


def _overtaken(broker: BrokerHarness) -> list[Any]:
    """The call is sent again before its first copy arrives."""
    job = _usual(broker)
    again = _finish(broker, outcome(job), resent=True)
    broker.call -= 1
    return [again, _finish(broker), _finish(broker, outcome(again[1].jobs[0]))]


def _lost(broker: BrokerHarness) -> list[Any]:
    """The reported job is held by another child, and the reporting child holds a different job."""
    job = _usual(broker)
    broker.store.release("c1", [(job.id, job.lease)])
    return [broker.taken("c2"), broker.taken("c1"), _finish(broker, outcome(job))]


def _deleted(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.redis.delete(broker.keys.job(job.id))
    return [_finish(broker, outcome(job))]


def _replaced(broker: BrokerHarness) -> list[Any]:
    job = _deleted(broker), broker.redis.set(broker.keys.job("b"), "mine")
    return [job[1], _finish(broker, Outcome("b", 1, broker.call, "completed", "1", ""))]


def _completed_by_hand(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.redis.hset(broker.keys.job(job.id), mapping={"finished_ms": 1, "bytes": 1})
    return [_finish(broker, outcome(job))]


def _paused(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.store.pause("default", True)
    return [_finish(broker, outcome(job))]


def _paused_behind(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.add("x", queue="low")
    broker.store.pause("low", True)
    return [_finish(broker, outcome(job), queues=BOTH)]


def _due(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.add("due", when="+5")
    broker.advance(5)
    return [_finish(broker, outcome(job))]


def _urgent(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    broker.add("urgent", priority=5)
    return [_finish(broker, outcome(job))]


def _crossing(broker: BrokerHarness) -> list[Any]:
    """Its events cross a multiple of STEP, so the trim index gets an entry."""
    job = _usual(broker)
    broker.redis.hset(broker.keys.meta, "events", STEP - 2)
    return [_finish(broker, outcome(job))]


def _event_counter(value: str | None) -> History:
    def history(broker: BrokerHarness) -> list[Any]:
        job = _usual(broker)
        broker.redis.hdel(broker.keys.meta, "events")
        if value is not None:
            broker.redis.hset(broker.keys.meta, "events", value)
        return [_finish(broker, outcome(job))]

    return history


def _listed(broker: BrokerHarness) -> list[Any]:
    """The job is already among the completed ones."""
    job = _usual(broker)
    broker.redis.zadd(broker.keys.queue("default").completed, {job.id: 1})
    return [_finish(broker, outcome(job))]


def _counter(value: str, name: str = "completed_total") -> History:
    def history(broker: BrokerHarness) -> list[Any]:
        job = _usual(broker)
        broker.redis.hset(broker.keys.queue("default").meta, name, value)
        return [_finish(broker, outcome(job))]

    return history


def _many_run(broker: BrokerHarness) -> list[Any]:
    """There are so many that their set turns into a skip list."""
    _used(broker)
    broker.add(*(f"job-{n}" for n in range(40)))
    for n in range(33):
        broker.take(f"other-{n}")
    found = [_finish(broker)]
    return [*found, broker.redis.object("ENCODING", broker.keys.queue("default").processing)]


def _full(broker: BrokerHarness) -> list[Any]:
    job = _usual(broker)
    with broker.full():
        return [_finish(broker, outcome(job))]


UNUSUAL: list[History] = [
    _other_runs_alone, _stale, _resent, _overtaken, _lost, _deleted, _replaced, _completed_by_hand,
    _paused, _due, _urgent, _crossing, _many_run, _full, _listed,
    _event_counter(None), _event_counter("x"), _event_counter(str(STEP)),
    _counter("007"), _counter("1e3"), _counter("9" * 19), _counter("0"),
    _counter("x", "finished_bytes"),
    lambda broker: [_finish(broker, outcome(_usual(broker), "failed", ERROR))],
    lambda broker: [_finish(broker, outcome(_usual(broker)), jobs=0)],
    lambda broker: [_used(broker), broker.add("a"), _finish(broker, jobs=0)],
    lambda broker: [_finish(broker, outcome(_usual(broker)), jobs=2)],
    lambda broker: [_finish(broker, outcome(_usual(broker)), min_priority=1)],
    lambda broker: [_finish(broker, outcome(_usual(broker)), queues=("low",))],
    lambda broker: [
        _usual(broker), broker.add("x", queue="low"), _finish(broker, queues=BOTH, jobs=2),
    ],
    lambda broker: [
        broker.add("a"), broker.add("x", queue="low"), _finish(broker, queues=BOTH, jobs=2),
    ],
    _paused_behind,
    lambda broker: [_finish(broker, outcome(_usual(broker)), queues=())],
    lambda broker: [_finish(broker, outcome(_usual(broker)), outcome(broker.take()))],
    lambda broker: [
        _finish(broker, outcome(_usual(broker)), outcome(broker.take(), "failed", ERROR)),
    ],
    _other_is_to_run_alone, _listed_while_it_runs,
]  # fmt: skip


@pytest.mark.parametrize("history", UNUSUAL)
def test_unusual_calls_take_the_path_of_a_batch(broker: BrokerHarness, history: History) -> None:
    assert _played(broker, history) == _played_as_batch(broker, history)


KEYS = (
    "meta", "completed", "queued", "processing", "wake", "failed", "cancelled", "scheduled",
    "retrying", "priority", "waiting", "keyed", "shares", "passes", "parked",
)  # fmt: skip


@pytest.mark.parametrize("key", [*KEYS, "events", "workers", "child", "b"])
def test_nothing_is_half_written_when_a_key_is_of_another_type(
    broker: BrokerHarness, key: str
) -> None:
    def history(broker: BrokerHarness) -> list[Any]:
        job = _usual(broker)
        name = {
            "events": broker.keys.events, "workers": broker.keys.workers, "b": broker.keys.job("b"),
            "child": broker.keys.child_processing("c1"),
        }.get(key) or getattr(broker.keys.queue("default"), key)  # fmt: skip
        broker.redis.set(name, "theirs")
        before = broker.dump()
        found = _finish(broker, outcome(job))
        if isinstance(found, str) or found[0] == [FinishCode.UNWRITTEN]:
            assert broker.dump() == before
        assert broker.redis.get(name) == "theirs"
        return [found]

    assert _played(broker, history) == _played_as_batch(broker, history)


# -- any calls at all


def _random_history(seed: int) -> History:
    """Two children on one or two queues, with random events in between."""

    def history(broker: BrokerHarness) -> list[Any]:
        chance, replies = random.Random(seed), []
        held: dict[str, list[Any]] = {"c1": [], "c2": []}
        _used(broker)
        for n in range(30):
            act = chance.choice(["add", "finish", "finish", "finish", "finish", "other"])
            if act == "add":
                replies.append(_add_any(broker, chance, n))
            elif act == "other":
                _do_any(broker, chance, held)
            else:
                child = chance.choice(["c1", "c1", "c2"])
                ended, held[child] = held[child], []
                if len(ended) > 1 and chance.random() < 0.7:  # as a child whose jobs overlap
                    held[child], ended = ended, [ended.pop(chance.randrange(len(ended)))]
                kinds = chance.choices(["completed", "failed", "retrying", "queued"], [20, 1, 1, 1])
                body = chance.choice(['"ok"', '"' + "y" * 100 + '"'])
                found = _finish(
                    broker, *(outcome(job, kinds[0], body) for job in ended), child=child,
                    jobs=chance.choices([1, 36, 3], [10, 1, 1])[0],
                    queues=chance.choices([DEFAULT, ("low",), BOTH], [6, 1, 6])[0],
                    min_priority=chance.choices([-100, 0, 5], [10, 2, 1])[0],
                )  # fmt: skip
                replies.append(found)
                if not isinstance(found, str):
                    held[child] += found[1].jobs
        return replies

    return history


def _add_any(broker: BrokerHarness, chance: random.Random, n: int) -> Any:
    return broker.store.enqueue(
        [
            NewJob(
                f"job-{n}-{m}", chance.choice(["default", "default", "low"]), "app.task",
                chance.choice([PAYLOAD, '["' + "x" * 80 + '"]']),
                options=chance.choice(["", '{"max_attempts":2}']),
                priority=chance.choices([0, 5, -5], [40, 1, 1])[0],
                when=chance.choices(["", "+5", "+60000"], [40, 1, 1])[0],
                audit=chance.choices(["", "final"], [20, 1])[0],
            )
            for m in range(chance.choice([1, 1, 2]))
        ]
    )  # fmt: skip


def _do_any(broker: BrokerHarness, chance: random.Random, held: dict[str, list[Any]]) -> None:
    act = chance.choice(["token", "time", "cancel", "progress", "watch", "delete", "queue"])
    some = [job for jobs in held.values() for job in jobs]
    if act == "token":
        broker.pop_token()
    elif act == "time":
        broker.advance(chance.choice([1, 10]))
    elif act == "queue" and (queued := broker.ids("queued")):
        broker.store.cancel(queued[:1])
    elif some and act == "cancel":
        broker.store.cancel([some[0].id])
    elif some and act == "progress":
        broker.store.progress("c1", some[0].id, some[0].lease, "{}")
    elif some and act == "watch":
        broker.store.watch(some[0].id)
    elif some and act == "delete" and chance.random() < 0.2:
        broker.redis.delete(broker.keys.job(some[0].id))


def test_any_history_has_the_same_result_on_both_paths(broker: BrokerHarness) -> None:
    broker.redis.config_resetstat()
    for seed in range(40):
        history = _random_history(seed)
        found = _played(broker, history, loosely=True)
        assert found == _played_as_batch(broker, history, loosely=True), seed
    assert broker.calls("rpop")[0] > 100, "hardly any call was a single run"


BUGS = {
    "the job that ended is still running": (
        "'ZREM', last_prefix .. ':processing', ended", "'ZCARD', last_prefix .. ':processing'",
    ),
    "the queue keeps the job": ("redis.call('RPOP', prefix)", "redis.call('LLEN', prefix)"),
    "the bytes are not counted": ("finished_bytes + last_bytes", "finished_bytes + 0"),
    "a long result counts as a short one": ("and #result > (64) then", "and #result > 999 then"),
    "no token is left": ("tail[2]) and tokens == 0", "tail[2]) and tokens == 9"),
    "another queue gets no token": ("if (started or tail[2])", "if (tail[2])"),
    "a token is left twice": ("tail[2]) and tokens == 0", "tail[2])"),
    "a paused queue gives jobs": ("meta.err or paused or keyed", "meta.err or keyed"),
    "a job that is due waits": ("'-inf', now_text) == 0", "'-inf', now_text) >= 0"),
    "other jobs are forgotten": ("ARGV[7] == '1' or not started and not tail[2]", "true"),
    "the lowest priority is ignored": ("tonumber(ARGV[8]) <= 0", "true"),
    "a call that is sent again claims anew": ("ARGV[6] == '0' and ARGV[7]", "ARGV[7]"),
    "an outcome beside it is lost": ("and not ARGV[first + 5]", ""),
    "any run is completed": ("~= name do", "== 0 do"),
    "its end is noted in another queue": ("if ARGV[at] == last_queue then", "if true then"),
    "a child claims beside one that runs alone": ("held_besides == 1 then", "false then"),
    "the entry stays beside others": ("'LREM', held_key, '1', entry", "'LLEN', held_key"),
    "the entry of another goes": ("if ended and held_besides == 0 then", "if ended then"),
    "a job of the slow path is claimed": ("and payload and not seq and not", "and payload and not"),
    "a hash that was deleted comes back": ("is_usual = new == 3", "is_usual = new >= 3"),
    "the event has not the result": ("#result <= (1024) and result or ''", "'' or ''"),
    "the lease is not renewed": ("'GT', deadline", "'NX', '1'"),
    "the options are left out": ("options or '' }, {}, started", "'' }, {}, started"),
    "its entry in the trim index is": ("and total % STEP >= events", ""),
    "the sum stays": ("'HINCRBY', KEYS[1], 'events', -events", "'HLEN', KEYS[1]"),
    "a first sum stays": ("redis.call('HDEL', KEYS[1], 'events')", ""),
    "the event stays": ("redis.call('XDEL', events_key, written)", ""),
    "the event has another number": ("':n', total - 2", "':n', total - 1"),
    "the only event has another number": ("'*', ':n', total - 1", "'*', ':n', total"),
    "it stays among the completed": ("'ZREM', last_prefix .. ':completed'", "'ZCARD', last_prefix"),
    "one that is listed is listed again": ("is_usual = listed == 1", "is_usual = true"),
    "a counter that is no number stops it": ("or is_counter(completed_total)", "or true"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant_bug(monkeypatch, *BUGS[bug])
    histories = (*SINGLE, *UNUSUAL, *BESIDES, *map(_random_history, range(10)))
    exact = len(SINGLE) + len(UNUSUAL)
    assert any(
        _played(broker, one, loosely=at >= exact)
        != _played_as_batch(broker, one, loosely=at >= exact)
        for at, one in enumerate(histories)
    )
