"""Options of a task and of one call, and their effects."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from redis import Redis

from django_redisqueue import Backoff, JobQueue, Task
from django_redisqueue.client.options import TaskOptions, check_run_after
from django_redisqueue.conf import DEFAULTS, get_settings
from django_redisqueue.core.clock import MAX_DURATION, from_ms
from django_redisqueue.core.policies import FixedDelays, to_backoff
from django_redisqueue.core.statuses import Audit, Status
from tests.app import tasks
from tests.support.shards import keys_of
from tests.support.stream import written

from ..support.manual_worker import ManualWorker, low

pytestmark = pytest.mark.usefixtures("queue_settings")


def test_a_bare_task_has_the_defaults() -> None:
    assert tasks.noop.name == "tests.app.tasks.noop"
    assert tasks.noop.origin == "tests.app.tasks.noop"
    assert tasks.noop.options == TaskOptions()
    assert not tasks.noop.is_async
    assert tasks.async_sleep.is_async


def test_using_makes_a_copy_and_adds_up() -> None:
    first = tasks.noop.using(priority=5)
    second = first.using(max_attempts=3, timeout=10)
    assert isinstance(second, Task)
    assert (tasks.noop.priority, first.priority, second.priority) == (0, 5, 5)
    job = second.enqueue(1)
    assert job.priority == 5
    assert job.data.options == {"max_attempts": 3, "timeout_ms": 10_000}
    assert first.enqueue(1).data.options == {}
    assert second.using(timeout=0).enqueue().data.options["timeout_ms"] == 0


def test_none_leaves_an_option_unchanged() -> None:
    fixed = tasks.noop.using(priority=5, run_after=60)
    same = fixed.using(priority=None, run_after=None, queue_name=None, timeout=None)
    job = same.enqueue()
    assert (job.priority, job.status) == (5, Status.SCHEDULED)


@pytest.mark.parametrize("priority", [-100, -1, 0, 1, 100])
def test_every_priority_is_kept(priority: int) -> None:
    assert tasks.noop.using(priority=priority).enqueue().priority == priority


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0.0004, 1), (timedelta(microseconds=1), 1), (5e-324, 1), (0.0015, 2), (0, 0), (0.0, 0),
        (timedelta(0), 0), (-0.0, 0),
    ],
    ids=repr,
)  # fmt: skip
def test_only_a_timeout_of_zero_means_no_timeout(value: Any, milliseconds: int) -> None:
    assert tasks.noop.using(timeout=value).call_options["timeout_ms"] == milliseconds


def test_the_longest_possible_duration_can_be_timed() -> None:
    assert tasks.noop.using(timeout=MAX_DURATION).call_options["timeout_ms"] == 1000 * MAX_DURATION
    signal.setitimer(signal.ITIMER_REAL, MAX_DURATION)
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > MAX_DURATION - 60


def test_a_task_has_its_own_queue_and_priority(settings: Any, queue_settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    job = low.enqueue()
    assert (job.queue_name, job.priority) == ("low", -5)


@pytest.mark.parametrize("value", [60, 60.0, timedelta(minutes=1)], ids=repr)
def test_a_delay_counts_from_the_enqueue_by_the_clock_of_redis(value: Any) -> None:
    job = tasks.noop.using(run_after=value).enqueue()
    assert job.status is Status.SCHEDULED
    assert job.run_after is not None
    assert job.enqueued_at is not None
    assert job.run_after - job.enqueued_at == timedelta(minutes=1)


def test_a_time_is_kept_to_the_millisecond() -> None:
    instant = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    job = tasks.noop.using(run_after=instant).enqueue()
    assert job.run_after == instant
    local = instant.astimezone(timezone.get_fixed_timezone(330))
    assert tasks.noop.using(run_after=local).enqueue().run_after == instant


def test_a_time_beyond_all_dates_can_be_shown_in_any_zone() -> None:
    for far_ms in (10**400, 253_402_300_800_000, -(10**400), -62_135_596_800_001):
        shown = from_ms(far_ms)
        assert shown is not None
        for minutes in (840, -840):
            assert timezone.localtime(shown, timezone.get_fixed_timezone(minutes)).year in (1, 9999)
    assert from_ms(1_000) == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_a_time_in_the_past_means_now() -> None:
    long_ago = timezone.now() - timedelta(days=9)
    assert tasks.noop.using(run_after=long_ago).enqueue().status is Status.QUEUED
    assert tasks.noop.using(run_after=0).enqueue().status is Status.QUEUED


def test_a_naive_datetime_is_local_time_without_use_tz(settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Kolkata"
    assert check_run_after(datetime(1970, 1, 1, 5, 30, 1)) == "1000"


def test_a_scheduled_job_is_claimed_when_it_is_due(manual_worker: ManualWorker) -> None:
    job = tasks.noop.using(run_after=60).enqueue()
    assert manual_worker.claim() == []
    manual_worker.store.now_ms = (job.data.due_ms or 0) - 1
    assert manual_worker.claim() == []
    manual_worker.store.now_ms += 1
    assert [claimed.id for claimed in manual_worker.claim()] == [job.id]


def test_call_options_reach_the_worker(manual_worker: ManualWorker) -> None:
    tasks.noop.using(max_attempts=7, timeout=timedelta(seconds=2)).enqueue()
    assert json.loads(manual_worker.claim_one().options) == {"max_attempts": 7, "timeout_ms": 2000}


@pytest.mark.parametrize(
    ("value", "first", "second"),
    [
        (Backoff(base=3, factor=2, jitter=0), 3000, 6000),
        (Backoff(base=3, factor=9, maximum=10, jitter=0), 3000, 10_000),
        (Backoff(timedelta(seconds=3), 9, timedelta(seconds=10), 0), 3000, 10_000),
        (Backoff(base=timedelta(milliseconds=1.5), jitter=0), 2, 3),
        ([1, 0.5], 1000, 500),
        ((1,), 1000, 1000),
        (4, 4000, 4000),
        (timedelta(seconds=2), 2000, 2000),
        (FixedDelays((7,)), 7, 7),
    ],
    ids=repr,
)
def test_backoffs(value: Any, first: int, second: int) -> None:
    backoff = to_backoff(value)
    assert (backoff.delay_ms(1), backoff.delay_ms(2)) == (first, second)
    assert backoff.delay_ms(5000) >= 0


@pytest.mark.parametrize("factor", [1e6, 10**6])
def test_a_steep_backoff_ends_at_its_maximum(factor: float) -> None:
    backoff = Backoff(base=1, factor=factor, maximum=50, jitter=0)
    assert [backoff.delay_ms(attempt) for attempt in (1, 2, 400)] == [1000, 50_000, 50_000]
    assert Backoff(base=0, factor=factor, jitter=0).delay_ms(400) == 0


def test_jitter_stays_in_its_range() -> None:
    delays = {Backoff(base=10, jitter=0.2).delay_ms(1) for _ in range(500)}
    assert len(delays) > 100
    assert min(delays) >= 8000
    assert max(delays) <= 12_000


@pytest.mark.parametrize("audit", list(Audit))
def test_audit_thins_events_at_the_source(
    redis: Redis, queue_settings: dict[str, Any], manual_worker: ManualWorker, audit: Audit
) -> None:
    thinned = Task(
        func=tasks.noop.func, name="a.b", options=TaskOptions(), queue_name="default", priority=0,
        audit=audit.value,
    )  # fmt: skip
    thinned.enqueue()
    manual_worker.complete_one()
    thinned.enqueue()
    manual_worker.fail_one()
    seen = len(written(redis, keys_of().events))
    assert seen == {"all": 6, "final": 2, "failed": 1, "none": 0}[audit]


def test_settings_are_read_lazily_and_again_after_a_change(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    assert get_settings().lease_ms == 15_000
    settings.REDISQUEUE = {**queue_settings, "LEASE": 30, "QUEUES": {"a": {"KEEP_FAILED": 5}}}
    assert get_settings().lease_ms == 30_000
    assert get_settings().queues["a"].keep_failed == 5
    assert get_settings().queues["a"].keep_completed == DEFAULTS["KEEP_COMPLETED"]
    assert JobQueue("a").name == "a"
