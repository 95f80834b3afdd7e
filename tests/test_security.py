"""docs/security.md, checked sentence by sentence."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin import site as admin_site
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.core.exceptions import SuspiciousFileOperation
from django.db import transaction
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone
from redis import Redis

import django_redisqueue
from django_redisqueue import JobQueue, get_job, task
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.client.events import deliver_event
from django_redisqueue.client.registry import lookup
from django_redisqueue.conf import get_settings
from django_redisqueue.core.codec import encode_stored
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.dashboard.bulk import bulk
from django_redisqueue.models import ApiToken, Approval, JobEvent, JobRecord, OutboxJob, PeriodicJob
from django_redisqueue.outbox.relay import Relay
from django_redisqueue.worker.child import retry_policy
from django_redisqueue.worker.child.executor import Execution, Pipeline
from django_redisqueue.worker.child.retry_policy import Resolution
from django_redisqueue.worker.maintenance.upkeep import ResultFileCleaner
from tests.api.api import Api
from tests.api.tasks import open_task
from tests.app import tasks
from tests.outbox.test_debug_pages import page as error_page
from tests.support.commands import output_of
from tests.support.logins import logged_in
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_of, mirror

pytestmark = pytest.mark.django_db(databases=["default", "other"])

DOCS = Path(__file__).parent.parent / "docs" / "security.md"
SECRET = "41" + "11-2222"  # an error page shows the lines of this file
SAID: dict[str, str] = {}
ACTIONS = (
    "retry_job", "cancel_job", "clear_queue", "pause_queue", "enqueue_job", "control_worker",
)  # fmt: skip

Test = Callable[..., None]


@task(redact=("card",))
def charge(card: str, order: int = 0) -> int:
    return order


def in_session(func: Callable[..., int]) -> Callable[..., int]:
    @wraps(func)
    def call(*args: Any, **kwargs: Any) -> int:
        return func("session", *args, **kwargs)

    return call


@task(redact=("card",))
@in_session
def charge_in_session(session: str, card: str, order: int = 0) -> int:
    return order


def says(sentence: str) -> Callable[[Test], Test]:
    """Marks the test of one sentence of the document."""

    def note(test: Test) -> Test:
        SAID[sentence] = test.__name__
        return test

    return note


def test_every_sentence_has_its_test() -> None:
    found = re.findall(r"^- (.*(?:\n  .*)*)", DOCS.read_text(encoding="utf-8"), re.M)
    assert sorted(" ".join(each.split()) for each in found) == sorted(SAID)
    assert len(set(SAID.values())) == len(SAID)


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any], settings: Any, tmp_path: Path) -> None:
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}
    settings.MEDIA_ROOT = str(tmp_path)
    logging.getLogger("django.request").setLevel(logging.CRITICAL)


@pytest.fixture
def keys(redisqueue: None) -> Keys:
    return keys_of()


def user(name: str, *permissions: str, staff: bool = True) -> User:
    made = User.objects.create_user(name, password="x", is_staff=staff)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return made


def page(name: str, *args: object) -> str:
    return reverse(f"admin:django_redisqueue_{name}", args=args)


def resolved(job: Any) -> Execution | Resolution:
    return Pipeline(get_settings(), lambda _: 0, lambda _: None).prepare(job)


# -- Redis


@says(
    "Whoever can read Redis sees the arguments, results and errors of every job in it, "
    "including arguments that a task redacts."
)
def test_reading_redis(redis: Redis, manual_worker: ManualWorker) -> None:
    job = charge.enqueue(SECRET)
    manual_worker.complete_one('"a result"')
    failed = charge.enqueue(SECRET)
    manual_worker.fail_one("an error")
    first, second = (redis.hgetall(manual_worker.store.keys.job(each.id)) for each in (job, failed))
    assert SECRET.encode() in first[b"payload"]
    assert first[b"result"] == b'"a result"'
    assert b"an error" in second[b"error"]


@says(
    "Whoever can write to Redis can run any registered task with any arguments, and change, "
    "delay or remove any job."
)
def test_writing_redis(redis: Redis, keys: Keys, manual_worker: ManualWorker) -> None:
    job_id = new_job_id()
    redis.hset(
        keys.job(job_id),
        mapping={"task": tasks.noop.name, "payload": '[["theirs"],{}]', "status": "queued"},
    )
    redis.lpush(keys.queue("default").queued, job_id)
    call = resolved(manual_worker.claim_one())
    assert isinstance(call, Execution)
    assert call.task.func(*call.args) == "theirs"
    ours = tasks.noop.enqueue()
    redis.hset(keys.job(ours.id), "payload", '[["changed"],{}]')
    redis.hset(keys.queue("default").meta, "paused", 1)
    assert not manual_worker.claim()
    redis.hdel(keys.queue("default").meta, "paused")
    assert manual_worker.claim_one().payload == '[["changed"],{}]'


@says(
    "They cannot run anything else: a worker looks task names up in the registry, imports "
    "nothing because of them, and parses only JSON."
)
def test_only_registered_tasks_run(redis: Redis, keys: Keys, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    for name in ("os.system", "this.is_imported", f"{tasks.__name__}.os"):
        redis.hset(keys.job(job.id), "task", name)
        assert lookup(name) is None
    assert isinstance(resolved(manual_worker.claim_one()), Resolution)
    assert "this" not in sys.modules
    banned = {"pickle", "marshal", "shelve", "dill", "eval", "exec", "yaml"}
    for path in Path(django_redisqueue.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = {(node.module or "").partition(".")[0]}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                unpickles = node.func.attr == "recv" and not node.args  # multiprocessing.connection
                names = {"pickle"} if unpickles else names
            assert not names & banned, f"{path}:{getattr(node, 'lineno', 0)}"


@says(
    "They cannot break a page, an endpoint or a worker: what cannot be read is shown as "
    "unreadable, in its own place."
)
def test_what_cannot_be_read(redis: Redis, keys: Keys, manual_worker: ManualWorker) -> None:
    fine, spoilt = tasks.noop.enqueue("fine"), tasks.noop.enqueue("spoilt")
    redis.hset(keys.job(spoilt.id), "payload", b"[[NaN],{\xff")
    client = logged_in(user("ann", "view_jobrecord"))
    shown = client.get(page("queue", "default", "queued")).content.decode()
    assert "unreadable: " in shown
    assert "&quot;fine&quot;" in shown
    assert "unreadable: " in client.get(page("job", spoilt.id)).content.decode()
    rows = client.get("/jobs/queued").json()["jobs"]
    assert {row["id"]: row.get("args") for row in rows} == {fine.id: ["fine"], spoilt.id: None}
    first, second = map(resolved, manual_worker.claim(2))
    assert isinstance(first, Execution)
    assert isinstance(second, Resolution)


@says("They can write into a log or a terminal only plain text, within the line about their job.")
def test_a_terminal(
    redis: Redis, keys: Keys, manual_worker: ManualWorker, caplog: pytest.LogCaptureFixture
) -> None:
    job = tasks.noop.enqueue()
    redis.hset(keys.job(job.id), "task", "evil\n\x1b[2Jforged line")
    held = manual_worker.claim_one()
    out = output_of("queuemonitor", once=True)
    assert "evil\\n\\x1b[2Jforged line" in out
    assert "\x1b" not in out
    assert not re.search("^forged", out, re.M)
    caplog.clear()
    logging.getLogger("django_redisqueue").error("task %s", held.task)
    (record,) = caplog.records
    assert record.getMessage() == "task evil\\n\\x1b[2Jforged line"


@says(
    "The password in the URL appears in no message or log, nor in the variables of this package's "
    "frames on an error page; but Django's error pages and error mails list the settings, and hide "
    "a value only by the name of its key."
)
def test_the_password_of_redis(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    password = "hun" + "ter2"
    url = f"redis://:{password}@127.0.0.1:1/0"
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}, "MIRROR": False}
    settings.DEBUG = True
    shown = error_page(lambda: charge.using(on_commit=False).enqueue("1"))
    frames, _, listed = shown.partition('id="settings-info"')
    assert password not in frames + caplog.text
    assert password in listed


@says(
    "Of the files in Django's storage, they can have only [large results](gather.md#large-results) "
    "read or deleted, in the folder `redisqueue`."
)
def test_files_in_the_storage(
    redis: Redis, keys: Keys, manual_worker: ManualWorker, settings: Any
) -> None:
    media = Path(settings.MEDIA_ROOT)
    ours, theirs = "redisqueue/job_1.1.json", ("invoice.json", "redisqueue/../invoice.json")
    (media / "redisqueue").mkdir()
    for name in (ours, "invoice.json"):
        (media / name).write_text('"read"')
    tasks.noop.enqueue()
    job_id = manual_worker.complete_one()
    for name in theirs:
        redis.hset(keys.job(job_id), "result", encode_stored(name))
        with pytest.raises(SuspiciousFileOperation):
            _ = get_job(job_id).result
    redis.hset(keys.job(job_id), "result", encode_stored(ours))
    assert get_job(job_id).result == "read"
    redis.hset(keys.result_files, mapping=dict.fromkeys([*theirs, "a\0b", ours], "gone"))
    ResultFileCleaner(manual_worker.store).run_once()
    assert [path.name for path in media.rglob("*.json")] == ["invoice.json"]
    assert not redis.exists(keys.result_files)


# -- the database


@says(
    "Whoever can read the database sees the results and errors of every job that the mirror "
    "records, and its arguments except redacted ones."
)
def test_reading_records(manual_worker: ManualWorker) -> None:
    charge.enqueue(SECRET, 7)
    manual_worker.complete_one('"a result"')
    charge.enqueue(SECRET, 8)
    manual_worker.fail_one("an error")
    mirror()
    done, failed = JobRecord.objects.order_by("enqueued_at", "pk")
    assert (done.args, failed.args) == (("[redacted]", 7), ("[redacted]", 8))
    assert done.result == '"a result"'
    assert "an error" in failed.error


@says(
    "They see all arguments of jobs in the outbox, including redacted ones, as long as the "
    "row exists."
)
def test_reading_the_outbox(keys: Keys) -> None:
    with transaction.atomic():
        charge.using(outbox=True).enqueue(SECRET)
    assert SECRET in OutboxJob.objects.get().payload


@says(
    "Whoever can write to the database can run any registered task with any arguments, by a row in "
    "the outbox."
)
def test_writing_the_outbox(keys: Keys, manual_worker: ManualWorker) -> None:
    OutboxJob.objects.create(
        id=new_job_id(), queue="default", task=tasks.noop.name, payload='[["theirs"],{}]'
    )
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    connection = worker_connection()
    Relay(Commands(connection), "default").run_once()
    connection.close()
    assert manual_worker.claim_one().payload == '[["theirs"],{}]'


@says("They cannot use the API with the stored form of a token, which is its SHA-256.")
def test_a_stored_token(keys: Keys) -> None:
    row, token = ApiToken.create(user("ann", "view_jobrecord"), "t")
    row.refresh_from_db()
    stored = [str(getattr(row, field.attname)) for field in ApiToken._meta.concrete_fields]
    assert token not in " ".join(stored)
    assert Api(Client(), token).get("/stats").status_code == 200
    assert {Api(Client(), text).get("/stats").status_code for text in stored} == {401}


# -- staff


@says(
    "A page of the dashboard requires a login to the admin and the permission "
    "`view_jobrecord`, whatever other permissions the user has."
)
def test_pages_need_a_permission(keys: Keys) -> None:
    job = tasks.noop.enqueue()
    pages = [page("overview"), page("queue", "default", "queued"), page("job", job.id)]
    pages += [page("workflows"), page("jobrecord_changelist"), page("overview_live")]
    may = logged_in(user("ann", "view_jobrecord"))
    not_staff = logged_in(user("eve", "view_jobrecord", staff=False))
    others = logged_in(user("bob", *ACTIONS))
    for address in pages:
        assert may.get(address).status_code == 200
        assert others.get(address).status_code == 403
        assert not_staff.get(address).status_code == 302
        assert Client().get(address).status_code == 302


@says(
    "With `view_jobrecord` a user sees the arguments, results and errors of all jobs, because "
    "jobs have no owner, but never a redacted argument."
)
def test_what_a_user_with_view_permission_sees(manual_worker: ManualWorker) -> None:
    done = charge.enqueue(SECRET, 77)
    manual_worker.complete_one('"a result"')
    failed = charge.enqueue(SECRET, 78)
    manual_worker.fail_one("an error")
    client = logged_in(user("ann", "view_jobrecord"))
    shown = "".join(
        client.get(address).content.decode()
        for address in (
            page("job", done.id), page("job", failed.id), page("queue", "default", "failed"),
            f"/jobs/{done.id}", f"/jobs/{failed.id}", "/jobs/failed",
        )
    )  # fmt: skip
    assert all(text in shown for text in ("77", "78", "a result", "an error", "[redacted]"))
    assert SECRET not in shown


def acts(client: Client, permission: str, failed: str, queued: str) -> int:
    """The status of the response to an action that needs that permission."""
    address, form = {
        "retry_job": (page("act_on_job", failed), {"verb": "retry"}),
        "cancel_job": (page("act_on_job", queued), {"verb": "cancel", "confirmed": "yes"}),
        "clear_queue": (page("act_on_job", failed), {"verb": "delete", "confirmed": "yes"}),
        "pause_queue": (page("pause", "default"), {"verb": "pause"}),
        "enqueue_job": (page("act_on_job", failed), {"verb": "copy"}),
        "control_worker": (page("order_worker"), {"worker": "a.b.1.2", "order": "resume"}),
    }[permission]
    return client.post(address, form).status_code


@pytest.fixture
def jobs(manual_worker: ManualWorker) -> tuple[str, str]:
    """A failed job, and a queued one."""
    tasks.noop.enqueue("failed")
    return manual_worker.fail_one(), tasks.noop.enqueue("queued").id


@says(
    "`retry_job`, `cancel_job`, `clear_queue`, `pause_queue`, `enqueue_job` and `control_worker` "
    "each allow one kind of action on all jobs, queues and workers, and none implies another."
)
def test_one_permission_one_action(jobs: tuple[str, str]) -> None:
    for permission in ACTIONS:
        client = logged_in(user(permission, "view_jobrecord", permission))
        for other in set(ACTIONS) - {permission}:
            assert acts(client, other, *jobs) == 403
    assert JobQueue().get_stats() == {**JobQueue().get_stats(), "failed": 1, "queued": 1}
    for permission in ("cancel_job", "pause_queue", "enqueue_job", "retry_job", "control_worker"):
        client = logged_in(User.objects.get(username=permission))
        assert acts(client, permission, *jobs) == 302
    assert get_job(jobs[0]).status == "queued"
    assert get_job(jobs[1]).status == "cancelled"
    assert JobQueue().is_paused
    clearing = logged_in(User.objects.get(username="clear_queue"))
    assert acts(clearing, "clear_queue", jobs[1], jobs[1]) == 302
    assert JobQueue().get_stats()["cancelled"] == 0


@says(
    "With `enqueue_job` a user of the admin can run the task of any existing job again, with other "
    "arguments or the same ones, including redacted ones, without seeing them."
)
def test_a_copy(manual_worker: ManualWorker) -> None:
    job = charge.enqueue(SECRET, 5)
    first = manual_worker.claim_one()
    client = logged_in(user("ann", "view_jobrecord", "enqueue_job"))
    answer = client.post(page("act_on_job", job.id), {"verb": "copy"}, follow=True)
    assert SECRET not in answer.content.decode()
    copy = manual_worker.claim_one()
    assert (copy.task, copy.payload) == (first.task, first.payload)
    assert SECRET in copy.payload
    form = {"args": '["[redacted]", 6]', "kwargs": "{}"}
    assert SECRET not in client.post(page("copy_job", job.id), form, follow=True).content.decode()
    assert json.loads(manual_worker.claim_one().payload) == [[SECRET, 6], {}]


@says(
    "They cannot copy the jobs that this package enqueues itself, such as a bulk action or the "
    "decision of an approval."
)
def test_copies_of_own_jobs(keys: Keys) -> None:
    decision = deliver_event.enqueue("approval:job_1:refund", '{"approved":true}')
    cleared = bulk.enqueue("delete", "default", "failed", 0)
    client = logged_in(user("ann", "view_jobrecord", "enqueue_job"))
    forms = {
        decision.id: '["approval:job_2:refund", "[redacted]"]',
        cleared.id: '["delete", "default", "completed", 9999999999999]',
    }
    for job_id, args in forms.items():
        client.post(page("act_on_job", job_id), {"verb": "copy"})
        shown = client.post(page("copy_job", job_id), {"args": args, "kwargs": "{}"})
        assert "the job cannot be copied" in shown.content.decode().lower()
        assert "copy" not in client.get(page("job", job_id)).content.decode()
    assert JobQueue().get_stats()["queued"] == 2


@says(
    "With `add_periodicjob` or `change_periodicjob` a user can run any registered task, except "
    "those of this package, with any arguments that it does not redact, now or later."
)
def test_periodic_jobs(keys: Keys, django_capture_on_commit_callbacks: Any) -> None:
    client = logged_in(user("planner", "add_periodicjob", "change_periodicjob"))
    form = {
        "name": "a", "task": charge.name, "args": f'["{SECRET}"]', "kwargs": "{}", "every": "1h",
        "misfire": "once", "overlap": "queue",
    }  # fmt: skip
    refused = client.post(page("periodicjob_add"), form)
    assert "redacts some of these arguments" in refused.content.decode()
    own = {**form, "task": bulk.name, "args": '["delete", "default", "failed", 9999999999999]'}
    refused = client.post(page("periodicjob_add"), own)
    assert "does what other permissions are for" in refused.content.decode()
    with django_capture_on_commit_callbacks(execute=True):
        client.post(page("periodicjob_add"), {**form, "task": tasks.add.name, "args": "[1, 2]"})
    row = PeriodicJob.objects.get()
    assert client.post(page("periodicjob_do", row.pk), {"verb": "run"}).status_code == 302
    assert JobQueue().get_stats()["queued"] == 1


@says(
    "With `view_approval` a user sees the questions of all jobs, but can decide none: that takes "
    "the permission that the job names."
)
def test_approvals(keys: Keys) -> None:
    row = Approval.objects.create(
        job_id="job_1", name="refund", queue="default", question="42?", permission="auth.add_group"
    )
    viewer = logged_in(user("viewer", "view_approval", "change_approval", "delete_approval"))
    assert "42?" in viewer.get(page("approval_change", row.pk)).content.decode()
    viewer.post(page("approval_decide", row.pk), {"decision": "approve"})
    viewer.post(page("approval_change", row.pk), {"status": "approved"})
    viewer.post(page("approval_delete", row.pk), {"post": "yes"})
    assert Approval.objects.get().status == "pending"
    decider = logged_in(user("decider", "view_approval", "add_group"))
    decider.post(page("approval_decide", row.pk), {"decision": "reject"})
    assert Approval.objects.get().status == "rejected"


@says("Every action is a POST with Django's CSRF token.")
def test_csrf(jobs: tuple[str, str]) -> None:
    client = logged_in(user("ann", "view_jobrecord", *ACTIONS), enforce_csrf_checks=True)
    assert {acts(client, permission, *jobs) for permission in ACTIONS} == {403}
    for address in (page("act_on_job", jobs[0]), page("pause", "default")):
        assert client.get(address, {"verb": "retry"}).status_code == 405
    assert JobQueue().get_stats() == {**JobQueue().get_stats(), "failed": 1, "queued": 1}


@says("Every action adds an entry to the admin's log with the user and what was done.")
def test_the_log_of_the_admin(jobs: tuple[str, str]) -> None:
    ann = user("ann", "view_jobrecord", *ACTIONS)
    for permission in ("pause_queue", "cancel_job", "enqueue_job", "clear_queue"):
        before = LogEntry.objects.count()
        assert acts(logged_in(ann), permission, *jobs) == 302
        entry = LogEntry.objects.order_by("pk")[before]
        assert entry.user_id == ann.pk
        assert entry.change_message


@says(
    "No one, not even a superuser, can change or delete records or outbox rows in the admin, "
    "or see the arguments in the outbox there."
)
def test_records_are_read_only(keys: Keys) -> None:
    root = User.objects.create_superuser("root")
    with transaction.atomic():
        job = charge.using(outbox=True).enqueue(SECRET)
    JobRecord.objects.create(
        id=job.id, task="t", queue="default", status="queued", enqueued_at=timezone.now()
    )
    request = RequestFactory().get("/")
    request.user = root
    client, quoted = logged_in(root), quote(job.id)
    for model in (JobRecord, OutboxJob):
        admin = admin_site.get_model_admin(model)
        allowed = admin.get_model_perms(request)
        assert allowed == {"add": False, "change": False, "delete": False, "view": True}
        for name in ("change", "delete"):
            client.post(page(f"{model._meta.model_name}_{name}", quoted), {"task": "x", "post": 1})
        assert model.objects.get(pk=job.id).task != "x"  # type: ignore[attr-defined]
    shown = client.get(page("outboxjob_change", quoted)).content.decode()
    assert job.id in shown
    assert SECRET not in shown + client.get(page("outboxjob_changelist")).content.decode()


# -- tokens


def api_of(*permissions: str, name: str = "ann") -> tuple[Api, Any]:
    row, token = ApiToken.create(user(name, *permissions, staff=False), "t")
    return Api(Client(), token), row


@says("A token allows what its user's permissions allow, and nothing else.")
def test_the_permissions_of_a_token(jobs: tuple[str, str]) -> None:
    failed, queued = jobs
    calls: dict[str, Callable[[Api], Any]] = {
        "view_jobrecord": lambda api: api.get("/stats"),
        "enqueue_job": lambda api: api.post("", {"task": open_task.name}),
        "retry_job": lambda api: api.post(f"/{failed}/retry"),
        "cancel_job": lambda api: api.post(f"/{queued}/cancel"),
        "clear_queue": lambda api: api.delete("/cancelled"),
    }
    for permission, call in calls.items():
        api, _ = api_of(permission, name=permission)
        for other in set(calls) - {permission}:
            assert calls[other](api).status_code == 403, (permission, other)
        assert call(api).status_code in (200, 201)


@says("A token is invalid once it is deleted or has expired, or its user is inactive.")
def test_a_token_that_has_ended(keys: Keys) -> None:
    api, row = api_of("view_jobrecord")
    row.expires_at = timezone.now() - timedelta(seconds=1)
    row.save()
    assert api.get("/stats").status_code == 401
    row.expires_at = None
    row.save()
    assert api.get("/stats").status_code == 200
    User.objects.update(is_active=False)
    assert api.get("/stats").status_code == 401
    User.objects.update(is_active=True)
    assert api.get("/stats").status_code == 200
    row.delete()
    assert api.get("/stats").status_code == 401


@says(
    "The API can enqueue only tasks with `@task(api=True)`; other tasks are answered like "
    "tasks that do not exist."
)
def test_tasks_of_the_api(keys: Keys) -> None:
    api, _ = api_of("enqueue_job")
    assert api.post("", {"task": open_task.name}).status_code == 201
    closed, missing = (api.post("", {"task": name}) for name in (tasks.noop.name, "no.such.task"))
    assert closed.status_code == missing.status_code == 400
    assert closed.content.replace(tasks.noop.name.encode(), b"no.such.task") == missing.content
    assert JobQueue().get_stats()["queued"] == 1


@says(
    "No permission is limited to a queue: with `enqueue_job`, a token can enqueue into every "
    "configured queue, with every priority."
)
def test_queues_and_priorities_of_the_api(keys: Keys) -> None:
    api, _ = api_of("enqueue_job")
    for queue in get_settings().queues:
        job = {"task": open_task.name, "queue": queue, "priority": 100}
        assert api.post("", job).json()["queue"] == queue


@says(
    "Without a token or a session the API reveals nothing, and a session can change nothing "
    "there without Django's CSRF token."
)
def test_strangers_and_sessions(jobs: tuple[str, str]) -> None:
    stranger = Api(Client())
    paths = ["/stats", "/failed", f"/{jobs[0]}", "/events", "/openapi.json", "/nothing"]
    assert {stranger.get(path).status_code for path in paths} == {401}
    assert stranger.post(f"/{jobs[0]}/retry").status_code == 401
    ann = user("ann", "view_jobrecord", *ACTIONS)
    session = Api(logged_in(ann, enforce_csrf_checks=True))
    assert session.get("/stats").status_code == 200
    assert session.post(f"/{jobs[0]}/retry").status_code == 403
    assert session.delete("/failed").status_code == 403
    assert get_job(jobs[0]).status == "failed"


# -- redaction


@says(
    "A redacted argument appears in no record, event, page, answer or log, and not in the "
    "`repr` of a job."
)
def test_where_redacted_arguments_do_not_appear(
    redis: Redis, keys: Keys, manual_worker: ManualWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    job = charge.enqueue(SECRET)
    claimed = manual_worker.claim_one()
    manual_worker.settle(claimed, "completed", "1")
    mirror()
    (record,) = JobRecord.objects.values()
    client = logged_in(user("ann", "view_jobrecord"))
    found = [
        str(record), str(list(JobEvent.objects.values())), repr(redis.xrange(keys.events)),
        client.get(page("job", job.id)).content.decode(),
        client.get(f"/jobs/{job.id}").content.decode(),
        repr(get_job(job.id).data), repr(claimed), repr(charge.s(SECRET)), repr(resolved(claimed)),
        caplog.text,
    ]  # fmt: skip
    assert [text for text in found if SECRET in text] == []
    assert "[redacted]" in record["payload"]


@says(
    "An error page under `DEBUG` does not show it in the variables of this package's frames, "
    "but shows the variables of your own frames."
)
def test_a_page_for_errors(keys: Keys, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis://127.0.0.1:1/0"}, "MIRROR": False}
    settings.DEBUG = True

    def careless() -> None:
        card = SECRET
        charge.enqueue(card)

    assert SECRET not in error_page(lambda: charge.enqueue(SECRET))
    assert SECRET in error_page(careless)


@says(
    "If a decorator passes positional arguments of its own to the task's function, the others are "
    "taken for those before them: then pass the redacted ones by keyword."
)
def test_a_decorator_that_adds_arguments(keys: Keys) -> None:
    assert charge_in_session.enqueue("4", order=5).args == ("4",)
    assert charge_in_session.enqueue(card="4", order=5).kwargs == {"card": "[redacted]", "order": 5}


@says(
    "If an error's text quotes the whole value, it is removed before the error is stored; a part "
    "of it that is less than a line, a key of an object, or a value of less than three characters, "
    "is not recognised."
)
def test_the_text_of_an_error(keys: Keys, manual_worker: ManualWorker) -> None:
    def stored(card: Any, error: Exception) -> str:
        charge.enqueue(card)
        call = resolved(manual_worker.claim_one())
        assert isinstance(call, Execution)
        resolution = retry_policy.resolve_error(
            error, charge.options, 0, 1, get_settings(), call.secrets()
        )
        return str(json.loads(resolution.body)["message"])

    assert stored(SECRET, ValueError(f"no card {SECRET}")) == "no card [redacted]"
    assert stored(SECRET, ValueError(f"ends in {SECRET[-4:]}")) == f"ends in {SECRET[-4:]}"
    assert stored("42", ValueError("no card 42")) == "no card 42"
    assert stored({"key": SECRET}, ValueError(f"key {SECRET}")) == "key [redacted]"
    assert stored(f"a line\n{SECRET}", ValueError(f"no {SECRET}")) == "no [redacted]"
