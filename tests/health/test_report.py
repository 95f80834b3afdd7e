"""The findings: each appears with its cause, is described with a remedy, and disappears with the
cause."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.db.utils import OperationalError
from django.utils import timezone
from redis import Redis

from django_redisqueue import JobQueue
from django_redisqueue.broker.connection import RedisConnection
from django_redisqueue.conf import get_settings, load
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import ConfigurationError, InvalidOption
from django_redisqueue.health.report import HealthReport, as_json, read_health
from django_redisqueue.models import MirrorState, OutboxJob, Rollup
from tests.app import tasks
from tests.support.manual_worker import ManualWorker

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any], settings: Any) -> None:
    settings.REDISQUEUE = {
        **queue_settings, "MIRROR": True, "QUEUES": {"default": {"ALERT_WAIT": 60}, "low": {}},
    }  # fmt: skip


def report() -> HealthReport:
    return read_health()


def found(finding_id: str) -> str:
    """The sentence and the remedy of the finding, or '' if there is none."""
    texts = [f"{each.text} {each.remedy}" for each in report().findings if each.id == finding_id]
    return " ".join(texts)


def ids() -> list[str]:
    return [str(each.id) for each in report().findings]


def serve(manual_worker: ManualWorker, *queues: str) -> None:
    manual_worker.store.heartbeat([manual_worker.claim_request.child], (), queues)


def test_nothing_is_wrong(manual_worker: ManualWorker) -> None:
    assert (ids(), report().level) == ([], "ok")  # there are no workers, and there is no work
    serve(manual_worker, "default", "low")
    tasks.noop.enqueue()
    assert (ids(), report().level) == ([], "ok")


def test_no_worker_while_jobs_wait(manual_worker: ManualWorker) -> None:
    tasks.noop.using(run_after=60).enqueue()
    assert found("no_worker") == (
        "No worker is alive, and 1 job waits for one. Start one: manage.py runworker."
    )
    tasks.noop.enqueue()
    assert "and 2 jobs wait for one" in found("no_worker")
    assert report().level == "error"
    serve(manual_worker, "default")
    assert ids() == []


def test_a_worker_that_has_died_serves_no_longer_than_its_lease(
    manual_worker: ManualWorker, redis: Redis
) -> None:
    tasks.noop.enqueue()
    serve(manual_worker, "default")
    redis.zincrby(manual_worker.store.keys.serving, -20_000, "default")
    redis.zincrby(manual_worker.store.keys.workers, -20_000, manual_worker.claim_request.child)
    assert set(ids()) == {"no_worker", "workers_lapsed"}
    child = manual_worker.claim_request.child
    assert f"The lease of 1 child of a worker has expired: dead, or not connected to Redis "\
        f"({child})." in found("workers_lapsed")  # fmt: skip


def test_many_children_with_expired_leases_are_counted_and_a_few_named(
    manual_worker: ManualWorker, redis: Redis
) -> None:
    redis.zadd(manual_worker.store.keys.workers, {f"dead{n}": 1 for n in range(6)})
    words = found("workers_lapsed")
    assert words.startswith("The leases of 6 children of workers have expired: dead")
    assert "(dead0, dead1, dead2, …)" in words


def test_an_unserved_queue(manual_worker: ManualWorker) -> None:
    serve(manual_worker, "default")
    assert ids() == []  # it is empty
    tasks.noop.using(queue_name="low").enqueue()
    assert found("queue_not_served") == (
        "No worker serves queue low, which has 1 job queued. "
        "Start one that does: manage.py runworker --queues low."
    )
    assert report().problems[0].target == ("queue", "low", "queued")
    serve(manual_worker, "default", "low")
    assert ids() == []


def test_queues_served_by_workers_of_an_older_version_are_unknown(
    manual_worker: ManualWorker,
) -> None:
    serve(manual_worker)
    tasks.noop.enqueue()
    assert ids() == []


def test_the_oldest_job_waits_too_long(manual_worker: ManualWorker, redis: Redis) -> None:
    serve(manual_worker, "default", "low")
    for queue in ("default", "low"):
        job = tasks.noop.using(queue_name=queue).enqueue()
        redis.hincrby(manual_worker.store.keys.job(job.id), "enqueued_ms", -61_000)
    words = found("queue_late")
    assert "The oldest job of queue default has waited for 1 m 1 s, longer than 1 m (ALERT" in words
    assert "low" not in words, "it has no threshold"


def test_a_paused_queue_is_reported_with_time_and_user(
    manual_worker: ManualWorker, redis: Redis
) -> None:
    serve(manual_worker, "default")
    low = JobQueue("low")
    assert low.pause(by="ann")
    assert not low.pause(by="bob")
    tasks.noop.using(queue_name="low").enqueue()
    redis.hincrby(manual_worker.store.keys.queue("low").meta, "paused", -3 * 3_600_000)
    assert found("queue_paused") == (
        "Queue low was paused 3 h ago by ann, and has 1 job queued. "
        "Resume it when the reason for the pause is gone."
    )
    assert (ids(), report().level) == (["queue_paused"], "warning")
    low.resume()
    low.pause()
    assert "paused 0 h" not in found("queue_paused")
    assert " by " not in found("queue_paused")


def test_the_name_of_the_pausing_user_must_be_text(manual_worker: ManualWorker) -> None:
    with pytest.raises(InvalidOption, match="by must be a name, not 7"):
        JobQueue().pause(by=7)  # type: ignore[arg-type]


def test_failed_jobs_above_a_rate(manual_worker: ManualWorker, settings: Any) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    row = Rollup.objects.create(minute=now, queue="low", task="a.b", failed=9, completed=1)
    assert ids() == [], "too few for a rate"
    Rollup.objects.create(minute=now, queue="low", task="a.c", failed=21, completed=69)
    assert found("queue_failures").startswith(
        "30 jobs of queue low (30% of those that ended) failed in the last 15 m, more than "
        "10% (ALERT_FAILED)."
    )
    settings.REDISQUEUE = {**settings.REDISQUEUE, "ALERT_FAILED": 0.3}
    assert ids() == []
    settings.REDISQUEUE = {**settings.REDISQUEUE, "ALERT_FAILED": None}
    row.failed = 100
    row.save()
    assert ids() == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ALERT_FAILED": 2}, '"ALERT_FAILED"] must be a number from 0 to 1, or None for no alarm'),
        ({"ALERT_WAIT": "soon"}, '"ALERT_WAIT"] must be'),
    ],
)
def test_wrong_thresholds_are_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({"QUEUES": {"low": wrong}})
    assert 'REDISQUEUE["QUEUES"]["low"]["ALERT_' in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.one_server("changes its server's state")
def test_problems_of_redis_and_its_keys(manual_worker: ManualWorker, redis: Redis) -> None:
    serve(manual_worker, "default", "low")
    redis.set(manual_worker.store.keys.queue("low").failed, "theirs")
    assert "Queue low is blocked: " in found("queue_broken")
    manual_worker.store.enqueue([NewJob("job_1", "former", "a.task", "[[],{}]")])
    assert "Queue former has unfinished jobs in Redis (1), but is not in" in found("queue_unknown")
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert "maxmemory-policy allkeys-lru" in found("redis_evicts")
    finally:
        redis.config_set("maxmemory-policy", "noeviction")


def test_keys_of_another_type_hide_nothing_else(manual_worker: ManualWorker, redis: Redis) -> None:
    keys = manual_worker.store.keys
    tasks.noop.enqueue()
    for key in (keys.serving, keys.workers, keys.queues):
        redis.delete(key)
        redis.set(key, "theirs")
    assert "no_worker" in ids()


def test_redis_is_down(manual_worker: ManualWorker, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    assert "Redis at unix:///nonexistent/redis.sock does not answer" in found("redis_away")
    assert ids() == ["redis_away"], "nothing is said of what is not known"


def test_the_mirror(manual_worker: ManualWorker, settings: Any) -> None:
    serve(manual_worker, "default")
    now = timezone.now()
    state = MirrorState.objects.create(shard=0, gaps=2, gap_at=now, left_out=1, fault_at=now)
    assert sorted(ids()) == ["mirror_faults", "mirror_gaps"]
    assert report().level == "warning"
    state.gap_at = state.fault_at = now - timedelta(days=2)
    state.save()
    assert [each.level for each in report().findings] == ["info", "info"]
    assert report().level == "ok"
    manual_worker.connection.call(
        "XADD", manual_worker.store.keys.events, "1000-0", ":alike", "{}", "x", ""
    )
    assert "The mirror is " in found("mirror_late")
    state.problem = "this Redis is another one"
    state.save()
    assert "The mirror has stopped: this Redis is another one" in found("mirror_stopped")
    settings.REDISQUEUE = {**settings.REDISQUEUE, "MIRROR": False}
    assert ids() == ["mirror_off"]


def test_the_outbox(manual_worker: ManualWorker) -> None:
    OutboxJob.objects.create(id="a", queue="q", task="t", payload="[]")
    OutboxJob.objects.using("other").create(id="b", queue="q", task="t", payload="[]", problem="no")
    assert found("outbox_stuck") == ""
    assert "Redis refuses 1 of the jobs in the outbox of database other." in found("outbox_refused")
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=5))
    assert "A job has waited in the outbox of database default for 5 m" in found("outbox_stuck")


def test_refused_rows_of_the_outbox_hide_no_waiting_job(manual_worker: ManualWorker) -> None:
    for n in range(150):
        row = {"queue": "q", "task": "t", "payload": "[]", "problem": "no"}
        OutboxJob.objects.create(id=f"r{n}", **row)
    OutboxJob.objects.create(id="a", queue="q", task="t", payload="[]")
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=9))
    OutboxJob.objects.filter(id="a").update(created_at=timezone.now() - timedelta(minutes=5))
    assert "Redis refuses 150 of the jobs" in found("outbox_refused")
    assert "A job has waited in the outbox of database default for 5 m" in found("outbox_stuck")


def test_an_unreadable_database_hides_nothing_else(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("disk full")

    tasks.noop.enqueue()
    with connection.execute_wrapper(fail), connections["other"].execute_wrapper(fail):
        words, known = found("database_unreadable"), ids()
    assert "The state of the mirror cannot be read (OperationalError: disk full)." in words
    assert "The outbox of database default cannot be read" in words
    assert "no_worker" in known


def test_an_unreadable_outbox_does_not_hide_the_others(manual_worker: ManualWorker) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("disk full")

    OutboxJob.objects.create(id="job_1_a_0", queue="default", task="a", payload="[[],{}]")
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=5))
    with connections["other"].execute_wrapper(fail):
        assert "The outbox of database other cannot be read" in found("database_unreadable")
        assert "has waited in the outbox of database default for 5 m" in found("outbox_stuck")


def test_the_worst_comes_first(manual_worker: ManualWorker) -> None:
    MirrorState.objects.create(shard=0, gaps=1)
    JobQueue("low").pause()
    tasks.noop.enqueue()
    levels = [each.level.value for each in report().findings]
    assert levels == ["error", "warning", "info"]
    assert as_json(report())["status"] == "error"
    first = as_json(report())["findings"][0]
    assert (first["id"], first["level"], first["queue"]) == ("no_worker", "error", None)


@pytest.mark.one_server("a pipeline for each server")
def test_the_cost_does_not_depend_on_the_amount_of_data(
    manual_worker: ManualWorker,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    django_assert_max_num_queries: Any,
) -> None:
    trips: list[int] = []
    send = RedisConnection.send

    def count(self: RedisConnection, commands: Sequence[Any]) -> None:
        trips.append(len(commands))
        send(self, commands)

    monkeypatch.setattr(RedisConnection, "send", count)
    queues = {f"q{n}": {} for n in range(50)}
    for known in ({"default": {}}, queues):
        settings.REDISQUEUE = {**settings.REDISQUEUE, "QUEUES": known}
        manual_worker.store.heartbeat([f"{n}" for n in range(200)], (), list(known))
        manual_worker.store.enqueue([NewJob(f"job_{n}", n, "a.task", "[[],{}]") for n in known])
        trips.clear()
        with django_assert_max_num_queries(3 * 3):  # each in a savepoint of the test's transaction
            read_health(manual_worker.connection)
        assert len(trips) == 2
    assert sum(trips) / get_settings().shards <= 17 + (17 + 4) * 50 + 11
    assert len(get_settings().queues) == 50
