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

from .lab import ERROR, PAYLOAD, T0, Lab, invariants, outcome, said
from .planted import plant_bug
from .test_fast_path import calls, entries

AS_BATCH = ("local is_usual = first > 11", "local is_usual = first == 0")
DEFAULT, BOTH = ("default",), ("default", "low")
STEP = 5000  # events between two entries of the trim index

History = Callable[[Lab], list[Any]]


def _played(lab: Lab, history: History, *, loosely: bool = False) -> tuple[Any, ...]:
    """The replies to a history's calls, the messages that clients hear, and the resulting keyspace.
    ``loosely`` applies when the batch takes the slow path, which writes the implied fields and
    counts their bytes."""
    lab.redis.flushall()
    lab.call, lab.store.now_ms = 0, T0
    with lab.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.psubscribe("*")
        pubsub.get_message(timeout=5)
        replies = history(lab)
        lab.redis.publish("end", "")
        heard = []
        while (message := pubsub.get_message(timeout=5) or {}).get("channel") != "end":
            if message:
                heard.append((message["channel"], message["data"]))
    kept = {key: without_instants(*value) for key, value in lab.dump().items()}
    if loosely:
        kept = {key: (kind, _loose(kind, value)) for key, (kind, value) in kept.items()}
    return replies, heard, kept


def _loose(kind: str, value: Any) -> Any:
    if kind != "hash":
        return value
    return {k: v for k, v in said(value).items() if k not in ("bytes", "finished_bytes")}


def without_instants(kind: str, value: Any) -> tuple[str, Any]:
    """A value without the ids of the stream's entries, which depend on Redis's own clock."""
    if kind == "stream":
        return kind, [fields for _, fields in value]
    if kind == "list":
        return kind, [re.sub(r"^\d+-\d+ ", "", entry) for entry in value]
    return kind, value


def _played_as_batch(lab: Lab, history: History, *, loosely: bool = False) -> tuple[Any, ...]:
    with pytest.MonkeyPatch.context() as patch:
        plant_bug(patch, *AS_BATCH)
        return _played(lab, history, loosely=loosely)


def _finish(
    lab: Lab, *outcomes: Outcome, jobs: int = 1, queues: tuple[str, ...] = DEFAULT, **options: Any
) -> Any:
    lab.call += 1
    request = ClaimRequest(options.pop("child", "c1"), queues, options.pop("min_priority", -100))
    try:
        return lab.store.finish(request, lab.call, outcomes, jobs, **options)
    except RedisQueueError as error:
        return str(error)


def _used(lab: Lab) -> None:
    """The queue and the stream have been used, and contain one more job, which a child holds."""
    lab.end("first")
    lab.pop_token()


def _is_single(lab: Lab) -> bool:
    """Whether the last call took the single path. The batch path begins with a DEL."""
    return calls(lab, "del") == 0


# -- calls that are single runs


def _usual(lab: Lab) -> ClaimedJob:
    _used(lab)
    lab.add("a", "b", "c")
    return lab.take()


def _long_result(lab: Lab) -> list[Any]:
    return [_finish(lab, outcome(_usual(lab), body='"' + "x" * 2000 + '"'))]


def _result_beyond_the_short(lab: Lab) -> list[Any]:
    return [_finish(lab, outcome(_usual(lab), body='"' + "x" * 70 + '"'))]


def _next_to_others(lab: Lab) -> list[Any]:
    """The queue has failed, cancelled, scheduled, retrying and waiting jobs; none is due."""
    lab.end("failed", verdict="failed", body=ERROR)
    lab.end("retrying", verdict="retrying", body=ERROR)
    lab.end("cancelled", verdict="cancelled", body="")
    lab.add("later", when="+60000")
    lab.add("waiting", after="wait later")
    return [_finish(lab, outcome(_usual(lab)))]


def _with_options(lab: Lab) -> list[Any]:
    _used(lab)
    lab.add("a", options='{"max_attempts":2}', payload='["' + "x" * 80 + '"]')
    return [_finish(lab, outcome(lab.take())), _finish(lab)]


def _of_another_queue(lab: Lab) -> list[Any]:
    lab.end("first", queue="low")
    lab.add("a", "b", queue="low")
    job = lab.take(queues=("low",))
    return [_finish(lab, outcome(job), queues=("low",))]


