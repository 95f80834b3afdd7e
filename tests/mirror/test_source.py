"""The mirror notices what Redis has lost, follows it, and stands still before a strange one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_redisqueue.conf import get_settings
from django_redisqueue.connection import worker_link
from django_redisqueue.exceptions import WrongRedis
from django_redisqueue.mirror import source
from django_redisqueue.mirror.assembly import make_bridge
from django_redisqueue.mirror.source import Source
from django_redisqueue.models import JobEvent, JobRecord, MirrorState
from django_redisqueue.store.events import START, parse_position
from tests.servers import RedisServer
from tests.store.lab import ERROR, Lab, outcome
from tests.stream import fields_of

from .scene import Scene, check_records


@pytest.fixture
def whole(scene: Scene) -> Iterator[Scene]:
    """A shard on Redis's own clock, and a bridge with all that belongs to it."""
    scene.bridge.close()
    scene.lab.store.now_ms = None
    scene.bridge = make_bridge(get_settings(), page=100)
    return scene


def state() -> MirrorState:
    return MirrorState.objects.get()


def accept() -> bool:
    link = worker_link()
    try:
        return Source(link, get_settings()).accept()
    finally:
        link.close()


def statuses() -> dict[str, str]:
    return dict(JobRecord.objects.values_list("pk", "status"))


def is_in_step(scene: Scene) -> None:
    """Every record is as Redis has the job, and nothing is left to reconcile."""
    check_records(scene.lab)
    assert not state().unreconciled
    assert state().problem == ""


def trim_all(lab: Lab) -> None:
    """As EVENTS_CAP would with a burst, but at once: all but the last entry."""
    lab.redis.xtrim(lab.keys.events, maxlen=1, approximate=False)


# -- a Redis is given a name


def test_a_new_mirror_takes_what_it_finds_and_names_it(whole: Scene) -> None:
    whole.live(20)
    whole.mirror()
    assert len(state().incarnation) == 32
    assert whole.lab.redis.hget(whole.lab.keys.meta, "incarnation") == state().incarnation
    assert (state().epoch, state().gaps) == (0, 0)
    whole.is_complete()
    is_in_step(whole)


def test_a_new_database_learns_of_jobs_whose_events_are_gone(whole: Scene) -> None:
    whole.lab.end("done", body='"' + "x" * 3000 + '"')
    whole.lab.end("failed", verdict="failed", body=ERROR)
    whole.lab.add("waits", payload='[["w"],{}]', priority=-3)
    whole.lab.add("later", when="+60000")
    whole.lab.add("runs")
    assert whole.lab.take("c9").id == "runs"
    whole.lab.add("again")
    whole.lab.finish(outcome(whole.lab.take(), "retrying", ERROR, "60000"))
    trim_all(whole.lab)
    whole.mirror()
    assert len(JobRecord.objects.all()) == 6
    is_in_step(whole)
    assert whole.record("runs").attempts == 1
    assert whole.story("done") == ["processing", "completed"]
    assert whole.story("waits") == ["queued"]
    assert json.loads(JobEvent.objects.get(job_id="waits").detail)["reconciled"] is True


# -- emptied, or another


