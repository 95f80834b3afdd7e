"""The mirror notices what Redis has lost, follows it, and stops when it finds a foreign Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.entries import START, first_position, parse_position
from django_redisqueue.conf import get_settings
from django_redisqueue.exceptions import WrongRedis
from django_redisqueue.mirror import redis_identity
from django_redisqueue.mirror.redis_identity import MirroredEvents, RedisIdentity
from django_redisqueue.mirror.writer import MirrorWriter
from django_redisqueue.models import JobEvent, JobRecord, MirrorState
from tests.broker.harness import ERROR, BrokerHarness, outcome
from tests.support.commands import output_of
from tests.support.servers import RedisServer
from tests.support.stream import fields_of

from .mirrored_shard import MirroredShard, check_records


def state() -> MirrorState:
    return MirrorState.objects.get(shard=0)


def accept() -> bool:
    connection = worker_connection()
    try:
        return RedisIdentity(MirrorWriter(connection)).accept()
    finally:
        connection.close()


def statuses() -> dict[str, str]:
    return dict(JobRecord.objects.values_list("pk", "status"))


def is_in_step(shard: MirroredShard) -> None:
    """Whether every record agrees with Redis, and nothing is left to reconcile."""
    check_records(shard.broker)
    assert not state().unreconciled
    assert state().problem == ""


def trim_all(broker: BrokerHarness) -> None:
    """Trim all but the last entry, as EVENTS_CAP would do in a burst, but at once."""
    broker.redis.xtrim(broker.keys.events, maxlen=1, approximate=False)


# -- a Redis gets an id


def test_a_new_mirror_accepts_the_redis_it_finds_and_gives_it_an_id(
    full_shard: MirroredShard,
) -> None:
    full_shard.run_jobs(20)
    full_shard.mirror()
    assert len(state().incarnation) == 32
    assert (
        full_shard.broker.redis.hget(full_shard.broker.keys.meta, "incarnation")
        == state().incarnation
    )
    assert (state().epoch, state().gaps) == (0, 0)
    full_shard.assert_complete()
    is_in_step(full_shard)


def test_a_new_database_learns_of_jobs_whose_events_are_gone(full_shard: MirroredShard) -> None:
    full_shard.broker.end("done", body='"' + "x" * 3000 + '"')
    full_shard.broker.end("failed", kind="failed", body=ERROR)
    full_shard.broker.add("waits", payload='[["w"],{}]', priority=-3)
    full_shard.broker.add("later", when="+60000")
    full_shard.broker.add("runs")
    assert full_shard.broker.take("c9").id == "runs"
    full_shard.broker.add("again")
    full_shard.broker.finish(outcome(full_shard.broker.take(), "retrying", ERROR, "60000"))
    trim_all(full_shard.broker)
    full_shard.mirror()
    assert len(JobRecord.objects.all()) == 6
    is_in_step(full_shard)
    assert full_shard.record("runs").attempts == 1
    assert full_shard.statuses("done") == ["processing", "completed"]
    assert full_shard.statuses("waits") == ["queued"]
    assert json.loads(JobEvent.objects.get(job_id="waits").detail)["reconciled"] is True


# -- emptied, or another


def test_an_emptied_redis_is_not_followed_until_it_is_accepted(
    full_shard: MirroredShard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_shard.broker.end("done")
    full_shard.broker.add("waits", "runs", "later")
    full_shard.broker.take()
    full_shard.mirror()
    before, position = list(JobRecord.objects.order_by("pk").values()), state().position
    full_shard.broker.redis.flushall()
    full_shard.broker.add("new")
    for _ in range(3):
        with pytest.raises(WrongRedis, match=r"was emptied, or is a new one.*--accept-redis"):
            full_shard.mirror()
        full_shard.bridge.close()
    assert list(JobRecord.objects.order_by("pk").values()) == before
    assert state().position == position
    assert "reapqueue --accept-redis" in state().problem
    assert "has stopped" not in caplog.text  # the caller of the bridge logs the first error
    monkeypatch.setattr(redis_identity, "LOG_INTERVAL", 0.0)
    with pytest.raises(WrongRedis):
        full_shard.mirror()
    assert caplog.text.count("has stopped") == 1

    assert accept() is True
    assert accept() is False
    full_shard.bridge.close()
    full_shard.mirror()
    lost = dict.fromkeys(["waits", "runs", "later"], "failed")
    assert statuses() == {"done": "completed", "new": "queued", **lost}
    record = full_shard.record("waits")
    assert (record.reason, record.error_type, record.epoch) == ("lost", "JobLost", 1)
    assert record.job_error is not None
    assert "enqueue it again" in record.job_error.message
    assert record.finished_at is not None
    event = JobEvent.objects.filter(job_id="waits").latest("id")
    assert (event.status, json.loads(event.detail)["reason"]) == ("failed", "lost")
    assert (state().problem, state().unreconciled, state().epoch) == ("", False, 1)


def test_a_redis_of_another_installation_is_not_followed(full_shard: MirroredShard) -> None:
    full_shard.run_jobs(3)
    full_shard.mirror()
    full_shard.bridge.close()
    full_shard.broker.redis.hset(full_shard.broker.keys.meta, "incarnation", "f" * 32)
    with pytest.raises(WrongRedis, match="has another installation's data"):
        full_shard.mirror()
    assert state().incarnation != "f" * 32


def test_a_lost_job_that_reappears_is_alive_again(full_shard: MirroredShard) -> None:
    full_shard.broker.add("a")
    full_shard.broker.take()
    full_shard.mirror()
    full_shard.broker.redis.flushall()
    accept()
    full_shard.bridge.close()
    full_shard.mirror()
    assert full_shard.record("a").reason == "lost"
    full_shard.broker.add("a")  # an outbox still has it
    full_shard.mirror()
    record = full_shard.record("a")
    assert (record.status, record.reason, record.error, record.finished_at) == (
        "queued", "", "", None,
    )  # fmt: skip
    is_in_step(full_shard)


# -- trimmed past the cursor


def test_a_gap_is_counted_reported_and_reconciled(
    full_shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    full_shard.broker.add("ends", "fails", "waits", "requeued")
    full_shard.mirror()
    broker = full_shard.broker
    jobs = {job.id: job for job in broker.claim(jobs=2).jobs}
    broker.finish(outcome(jobs["ends"], body='"' + "x" * 3000 + '"'))
    broker.finish(outcome(jobs["fails"], "failed", ERROR, "max_attempts"))
    full_shard.run_jobs(50, "unseen")
    broker.add("last")
    trim_all(broker)
    full_shard.mirror()
    assert state().gaps == 1
    assert state().gap_at is not None
    assert state().epoch == 1
    assert "a gap: events behind" in caplog.text
    assert "records brought up to date, 0 jobs lost" in caplog.text
    assert full_shard.record("ends").status == "completed"
    is_in_step(full_shard)
    assert full_shard.bridge.run_once() is False
    assert state().gaps == 1


def test_gaps_in_a_row_are_counted_and_logged_once(
    full_shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    """While jobs end faster than the mirror can write, there is one after another."""
    full_shard.run_jobs(1, "first")
    for number in range(3):
        full_shard.mirror()
        full_shard.run_jobs(50, f"round{number}")
        trim_all(full_shard.broker)
    full_shard.mirror()
    assert state().gaps == 3
    assert caplog.text.count("a gap: events behind") == 1
    is_in_step(full_shard)


def test_after_a_gap_before_the_reconcile_the_middle_of_the_stream_is_next(
    full_shard: MirroredShard,
) -> None:
    """At its oldest event, which is trimmed next, nearly every page would end in another gap."""
    full_shard.run_jobs(1)
    full_shard.mirror()
    MirrorState.objects.update(unreconciled=True)  # for another reason than a gap
    broker, bridge = full_shard.broker, full_shard.bridge
    for number in (1, 2):
        for at in range(40):
            broker.add(f"job{number}.{at}")
        broker.redis.xtrim(broker.keys.events, maxlen=20, approximate=False)
        entries = [name for name, _ in broker.redis.xrange(broker.keys.events)]
        broker.redis.rpush(broker.keys.trim_index, f"{entries[10]} 1")
        middle = first_position(entries[10])
        assert bridge.run_once()  # the entry at the cursor is gone
        assert bridge.run_once()
        assert (state().gaps, state().unreconciled) == (number, True)
        first = JobEvent.objects.filter(epoch=number).earliest("entry_ms", "entry_no")
        is_at_middle = (first.entry_ms, first.entry_no) > middle
        assert is_at_middle == (number == 2)
    full_shard.mirror()
    is_in_step(full_shard)


def test_a_gap_before_the_first_event_that_a_mirror_would_have_read(
    shard: MirroredShard, settings: Any
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "EVENTS_CAP": 10_000}
    shard.broker.store.settings = get_settings()
    shard.use_full_bridge()
    shard.mirror()  # there is nothing to read, nor to reconcile
    assert not state().unreconciled
    shard.bridge.close()  # the database refuses the first page for a long time
    shard.broker.add("waits")
    shard.broker.take()
    shard.run_jobs(3500)
    shard.mirror()
    assert (state().gaps, len(statuses())) == (1, 3501)
    is_in_step(shard)
    shard.bridge.close()
    shard.mirror()
    assert state().gaps == 1


def test_a_stream_that_was_deleted_before_a_running_bridge_read_its_first_event(
    full_shard: MirroredShard,
) -> None:
    """The bridge has no entry yet whose absence would show it."""
    full_shard.mirror()
    full_shard.run_jobs(5)
    full_shard.broker.redis.delete(full_shard.broker.keys.events)
    full_shard.broker.add("last")
    full_shard.mirror()
    assert (state().gaps, len(statuses())) == (1, 6)
    is_in_step(full_shard)


def test_no_job_in_a_gap_is_pruned_before_the_reconcile_has_found_it(
    full_shard: MirroredShard, settings: Any
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "MIRROR": True, "RESEND_WINDOW": 0}
    broker = full_shard.broker
    broker.store.settings = get_settings()
    full_shard.run_jobs(5)
    full_shard.mirror()
    unseen = full_shard.run_jobs(500, "unseen")
    broker.add("last")
    trim_all(broker)
    while full_shard.bridge.run_once():
        if state().unreconciled:
            broker.store.prune("default", "completed", 0, 0)
    assert set(statuses()).issuperset(unseen)
    is_in_step(full_shard)
    assert broker.store.prune("default", "completed", 0, 0)[0] > 0


def test_a_job_with_events_in_a_gap_and_after_it(full_shard: MirroredShard) -> None:
    """Later events do not repeat when it began, or how often it was requeued."""
    broker = full_shard.broker
    broker.end("again", kind="failed", body=ERROR)
    broker.add("runs")
    full_shard.mirror()
    runs = broker.take("c1")
    broker.store.requeue(["again"])
    again = broker.take("c2")
    broker.add("last")
    trim_all(broker)
    broker.finish(outcome(runs))
    broker.finish(outcome(again), child="c2")
    full_shard.mirror()
    assert state().gaps == 1
    assert statuses() == {"again": "completed", "runs": "completed", "last": "queued"}
    is_in_step(full_shard)


def test_a_stream_that_was_deleted_is_a_gap(full_shard: MirroredShard) -> None:
    full_shard.run_jobs(5)
    full_shard.broker.add("waits")
    full_shard.mirror()
    full_shard.broker.redis.delete(full_shard.broker.keys.events)
    full_shard.broker.finish(outcome(full_shard.broker.take()))
    full_shard.mirror()
    assert (state().gaps, full_shard.record("waits").status) == (1, "completed")
    is_in_step(full_shard)


def test_a_job_whose_end_was_in_the_gap_and_is_gone_from_redis_is_lost(
    full_shard: MirroredShard,
) -> None:
    full_shard.broker.add("a", "b")
    full_shard.mirror()
    full_shard.broker.finish(outcome(full_shard.broker.take()))
    full_shard.broker.redis.delete(full_shard.broker.keys.job("a"))
    full_shard.broker.add("c")
    trim_all(full_shard.broker)
    full_shard.mirror()
    assert statuses() == {"a": "failed", "b": "queued", "c": "queued"}


# -- back in time


def test_an_entry_with_the_same_id_but_other_content_is_noticed(
    full_shard: MirroredShard,
) -> None:
    full_shard.broker.add("a")
    full_shard.mirror()
    full_shard.bridge.close()
    (event,) = full_shard.broker.written()
    full_shard.broker.redis.delete(full_shard.broker.keys.events)
    other = fields_of(event.text.replace('"jobId":"a"', '"jobId":"b"'))
    for name, fields in (("1-1", [":alike", "{}", "b", ""]), (event.entry, other)):
        full_shard.broker.redis.execute_command(
            "XADD", full_shard.broker.keys.events, name, *fields
        )
    full_shard.mirror()
    assert (state().epoch, state().gaps) == (1, 0)
    # in reality Redis does not know the job: it is lost
    assert full_shard.statuses("b") == ["queued", "failed"]


@pytest.fixture
def own(
    fresh_server: Callable[..., RedisServer], database: str, settings: Any
) -> Iterator[tuple[MirroredShard, RedisServer]]:
    """A shard on its own server, which saves its data when told to."""
    server = fresh_server(appendonly=False, dbfilename="dump.rdb")
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}, "PREFIX": "own", "MIRROR": True}
    shard = MirroredShard(BrokerHarness(server))
    shard.use_full_bridge(page=100)
    yield shard, server
    shard.close()


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "after new events"])
def test_a_redis_that_failed_over_to_an_older_copy(
    own: tuple[MirroredShard, RedisServer], goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shard, server = own
    broker = shard.broker
    shard.run_jobs(30)
    broker.add("rewound", "runs")
    broker.add("waits", priority=-3)
    job = broker.take("c8")
    assert job.id == "rewound"
    shard.mirror()
    broker.redis.save()
    # What the copy lacks:
    broker.store.cancel(["waits"])
    broker.finish(outcome(job), child="c8")
    shard.run_jobs(40, "unsaved")
    broker.add("lost")
    shard.mirror()
    assert (shard.record("rewound").status, shard.record("waits").status) == (
        "completed", "cancelled",
    )  # fmt: skip
    read = parse_position(state().position)
    server.kill()
    server.start()
    broker.connection.close()
    shard.bridge.close()
    if goes_on:  # the new history is longer than the old one before the mirror looks at it
        shard.run_jobs(200, "new")
        assert shard.bridge.events.ends()[1] > read
    shard.mirror()
    assert "Redis went back in time" in caplog.text
    assert (state().epoch, state().gaps) == (1, 0)
    assert shard.record("rewound").status == "processing"
    assert shard.record("rewound").result == ""
    assert shard.record("waits").status == ("completed" if goes_on else "queued")
    assert (shard.record("lost").status, shard.record("lost").reason) == ("failed", "lost")
    assert shard.record("unsaved0").status == "completed"  # as far as can be known, it did
    shard.run_jobs(20, "after")
    shard.mirror()
    JobRecord.objects.filter(pk__startswith="unsaved").delete()
    JobRecord.objects.filter(pk="lost").delete()
    is_in_step(shard)
    stream = len(broker.written())
    # not everything was read again
    assert JobEvent.objects.filter(epoch=1, seq__gt=0).count() < stream


@pytest.mark.parametrize("unsaved", [0, 20])
def test_a_copy_older_than_the_id_gets_the_id_again(
    own: tuple[MirroredShard, RedisServer], unsaved: int
) -> None:
    """It is recognised by the events that were read. (Without any, it would be an emptied
    Redis.)"""
    shard, server = own
    shard.run_jobs(20)
    shard.broker.redis.save()
    shard.mirror()
    shard.run_jobs(unsaved, "unsaved")
    shard.mirror()
    given = state().incarnation
    server.kill()
    server.start()
    shard.broker.connection.close()
    shard.bridge.close()
    assert not shard.broker.redis.hget(shard.broker.keys.meta, "incarnation")
    shard.run_jobs(10, "new")
    shard.mirror()
    assert (
        shard.broker.redis.hget(shard.broker.keys.meta, "incarnation")
        == given
        == state().incarnation
    )
    assert (state().epoch, state().gaps) == (1 if unsaved else 0, 0)
    JobRecord.objects.filter(pk__startswith="unsaved").delete()  # as far as is known, they ended
    is_in_step(shard)


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "after new events"])
def test_the_last_common_entry_is_found(
    own: tuple[MirroredShard, RedisServer], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without looking through the history: of a quiet shard, that may take minutes."""
    monkeypatch.delattr(MirroredEvents, "last")
    shard, server = own
    shard.run_jobs(300)
    shard.mirror()
    shard.broker.redis.save()
    _, common = shard.bridge.events.ends()
    shard.run_jobs(300, "unsaved")
    shard.mirror()
    server.kill()
    server.start()
    shard.broker.connection.close()
    if goes_on:
        shard.run_jobs(250, "new")
    shard.bridge.close()
    found = RedisIdentity(shard.bridge.writer)._common_point(parse_position(state().position))
    assert found == common


