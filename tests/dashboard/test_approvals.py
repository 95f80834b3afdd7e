"""Approvals: requested by a job, decided once in the admin by an authorised user; then the job
continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection
from django.db.models import Model
from django.test import Client

from django_redisqueue import Job, JobQueue
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.dashboard.job_detail import wait_text
from django_redisqueue.exceptions import InvalidOption, StepError, WrongState
from django_redisqueue.models import Approval, OutboxJob, StepReceipt
from django_redisqueue.testing import InMemoryQueue, capture_jobs
from django_redisqueue.worker.child.context import JobContext
from django_redisqueue.worker.maintenance import upkeep
from django_redisqueue.worker.maintenance.upkeep import ApprovalCloser
from tests.app import tasks
from tests.app.models import Counter
from tests.support.logins import logged_in
from tests.support.shards import shard_of
from tests.worker.child.test_steps import run

from . import approval_tasks

LIST = "/admin/django_redisqueue/approval/"
TASKS = [approval_tasks.refund, approval_tasks.refund_once, approval_tasks.arefund]
pytestmark = pytest.mark.django_db(transaction=True)


def user(name: str, *codenames: str) -> Any:
    made = get_user_model().objects.create_user(name, is_staff=True)
    made.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return made


@pytest.fixture
def boss() -> Any:
    return user("boss", "view_approval", "add_group")


@pytest.fixture
def clerk() -> Any:
    return user("clerk", "view_approval", "change_approval")


@pytest.fixture
def jobs() -> Iterator[InMemoryQueue]:
    with capture_jobs() as found:
        yield found


def asked(jobs: InMemoryQueue, task: Any = approval_tasks.refund) -> tuple[Job, Approval]:
    job = task.enqueue()
    jobs.run_due()
    job.refresh()
    row = Approval.objects.get(job_id=job.id)
    assert (job.status, job.data.waits_for) == ("scheduled", row.event)
    assert wait_text(job.data).startswith(f"waits for {row.event}, since 2")
    return job, row


def test_no_character_of_a_question_changes_the_writing_direction(
    jobs: InMemoryQueue, boss: Any
) -> None:
    _, row = asked(jobs)
    Approval.objects.filter(pk=row.pk).update(question="Refund Bob\u202e 19?")
    for address in (LIST, f"{LIST}{row.pk}/change/"):
        assert "Refund Bob\\u202e 19?" in logged_in(boss).get(address).content.decode()


def decide(client: Client, row: Approval, decision: str, comment: str = "") -> str:
    """The page behind the button."""
    url = f"{LIST}{row.pk}/decide/"
    answer = client.post(url, {"decision": decision, "comment": comment}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("task", TASKS)
def test_a_job_asks_and_continues_once_an_authorised_user_approves(
    jobs: InMemoryQueue, boss: Any, task: Any
) -> None:
    job, row = asked(jobs, task)
    assert (row.name, row.task, row.status) == ("refund", task.name, "pending")
    page = logged_in(boss).get(f"{LIST}{row.pk}/change/").content.decode()
    assert row.question in page
    assert 'value="approve"' in page
    assert "refund" in logged_in(boss).get(LIST).content.decode()
    page = decide(logged_in(boss), row, "approve", "fine <b>\0")
    assert f"efund of {job.id} is approved" in page
    assert "fine &lt;b&gt;" in page
    assert 'value="approve"' not in page
    jobs.drain()
    job.refresh()
    if task is approval_tasks.arefund:
        assert job.result == "yes, says boss"
    else:
        assert job.result == {"by": "boss", "comment": "fine <b>\ufffd"}
        again = 1 if task.options.exactly_once else 2
        expected = {"draft": 1, "again": again, "refund": 1}
        assert dict(Counter.objects.values_list("name", "value")) == expected
    assert job.attempts == 0
    entry = LogEntry.objects.get()
    assert (entry.user, entry.object_id) == (boss, str(row.pk))
    assert entry.get_change_message() == "Approved. fine <b>\ufffd"


def test_a_rejection_is_an_error_that_is_not_retried(jobs: InMemoryQueue, boss: Any) -> None:
    job, row = asked(jobs)
    other, other_row = asked(jobs, approval_tasks.arefund)
    decide(logged_in(boss), row, "reject", "too much")
    decide(logged_in(boss), other_row, "reject")
    jobs.drain()
    for one in (job, other):
        one.refresh()
    assert (job.status, job.attempts) == ("failed", 1)
    assert job.error is not None
    assert job.error.message == "approval 'refund' was rejected by boss: too much"
    assert other.result == "no, says boss"
    assert not Counter.objects.filter(name="refund").exists()


def test_an_unauthorised_user_is_refused(jobs: InMemoryQueue, clerk: Any) -> None:
    job, row = asked(jobs)
    page = logged_in(clerk).get(f"{LIST}{row.pk}/change/").content.decode()
    assert "Only users with the permission auth.add_group may decide." in page
    assert 'value="approve"' not in page
    assert "approve_selected" not in logged_in(clerk).get(LIST).content.decode()
    chief = logged_in(user("chief", "add_group", "view_approval"))
    assert "approve_selected" in chief.get(LIST).content.decode()
    page = decide(logged_in(clerk), row, "approve")
    assert "needs the permission auth.add_group, which clerk does not have" in page
    answer = logged_in(clerk).post(
        LIST, {"action": "approve_selected", "_selected_action": [row.pk]}, follow=True
    )
    assert "needs the permission auth.add_group" in answer.content.decode()
    stranger = logged_in(user("stranger", "add_group"))
    for url in (LIST, f"{LIST}{row.pk}/change/"):
        assert stranger.get(url).status_code == 403
    assert stranger.post(f"{LIST}{row.pk}/decide/", {"decision": "approve"}).status_code == 403
    row.refresh_from_db()
    assert (row.status, LogEntry.objects.count()) == ("pending", 0)
    jobs.run_due()
    job.refresh()
    assert job.status == "scheduled"


def test_who_comes_second_hears_of_the_first(jobs: InMemoryQueue, boss: Any) -> None:
    """Even if the job has already ended by the first decision."""
    job, row = asked(jobs)
    as_read_before = Approval.objects.get(pk=row.pk)
    row.decide(boss, approved=True)
    jobs.drain()
    job.refresh()
    assert job.status == "completed"
    with pytest.raises(WrongState, match="is already approved by boss"):
        as_read_before.decide(user("chief", "add_group"), approved=False)


class LaggingReplica:
    """A router that reads approvals from a replica."""

    def db_for_read(self, model: type[Model], **_: Any) -> str | None:
        return "other" if model is Approval else None

    def db_for_write(self, *_: Any, **__: Any) -> str:
        return "default"


def test_a_decision_is_read_from_the_database_it_was_written_to(
    jobs: InMemoryQueue, boss: Any, settings: Any
) -> None:
    job, row = asked(jobs)
    row.save(using="other", force_insert=True)
    settings.DATABASE_ROUTERS = [LaggingReplica()]
    Approval.objects.get(job_id=job.id).decide(boss, approved=True)
    settings.DATABASE_ROUTERS = []
    jobs.drain()
    job.refresh()
    assert (job.status, job.error) == ("completed", None)


def test_without_time_zones_it_can_expire_too(
    jobs: InMemoryQueue, boss: Any, settings: Any
) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Asia/Tokyo"
    job, row = asked(jobs)
    other, _ = asked(jobs)
    assert row.is_open
    row.decide(boss, approved=True)
    jobs.drain()
    jobs.travel(days=3)
    jobs.drain()
    for one in (job, other):
        one.refresh()
    assert job.status == "completed"
    assert other.error is not None
    assert other.error.type.endswith(".EventTimeout")


def test_a_nonexistent_permission_is_an_error(jobs: InMemoryQueue, settings: Any) -> None:
    job = approval_tasks.ask_nobody.enqueue()
    jobs.run_due()
    job.refresh()
    assert job.status == "failed"
    assert job.error is not None
    assert "'auth.add_grup' (did you mean 'auth.add_group'?)" in job.error.message
    assert "JobSuspended" not in job.error.traceback
    assert not Approval.objects.exists()
    settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.RemoteUserBackend"]
    job = approval_tasks.ask_nobody.enqueue()
    jobs.run_due()
    assert Approval.objects.get().job_id == job.id


def test_only_posts_of_the_buttons_decide(jobs: InMemoryQueue, boss: Any) -> None:
    _, row = asked(jobs)
    answer = logged_in(boss).get(f"{LIST}{row.pk}/decide/")  # as after a login
    assert answer.status_code == 405
    assert f'<a href="{LIST}{row.pk}/change/">go back</a>' in answer.content.decode()
    assert "Use one of the buttons" in decide(logged_in(boss), row, "maybe")
    guarded = logged_in(boss, enforce_csrf_checks=True)
    assert guarded.post(f"{LIST}{row.pk}/decide/", {"decision": "approve"}).status_code == 403
    row.refresh_from_db()
    assert row.status == "pending"


def test_a_decision_that_the_database_refuses_is_a_message(jobs: InMemoryQueue, boss: Any) -> None:
    _, row = asked(jobs)

    def lock(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and "approval" in sql:
            raise OperationalError("database is locked\nLINE 1: UPDATE ...")
        return execute(sql, *rest)

    with connection.execute_wrapper(lock):
        page = decide(logged_in(boss), row, "approve")
    assert "The decision was not accepted: database is locked." in page
    row.refresh_from_db()
    assert (row.status, LogEntry.objects.count()) == ("pending", 0)
    assert "is approved" in decide(logged_in(boss), row, "approve")


def test_only_one_of_two_clicks_wins(jobs: InMemoryQueue, boss: Any) -> None:
    _, row = asked(jobs)
    twin = Approval.objects.get()
    row.decide(boss, approved=True)
    with pytest.raises(WrongState, match="is already approved by boss"):
        twin.decide(boss, approved=False)
    assert "is already approved by boss" in decide(logged_in(boss), row, "reject")
    assert Approval.objects.get().status == "approved"
    assert LogEntry.objects.count() == 0


def test_a_decision_for_an_ended_job_is_refused_with_a_reason(
    jobs: InMemoryQueue, boss: Any
) -> None:
    job, row = asked(jobs)
    job.cancel()
    page = logged_in(boss).get(f"{LIST}{row.pk}/change/").content.decode()
    assert "Its job is cancelled, so no decision is needed any more." in page
    assert 'value="approve"' not in page
    told = decide(logged_in(boss), row, "approve")
    problem = f"its job is cancelled, so nothing waits for {row}"
    assert f"The decision was not accepted: {problem}." in told
    row.refresh_from_db()
    assert (row.status, LogEntry.objects.count()) == ("pending", 0)
    job.requeue()
    jobs.run_due()
    assert "is approved" in decide(logged_in(boss), row, "approve")


def test_several_at_once(jobs: InMemoryQueue, boss: Any) -> None:
    rows = [asked(jobs)[1] for _ in range(2)]
    logged_in(boss).post(
        LIST, {"action": "approve_selected", "_selected_action": [row.pk for row in rows]}
    )
    assert set(Approval.objects.values_list("status", flat=True)) == {"approved"}
    assert LogEntry.objects.count() == 2


def test_it_expires_with_the_wait_and_is_asked_again_after_a_requeue(
    jobs: InMemoryQueue, boss: Any
) -> None:
    job, row = asked(jobs)
    jobs.travel(days=3)
    jobs.drain()
    job.refresh()
    assert job.error is not None
    assert "approval 'refund' was not decided in time" in job.error.message
    row.refresh_from_db()
    assert row.status == "expired"
    with pytest.raises(WrongState, match="is already expired"):
        row.decide(boss, approved=True)
    job.requeue()
    jobs.run_due()
    row.refresh_from_db()
    assert row.status == "pending"
    row.decide(boss, approved=True)
    jobs.drain()
    job.refresh()
    assert job.status == "completed"


def test_a_decision_at_the_last_moment_counts(jobs: InMemoryQueue, boss: Any) -> None:
    """Its event came too late, or not at all: the row decides."""
    job, row = asked(jobs)
    Approval.objects.update(status="approved", decided_by="boss")
    jobs.travel(days=3)
    jobs.drain()
    job.refresh()
    assert job.result == {"by": "boss", "comment": ""}
    assert Approval.objects.get(pk=row.pk).status == "approved"


def test_a_row_past_its_time_cannot_be_decided(jobs: InMemoryQueue, boss: Any) -> None:
    _, row = asked(jobs)
    Approval.objects.update(expires_at=row.asked_at)
    assert "has expired" in decide(logged_in(boss), row, "approve")
    row.refresh_from_db()
    assert not row.is_open


def test_a_run_that_asks_again_resends_a_lost_event(jobs: InMemoryQueue, boss: Any) -> None:
    job, _ = asked(jobs)
    Approval.objects.update(status="approved", decided_by="boss")
    jobs.hashes[job.id]["status"] = "queued"  # as after a crash
    jobs.run_due()
    job.refresh()
    assert job.result == {"by": "boss", "comment": ""}


def test_without_a_permission_those_who_may_change_approvals_decide(boss: Any, clerk: Any) -> None:
    row = Approval(job_id="job_1", name="x", permission="django_redisqueue.change_approval")
    assert row.may_decide(clerk)
    with pytest.raises(PermissionDenied):
        row.decide(boss, approved=True)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"permission": "approve"}, InvalidOption, r"such as \"shop.approve_refund\", not 'appr"),
        ({"permission": 5}, InvalidOption, "not 5"),
        ({"timeout": "soon"}, InvalidOption, "timeout must be seconds"),
        ({"question": 5}, InvalidOption, "question must be text"),
        ({"name": ""}, StepError, "the name of an approval must be text of 1 to 100"),
    ],
)
def test_incorrect_use_is_reported(
    options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    context: JobContext = run()
    name = options.pop("name", "refund")
    with pytest.raises(kind, match=words):
        context.approval(name, **options)


# -- with Redis


def test_the_decision_survives_a_process_that_dies_after_its_commit(
    boss: Any, redis_server: Any, settings: Any
) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": redis_server.url}}
    redis_server.client().flushdb()
    row = Approval.objects.create(
        job_id="job_1", name="x", queue="default", permission="auth.add_group"
    )
    row.decide(boss, approved=True)
    stored = OutboxJob.objects.get()
    assert (stored.task, stored.queue) == ("django_redisqueue.send_event", "default")
    assert JobQueue("default").get_stats()["queued"] == 1
    assert not StepReceipt.objects.exists()


@pytest.fixture
def closer(redis_server: Any, settings: Any) -> Iterator[ApprovalCloser]:
    settings.REDISQUEUE = {"CONNECTION": {"URL": redis_server.url}}
    redis_server.client().flushdb()
    store = Commands(worker_connection(shard_of()))
    yield ApprovalCloser(store)
    store.connection.close()


def ask(job_id: str, name: str = "x") -> Approval:
    return Approval.objects.create(job_id=job_id, name=name, permission="auth.add_group")


def test_approvals_of_jobs_that_have_ended_are_closed(
    closer: ApprovalCloser, boss: Any, django_assert_num_queries: Any
) -> None:
    cancelled, waiting = tasks.noop.enqueue(), tasks.noop.enqueue()
    cancelled.cancel()
    rows = [
        ask(cancelled.id),
        ask(waiting.id),
        ask(new_job_id(shard_of())),
        ask(cancelled.id, "decided"),
    ]
    Approval.objects.filter(name="decided").update(status="approved")
    assert closer.run_once() is False
    for row in rows:
        row.refresh_from_db()
    assert [(row.status, row.comment) for row in rows] == [
        ("closed", "Its job is cancelled."), ("pending", ""), ("closed", "Its job is gone."),
        ("approved", ""),
    ]  # fmt: skip
    page = logged_in(boss).get(f"{LIST}{rows[0].pk}/change/").content.decode()
    assert "Its job is cancelled." in page
    assert 'value="approve"' not in page
    with pytest.raises(WrongState, match=rf"x of {cancelled.id} is closed. Its job is cancelled$"):
        rows[0].decide(boss, approved=True)
    with django_assert_num_queries(1):
        closer.run_once()


def test_a_job_that_is_requeued_meanwhile_keeps_its_approval(closer: ApprovalCloser) -> None:
    job = tasks.noop.enqueue()
    job.cancel()
    row = ask(job.id)
    read, calls = closer._ended, []

    def requeued(job_ids: Any) -> Any:
        """Between the first look and that under the lock."""
        calls.append(1)
        if len(calls) == 2:
            job.requeue()
        return read(job_ids)

    closer._ended = requeued  # type: ignore[method-assign]
    closer.run_once()
    row.refresh_from_db()
    assert (row.status, len(calls)) == ("pending", 2)


def test_closing_continues_from_page_to_page(
    closer: ApprovalCloser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "APPROVALS_PER_PASS", 2)
    alive = tasks.noop.enqueue()
    for n in range(5):
        ask(alive.id if n < 3 else new_job_id(shard_of()), str(n))
    assert [closer.run_once() for _ in range(3)] == [True, True, False]
    found = Approval.objects.order_by("pk").values_list("status", flat=True)
    assert list(found) == ["pending"] * 3 + ["closed"] * 2


@pytest.mark.usefixtures("closer")
def test_approvals_of_other_shards_are_left_to_these(settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 3}
    rows = [ask(new_job_id(shard)) for shard in range(3)]
    for shard in (2, 0):
        store = Commands(worker_connection(shard))
        ApprovalCloser(store).run_once()
        store.connection.close()
    for row in rows:
        row.refresh_from_db()
    assert [row.status for row in rows] == ["closed", "pending", "closed"]


def test_a_closed_approval_of_a_requeued_job_that_is_late_expires(boss: Any) -> None:
    row = ask("job_1")
    Approval.objects.update(status="closed")
    assert row.expire()
    assert row.status == "expired"
    row.reopen(None)
    assert (row.status, row.comment) == ("pending", "")