def test_an_emptied_redis_is_not_followed_until_it_is_accepted(
    whole: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.lab.end("done")
    whole.lab.add("waits", "runs", "later")
    whole.lab.take()
    whole.mirror()
    before, position = list(JobRecord.objects.order_by("pk").values()), state().position
    whole.lab.redis.flushall()
    whole.lab.add("new")
    for _ in range(3):
        with pytest.raises(WrongRedis, match=r"was emptied, or is a new one.*--accept-redis"):
            whole.mirror()
        whole.bridge.close()
    assert list(JobRecord.objects.order_by("pk").values()) == before
    assert state().position == position
    assert "reapqueue --accept-redis" in state().problem
    assert "stands still" not in caplog.text  # whoever drives the bridge logs the first error
    monkeypatch.setattr(source, "SAY_AGAIN", 0.0)
    with pytest.raises(WrongRedis):
        whole.mirror()
    assert caplog.text.count("stands still") == 1

    assert accept() is True
    assert accept() is False
    whole.bridge.close()
    whole.mirror()
    lost = dict.fromkeys(["waits", "runs", "later"], "failed")
    assert statuses() == {"done": "completed", "new": "queued", **lost}
    record = whole.record("waits")
    assert (record.reason, record.error_type, record.epoch) == ("lost", "JobLost", 1)
    assert record.job_error is not None
    assert "enqueue it again" in record.job_error.message
    assert record.finished_at is not None
    event = JobEvent.objects.filter(job_id="waits").latest("id")
    assert (event.status, json.loads(event.detail)["reason"]) == ("failed", "lost")
    assert (state().problem, state().unreconciled, state().epoch) == ("", False, 1)


def test_a_redis_of_another_installation_is_not_followed(whole: Scene) -> None:
    whole.live(3)
    whole.mirror()
    whole.bridge.close()
    whole.lab.redis.hset(whole.lab.keys.meta, "incarnation", "f" * 32)
    with pytest.raises(WrongRedis, match="has another installation's data"):
        whole.mirror()
    assert state().incarnation != "f" * 32


def test_a_lost_job_that_comes_again_lives_again(whole: Scene) -> None:
    whole.lab.add("a")
    whole.lab.take()
    whole.mirror()
    whole.lab.redis.flushall()
    accept()
    whole.bridge.close()
    whole.mirror()
    assert whole.record("a").reason == "lost"
    whole.lab.add("a")  # an outbox has it still
    whole.mirror()
    record = whole.record("a")
    assert (record.status, record.reason, record.error, record.finished_at) == (
        "queued", "", "", None,
    )  # fmt: skip
    is_in_step(whole)


def test_the_meta_key_alone_deleted_is_accepted_and_nothing_is_read_twice(whole: Scene) -> None:
    whole.live(20)
    whole.mirror()
    whole.bridge.close()
    whole.lab.redis.delete(whole.lab.keys.meta)
    whole.live(10, "k")
    with pytest.raises(WrongRedis):
        whole.mirror()
    accept()
    whole.bridge.close()
    whole.mirror()
    whole.is_complete()
    is_in_step(whole)


# -- trimmed past the cursor


def test_a_gap_is_counted_said_and_reconciled(
    whole: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    whole.lab.add("ends", "fails", "waits", "requeued")
    whole.mirror()
    lab = whole.lab
    jobs = {job.id: job for job in lab.claim(jobs=2).jobs}
    lab.finish(outcome(jobs["ends"], body='"' + "x" * 3000 + '"'))
    lab.finish(outcome(jobs["fails"], "failed", ERROR, "max_attempts"))
    whole.live(50, "unseen")
    lab.add("last")
    trim_all(lab)
    whole.mirror()
    assert state().gaps == 1
    assert state().gap_at is not None
    assert state().epoch == 1
    assert "a gap: events behind" in caplog.text
    assert "records brought up to date, 0 jobs lost" in caplog.text
    assert whole.record("ends").status == "completed"
    is_in_step(whole)
    assert whole.bridge.run_once() is False
    assert state().gaps == 1


def test_a_stream_that_was_deleted_is_a_gap(whole: Scene) -> None:
    whole.live(5)
    whole.lab.add("waits")
    whole.mirror()
    whole.lab.redis.delete(whole.lab.keys.events)
    whole.lab.finish(outcome(whole.lab.take()))
    whole.mirror()
    assert (state().gaps, whole.record("waits").status) == (1, "completed")
    is_in_step(whole)


def test_a_job_whose_end_was_in_the_gap_and_is_gone_from_redis_is_lost(whole: Scene) -> None:
    whole.lab.add("a", "b")
    whole.mirror()
    whole.lab.finish(outcome(whole.lab.take()))
    whole.lab.redis.delete(whole.lab.keys.job("a"))
    whole.lab.add("c")
    trim_all(whole.lab)
    whole.mirror()
    assert statuses() == {"a": "failed", "b": "queued", "c": "queued"}


# -- back in time


def test_an_entry_of_the_same_name_that_says_something_else_is_another(whole: Scene) -> None:
    whole.lab.add("a")
    whole.mirror()
    whole.bridge.close()
    (event,) = whole.lab.written()
    whole.lab.redis.delete(whole.lab.keys.events)
    other = fields_of(event.text.replace('"jobId":"a"', '"jobId":"b"'))
    for name, fields in (("1-1", [":alike", "{}", "b", ""]), (event.entry, other)):
        whole.lab.redis.execute_command("XADD", whole.lab.keys.events, name, *fields)
    whole.mirror()
    assert (state().epoch, state().gaps) == (1, 0)
    assert whole.story("b") == ["queued", "failed"]  # in truth Redis does not know it: lost


@pytest.fixture
def own(
    fresh_server: Callable[..., RedisServer], database: str, settings: Any
) -> Iterator[tuple[Scene, RedisServer]]:
    """A scene on a server of its own, which writes its data when it is told to."""
    server = fresh_server(appendonly=False, dbfilename="dump.rdb")
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}, "PREFIX": "own", "MIRROR": True}
    scene = Scene(Lab(server))
    scene.bridge.close()
    scene.lab.store.now_ms = None
    scene.bridge = make_bridge(get_settings(), page=100)
    yield scene, server
    scene.close()