def test_the_last_common_entry_is_found_although_the_new_clock_is_behind(
    own: tuple[MirroredShard, RedisServer],
) -> None:
    """The new history begins before the end of the old one."""
    shard, server = own
    shard.run_jobs(100)
    shard.mirror()
    shard.broker.redis.save()
    _, common = shard.bridge.events.ends()
    assert common is not None
    shard.run_jobs(100, "unsaved")
    shard.mirror()
    read = parse_position(state().position)
    server.kill()
    server.start()
    shard.broker.connection.close()
    shard.bridge.close()
    shard.broker.redis.xadd(shard.broker.keys.events, {"other": "1"}, id=f"{common[0]}-999")
    identity = RedisIdentity(shard.bridge.writer)
    assert identity._common_point(read) == common


# -- an older database


def test_an_older_database_reads_again_what_the_stream_still_has(
    full_shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    full_shard.run_jobs(30)
    full_shard.mirror()
    old = snapshot()
    full_shard.run_jobs(60, "k")
    full_shard.mirror()
    full_shard.bridge.close()
    full_shard.mirror()
    assert "the database went back in time" not in caplog.text
    restore(old)
    for _ in range(2):
        full_shard.bridge.close()
        full_shard.mirror()
    assert caplog.text.count("the database went back in time") == 1
    full_shard.assert_complete()
    is_in_step(full_shard)
    assert (state().epoch, state().gaps) == (0, 0)


def test_an_older_database_with_a_trimmed_stream_converges(full_shard: MirroredShard) -> None:
    full_shard.broker.add("a", "b")
    full_shard.mirror()
    old = snapshot()
    full_shard.broker.finish(outcome(full_shard.broker.take()))
    full_shard.run_jobs(60, "k")
    full_shard.broker.end("last")  # of which only the last entry remains
    full_shard.mirror()
    full_shard.bridge.close()
    restore(old)
    trim_all(full_shard.broker)
    before = full_shard.broker.dump()
    full_shard.mirror()
    assert (state().gaps, state().unreconciled) == (1, False)
    assert len(JobRecord.objects.all()) == 63
    is_in_step(full_shard)
    after = full_shard.broker.dump()
    for dump in (before, after):
        dump.pop(full_shard.broker.keys.meta)  # where the mirror's cursor is
    assert after == before  # no job ran again, none was enqueued


def test_a_database_older_than_an_accepted_redis_stops_the_mirror_again(
    full_shard: MirroredShard,
) -> None:
    full_shard.run_jobs(3)
    full_shard.mirror()
    old = snapshot()
    full_shard.broker.redis.flushall()
    accept()
    full_shard.bridge.close()
    full_shard.mirror()
    restore(old)
    full_shard.bridge.close()
    with pytest.raises(WrongRedis):
        full_shard.mirror()


Tables = list[tuple[type[Any], list[dict[str, Any]]]]


def snapshot() -> Tables:
    return [(model, list(model.objects.values())) for model in (MirrorState, JobRecord, JobEvent)]


def restore(tables: Tables) -> None:
    for model, rows in tables:
        model.objects.all().delete()
        model.objects.bulk_create(model(**row) for row in rows)


def test_the_start_position_means_that_nothing_was_read(full_shard: MirroredShard) -> None:
    full_shard.mirror()
    assert parse_position(state().position) == START
    assert state().incarnation
    full_shard.broker.redis.flushall()
    full_shard.bridge.close()
    with pytest.raises(WrongRedis):
        full_shard.mirror()


# -- reapqueue --accept-redis


def reapqueue() -> str:
    return output_of("reapqueue", "--accept-redis")


def test_reapqueue_accepts_this_redis(full_shard: MirroredShard) -> None:
    full_shard.broker.add("a")
    full_shard.mirror()
    assert "the mirror already follows" in reapqueue()
    assert state().epoch == 0
    full_shard.broker.redis.flushall()
    assert f"the mirror now follows {full_shard.broker.connection.redis_url.address}" in reapqueue()
    full_shard.bridge.close()
    full_shard.mirror()
    assert full_shard.record("a").reason == "lost"


def test_reapqueue_has_nothing_to_accept_without_a_mirror(
    queue_settings: dict[str, Any],
) -> None:
    with pytest.raises(CommandError, match="there is no mirror"):
        reapqueue()


def test_reapqueue_reports_missing_tables(full_shard: MirroredShard, database: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_redisqueue_mirrorstate RENAME TO hidden")
    try:
        with pytest.raises(CommandError, match="the database 'default'"):
            reapqueue()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE hidden RENAME TO django_redisqueue_mirrorstate")
