"""Time in memory passes when a test says so, and jobs can be read after the block has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import SimpleTestCase

from django_redisqueue import Backoff, Gather, JobQueue, chain, listener, send_event, task
from django_redisqueue.core.ports import ports
from django_redisqueue.core.statuses import Status
from django_redisqueue.exceptions import ConfigurationError, InvalidOption
from django_redisqueue.models import PeriodicJob
from django_redisqueue.testing import capture_jobs, run_inline
from django_redisqueue.testing.index import JobHash
from tests.app import tasks

HOUR = timedelta(hours=1)
SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@task
def see(x: Any) -> None:
    SEEN.append(x)


@listener("travel")
def hear(x: Any) -> Any:
    return x


@task
def see_every_hour(left: int) -> None:
    SEEN.append(left)
    if left:
        see_every_hour.using(run_after=HOUR).enqueue(left - 1)


@task(max_attempts=3, backoff=Backoff(base=600, factor=1, jitter=0))
def see_and_fail(x: Any) -> None:
    SEEN.append(x)
    raise ValueError("once more")


@task(takes_context=True)
def wait_for_event(context: Any) -> Any:
    return context.wait_for("travel")


def test_a_job_that_waits_without_a_timeout_is_never_due() -> None:
    with capture_jobs() as jobs:
        job = wait_for_event.enqueue()
        jobs.run_due()
        jobs.travel(days=1000, periodic=False)
        job.refresh()
        assert (job.status, job.run_after) == ("scheduled", None)
        send_event("travel", 1)
        jobs.run_due()
    assert job.wait() == 1


def test_scheduled_jobs_become_due() -> None:
    with capture_jobs() as jobs:
        job = see.using(run_after=HOUR).enqueue("late")
        jobs.travel(minutes=59)
        job.refresh()
        assert job.status is Status.SCHEDULED
        assert jobs.run_due() == []
        jobs.travel(minutes=1)
        job.refresh()
        assert job.status is Status.QUEUED
        assert job.run_after is None
        assert SEEN == []
        assert jobs.run_due() == [job]
    assert SEEN == ["late"]


def test_retries_wait_for_their_time() -> None:
    with capture_jobs() as jobs:
        job = see_and_fail.enqueue("x")
        assert jobs.run_due() == []
        jobs.travel(seconds=599)
        assert jobs.run_due() == []
        assert SEEN == ["x"]
        for _ in range(2):
            jobs.travel(HOUR)
            jobs.run_due()
    assert SEEN == ["x"] * 3
    assert job.status is Status.FAILED


def test_drain_does_not_wait_for_anything() -> None:
    with capture_jobs() as jobs:
        see_and_fail.enqueue("x")
        see.using(run_after=HOUR).enqueue("late")
        jobs.drain()
    assert SEEN == ["x", "x", "x", "late"]


def test_inline_runs_each_job_at_its_time() -> None:
    with run_inline() as jobs:
        see.using(run_after=timedelta(minutes=90)).enqueue("between")
        see_every_hour.enqueue(5)
        assert SEEN == [5]
        jobs.travel(hours=3, minutes=1)
        assert SEEN == [5, 4, "between", 3, 2]
        first, then = (job.started_at for job in jobs.jobs[1:3])
        assert first is not None
        assert then is not None
        assert HOUR <= then - first < HOUR + timedelta(minutes=1)


def test_a_job_that_waits_for_a_parent_is_due_after_it() -> None:
    with capture_jobs() as jobs:
        parent = see.enqueue("parent")
        child = see.using(after=parent, run_after=HOUR).enqueue("child")
        jobs.travel(HOUR)
        jobs.run_due()
        assert SEEN == ["parent"], "a delay counts from the end of the last parent"
        jobs.travel(HOUR)
        jobs.run_due()
        assert SEEN == ["parent", "child"]
        other = see.using(after=child, run_after=HOUR).enqueue("other")
        assert other.cancel()
        other.requeue()
        jobs.drain()
        assert SEEN == ["parent", "child", "other"]


def test_nothing_goes_back_in_time() -> None:
    with capture_jobs() as jobs:
        with pytest.raises(InvalidOption, match="travel\\(\\) must be a duration of zero"):
            jobs.travel(hours=-1)
        with pytest.raises(InvalidOption, match=r"its parts such as hours=1.*not months=1"):
            jobs.travel(months=1)
        with pytest.raises(InvalidOption, match="not 5"):
            jobs.travel(5)  # type: ignore[arg-type]


def test_results_can_be_read_after_the_block() -> None:
    with capture_jobs() as jobs:
        added = tasks.add.enqueue(1, 2)
        jobs.drain()
    with run_inline():
        other = tasks.add.enqueue(3, 4)
    assert (added.result, other.result, other.wait()) == (3, 7, 7)
    assert added.status is Status.COMPLETED
    with pytest.raises(ConfigurationError, match="this test has not requested Redis"):
        tasks.add.enqueue(1, 2)


@pytest.mark.parametrize("block", [capture_jobs, run_inline])
def test_workflows_and_gathers_can_be_read_after_the_block(block: Any) -> None:
    for text in ("a", "b"):  # the key of a gather is the same in each block
        with block() as jobs:
            flow = chain(tasks.noop.s(text), tasks.noop.s())
            gather = Gather.start("again", topic="travel", payload={"x": text}, then=tasks.noop)
            jobs.drain()
        assert (flow.wait().completed, flow.jobs()[-1].result) == (2, text)
        assert (gather.status, gather.results) == ("released", {"hear": text})
        assert gather.wait().done_count == 1
        assert gather.follow_up is not None
        assert gather.follow_up.result == text


def test_old_blocks_are_forgotten() -> None:
    for _ in range(20):
        with run_inline():
            tasks.add.enqueue(1, 2)
    assert len(ports.ended) == 10


# -- periodic jobs


@pytest.fixture
def schedules(settings: Any) -> dict[str, Any]:
    settings.REDISQUEUE = {
        "SCHEDULES": {
            "half-hourly": {"task": look.name, "every": "30m", "args": ["half"]},
            "hourly": {"task": look.name, "cron": "0 * * * *", "args": ["hour"], "priority": 1},
        },
    }
    found: dict[str, Any] = settings.REDISQUEUE["SCHEDULES"]
    return found


@task(takes_context=True)
def look(context: Any, name: str) -> None:
    SEEN.append((name, context.due_at, context.previous_due_at))


def test_schedules_fire_at_their_due_times(schedules: Any) -> None:
    with run_inline() as jobs:
        jobs.travel(hours=2)
        jobs.assert_enqueued(look, args=("half",), count=4)
        jobs.assert_enqueued(look, args=("hour",), count=2)
    halves = [(due, previous) for name, due, previous in SEEN if name == "half"]
    assert [due - previous for due, previous in halves[1:]] == [timedelta(minutes=30)] * 3
    assert halves[0][1] is None
    assert [due for _, due, _ in SEEN] == sorted(due for _, due, _ in SEEN)


def test_schedules_queue_their_jobs_for_the_test(schedules: Any) -> None:
    with capture_jobs() as jobs:
        jobs.travel(hours=1, periodic=False)
        assert jobs.jobs == []
        jobs.travel(hours=1)
        assert len(jobs.jobs) == 3
        assert SEEN == []


@pytest.mark.parametrize(("overlap", "kept"), [("queue", 4), ("skip", 1), ("cancel", 1)])
def test_overlaps(schedules: Any, overlap: str, kept: int) -> None:
    del schedules["hourly"]
    schedules["half-hourly"]["overlap"] = overlap
    with capture_jobs() as jobs:
        jobs.travel(hours=2)
        queued = [job for job in jobs.jobs if job.status is Status.QUEUED]
    assert len(queued) == kept
    if overlap == "cancel":
        assert queued == jobs.jobs[-1:]


def test_a_schedule_of_seconds_over_a_year_is_refused(schedules: Any) -> None:
    del schedules["hourly"]
    schedules["half-hourly"].update(every="1s", overlap="skip")
    with capture_jobs() as jobs, pytest.raises(AssertionError, match="periodic=False"):
        jobs.travel(days=365)


@task(unique="until_finished")
def alone() -> None:
    SEEN.append("alone")


def test_a_run_whose_unique_key_is_taken_is_skipped(settings: Any) -> None:
    settings.REDISQUEUE = {"SCHEDULES": {"alone": {"task": alone.name, "every": "30m"}}}
    with capture_jobs() as jobs:
        jobs.travel(hours=2)
        assert len(jobs.assert_enqueued(alone)) == 1
        jobs.run_due()
        jobs.travel(minutes=30)
        assert len(jobs.assert_enqueued(alone)) == 2


# -- rows of the admin


@pytest.fixture
def row(db: None) -> PeriodicJob:
    return PeriodicJob.objects.create(name="row", task=look.name, every="30m", args=["row"])


def test_rows_of_the_admin_fire_like_schedules_in_code(row: PeriodicJob) -> None:
    with run_inline() as jobs:
        jobs.travel(hours=2)
        jobs.assert_enqueued(look, args=("row",), count=4)
    assert [due - previous for _, due, previous in SEEN[1:]] == [timedelta(minutes=30)] * 3


def test_runs_with_the_ids_of_another_block_belong_to_this_one(row: PeriodicJob) -> None:
    PeriodicJob.objects.update(every="10m")
    with capture_jobs() as earlier:
        earlier.travel(hours=3)
    PeriodicJob.objects.update(every="30m")
    with run_inline() as jobs:
        jobs.travel(hours=2)
    assert [due - previous for _, due, previous in SEEN[1:]] == [timedelta(minutes=30)] * 3
    assert {job.id for job in jobs.jobs} < {job.id for job in earlier.jobs}


def test_a_row_that_is_changed_paused_or_deleted_meanwhile(row: PeriodicJob) -> None:
    with capture_jobs() as jobs:
        jobs.travel(hours=1)
        row.every = "10m"
        row.save()
        jobs.travel(hours=1)
        assert len(jobs.jobs) == 2 + 6
        row.is_enabled = False
        row.save()
        jobs.travel(hours=1)
        row.delete()
        jobs.travel(hours=1)
        assert len(jobs.jobs) == 8


def test_rows_that_do_not_fire(schedules: Any, db: None) -> None:
    PeriodicJob.objects.create(name="hourly", task=look.name, every="1m", args=["theirs"])
    PeriodicJob.objects.create(name="unknown", task="no.such.task", every="1m")
    PeriodicJob.objects.create(name="code", source="code", task=look.name, every="1m")
    with capture_jobs() as jobs:
        jobs.travel(hours=1)
        assert len(jobs.jobs) == 3


def test_a_row_that_can_never_be_due_is_reported(row: PeriodicJob) -> None:
    PeriodicJob.objects.filter(pk=row.pk).update(every="soon")
    with capture_jobs() as jobs, pytest.raises(InvalidOption, match="soon"):
        jobs.travel(hours=1)


class NoDatabaseTests(SimpleTestCase):
    def test_there_are_no_rows(self) -> None:
        with capture_jobs() as jobs:
            jobs.travel(hours=1)
            assert jobs.jobs == []


def test_jobs_run_in_the_order_in_which_they_were_queued() -> None:
    with capture_jobs() as jobs:
        see.using(run_after=HOUR).enqueue("late")
        see.enqueue("now")
        jobs.travel(hours=1)
        see.enqueue("later")
        cancelled = see.enqueue("cancelled")
        cancelled.cancel()
        see.enqueue("last")
        cancelled.requeue()
        jobs.run_due()
    assert SEEN == ["now", "late", "later", "cancelled", "last"]


def test_a_requeue_forgets_the_progress() -> None:
    with capture_jobs() as jobs:
        job = report_and_fail.enqueue()
        jobs.run_due()
        job.refresh()
        assert job.progress is not None
        job.requeue()
        assert job.progress is None


@task(takes_context=True)
def report_and_fail(context: Any) -> None:
    context.progress(1, 2)
    raise ValueError


def test_jobs_keep_their_places_while_their_queue_is_paused() -> None:
    with capture_jobs() as jobs:
        see.using(run_after=5).enqueue("due later")
        see.enqueue("queued before")
        JobQueue("default").pause()
        jobs.travel(seconds=10, periodic=False)
        assert jobs.run_due() == []
        JobQueue("default").resume()
        jobs.run_due()
    assert SEEN == ["queued before", "due later"]


def reads_of(count: int, monkeypatch: pytest.MonkeyPatch, *, inline: bool) -> int:
    """How often jobs are looked at while so many become due, one a second, and run."""
    reads = [0]

    def counted(self: JobHash, name: str) -> str:
        reads[0] += 1
        return dict.__getitem__(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(JobHash, "__getitem__", counted, raising=False)
        with run_inline() if inline else capture_jobs() as jobs:
            for n in range(count):
                see.using(run_after=n + 1).enqueue(n)
            jobs.travel(seconds=count, periodic=False)
            jobs.run_due()
    assert len(SEEN) == count
    SEEN.clear()
    return reads[0]


@pytest.mark.parametrize("inline", [True, False])
def test_the_work_for_one_job_does_not_grow_with_their_number(
    inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = reads_of(50, monkeypatch, inline=inline)
    many = reads_of(500, monkeypatch, inline=inline)
    assert many < 11 * few
