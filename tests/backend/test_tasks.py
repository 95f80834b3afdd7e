"""Django's own Tasks: their options, which parts of them are passed on, and where they may be
sent."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.checks import run_checks
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_redisqueue import (
    For,
    Gather,
    Limit,
    Replace,
    Workflow,
    chain,
    get_job,
    listener,
    publish,
)
from django_redisqueue.client import gather as gathers
from django_redisqueue.client import registry as our_registry
from django_redisqueue.client.options import CALL_CHECKS, TASK_CHECKS
from django_redisqueue.core.clock import real_ms
from django_redisqueue.testing import capture_jobs, run_inline
from tests.app import tasks as our_tasks
from tests.support.commands import manage
from tests.support.servers import RedisServer

from ..support.burst import work
from ..support.manual_worker import ManualWorker

if django.VERSION < (6, 0) and not os.environ.get("CI"):
    pytest.importorskip("django_tasks", reason="Django 5.2 needs the django-tasks package")

from django_redisqueue.backend import registration
from django_redisqueue.backend.tasks import OPTIONS
from tests.app import django_tasks as tasks
from tests.app import other_tasks
from tests.app.django_api import (
    TAKES_OPTIONS,
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    default_task_backend,
    task,
    task_backends,
    task_enqueued,
)

OURS = "django_redisqueue.backend.RedisQueueBackend"
LATER = datetime(2100, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
needs_options = pytest.mark.skipif(not TAKES_OPTIONS, reason="Django 6.0's @task takes none")


@pytest.fixture(autouse=True)
def two_queues(queue_settings: dict[str, Any], settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}


def done(result: Any) -> Any:
    """What a task returned, once it has run."""
    result.refresh()
    assert result.status is TaskResultStatus.SUCCESSFUL, result.errors
    return result.return_value


# --- what is passed on ----------------------------------------------------------------------------


@run_inline()
def test_a_task_sees_its_own_options_and_can_enqueue_itself_with_them() -> None:
    before = datetime(2020, 5, 5, 5, 5, 5, 5, tzinfo=UTC)
    how = {"queue_name": "low", "priority": 9, "run_after": before, "backend": "second"}
    result = tasks.again.using(**how, timeout=timedelta(seconds=7)).enqueue(1)
    for _ in range(2):
        value = done(result)
        assert value["queue"] == "low"
        assert value["priority"] == 9
        assert value["alias"] == "second"
        assert value["run_after"] == before.isoformat()
        assert value["timeout"] == 7
        if value["next"]:
            result = task_backends["second"].get_result(value["next"])
            assert get_job(result.id).queue_name == "low"
            assert get_job(result.id).priority == 9
    assert value["next"] is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue_name": "low", "priority": -5, "run_after": LATER, "backend": "second"},
        {"timeout": 3.5, "max_attempts": 4, "tags": {"index": "x", "tags": "y"}},
        {"on_commit": False, "outbox": False, "run_after": timedelta(hours=1)},
    ],
    ids=["none", "django", "encoded_options", "others"],
)
def test_a_result_equals_the_one_that_is_read(
    options: dict[str, Any], manual_worker: ManualWorker
) -> None:
    made = tasks.urgent.using(**options)
    result = made.enqueue("x")
    found = default_task_backend.get_result(result.id)
    assert found == result
    assert found.task == made
    if not found.task.run_after:
        manual_worker = ManualWorker(made.queue_name)
        manual_worker.complete_one("5")
        manual_worker.close()
        result.refresh()
        assert default_task_backend.get_result(result.id) == result
        assert done(result) == 5


def test_a_job_waits_for_others_by_their_results() -> None:
    first = tasks.add.enqueue(1, 2)
    waiting = tasks.add.using(after=first, on_parent_failure="go_on").enqueue(3, 4)
    assert default_task_backend.get_result(waiting.id) == waiting
    assert waiting.task.after == (first.id,)
    assert get_job(waiting.id).status == "waiting"


@pytest.mark.parametrize("use_tz", [True, False])
def test_all_times_are_aware_or_all_are_naive(use_tz: bool, manual_worker: ManualWorker) -> None:
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Asia/Tokyo"):
        result = tasks.add.enqueue(1, 2)
        assert result == default_task_backend.get_result(result.id)
        manual_worker.complete_one("3")
        result.refresh()
        instants = [
            result.enqueued_at, result.started_at, result.last_attempted_at, result.finished_at
        ]  # fmt: skip
        assert [moment.tzinfo is not None for moment in instants] == [use_tz] * 4
        assert instants == sorted(instants)
        assert all(moment.microsecond % 1000 == 0 for moment in instants)
        now = real_ms() / 1000
        shown = instants[0] if use_tz else instants[0].replace(tzinfo=None)
        there = datetime.fromtimestamp(now, UTC) + timedelta(hours=0 if use_tz else 9)
        assert abs(shown.replace(tzinfo=UTC) - there) < timedelta(seconds=30)


def test_the_result_lists_earlier_runs(manual_worker: ManualWorker) -> None:
    result = tasks.add.using(max_attempts=3).enqueue(1, 2)
    manual_worker.settle(
        manual_worker.claim_one(), "retrying", '{"type":"ValueError","message":"no"}', "0"
    )
    result.refresh()
    assert (result.attempts, result.worker_ids) == (1, [manual_worker.claim_request.child])
    first = result.started_at

    manual_worker.store.promote(["default"])
    second = manual_worker.claim_one()
    manual_worker.store.reap(manual_worker.claim_request.child, [second.id])
    result.refresh()
    assert result.status is TaskResultStatus.READY
    assert result.worker_ids == [manual_worker.claim_request.child] * 2

    other = ManualWorker()
    other.complete_one("3")
    result.refresh()
    assert result.worker_ids == [
        manual_worker.claim_request.child,
        manual_worker.claim_request.child,
        other.claim_request.child,
    ]
    assert (result.attempts, result.return_value) == (3, 3)
    assert result.started_at == first <= result.last_attempted_at
    other.close()


def test_of_many_runs_the_first_are_listed(manual_worker: ManualWorker) -> None:
    result = tasks.add.using(max_attempts=100).enqueue(1, 2)
    for _ in range(40):
        manual_worker.settle(
            manual_worker.claim_one(), "retrying", '{"type":"ValueError","message":"no"}', "0"
        )
        manual_worker.store.promote(["default"])
    result.refresh()
    assert result.attempts == 40
    named = [name for name in result.worker_ids if name != "unknown"]
    assert set(named) == {manual_worker.claim_request.child}
    assert 5 < len(named) < 40
    assert len(" ".join(named)) < 600
    assert result.worker_ids[:5] == named[:5]


def test_a_crash_is_remembered_by_the_task(
    redis: Any, redis_server: RedisServer, settings: Any, tmp_path: Path
) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": redis_server.url}}
    result = tasks.crash_once.enqueue(str(tmp_path / "crashed"))
    other = other_tasks.elsewhere.using(backend="second", queue_name="default").enqueue(8)
    run_worker(redis_server)
    value = done(result)
    assert value["attempt"] == result.attempts == 2
    assert value["workers"] == result.worker_ids
    assert len(set(result.worker_ids)) == 2
    assert value["started_at"] == str(result.started_at)
    assert value["last_attempted_at"] == str(result.last_attempted_at)
    assert result.started_at < result.last_attempted_at
    # Its module is discovered, so the worker knows the task, although it belongs to another
    # backend.
    assert done(other) == [8, "second"]


def run_worker(server: RedisServer) -> None:
    manage("runworker", "--burst", "--processes", "1", REDISQUEUE_TEST_URL=server.url)


# --- options --------------------------------------------------------------------------------------


@needs_options
@run_inline()
def test_options_of_the_definition_apply_in_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    result = tasks.flaky.enqueue("no luck")
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 3)
    assert get_job(result.id).tags == {"kind": "flaky"}
    once = tasks.flaky.using(max_attempts=1, tags={"kind": "other"}).enqueue("no luck")
    once.refresh()
    assert once.attempts == 1
    assert get_job(once.id).tags == {"kind": "other"}
    in_async = tasks.async_fail.using(max_attempts=2).enqueue("no luck")
    in_async.refresh()
    assert (in_async.attempts, in_async.worker_ids) == (2, ["test", "test"])
    final = tasks.final.enqueue("secret")
    final.refresh()
    assert final.attempts == 1
    assert get_job(final.id).args == ("[redacted]",)


def test_every_option_of_a_task_also_works_with_django_tasks() -> None:
    known_here = {*OPTIONS, "queue_name", "priority", "takes_context", "run_after", "using"}
    # With chunk, one call has many jobs; a call of Django's is one result.
    assert {*TASK_CHECKS, *CALL_CHECKS} - {"chunk"} <= known_here


@needs_options
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"retry_on": (int,)}, "retry_on must be subclasses of Exception"),
        ({"timeout": "soon"}, "timeout .* must be seconds, a timedelta, or a text"),
        ({"redact": ("nothing",)}, "nothing"),
        ({"database": "other"}, "has using='other', which names the database of exactly_once"),
    ],
)
def test_options_are_checked_where_they_are_defined(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        task(**options)(not_a_task)
    assert our_registry.lookup(f"{__name__}.not_a_task") is None


def not_a_task(x: int = 1) -> int:
    return x


def per_tenant(tenant: str, n: int) -> int:
    return n


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks that a test defines are not visible to other tests."""
    monkeypatch.setattr(registration, "_unimported", {})
    registries: list[dict[str, Any]] = [our_registry._tasks, registration._definitions]
    before = [dict(each) for each in registries]
    yield
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)