@pytest.mark.parametrize("goes_on", [False, True], ids=["at once", "after new events"])
def test_redis_that_failed_over_to_an_older_copy(
    own: tuple[Scene, RedisServer], goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scene, server = own
    lab = scene.lab
    scene.live(30)
    lab.add("rewound", "runs")
    lab.add("waits", priority=-3)
    job = lab.take("c8")
    assert job.id == "rewound"
    scene.mirror()
    lab.redis.save()
    # What the copy does not have:
    lab.store.cancel(["waits"])
    lab.finish(outcome(job), child="c8")
    scene.live(40, "unsaved")
    lab.add("lost")
    scene.mirror()
    assert (scene.record("rewound").status, scene.record("waits").status) == (
        "completed", "cancelled",
    )  # fmt: skip
    read = parse_position(state().position)
    server.kill()
    server.start()
    lab.link.close()
    scene.bridge.close()
    if goes_on:  # the new history is longer than the old one before anybody looks
        scene.live(200, "new")
        assert scene.bridge.events.last() > read  # type: ignore[operator]
    scene.mirror()
    assert "Redis went back in time" in caplog.text
    assert (state().epoch, state().gaps) == (1, 0)
    assert scene.record("rewound").status == "processing"
    assert scene.record("rewound").result == ""
    assert scene.record("waits").status == ("completed" if goes_on else "queued")
    assert (scene.record("lost").status, scene.record("lost").reason) == ("failed", "lost")
    assert scene.record("unsaved0").status == "completed"  # it did, as far as anybody knows
    scene.live(20, "after")
    scene.mirror()
    JobRecord.objects.filter(pk__startswith="unsaved").delete()
    JobRecord.objects.filter(pk="lost").delete()
    is_in_step(scene)
    stream = len(lab.written())
    assert JobEvent.objects.filter(epoch=1, seq__gt=0).count() < stream  # not all was read again


def test_the_last_common_entry_is_found(own: tuple[Scene, RedisServer]) -> None:
    scene, server = own
    scene.live(300)
    scene.mirror()
    scene.lab.redis.save()
    common = scene.bridge.events.last()
    scene.live(300, "unsaved")
    scene.mirror()
    server.kill()
    server.start()
    scene.lab.link.close()
    scene.live(250, "new")
    scene.bridge.close()
    found = Source(scene.bridge.link, get_settings())._common_point(
        parse_position(state().position)
    )
    assert found == common


# -- an older database


def test_an_older_database_reads_again_what_the_stream_still_has(whole: Scene) -> None:
    whole.live(30)
    whole.mirror()
    old = snapshot()
    whole.live(60, "k")
    whole.mirror()
    whole.bridge.close()
    restore(old)
    whole.mirror()
    whole.is_complete()
    is_in_step(whole)
    assert (state().epoch, state().gaps) == (0, 0)


def test_an_older_database_behind_a_trimmed_stream_converges(whole: Scene) -> None:
    whole.lab.add("a", "b")
    whole.mirror()
    old = snapshot()
    whole.lab.finish(outcome(whole.lab.take()))
    whole.live(60, "k")
    whole.lab.end("last")  # of which the last entry tells, and of no other
    whole.mirror()
    whole.bridge.close()
    restore(old)
    trim_all(whole.lab)
    before = whole.lab.dump()
    whole.mirror()
    assert (state().gaps, state().unreconciled) == (1, False)
    assert len(JobRecord.objects.all()) == 63
    is_in_step(whole)
    after = whole.lab.dump()
    for dump in (before, after):
        dump.pop(whole.lab.keys.meta)  # where the mirror's cursor stands
    assert after == before  # nothing was run again, nothing enqueued


def test_an_older_database_of_before_an_accepted_redis_stands_still_again(whole: Scene) -> None:
    whole.live(3)
    whole.mirror()
    old = snapshot()
    whole.lab.redis.flushall()
    accept()
    whole.bridge.close()
    whole.mirror()
    restore(old)
    whole.bridge.close()
    with pytest.raises(WrongRedis):
        whole.mirror()


Tables = list[tuple[type[Any], list[dict[str, Any]]]]


def snapshot() -> Tables:
    return [(model, list(model.objects.values())) for model in (MirrorState, JobRecord, JobEvent)]


def restore(tables: Tables) -> None:
    for model, rows in tables:
        model.objects.all().delete()
        model.objects.bulk_create(model(**row) for row in rows)


def test_start_is_where_nothing_was_read(whole: Scene) -> None:
    whole.mirror()
    assert parse_position(state().position) == START
    assert state().incarnation
    whole.lab.redis.flushall()
    whole.bridge.close()
    with pytest.raises(WrongRedis):
        whole.mirror()


# -- reapqueue --accept-redis


def reapqueue() -> str:
    out = StringIO()
    call_command("reapqueue", "--accept-redis", stdout=out)
    return out.getvalue()


def test_reapqueue_accepts_this_redis(whole: Scene) -> None:
    whole.lab.add("a")
    whole.mirror()
    assert "the Redis that the mirror knows; nothing was changed" in reapqueue()
    assert state().epoch == 0
    whole.lab.redis.flushall()
    assert "the mirror follows unix://" in reapqueue()
    whole.bridge.close()
    whole.mirror()
    assert whole.record("a").reason == "lost"


def test_reapqueue_has_nothing_to_accept_without_a_mirror(
    queue_settings: dict[str, Any],
) -> None:
    with pytest.raises(CommandError, match="there is no mirror to tell"):
        reapqueue()


def test_reapqueue_says_that_the_tables_are_missing(whole: Scene, database: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_redisqueue_mirrorstate RENAME TO hidden")
    try:
        with pytest.raises(CommandError, match="the database 'default'"):
            reapqueue()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE hidden RENAME TO django_redisqueue_mirrorstate")
