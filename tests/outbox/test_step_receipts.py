"""Steps with database work: it is done once, whatever dies between its commit and its report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from django.contrib.auth.models import Permission
from django.db import IntegrityError, OperationalError, connections, transaction
from django.utils import timezone

from django_redisqueue.conf import get_settings
from django_redisqueue.exceptions import JobAbandoned, StepError
from django_redisqueue.models import OutboxJob, Receipt, StepReceipt
from django_redisqueue.outbox.receipts import CursorReceipt, UnitOfWork, current_unit, run_once
from django_redisqueue.testing import run_inline
from django_redisqueue.worker.child.context import JobContext
from django_redisqueue.worker.maintenance import maintenance
from tests.app.models import Counter
from tests.app.tasks import bump, noop
from tests.support.manual_worker import ManualWorker
from tests.support.postgres import PostgresServer
from tests.support.shards import shard_of
from tests.worker.parts import claimed

from . import step_tasks
from .conftest import MODULES, OutboxHarness


def _context() -> JobContext:
    store: Any = SimpleNamespace(save=lambda *_: 1)
    return JobContext(claimed(), lambda _: True, store)


def values() -> dict[str, int]:
    return dict(Counter.objects.values_list("name", "value"))


def test_killed_after_the_commit_of_each_step(outbox_harness: OutboxHarness, deaths: Path) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=[*MODULES, "tests.outbox.step_tasks"], LEASE=30)
    plain, once = step_tasks.atomic_steps.enqueue("p"), step_tasks.once_with_steps.enqueue("o")
    harness.worker("--processes", "1")
    harness.until_done(2, timeout=30)
    assert len(list(deaths.iterdir())) == 4
    for job in (plain, once):
        job.refresh()
        assert job.recoveries == 2
    assert (plain.result, once.result) == ([1, 1], [1, 1, 1])
    assert values() == {"p-0": 1, "p-1": 1, "o-0": 1, "o-1": 1, "o-last": 1}
    assert list(Receipt.objects.values_list("job_id", flat=True)) == [once.id]
    assert set(StepReceipt.objects.values_list("job_id", "name")) == {
        (plain.id, "step:0"), (plain.id, "step:1"),
    }  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_only_the_work_after_the_last_step_is_rolled_back(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    with run_inline():
        job = step_tasks.once_and_again.enqueue("n")
        assert (job.status, job.attempts, job.result) == ("completed", 1, 1)
    assert values() == {"n": 1, "n-second": 1}
    assert not StepReceipt.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_step_that_raises_leaves_no_rows_if_the_task_goes_on(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}

    def debit_and_enqueue() -> None:
        bump("debit")
        noop.enqueue()
        raise ZeroDivisionError

    def work() -> str:
        context = _context()
        bump("before")
        with suppress(ZeroDivisionError):
            context.step("debit", debit_and_enqueue)
        context.step("refuse", bump, "refused")
        return "1"

    assert run_once("job_1", "default", work) == "1"
    assert values() == {"before": 1, "refused": 1}
    assert not OutboxJob.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_after_a_commit_that_fails_the_task_is_still_in_a_transaction() -> None:
    """Otherwise what it does next would commit at once, without a receipt."""

    def violate() -> None:
        Permission.objects.create(name="p", codename="p", content_type_id=0)

    def work(step: str = "") -> str:
        context = _context()
        with suppress(IntegrityError):
            context.step("violate", violate)
        bump("compensation")
        if step:
            context.step(step, bump, "step")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_once("job_1", "default", work)
    assert values() == {}
    with pytest.raises(ZeroDivisionError):
        run_once("job_1", "default", lambda: work("again"))
    assert values() == {"compensation": 1, "step": 1}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OperationalError, ValueError])
def test_a_connection_lost_after_a_commit_ends_the_run(
    monkeypatch: Any, error: type[Exception]
) -> None:
    """The task cannot continue without a transaction, even if it catches every exception."""
    done: list[str] = []
    begin = UnitOfWork._begin

    def begin_once(unit: UnitOfWork) -> None:
        if done:
            raise error("no connection")
        begin(unit)

    def work() -> str:
        context = _context()
        monkeypatch.setattr(UnitOfWork, "_begin", begin_once)
        done.append("step")
        with suppress(Exception):
            context.step("first", bump, "n")
        done.append("more")
        return "1"

    with pytest.raises(JobAbandoned, match=r"job job_1 has no transaction: .*no connection"):
        run_once("job_1", "default", work)
    assert done == ["step"]
    assert values() == {"n": 1}


@pytest.mark.parametrize("fault", ["hook", "connection"])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_step_that_raises_after_its_commit_is_done(
    on_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, exactly_once: bool, fault: str,
) -> None:  # fmt: skip
    def fail() -> None:
        raise ZeroDivisionError

    real = connections["default"]
    commit = real.commit

    def commit_and_fail() -> None:
        commit()
        on_postgres.terminate(real.settings_dict["NAME"])
        real.cursor().execute("SELECT 1")  # raises what a lost reply to COMMIT raises

    def book() -> int:
        if fault == "hook":
            transaction.on_commit(fail)
        else:
            monkeypatch.setattr(real, "commit", commit_and_fail)
        return bump("n")

    def work() -> str:
        context = _context()
        value = context.step("book", book, atomic=True)
        monkeypatch.undo()
        return f"{value} {context.step('next', bump, 'm', atomic=True)}"

    assert (run_once("job_1", "default", work) if exactly_once else work()) == "1 1"
    assert values() == {"n": 1, "m": 1}
    assert "job job_1 has the receipt of step:book, although it raised:" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_nothing_commits_inside_atomic(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    words = r"a step with atomic=True commits, which is impossible inside atomic\(\)"
    with run_inline(), pytest.raises(StepError, match=words), transaction.atomic():
        step_tasks.atomic_steps.func(_context(), "n")

    def in_atomic() -> str:
        with transaction.atomic():
            step_tasks.atomic_steps.func(_context(), "n")
        return ""

    words = r"of an exactly_once task commits what was done so far, which is impossible inside"
    with pytest.raises(StepError, match=words):
        run_once("job_1", "default", in_atomic)

    def in_step() -> str:
        context = _context()
        context.step("outer", lambda: context.step("inner", bump, "n"))
        return ""

    with pytest.raises(StepError, match=words):
        run_once("job_1", "default", in_step)
    assert values() == {}


@pytest.mark.django_db(transaction=True)
def test_a_cursor_only_advances_from_where_its_run_read_it() -> None:
    """Two runs of a job overlap: the rows of the slower one are rolled back."""
    with UnitOfWork("job_1", "default") as unit:
        cursor = CursorReceipt(unit, "cursor:c")
        assert cursor.read() is None
        bump("first")
        cursor.write("1")
        twin = CursorReceipt(unit, "cursor:c")
        assert twin.read() == "1"
        twin.write("2")
        with pytest.raises(JobAbandoned, match="another run of job job_1 has committed this"):
            cursor.write("2")

    def from_the_beginning() -> str:
        bump("slower")
        unit = current_unit()
        assert unit is not None
        CursorReceipt(unit, "cursor:c").write("1")
        return ""

    with pytest.raises(JobAbandoned):
        run_once("job_1", "default", from_the_beginning)
    assert values() == {"first": 1}
    assert StepReceipt.objects.get().body == "2"


@pytest.mark.django_db(databases=["default", "other"])
def test_receipts_outlive_the_retention_while_their_job_may_run_again(
    manual_worker: ManualWorker, settings: Any
) -> None:
    """Otherwise a job that was parked for that long, or that failed and is requeued, would start
    over."""
    settings.REDISQUEUE = {**settings.REDISQUEUE, "AUDIT_RETENTION": 86_400}
    done = noop.enqueue()
    manual_worker.complete_one()
    failed = noop.enqueue()
    manual_worker.fail_one()
    parked = noop.using(run_after=60).enqueue()
    ids = [done.id, failed.id, parked.id, "job_1700000000000_abcdefghij_0"]
    for job_id in ids:
        Receipt.objects.create(job_id=job_id)
        StepReceipt.objects.create(job_id=job_id, name="cursor:all")
    long_ago = timezone.now() - timedelta(days=90)
    Receipt.objects.update(created_at=long_ago)
    StepReceipt.objects.update(updated_at=long_ago)
    rows: Any = SimpleNamespace(run_once=None)
    tasks = maintenance._database_tasks(get_settings(), shard_of(), rows)
    (retention,) = [task for task in tasks if task.name == "the retention of receipts"]
    while retention.do():
        pass
    for model in (Receipt, StepReceipt):
        assert set(model.objects.values_list("job_id", flat=True)) == {failed.id, parked.id}


class Cut:
    """Ends the connection at one statement or commit: before the server has it, or after."""

    def __init__(self, server: PostgresServer, at: int, when: str) -> None:
        self._server = server
        self._left, self._when = at, when
        self._real = connections["default"]
        self._commit = self._real.commit

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def __enter__(self) -> Self:
        self._wrapper = self._real.execute_wrapper(self._around)
        self._wrapper.__enter__()
        self._real.commit = lambda: self._around(self._commit)
        return self

    def __exit__(self, *error: Any) -> None:
        del self._real.commit
        self._wrapper.__exit__(*error)
        self._real.close()

    def _around(self, call: Callable[..., Any], *args: Any) -> Any:
        self._left -= 1
        if self._left == 0 and self._when == "before":
            self._server.terminate(self._real.settings_dict["NAME"])
        result = call(*args)
        if self._left == 0 and self._when == "after":
            self._server.terminate(self._real.settings_dict["NAME"])
            if call == self._commit:
                self._real.cursor().execute("SELECT 1")  # raises what a lost reply would
        return result


def steps_with_jobs(context: JobContext) -> str:
    """A task that compensates for each step that raises."""
    for name in ("one", "two"):
        try:
            context.step(name, bump_and_enqueue, name)
        except Exception:
            context.step(f"not {name}", bump_and_enqueue, f"not {name}")
    return bump_and_enqueue("last")


def bump_and_enqueue(name: str) -> str:
    bump(name)
    noop.using(outbox=True).enqueue(name)
    return name


def run_twice(job_id: str, cut: Cut) -> str:
    """Run the job with the cut, whatever that raises, and then again; returns its result."""
    saved: dict[str, str] = {}

    def save(job: Any, field: str, value: str) -> int:
        saved[field] = value
        return 1

    def run(lease: int) -> str:
        store: Any = SimpleNamespace(save=save, load=lambda _: saved)
        context = JobContext(claimed(job_id, lease), lambda _: True, store)
        return run_once(job_id, "default", lambda: steps_with_jobs(context))

    with suppress(Exception, JobAbandoned), cut:
        run(1)
    return run(2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_lost_at_any_statement(
    on_postgres: PostgresServer, settings: Any, when: str
) -> None:
    """Each step or its compensation is done, once, and what it enqueues commits with it."""
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    for at in count(1):
        cut = Cut(on_postgres, at, when)
        assert run_twice(f"job_{at}", cut) == "last"
        done = values()
        assert set(done.values()) == {1}, at
        assert "last" in done, at
        assert all((name in done) != (f"not {name}" in done) for name in ("one", "two")), at
        payloads = sorted(OutboxJob.objects.values_list("payload", flat=True))
        assert payloads == [f'[["{name}"],{{}}]' for name in sorted(done)], at
        if not cut.is_done:
            break
        Counter.objects.all().delete()
        OutboxJob.objects.all().delete()
    assert at > 25