@needs_options
@pytest.mark.usefixtures("own_registry")
def test_limits_shares_and_conflicts() -> None:
    """Two of a tenant's four jobs may start; the others wait for one to end."""
    limited = task(concurrency=Limit(2, key="tenant"), fair_by="tenant")(per_tenant)
    with capture_jobs() as jobs:
        results = [limited.enqueue("acme", n) for n in range(3)]
        dropped = limited.using(on_conflict="discard").enqueue("acme", 3)
        assert get_job(dropped.id).data.reason == "conflict"
        jobs.drain()
        assert [get_job(result.id).result for result in results] == [0, 1, 2]
    with pytest.raises(
        InvalidTask, match=r"key of Limit of .* is 'shop', which is not a parameter"
    ):
        task(concurrency=Limit(2, key="shop"))(not_a_task)


def nightly() -> str:
    return "done"


@needs_options
@pytest.mark.usefixtures("own_registry")
def test_a_periodic_task() -> None:
    made = task(every="5m")(nightly)
    with capture_jobs() as jobs:
        jobs.travel(minutes=10)
        jobs.run_due()
        found = [job for job in jobs.jobs if job.data.task == made.module_path]
        assert [job.result for job in found] == ["done", "done"]
        assert default_task_backend.get_result(found[0].id).return_value == "done"
    with pytest.raises(InvalidTask, match="both cron= and every="):
        task(cron="* * * * *", every="5m")(not_a_task)
    with pytest.raises(InvalidTask, match="runs without arguments, but it takes"):
        task(every="5m")(per_tenant)


