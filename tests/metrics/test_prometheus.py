"""The Prometheus collector, read back by Prometheus's own parser."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from django_redisqueue import JobQueue
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Source
from django_redisqueue.metrics.histograms import encode
from django_redisqueue.models import MirrorState, OutboxJob, Rollup
from django_redisqueue.prometheus import Collector
from django_redisqueue.worker.identity import this_worker
from tests.app import tasks
from tests.broker.schedules import definition
from tests.docs.pages import assert_lists
from tests.support.commands import Script
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_of, shard_of

pytestmark = pytest.mark.django_db(databases=["default", "other"])

Scrape = dict[tuple[str, ...], float]


def scrape() -> Scrape:
    """(name, values by label name) -> value, as Prometheus would read it."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Collector())
    text = generate_latest(registry).decode()
    return {
        (
            sample.name.removeprefix("redisqueue_"),
            *dict(sorted(sample.labels.items())).values(),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any], settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}


def test_queues(manual_worker: ManualWorker, redis: Redis, queue_settings: dict[str, Any]) -> None:
    jobs = tasks.noop.enqueue_many([()] * 6)
    jobs[5].cancel()
    manual_worker.complete_one()
    manual_worker.complete_one()
    manual_worker.fail_one()
    manual_worker.claim_one()
    JobQueue("low").pause()
    key = keys_of().job(jobs[4].id)
    redis.hset(key, "enqueued_ms", int(time.time() * 1000) - 100_000)
    found = scrape()
    assert found["jobs", "default", "processing"] == 1
    assert found["jobs", "default", "completed"] == 2
    assert found["jobs", "default", "failed"] == 1
    assert found["jobs", "low", "queued"] == 0
    assert 100 <= found["oldest_job_age_seconds", "default"] < 160
    assert found["oldest_job_age_seconds", "low"] == 0
    assert (found["queue_paused", "default"], found["queue_paused", "low"]) == (0, 1)
    assert (found["queue_broken", "default"], found["queue_broken", "low"]) == (0, 0)
    totals = {name[0]: value for name, value in found.items() if name[1:] == ("default",)}
    assert totals["jobs_enqueued_total"] == 6
    assert totals["jobs_completed_total"] == 2
    assert totals["jobs_failed_total"] == totals["jobs_cancelled_total"] == 1
    assert totals["jobs_recovered_total"] == totals["jobs_released_total"] == 0
    assert found["up", "redis"] == found["up", "outbox"] == 1
    assert ("up", "mirror") not in found  # it is switched off


def test_policies(manual_worker: ManualWorker, redis: Redis) -> None:
    for name in ("job_1", "job_2"):
        lane = "|c:stripe:4%2F2|r:api: c:stripe=1 r:api=100/60000000/100"
        job = NewJob(
            name, "default", "t", "[[],{}]", unique=f"{name} until_finished - -", lane=lane
        )
        manual_worker.store.enqueue([job])
    manual_worker.claim_one()
    manual_worker.claim()
    made = [definition(name, source=Source.ADMIN) for name in ("a", "b")]
    manual_worker.store.define_schedules("", [(one, 1_760_000_000_000) for one in made])
    manual_worker.store.pause_schedule("b", True)
    redis.hset(
        manual_worker.store.keys.schedule("a"), mapping={"missed": 3, "last_ms": 1_759_999_999_000}
    )
    manual_worker.store.enqueue([NewJob("job_3", "default", "t", "[[],{}]")])
    manual_worker.settle(manual_worker.claim_one(), "parked", "paid:42", "")
    found = scrape()
    assert [found["parked_jobs", kind] for kind in ("event", "approval", "sleep")] == [1, 0, 0]
    assert found["unique_keys",] == 2
    assert [found["schedules", state] for state in ("enabled", "paused", "error")] == [1, 1, 0]
    assert found["schedule_next_due_timestamp_seconds", "a"] == 1_760_000_000
    assert ("schedule_next_due_timestamp_seconds", "b") not in found
    assert found["schedule_last_run_timestamp_seconds", "a"] == 1_759_999_999
    assert (found["schedule_missed_total", "a"], found["schedule_missed_total", "b"]) == (3, 0)
    limit = "stripe:4%2F2"
    assert (found["limit_used", limit], found["limit_most", limit]) == (1, 1)
    assert (found["limit_parked_lanes", limit], found["limits_waited_for",]) == (1, 1)
    assert 0 <= found["limit_oldest_seconds", limit] < 60


