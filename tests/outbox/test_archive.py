"""Results outlive Redis: a job that retention has deleted is read from the mirror."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from redis import Redis

from django_redisqueue import Job, aget_job, find_jobs, get_job
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.exceptions import CorruptJob, JobFailed, JobNotFound, WaitTimeout
from django_redisqueue.models import JobEvent, JobRecord, OutboxJob
from django_redisqueue.models.tables import reset_table_cache
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.shards import mirror

from .tasks import charge

JOB = "job_1700000000000_abcdefghij_0"
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture(autouse=True)
def with_mirror(settings: Any, queue_settings: dict[str, Any]) -> Callable[..., None]:
    def configure(**changes: Any) -> None:
        settings.REDISQUEUE = {**queue_settings, "MIRROR": True, **changes}

    configure()
    return configure


def record(**fields: Any) -> JobRecord:
    return JobRecord.objects.create(
        **{
            "id": JOB,
            "task": "a.b",
            "queue": "mail",
            "status": "completed",
            "priority": -3,
            "payload": '[[1,"[redacted]"],{"c":[2]}]',
            "result": '{"pages":3}',
            "attempts": 2,
            "requeues": 1,
            "worker": "host:1",
            "enqueued_at": AT,
            "started_at": AT,
            "finished_at": AT,
            "seq": 9,
            "progress": '{"done":1,"total":2,"note":"n"}',
            **fields,
        }
    )


def test_a_completed_job_has_all_its_fields() -> None:
    record()
    job = get_job(JOB)
    assert (job.task_name, job.queue_name, job.status, job.priority) == (
        "a.b", "mail", "completed", -3,
    )  # fmt: skip
    assert (job.args, job.kwargs, job.result) == ((1, "[redacted]"), {"c": [2]}, {"pages": 3})
    assert (job.attempts, job.data.generation, job.data.seq) == (1, 1, 9)  # one attempt was used
    assert job.enqueued_at == job.started_at == job.finished_at == AT
    assert job.progress is not None
    assert job.progress.note == "n"
    assert job.error is None
    assert job.wait(timeout=1) == {"pages": 3}
    assert asyncio.run(job.await_result(timeout=1)) == {"pages": 3}


def test_a_failed_job() -> None:
    record(
        status="failed", result="", reason="timeout",
        error=encode_error("builtins.ValueError", "boom", "Traceback", 999),
    )  # fmt: skip
    job = get_job(JOB)
    assert (job.attempts, job.status) == (2, "failed")
    assert job.error is not None
    assert (job.error.message, job.error.reason) == ("boom", "timeout")
    with pytest.raises(JobFailed, match=f"job {JOB} is failed: builtins.ValueError: boom"):
        job.wait()
    with pytest.raises(JobFailed):
        asyncio.run(Job(JOB).await_result(timeout=1))


def test_a_job_that_has_not_ended_is_waited_for() -> None:
    record(status="processing", result="")
    with pytest.raises(WaitTimeout, match=r"had not finished after 0\.05 s"):
        Job(JOB).wait(timeout=0.05)


def test_async_refresh() -> None:
    record()
    job = Job(JOB)
    asyncio.run(job.arefresh())
    assert job.result == {"pages": 3}
    assert asyncio.run(aget_job(JOB)).result == {"pages": 3}


ASKS: dict[str, Callable[[], object]] = {
    "get_job": lambda: get_job(JOB),
    "find_jobs": lambda: find_jobs(tags={"tenant": "1"}, status="completed"),
    "cancel": lambda: Job(JOB).cancel(),
    "wait": lambda: Job(JOB).wait(),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_an_error_on_an_event_loop_names_the_async_method(ask: Callable[[], object]) -> None:
    record()

    async def wrong() -> None:
        ask()

    with pytest.raises(SynchronousOnlyOperation, match="In async code, await aget_job, afind_jobs"):
        asyncio.run(wrong())


def test_redis_takes_precedence_over_the_mirror(manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue("fresh")
    record(id=job.id)
    assert (get_job(job.id).status, get_job(job.id).args) == ("queued", ("fresh",))


def test_it_can_no_longer_be_controlled() -> None:
    record()
    for act in (Job(JOB).cancel, Job(JOB).requeue):
        with pytest.raises(JobNotFound, match="retention has removed it"):
            act()


def test_without_a_mirror_or_its_table(
    with_mirror: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    record()
    with_mirror(MIRROR=False)
    with pytest.raises(JobNotFound):
        get_job(JOB)
    with_mirror()
    monkeypatch.setattr("django_redisqueue.mirror.archive.has_table", lambda *_: False)
    with pytest.raises(JobNotFound):
        get_job(JOB)


class ReadReplica:
    """A router that reads from a replica, and migrates only its primary."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "other"

    def db_for_write(self, *_: Any, **__: Any) -> str:
        return "default"

    def allow_migrate(self, db: str, *_: Any, **__: Any) -> bool:
        return db == "default"


def test_it_is_read_from_a_replica(settings: Any) -> None:
    job_id = record().pk
    JobRecord.objects.using("other").create(
        **JobRecord.objects.using("default").filter(pk=job_id).values()[0]
    )
    JobRecord.objects.using("default").all().delete()
    settings.DATABASE_ROUTERS = [ReadReplica()]
    reset_table_cache()
    assert get_job(job_id).id == job_id
    assert [job.id for job in find_jobs(status=get_job(job_id).status)] == [job_id]


def test_an_unknown_archived_job_is_not_found() -> None:
    record()
    for ask in (lambda: get_job("job_1_other00000_0"), Job("job_1_other00000_0").wait):
        with pytest.raises(JobNotFound, match="no job job_1_other00000_0 in Redis"):
            ask()


def test_a_record_that_cannot_be_read() -> None:
    record(payload="[1")
    with pytest.raises(CorruptJob, match=f"job {JOB} cannot be read"):
        get_job(JOB)


@pytest.mark.parametrize("length", [1, 2000])  # inline in the event, and too long for that
def test_redacted_arguments_are_redacted_in_the_mirror(length: int, redis: Redis) -> None:
    secret = "4111-CARD" * length
    job = charge.enqueue(7, secret, note="seen" * length)
    mirror()
    row = JobRecord.objects.get(pk=job.id)
    assert row.args == (7, "[redacted]")
    assert row.kwargs == {"note": "seen" * length}
    assert secret not in repr(list(JobRecord.objects.values()) + list(JobEvent.objects.values()))


def test_a_job_in_the_outbox_is_shown_redacted(
    with_mirror: Callable[..., None], settings: Any
) -> None:
    with_mirror(OUTBOX=True, CONNECTION={"URL": "unix:///nonexistent.sock"})
    job = charge.enqueue(7, "4111")
    assert "4111" in OutboxJob.objects.get().payload  # the worker needs it
    with_mirror()
    assert get_job(job.id).args == (7, "[redacted]")


def test_a_whole_life(redis: Redis, manual_worker: ManualWorker) -> None:
    """Enqueued, run, mirrored, and deleted by Redis."""
    job = tasks.add.enqueue(1, b=2)
    manual_worker.complete_one("3")
    mirror()
    before = get_job(job.id).data
    redis.delete(manual_worker.store.keys.job(job.id))
    after = get_job(job.id).data
    for name in ("task", "queue", "status", "args", "kwargs", "result", "attempts", "finished_ms"):
        assert getattr(after, name) == getattr(before, name), name
    assert job.wait() == 3