def test_options_of_a_call_are_checked() -> None:
    with pytest.raises(InvalidTask, match="max_attempts must be"):
        tasks.add.using(max_attempts=0)
    with pytest.raises(TypeError, match=r"'max_atempts' \(did you mean 'max_attempts'"):
        tasks.add.using(max_atempts=1)
    with pytest.raises(TypeError, match="cannot change 'retry_on' of tests"):
        tasks.add.using(retry_on=(ValueError,))


def test_a_call_that_expires() -> None:
    for expires in ("1m", timedelta(minutes=1), timezone.now() + timedelta(minutes=1)):
        result = tasks.urgent.using(expires=expires).using(priority=2).enqueue("x")
        assert "expires" in get_job(result.id).data.options
    late = tasks.urgent.using(expires=timezone.now() - timedelta(minutes=1)).enqueue("x")
    work()
    late.refresh()
    assert late.status is TaskResultStatus.FAILED
    assert late.errors[0].exception_class_path == "django_redisqueue.exceptions.JobExpired"
    with pytest.raises(InvalidTask, match="expires must be more than 0"):
        tasks.urgent.using(expires=0)


@needs_options
def test_a_definition_that_expires(own_registry: None) -> None:
    assert task(expires="1m")(not_a_task).enqueue(1).id
    with pytest.raises(InvalidTask, match="expires must be seconds, a timedelta, or a text"):
        task(expires=timezone.now())(per_tenant)


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Tasks can be pickled from Django 6.1 on")
def test_a_task_with_options_can_be_pickled() -> None:
    made = tasks.flaky.using(timeout=5, queue_name="low")
    assert pickle.loads(pickle.dumps(made)) == made