def test_one_limit_per_tenant_does_not_create_one_series_per_tenant(
    manual_worker: ManualWorker, redis: Redis
) -> None:
    low = manual_worker.store.keys.queue("low")
    for n in range(40):
        redis.zadd(manual_worker.store.keys.waiting_limits, {f"c:l:{n} low": 0, f"r:l:{n} low": 0})
        redis.zadd(low.parked_at(f"c:l:{n}"), {"lane": 0})
        redis.zadd(low.parked_at(f"r:l:{n}"), {"lane": 0})
    found = scrape()
    assert len([name for name in found if name[0] == "limit_parked_lanes"]) == 10
    assert found["limits_waited_for",] == 80


def test_a_blocked_queue_is_named(
    manual_worker: ManualWorker, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    tasks.noop.enqueue()
    key = keys_of().queue("low").retrying
    redis.set(key, "theirs")
    try:
        found = scrape()
    finally:
        redis.delete(key)
    assert (found["queue_broken", "default"], found["queue_broken", "low"]) == (0, 1)
    assert found["jobs", "default", "queued"] == 1


def test_workers(manual_worker: ManualWorker) -> None:
    assert found_workers() == (0, 0, None)
    manual_worker.store.now_ms = int(time.time() * 1000) - 3_600_000
    manual_worker.store.heartbeat(["dead"])
    manual_worker.store.now_ms = None
    manual_worker.store.heartbeat(["a", "b", this_worker().child(1, "maintenance")])
    alive, lapsed, shortest = found_workers()
    assert (alive, lapsed) == (2, 1)
    assert 0 < (shortest or 0) <= 15


def found_workers() -> tuple[float, float, float | None]:
    found = scrape()
    return (
        found["worker_children", "alive"],
        found["worker_children", "lapsed"],
        found.get(("worker_shortest_lease_seconds",)),
    )


@pytest.fixture
def mirrored(manual_worker: ManualWorker, settings: Any) -> ManualWorker:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "MIRROR": True}
    return manual_worker


def test_the_mirror_lags_by_the_age_of_its_oldest_unread_event(
    mirrored: ManualWorker, redis: Redis, queue_settings: dict[str, Any]
) -> None:
    assert scrape()["mirror_lag_seconds",] == 0
    stream = keys_of().events
    now = int(time.time() * 1000)
    for age in (300_000, 100_000, 0):
        redis.xadd(stream, {":alike": "{}", "x": ""}, id=f"{now - age}-0")
    assert 300 <= scrape()["mirror_lag_seconds",] < 360
    state = MirrorState.objects.create(
        shard=shard_of(), position=f"{now - 300_000}-0", gaps=2, left_out=3, incomplete=4
    )
    found = scrape()
    assert 100 <= found["mirror_lag_seconds",] < 160
    assert (found["mirror_stopped",], found["mirror_gaps_total",]) == (0, 2)
    assert found["mirror_faults_total", "left_out"] == 3
    assert found["mirror_faults_total", "incomplete"] == 4
    state.position, state.problem = f"{now}-0", "another Redis"
    state.save()
    found = scrape()
    assert (found["mirror_lag_seconds",], found["mirror_stopped",]) == (0, 1)


def test_durations_of_the_last_minutes(mirrored: ManualWorker) -> None:
    now = timezone.now()
    for age, wait in ((0, [0, 0, 0, 100]), (60, [0, 0, 0, 100]), (7200, [0] * 50 + [10_000])):
        minute = (now - timedelta(seconds=age)).replace(second=0, microsecond=0)
        Rollup.objects.create(minute=minute, queue="default", task="a", wait=encode(wait))
    found = scrape()
    assert 0.003 <= found["wait_seconds", "0.5", "default"] <= 0.004
    assert found["wait_seconds", "0.99", "default"] <= 0.004
    assert ("run_seconds", "0.5", "default") not in found
    labelled = {one.type for one in Collector().collect() if "'quantile'" in str(one.samples)}
    assert labelled == {"summary"}  # the only type that may have this label


