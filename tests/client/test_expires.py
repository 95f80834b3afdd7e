"""Jobs that expire: which do not run, when their time starts, and which have started in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import transaction
from django.utils import timezone
from redis import Redis

from django_redisqueue import (
    Chunk,
    ChunkItem,
    For,
    Job,
    JobQueue,
    Replace,
    Workflow,
    chain,
    task,
)
from django_redisqueue.broker.workflows import WorkflowQueries
from django_redisqueue.client.schedules import check_job
from django_redisqueue.conf import get_settings
from django_redisqueue.core.clock import real_ms
from django_redisqueue.core.schedules import Source
from django_redisqueue.exceptions import InvalidOption, JobFailed
from django_redisqueue.models import OutboxJob
from django_redisqueue.testing import capture_jobs
from tests.app import tasks
from tests.support.burst import work
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_with

pytestmark = pytest.mark.usefixtures("queue_settings")
MINUTE = 60_000
SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@task(expires="1m", max_attempts=2, backoff=[3600])
def alert(price: int = 1, fails: bool = False) -> None:
    SEEN.append(price)
    if fails:
        raise ValueError("no")


@task(expires=timedelta(minutes=1))
async def alert_async(price: int) -> None:
    SEEN.append(price)


@task(expires=60, chunk=Chunk(10, parameters=("price",)))
def alert_many(items: Sequence[ChunkItem]) -> None:
    SEEN.append([item.args[0] for item in items])


@task(expires="1m", unique="keep_last", unique_by="shop")
def alert_last(shop: str, price: int) -> None:
    SEEN.append(price)


@task(expires="1m", takes_context=True)
def alert_slowly(context: Any, price: int) -> None:
    SEEN.append(price)
    context.sleep(3600)
    SEEN.append("on")


def age(redis: Redis, job: Job, ms: int = 2 * MINUTE, field: str = "enqueued_ms") -> None:
    """Move a time of the job into the past."""
    redis.hincrby(keys_with(job.id).job(job.id), field, -ms)


def ended(job: Job) -> tuple[str, str]:
    job.refresh()
    return job.status.value, job.reason


# --- jobs that do not run -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [alert, alert_async, alert_many], ids=repr)
def test_a_job_that_is_claimed_too_late_is_cancelled(redis: Redis, kind: Any) -> None:
    late, early = kind.enqueue(1), kind.enqueue(2)
    age(redis, late)
    work()
    assert ended(late) == ("cancelled", "expired")
    assert ended(early) == ("completed", "")
    assert SEEN == [[2]] if kind is alert_many else SEEN == [2]
    assert late.error is not None
    assert (late.error.type, late.attempts) == ("JobExpired", 0)
    assert late.error.message.startswith("no worker claimed it before it expired, but 1 m")
    with pytest.raises(JobFailed, match="is cancelled: JobExpired: no worker claimed it"):
        late.wait(timeout=1)


def test_a_requeue_runs_it_after_all(redis: Redis) -> None:
    job = alert.enqueue(1)
    age(redis, job)
    work()
    job.requeue()
    work()
    assert ended(job) == ("completed", "")
    assert SEEN == [1]


def test_a_fixed_time_for_one_call() -> None:
    now = timezone.now()
    late = tasks.noop.using(expires=now - timedelta(seconds=5)).enqueue()
    early = tasks.noop.using(expires=now + timedelta(minutes=5)).enqueue()
    own = alert.using(expires=now - timedelta(seconds=5)).enqueue(1)
    work()
    assert [ended(job)[0] for job in (late, early, own)] == ["cancelled", "completed", "cancelled"]


def test_a_workflow_treats_it_as_cancelled(redis: Redis) -> None:
    with Workflow() as flow:
        late = flow.add(alert, 1, on_failure="skip")
        skipped, other = flow.add(alert, 2, after=late), flow.add(alert, 3)
    age(redis, late)
    work()
    assert ended(late) == ("cancelled", "expired")
    assert ended(skipped) == ("cancelled", "skipped")
    assert (ended(other)[0], SEEN) == ("completed", [3])


# --- jobs that started in time --------------------------------------------------------------------


def starts(manual_worker: ManualWorker, job: Job) -> bool:
    """Whether a worker that claims the job now would check its time."""
    (claimed,) = manual_worker.claim()
    assert claimed.id == job.id
    queries = WorkflowQueries(manual_worker.store_of(job.id).connection, get_settings())
    found = queries.waited_since(job.id)
    manual_worker.settle(claimed, "queued", "", "head")
    return found is None


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [("retrying", "{}", "0"), ("limited", "{}", "0"), ("parked", "", "1"), ("queued", "", "tail")],
)
def test_a_job_that_has_started_does_not_expire(
    manual_worker: ManualWorker, kind: str, body: str, detail: str
) -> None:
    """It is being retried, was over a rate, continues after a sleep, or was released half way."""
    job = alert.enqueue(1)
    manual_worker.settle(manual_worker.claim_one(), kind, body, detail)
    assert starts(manual_worker, job)


def test_a_recovered_job_does_not_expire(manual_worker: ManualWorker) -> None:
    job = alert.enqueue(1)
    manual_worker.claim_one()
    manual_worker.store_of(job.id).reap(manual_worker.claim_request.child, started=[job.id])
    assert starts(manual_worker, job)


@pytest.mark.parametrize(("kind", "body"), [("queued", ""), ("delayed", "{}")])
def test_a_job_that_was_only_claimed_expires(
    manual_worker: ManualWorker, kind: str, body: str
) -> None:
    """Its worker released it, or does not know its task."""
    job = alert.enqueue(1)
    manual_worker.settle(manual_worker.claim_one(), kind, body, "0" if body else "")
    assert not starts(manual_worker, job)


def test_a_retry_and_a_sleep_end_after_the_time() -> None:
    with capture_jobs() as jobs:
        failed, slept = alert.enqueue(1, fails=True), alert_slowly.enqueue(2)
        for _ in range(2):
            jobs.run_due()
            jobs.travel(hours=2)
        jobs.run_due()
    assert (failed.status, failed.attempts, slept.status) == ("failed", 2, "completed")
    assert SEEN == [1, 2, 1, 2, "on"]


# --- when the time starts -------------------------------------------------------------------------


def test_it_counts_from_the_end_of_the_last_parent(redis: Redis) -> None:
    first, second = alert.enqueue(1), alert.enqueue(2)
    after = alert.using(after=[first, second]).enqueue(3)
    flow = chain(tasks.noop.s(1), alert.s())
    late = alert.using(after=first).enqueue(4)
    age(redis, after), age(redis, late), age(redis, flow.jobs()[1])
    manual_worker = ManualWorker()
    assert {manual_worker.complete_one(), manual_worker.complete_one()} == {first.id, second.id}
    age(redis, first, field="finished_ms")
    manual_worker.close()
    work()
    assert [ended(job)[0] for job in (after, late)] == ["completed", "cancelled"]
    assert ended(flow.jobs()[1])[0] == "completed"


def test_it_counts_from_the_newest_arguments(redis: Redis, manual_worker: ManualWorker) -> None:
    alert_last.enqueue("a", 1)
    running = manual_worker.claim_one()
    job, other = alert_last.enqueue("a", 2), alert_last.enqueue("a", 3)
    assert other.id == job.id
    age(redis, job)
    manual_worker.settle(running, "completed", "null")
    work()
    assert ended(job) == ("completed", "")
    assert SEEN == [3]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_row_of_the_outbox_counts_from_its_enqueue(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}
    with transaction.atomic():
        job = alert.enqueue(1)
        child = alert.using(after=job).enqueue(2)
        flow = chain(alert.s(1), alert.using(expires="2m").s())
        options = {row.id: row.options for row in OutboxJob.objects.all()}
        sent = json.loads(OutboxJob.objects.get(pk=flow.id).payload)[0][2]
    left_ms = int(json.loads(options[job.id])["expires"]) - real_ms()
    assert MINUTE / 2 < left_ms <= MINUTE
    assert options[child.id] == '{"expires":"+60000"}'
    of_root, of_child = (json.loads(one[4])["expires"] for one in sent)
    assert MINUTE / 2 < int(of_root) - real_ms() <= MINUTE
    assert of_child == "+120000"


def test_a_schedule_has_the_time_of_each_run() -> None:
    template = check_job(Source.CODE, alert.name, (), {})
    assert json.loads(template.options) == {"expires": "+60000"}


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [60, 60.0, timedelta(minutes=1), "1m", "60s"], ids=repr)
def test_every_form_of_a_duration(value: Any) -> None:
    assert tasks.noop.using(expires=value).enqueue().data.options == {"expires": "+60000"}


def test_the_option_of_the_task_and_of_a_call() -> None:
    assert alert.enqueue(1).data.options == {"expires": "+60000"}
    instant = datetime(2100, 1, 1, tzinfo=UTC)
    own = alert.using(expires=instant, priority=3).using(timeout=9)
    found = own.enqueue(1).data.options
    assert found == {"expires": str(round(instant.timestamp() * 1000)), "timeout_ms": 9000}
    assert alert.using(expires=None).enqueue(1).data.options == {"expires": "+60000"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "expires must be more than 0"),
        (-1, "zero or more"),
        ("soon", "expires must be seconds, a timedelta, or a text"),
        (True, "expires must be seconds, a timedelta, or a text"),
        (datetime(2100, 1, 1), "expires is the naive datetime"),
        (datetime(9000, 1, 1, tzinfo=UTC), "expires must be within a hundred years"),
    ],
    ids=repr,
)
def test_wrong_values(value: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        tasks.noop.using(expires=value)


def test_a_task_cannot_have_a_fixed_time() -> None:
    with pytest.raises(InvalidOption, match="expires must be seconds, a timedelta, or a text"):
        task(expires=timezone.now())(alert.func)  # type: ignore[call-overload]


@pytest.mark.parametrize("run_after", [60, timedelta(hours=1), datetime(2100, 1, 1, tzinfo=UTC)])
def test_a_job_that_would_expire_before_it_is_due(run_after: Any) -> None:
    with pytest.raises(InvalidOption, match=r"alert would expire before they are due: exp"):
        alert.using(run_after=run_after)
    assert alert.using(run_after=59).enqueue(1).status == "scheduled"
    both = {"run_after": run_after, "expires": datetime(2100, 1, 2, tzinfo=UTC)}
    assert alert.using(**both).enqueue(1).status == "scheduled"


def test_a_replaced_job_that_would_expire_before_it_is_due() -> None:
    with pytest.raises(InvalidOption, match="or the wait of Replace"):
        alert.using(unique=Replace(wait=90, max_wait=100))
    assert alert.using(unique=For("1h")).enqueue(1).status == "queued"


def test_other_jobs_cost_nothing_extra(manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue()
    tasks.noop.using(max_attempts=2, tags={"expires": "+1"}).enqueue()
    with patch.object(WorkflowQueries, "waited_since") as asked:
        work()
    asked.assert_not_called()
    assert JobQueue().get_stats()["completed"] == 2


# --- in memory ------------------------------------------------------------------------------------


def test_in_memory_time_passes_by_travel() -> None:
    with capture_jobs() as jobs:
        late = [alert.enqueue(1), alert_many.enqueue(2)]
        flow = chain(alert.s(3), alert.s())
        jobs.travel(minutes=2)
        early = [alert.enqueue(4), alert_many.enqueue(5)]
        jobs.drain()
        late[0].requeue()
        jobs.drain()
    assert [job.reason for job in late] == ["", "expired"]
    assert [job.reason for job in flow.jobs()] == ["expired", ""]
    assert [job.status for job in (late[0], *early)] == ["completed"] * 3
    assert sorted(SEEN, key=str) == [1, 4, [5]]


def test_in_memory_it_counts_from_parents_and_newest_arguments() -> None:
    with capture_jobs() as jobs:
        parent = tasks.noop.enqueue()
        child = alert.using(after=parent).enqueue(1)
        first = alert_last.using(run_after=30).enqueue("a", 2)
        jobs.travel(minutes=2)
        assert alert_last.using(run_after=30).enqueue("a", 3) == first
        jobs.drain()
    assert (child.status, first.status) == ("completed", "completed")
    assert sorted(SEEN) == [1, 3]