def test_options_of_the_backend_are_refused() -> None:
    wrong = {"default": {"BACKEND": OURS, "OPTIONS": {"timeout": 3}}}
    with (
        override_settings(TASKS=wrong),
        pytest.raises(InvalidTaskBackend, match=r"\[\"OPTIONS\"\] has 'timeout', but this backend"),
    ):
        task_backends["default"]


def test_many_at_once() -> None:
    heard: list[str] = []

    def hear(task_result: Any, **_: Any) -> None:
        heard.append(task_result.id)

    task_enqueued.connect(hear)
    try:
        results = tasks.add.using(queue_name="low").enqueue_many([(1, 2), (3, 4)])
    finally:
        task_enqueued.disconnect(hear)
    assert [result.args for result in results] == [[1, 2], [3, 4]]
    assert heard == [result.id for result in results]
    assert [default_task_backend.get_result(id) for id in heard] == results
    assert {get_job(id).queue_name for id in heard} == {"low"}


# --- workflows and gathers ------------------------------------------------------------------------


@run_inline()
def test_a_chain_of_django_tasks() -> None:
    workflow = chain(tasks.add.s(1, 2), tasks.urgent, our_tasks.noop, tasks.with_context)
    last = default_task_backend.get_result(workflow.jobs()[-1].id)
    assert last.return_value["args"] == [3]
    assert [job.priority for job in workflow.jobs()] == [0, 7, 0, 0]
    assert abs(last.enqueued_at.timestamp() - real_ms() / 1000) < 30


@run_inline()
def test_a_workflow_accepts_django_tasks_also_as_callbacks() -> None:
    with Workflow("mixed", priority=2, on_complete=tasks.urgent.using(priority=3)) as workflow:
        first = workflow.add(tasks.add, 1, b=2)
        workflow.add(tasks.urgent.using(queue_name="low"), "x", after=first)
    assert workflow.status == "completed"
    assert [(job.queue_name, job.priority) for job in workflow.jobs()] == [
        ("default", 2),
        ("low", 7),
    ]
    called = get_job(f"{workflow.id}.complete0")
    assert (called.status, called.priority) == ("completed", 3)
    with Workflow(queue_name="low") as workflow:
        job = workflow.add(tasks.again, 0)
    assert job.result["queue"] == "low"


@run_inline()
def test_a_gather_of_django_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathers, "_topics", {})
    assert listener("sums")(tasks.add) is tasks.add
    gather = Gather.start("both", topic="sums", payload={"a": 1, "b": 2}, then=tasks.urgent.s("y"))
    assert gather.results == {"add": 3}
    assert publish("sums", {"a": 2, "b": 2})[0].result == 4
    assert get_job(f"{gather.id}.then").result == "y"


def test_a_task_of_another_backend_is_refused() -> None:
    with pytest.raises(
        InvalidTask, match="elsewhere uses the backend 'dummy', which is not one of"
    ):
        Workflow().add(other_tasks.elsewhere)


# --- which tasks are known ------------------------------------------------------------------------


@run_inline()
def test_a_task_of_another_backend_runs_here_when_it_is_sent_here() -> None:
    assert our_registry.lookup("tests.app.other_tasks.elsewhere") is not None
    made = other_tasks.elsewhere.using(backend="default", queue_name="low")
    result = made.enqueue(5)
    assert done(result) == [5, "default"]
    assert made.get_result(result.id).backend == "default"
    assert made.get_result(result.id).task == made
    assert not [m for m in run_checks(databases=[]) if "elsewhere" in m.msg]


@run_inline()
def test_a_result_has_the_alias_of_its_task_whichever_backend_returns_it() -> None:
    result = task(backend="second")(_halved).enqueue(8)
    for alias in ("default", "second"):
        found = task_backends[alias].get_result(result.id)
        assert (found.backend, found.task.backend) == ("second", "second")


def _halved(number: int) -> int:
    return number // 2


@run_inline()
def test_a_task_of_the_package_django_tasks_runs_here_on_every_django() -> None:
    """Other packages, such as Wagtail, import ``task`` from django_tasks even on Django 6."""
    made = pytest.importorskip("django_tasks").task(_doubled)
    result = made.enqueue(4)
    assert done(result) == 8
    assert made.get_result(result.id).task == made


def _doubled(number: int) -> int:
    return number * 2