def _of_two_queues(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.end("low", queue="low")
    return [_finish(lab, outcome(job), queues=BOTH)]


def _then_of_another(lab: Lab) -> list[Any]:
    """The finished run was from the last queue; the next job is from the first."""
    lab.end("first", queue="low")
    lab.add("a", queue="low")
    job = lab.take(queues=("low",))
    lab.add("b")
    return [_finish(lab, outcome(job), queues=BOTH, jobs=36)]


def _with_more_in_another(lab: Lab) -> list[Any]:
    """Each queue that still has jobs gets its token."""
    job = _usual(lab)
    lab.add("x", queue="low")
    for queue in BOTH:
        lab.pop_token(queue)
    return [_finish(lab, outcome(job), queues=BOTH)]


def _held_besides(held: int, at: int, jobs: int = 1) -> History:
    """The child holds this many jobs, as a child whose jobs overlap does, and one of them has
    ended."""

    def history(lab: Lab) -> list[Any]:
        _used(lab)
        lab.add(*(f"job-{n}" for n in range(held + 2)))
        claimed = lab.claim(jobs=held).jobs
        for _ in range(0 if jobs else 2):
            lab.take("other")
        return [_finish(lab, outcome(claimed[at]), jobs=1)]

    return history


PLACES = [(2, 0), (2, 1), (3, 2), (4, 2), (5, 3), (9, 8)]
BESIDES = [_held_besides(held, at, jobs) for held, at in PLACES for jobs in (0, 1)]
SINGLE: list[History] = [
    lambda lab: [_finish(lab, outcome(_usual(lab)))],
    lambda lab: [_used(lab), lab.add("a"), _finish(lab)],
    lambda lab: [_used(lab), lab.add("a", "b"), lab.pop_token(), _finish(lab)],
    lambda lab: [_used(lab), lab.add("a"), _finish(lab, jobs=36)],
    lambda lab: [_used(lab), _finish(lab)],
    lambda lab: [_used(lab), lab.add("a"), _finish(lab, outcome(lab.take()))],
    lambda lab: [_finish(lab, outcome(_usual(lab)), min_priority=0)],
    lambda lab: [lab.add("a"), _finish(lab, outcome(lab.take()))],
    lambda lab: [lab.end("first"), lab.add("a", queue="low"), _finish(lab, queues=BOTH)],
    lambda lab: [_usual(lab), _finish(lab)],
    lambda lab: [_used(lab), lab.add(*"abcd"), lab.claim(jobs=2), _finish(lab)],
    _of_two_queues, _then_of_another, _with_more_in_another,
    _long_result, _result_beyond_the_short, _next_to_others, _with_options, _of_another_queue,
]  # fmt: skip


@pytest.mark.parametrize("history", [*SINGLE, *BESIDES])
def test_a_single_run_has_the_same_result_as_a_batch(lab: Lab, history: History) -> None:
    loosely = history in BESIDES
    expected = _played_as_batch(lab, history, loosely=loosely)
    assert not _is_single(lab)

    def measured(lab: Lab) -> list[Any]:
        run, seen = lab.connection.script, []

        def script(*args: Any) -> Any:
            lab.redis.config_resetstat()
            reply = run(*args)
            seen.append(_is_single(lab))
            return reply

        lab.connection.script = script  # type: ignore[method-assign]
        try:
            return history(lab)
        finally:
            del lab.connection.script
            assert seen[-1], "it was no single run"

    assert _played(lab, measured, loosely=loosely) == expected
    invariants(lab, tokens=False)


def test_it_takes_few_commands(lab: Lab) -> None:
    job = _usual(lab)
    lab.redis.config_resetstat()
    _finish(lab, outcome(job))
    stats = lab.redis.info("commandstats")
    inside = [name for name in stats if name[8:] not in ("evalsha", "config|resetstat", "info")]
    assert sum(stats[name]["calls"] for name in inside) <= 24
    assert entries(lab) == [f"{lab.call}:b {444 + len(PAYLOAD)}+ default app.task"]


# -- calls that look like one


def _other_runs_alone(lab: Lab) -> list[Any]:
    """The child holds a job that ran again after a crash, so it may not claim others besides."""
    _used(lab)
    lab.add("crashed")
    lab.take("dead")
    lab.store.reap("dead", None)
    lab.take()
    lab.add("a", "b")
    return [_finish(lab), _finish(lab, jobs=2)]


def _stale(lab: Lab) -> list[Any]:
    job = _usual(lab)
    return [_finish(lab, outcome(job)), _finish(lab, outcome(job))]


def _resent(lab: Lab) -> list[Any]:
    job = _usual(lab)
    first = _finish(lab, outcome(job))
    lab.call -= 1
    again = _finish(lab, outcome(job), resent=True)
    return [first, again, _finish(lab, outcome(again[1].jobs[0])), lab.claim(call=1)]


def _overtaken(lab: Lab) -> list[Any]:
    """The call is sent again before its first copy arrives."""
    job = _usual(lab)
    again = _finish(lab, outcome(job), resent=True)
    lab.call -= 1
    return [again, _finish(lab), _finish(lab, outcome(again[1].jobs[0]))]


def _lost(lab: Lab) -> list[Any]:
    """The reported job is held by another child, and the reporting child holds a different job."""
    job = _usual(lab)
    lab.store.release("c1", [(job.id, job.lease)])
    return [lab.taken("c2"), lab.taken("c1"), _finish(lab, outcome(job))]


def _deleted(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.redis.delete(lab.keys.job(job.id))
    return [_finish(lab, outcome(job))]


def _replaced(lab: Lab) -> list[Any]:
    job = _deleted(lab), lab.redis.set(lab.keys.job("b"), "mine")
    return [job[1], _finish(lab, Outcome("b", 1, lab.call, "completed", "1", ""))]


def _completed_by_hand(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.redis.hset(lab.keys.job(job.id), mapping={"finished_ms": 1, "bytes": 1})
    return [_finish(lab, outcome(job))]


def _paused(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.store.pause("default", True)
    return [_finish(lab, outcome(job))]


def _paused_behind(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.add("x", queue="low")
    lab.store.pause("low", True)
    return [_finish(lab, outcome(job), queues=BOTH)]


def _due(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.add("due", when="+5")
    lab.advance(5)
    return [_finish(lab, outcome(job))]


def _urgent(lab: Lab) -> list[Any]:
    job = _usual(lab)
    lab.add("urgent", priority=5)
    return [_finish(lab, outcome(job))]


def _crossing(lab: Lab) -> list[Any]:
    """Its events cross a multiple of STEP, so the trim index gets an entry."""
    job = _usual(lab)
    lab.redis.hset(lab.keys.meta, "events", STEP - 2)
    return [_finish(lab, outcome(job))]


def _counter(value: str, name: str = "completed_total") -> History:
    def history(lab: Lab) -> list[Any]:
        job = _usual(lab)
        lab.redis.hset(lab.keys.queue("default").meta, name, value)
        return [_finish(lab, outcome(job))]

    return history


def _many_run(lab: Lab) -> list[Any]:
    """There are so many that their set turns into a skip list."""
    _used(lab)
    lab.add(*(f"job-{n}" for n in range(40)))
    for n in range(33):
        lab.take(f"other-{n}")
    found = [_finish(lab)]
    return [*found, lab.redis.object("ENCODING", lab.keys.queue("default").processing)]


def _full(lab: Lab) -> list[Any]:
    job = _usual(lab)
    with lab.full():
        return [_finish(lab, outcome(job))]


UNUSUAL: list[History] = [
    _other_runs_alone, _stale, _resent, _overtaken, _lost, _deleted, _replaced, _completed_by_hand,
    _paused, _due, _urgent, _crossing, _many_run, _full,
    _counter("007"), _counter("1e3"), _counter("9" * 19), _counter("0"),
    _counter("x", "finished_bytes"),
    lambda lab: [_finish(lab, outcome(_usual(lab), "failed", ERROR))],
    lambda lab: [_finish(lab, outcome(_usual(lab)), jobs=0)],
    lambda lab: [_finish(lab, outcome(_usual(lab)), jobs=2)],
    lambda lab: [_finish(lab, outcome(_usual(lab)), min_priority=1)],
    lambda lab: [_finish(lab, outcome(_usual(lab)), queues=("low",))],
    lambda lab: [_usual(lab), lab.add("x", queue="low"), _finish(lab, queues=BOTH, jobs=2)],
    lambda lab: [lab.add("a"), lab.add("x", queue="low"), _finish(lab, queues=BOTH, jobs=2)],
    _paused_behind,
    lambda lab: [_finish(lab, outcome(_usual(lab)), queues=())],
    lambda lab: [_finish(lab, outcome(_usual(lab)), outcome(lab.take()))],
]  # fmt: skip


@pytest.mark.parametrize("history", UNUSUAL)
def test_unusual_calls_take_the_path_of_a_batch(lab: Lab, history: History) -> None:
    assert _played(lab, history) == _played_as_batch(lab, history)


KEYS = (
    "meta", "completed", "queued", "processing", "wake", "failed", "cancelled", "scheduled",
    "retrying", "priority", "waiting", "keyed", "shares", "passes", "parked",
)  # fmt: skip


@pytest.mark.parametrize("key", [*KEYS, "events", "workers", "child", "b"])
def test_nothing_is_half_written_when_a_key_is_of_another_type(lab: Lab, key: str) -> None:
    def history(lab: Lab) -> list[Any]:
        job = _usual(lab)
        name = {
            "events": lab.keys.events, "workers": lab.keys.workers, "b": lab.keys.job("b"),
            "child": lab.keys.child_processing("c1"),
        }.get(key) or getattr(lab.keys.queue("default"), key)  # fmt: skip
        lab.redis.delete(name)
        lab.redis.set(name, "theirs")
        before = lab.dump()
        found = _finish(lab, outcome(job))
        if isinstance(found, str) or found[0] == [FinishCode.UNWRITTEN]:
            assert lab.dump() == before
        assert lab.redis.get(name) == "theirs"
        return [found]

    assert _played(lab, history) == _played_as_batch(lab, history)


# -- any calls at all


def _random_history(seed: int) -> History:
    """Two children on one or two queues, with random events in between."""

    def history(lab: Lab) -> list[Any]:
        chance, replies = random.Random(seed), []
        held: dict[str, list[Any]] = {"c1": [], "c2": []}
        _used(lab)
        for n in range(30):
            act = chance.choice(["add", "finish", "finish", "finish", "finish", "other"])
            if act == "add":
                replies.append(_add_any(lab, chance, n))
            elif act == "other":
                _do_any(lab, chance, held)
            else:
                child = chance.choice(["c1", "c1", "c2"])
                ended, held[child] = held[child], []
                if len(ended) > 1 and chance.random() < 0.7:  # as a child whose jobs overlap
                    held[child], ended = ended, [ended.pop(chance.randrange(len(ended)))]
                kinds = chance.choices(["completed", "failed", "retrying", "queued"], [20, 1, 1, 1])
                body = chance.choice(['"ok"', '"' + "y" * 100 + '"'])
                found = _finish(
                    lab, *(outcome(job, kinds[0], body) for job in ended), child=child,
                    jobs=chance.choices([1, 36, 3], [10, 1, 1])[0],
                    queues=chance.choices([DEFAULT, ("low",), BOTH], [6, 1, 6])[0],
                    min_priority=chance.choices([-100, 0, 5], [10, 2, 1])[0],
                )  # fmt: skip
                replies.append(found)
                if not isinstance(found, str):
                    held[child] += found[1].jobs
        return replies

    return history


def _add_any(lab: Lab, chance: random.Random, n: int) -> Any:
    return lab.store.enqueue(
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


def _do_any(lab: Lab, chance: random.Random, held: dict[str, list[Any]]) -> None:
    act = chance.choice(["token", "time", "cancel", "progress", "watch", "delete", "queue"])
    some = [job for jobs in held.values() for job in jobs]
    if act == "token":
        lab.pop_token()
    elif act == "time":
        lab.advance(chance.choice([1, 10]))
    elif act == "queue" and (queued := lab.ids("queued")):
        lab.store.cancel(queued[:1])
    elif some and act == "cancel":
        lab.store.cancel([some[0].id])
    elif some and act == "progress":
        lab.store.progress("c1", some[0].id, some[0].lease, "{}")
    elif some and act == "watch":
        lab.store.watch(some[0].id)
    elif some and act == "delete" and chance.random() < 0.2:
        lab.redis.delete(lab.keys.job(some[0].id))


def test_any_history_has_the_same_result_on_both_paths(lab: Lab) -> None:
    lab.redis.config_resetstat()
    for seed in range(40):
        history = _random_history(seed)
        found = _played(lab, history, loosely=True)
        assert found == _played_as_batch(lab, history, loosely=True), seed
    assert calls(lab, "rpop") > 100, "hardly any call was a single run"


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
    "a job that is due waits": ("tonumber(score) > now", "tonumber(score) > 0"),
    "other jobs are forgotten": ("ARGV[7] == '1' or not started and not tail[2]", "true"),
    "the lowest priority is ignored": ("tonumber(ARGV[8]) <= 0", "true"),
    "a call that is sent again claims anew": ("ARGV[6] == '0' and ARGV[7]", "ARGV[7]"),
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
    "its entry in the trim index is": ("written % STEP + 2 < STEP", "true"),
    "a counter that is no number stops it": ("or is_counter(completed_total)", "or true"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(lab: Lab, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant_bug(monkeypatch, *BUGS[bug])
    histories = (*SINGLE, *UNUSUAL, *BESIDES, *map(_random_history, range(10)))
    exact = len(SINGLE) + len(UNUSUAL)
    assert any(
        _played(lab, one, loosely=at >= exact) != _played_as_batch(lab, one, loosely=at >= exact)
        for at, one in enumerate(histories)
    )