def test_the_outbox_of_each_database(manual_worker: ManualWorker) -> None:
    job = {"queue": "default", "task": "a", "payload": "[[],{}]"}
    OutboxJob.objects.create(id="job_1_a_0", **job)
    OutboxJob.objects.filter(id="job_1_a_0").update(
        created_at=timezone.now() - timedelta(minutes=5)
    )
    OutboxJob.objects.create(id="job_2_a_0", **job)
    OutboxJob.objects.create(id="job_3_a_0", relayed_at=timezone.now(), **job)
    OutboxJob.objects.using("other").create(id="job_4_a_0", problem="too large", **job)
    found = scrape()
    assert found["outbox_jobs", "default", "waiting"] == 2
    assert found["outbox_jobs", "default", "refused"] == 0
    assert 300 <= found["outbox_oldest_seconds", "default"] < 360
    assert found["outbox_jobs", "other", "waiting"] == 0
    assert found["outbox_jobs", "other", "refused"] == 1
    assert found["outbox_oldest_seconds", "other"] == 0


def test_an_unreadable_outbox_does_not_hide_the_others(manual_worker: ManualWorker) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("disk full")

    OutboxJob.objects.create(id="job_1_a_0", queue="default", task="a", payload="[[],{}]")
    with connections["other"].execute_wrapper(fail):
        found = scrape()
    assert (found["up", "outbox"], found["outbox_jobs", "default", "waiting"]) == (0, 1)
    assert ("outbox_jobs", "other", "waiting") not in found


def test_a_scrape_does_not_fail_when_redis_is_down(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}, "MIRROR": True}
    found = scrape()
    assert (found["up", "redis"], found["up", "mirror"], found["up", "outbox"]) == (0, 0, 1)
    assert (found["finding", "redis_away"], found["finding", "no_worker"]) == (1, 0)
    assert not any(name[0] == "jobs" for name in found)


def test_several_shards_are_added_up_and_a_missing_one_is_named(
    queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "SHARDS": 4}
    for shard in range(4):
        commands = Commands(producer_connection(shard))
        commands.enqueue([NewJob(new_job_id(shard), "default", "t", "[[],{}]")])
        commands.heartbeat(["child"])
    found = scrape()
    assert found["jobs", "default", "queued"] == found["jobs_enqueued_total", "default"] == 4
    assert [found["shard_up", str(shard)] for shard in range(4)] == [1, 1, 1, 1]
    assert (found["worker_children", "alive"], found["up", "redis"]) == (1, 1)
    urls = [queue_settings["CONNECTION"]["URL"], "unix:///nonexistent/redis.sock"]
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": {"URL": urls}}
    found = scrape()
    assert found["jobs", "default", "queued"] == 2
    assert [found["shard_up", str(shard)] for shard in range(4)] == [1, 0, 1, 0]
    assert found["finding", "shard_away"] == found["up", "redis"] == 1
    assert ("jobs_enqueued_total", "default") not in found, "a counter must not fall"


def test_the_collector_is_registered_once_and_idle_until_it_is_scraped(
    settings: Any, django_assert_num_queries: Any
) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    registry = CollectorRegistry(auto_describe=True)
    with django_assert_num_queries(0):
        registry.register(Collector())
    with pytest.raises(ValueError, match="redisqueue_up"):
        registry.register(Collector())


def test_the_cost_does_not_grow_with_jobs(
    mirrored: ManualWorker, django_assert_max_num_queries: Any
) -> None:
    tasks.noop.enqueue_many([()] * 300)
    collector = Collector()
    list(collector.collect())
    with django_assert_max_num_queries(3 + 3 * 2 + 3 * 3):
        list(collector.collect())


def test_the_docs_list_exactly_the_existing_metrics(mirrored: ManualWorker, settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 2}  # which have their own metric
    names = set()
    for family in Collector().collect():
        names.add(family.name + ("_total" if family.type == "counter" else ""))
    page = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    rows = "".join(line for line in page.splitlines() if line.startswith("| `redisqueue_"))
    assert_lists("the table in docs/metrics.md", re.findall(r"`(redisqueue_\w+)`", rows), names)


def test_without_the_library_the_error_names_the_extra() -> None:
    script = Script(
        "import sys; sys.modules['prometheus_client'] = None; import django_redisqueue.prometheus"
    )
    assert script.wait() == 1
    assert "ImportError: django_redisqueue.prometheus needs the library" in script.output
    assert "pip install 'django-redisqueue[prometheus]'" in script.output