def test_a_task_that_workers_do_not_import_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "_unimported", {})
    (tmp_path / "corner.py").write_text(
        "from tests.app.django_api import task\n\n@task\ndef hidden():\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import corner

    assert corner.hidden.using(priority=1).enqueue().id
    assert "The task corner.hidden is in corner, which workers do not import" in caplog.text
    corner.hidden.enqueue()
    assert len(caplog.records) == 1
    (message,) = [m for m in run_checks(databases=[]) if m.id == "django_redisqueue.W017"]
    assert "corner.hidden" in message.msg
    assert "TASK_MODULES" in message.hint


def test_the_result_of_a_task_whose_module_is_not_imported_is_available(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tasks.add.using(priority=3, backend="second")
    result = made.enqueue(1, 2)
    name = made.module_path
    monkeypatch.delitem(registration._definitions, name)
    monkeypatch.delitem(our_registry._tasks, name)
    monkeypatch.setattr(tasks, "__name__", "not imported")
    manual_worker.complete_one("3")
    found = default_task_backend.get_result(result.id)
    assert (found.return_value, found.backend) == (3, "second")
    assert found.task.module_path == name
    assert (found.task.name, found.task.priority) == ("add", 3)
    with pytest.raises(LookupError, match=r"tests\.app\.django_tasks\.add is not imported"):
        found.task.call(1, 2)
    assert our_registry.lookup(name) is None


def test_an_app_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django.apps.apps.is_installed", lambda name: False)
    monkeypatch.setattr(registration, "_unimported", {})  # tests leave tasks there
    (message,) = default_task_backend.check()
    assert message.id == "django_redisqueue.E009"
    assert "not in INSTALLED_APPS" in message.msg


@pytest.mark.django_db(transaction=True)
def test_a_result_is_requested_before_the_commit() -> None:
    with transaction.atomic():
        result = tasks.add.enqueue(1, 2)
        with pytest.raises(TaskResultDoesNotExist, match="its transaction has not committed"):
            result.refresh()
    result.refresh()
    assert result.status is TaskResultStatus.READY


# --- unique and unique_by -------------------------------------------------------------------------

MODES = ["until_started", "until_finished", "keep_last", For("1h"), Replace(wait=10)]


@pytest.fixture
def sent() -> Any:
    """The ids sent with the signal task_enqueued."""
    ids: list[str] = []

    def note(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_enqueued.connect(note)
    yield ids
    task_enqueued.disconnect(note)


@pytest.mark.parametrize("mode", MODES)
def test_a_second_enqueue_returns_the_first_result(
    manual_worker: ManualWorker, mode: Any, sent: list[str]
) -> None:
    once = tasks.add.using(unique=mode, unique_by="a")
    first = once.enqueue(1, 2)
    second = once.enqueue(1, 2)
    assert second.id == first.id
    assert default_task_backend.get_result(second.id).id == first.id
    assert once.enqueue(2, 2).id != first.id
    assert len(sent) == 2
    assert once.using(unique=False).enqueue(1, 2).id != first.id


def test_a_duplicate_shows_the_current_job(manual_worker: ManualWorker) -> None:
    once = tasks.add.using(unique=For("1h"))
    once.enqueue(1, 2)
    manual_worker.complete_one("3")
    again = once.enqueue(1, 2)
    assert (again.status, again.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
    assert [one.id for one in once.enqueue_many([(1, 2), (1, 2)])] == [again.id] * 2


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_after_a_commit(manual_worker: ManualWorker, sent: list[str]) -> None:
    once = tasks.add.using(unique="until_finished")
    first = once.enqueue(1, 2)
    with transaction.atomic():
        second = once.enqueue(1, 2)
    assert sent == [first.id]
    assert get_job(second.id).data.id == first.id
    manual_worker.complete_one("3")
    second.refresh()
    assert second.return_value == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unique": "ever"}, "unique must be one of"),
        ({"unique": "keep_last", "unique_by": "c"}, "names 'c', which is not a parameter"),
        ({"unique_by": "a"}, "has unique_by without unique"),
        ({"unique": "keep_last", "unique_by": 5}, "unique_by must be"),
    ],
)
def test_wrong_options_of_unique_tasks(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        tasks.add.using(**options).enqueue(1, 2)


@needs_options
def test_unique_options_of_the_definition(manual_worker: ManualWorker) -> None:
    made = task(unique="until_finished", unique_by=["name"])(_named)
    assert made.enqueue("a", 1).id == made.enqueue("a", 2).id
    assert made.enqueue("b", 1).id != made.enqueue("a", 2).id


def _named(name: str, number: int) -> None: ...
