"""Periodic jobs in the admin."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.core.ids import periodic_job_id
from django_redisqueue.core.schedules import Every, ScheduleData
from django_redisqueue.dashboard.admin_log import UNLOGGED
from django_redisqueue.models import JobRecord, PeriodicJob
from tests.app import tasks
from tests.broker.schedules import definition
from tests.support.logins import logged_in
from tests.support.manual_worker import ManualWorker
from tests.support.shards import all_stores, shard_of

from .site import Site, logged
from .test_database_away import locked_log

ALL = ("add_periodicjob", "change_periodicjob", "delete_periodicjob", "view_periodicjob")
Commit = Callable[..., Any]
FORM = {
    "name": "adding", "task": tasks.add.name, "args": "[1, 2]", "kwargs": "{}", "cron": "0 4 * * *",
    "every": "", "timezone": "Asia/Tokyo", "misfire": "skip", "overlap": "queue", "jitter": "",
    "queue_name": "low", "priority": "7", "is_enabled": "on",
}  # fmt: skip


@pytest.fixture
def periodic(redisqueue: None, staff: Callable[..., User]) -> Site:
    client = logged_in(staff(*ALL, "view_jobrecord"))
    return Site(client)


@pytest.fixture
def commit(django_capture_on_commit_callbacks: Any) -> Commit:
    """A block at whose end transactions commit."""
    return lambda: django_capture_on_commit_callbacks(execute=True)


def in_redis(name: str) -> ScheduleData:
    """The schedule, which is in only one shard."""
    with all_stores() as stores:
        read = [ScheduleQueries(store.connection).schedule(name) for store in stores]
    (found,) = filter(None, read)
    assert isinstance(found, ScheduleData)
    return found


def names_in_redis() -> list[str]:
    with all_stores() as stores:
        return [name for store in stores for name in ScheduleQueries(store.connection).names()]


def make(commit: Commit, **fields: Any) -> PeriodicJob:
    with commit():
        return PeriodicJob.objects.create(**{"task": tasks.add.name, "args": [1, 2], **fields})


def _send(site: Site, path: str, form: dict[str, str]) -> None:
    """Send a valid form."""
    response = site.client.post(f"/admin/django_redisqueue/periodicjob/{path}/", form)
    assert response.status_code == 302, response.content.decode()


def test_a_row_is_created_changed_and_deleted(periodic: Site, commit: Commit) -> None:
    with commit():
        _send(periodic, "add", FORM)
    found = in_redis("adding")
    assert (found.task, found.queue, found.job.priority) == (tasks.add.name, "low", 7)
    assert found.schedule.timing == "0 4 * * * Asia/Tokyo"
    assert found.job.payload == "[[1,2],{}]"
    row = PeriodicJob.objects.get()
    with commit():
        _send(periodic, f"{row.pk}/change", {**FORM, "args": "[3, 4]"})
    assert in_redis("adding").job.payload == "[[3,4],{}]"
    with commit():
        _send(periodic, f"{row.pk}/delete", {"post": "yes"})
    assert names_in_redis() == []


WRONG = [
    ({"cron": "0 0 30 2 *"}, "cron", "never fires"),
    ({"cron": "daily"}, "cron", "must be five fields"),
    ({"cron": ""}, "cron", "needs either cron or every"),
    ({"every": "5m"}, "cron", "needs either cron or every"),
    ({"cron": "", "timezone": "", "every": "soon"}, "every", "must be seconds, a timedelta"),
    ({"timezone": "Tokyo"}, "timezone", "must be a name in the IANA database"),
    ({"task": "app.tasks.gone"}, "task", "no task &#x27;app.tasks.gone&#x27; is registered"),
    ({"args": "[1]"}, "args", "cannot be called like this"),
    ({"args": "{}", "kwargs": "[]"}, "args", "a list, such as"),
    ({"queue_name": "slow"}, "queue_name", "unknown queue"),
    ({"priority": "1000"}, "priority", "priority must be a whole number from -100 to 100"),
    ({"name": "a b"}, "name", "is not a valid schedule name"),
]


@pytest.mark.parametrize(("fields", "field", "message"), WRONG)
def test_an_invalid_schedule_is_refused_at_its_field(
    periodic: Site, fields: dict[str, str], field: str, message: str
) -> None:
    page = periodic.post("periodicjob_add", **{**FORM, **fields})
    assert message in page
    assert f'id="id_{field}_error"' in page
    assert not PeriodicJob.objects.exists()


def test_the_next_five_runs_are_shown_before_saving(periodic: Site, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    page = _preview(periodic, {**FORM, "cron": "30 4 * * *", "timezone": ""})
    assert page.count("<li>") == page.count("04:30:00 CE") == 5
    assert _preview(periodic, FORM).count("04:00:00 JST") == 5
    assert "never fires" in _preview(periodic, {**FORM, "cron": "0 0 30 2 *"})
    assert not PeriodicJob.objects.exists()
    assert "Preview the next runs" in periodic.get("periodicjob_add")


def _preview(site: Site, form: dict[str, str]) -> str:
    response = site.client.post("/admin/django_redisqueue/periodicjob/preview/", form)
    assert response.status_code == 200
    return response.content.decode()


def test_a_run_that_the_log_lacks_is_no_error_page(periodic: Site, commit: Commit) -> None:
    row = make(commit, name="adding", every="1h")
    with locked_log():
        told = periodic.post("periodicjob_do", row.pk, verb="run")
    assert f"{UNLOGGED} adding: Enqueued as job periodic_" in told


def test_run_now_pause_and_resume(
    periodic: Site, commit: Commit, manual_worker: ManualWorker
) -> None:
    row = make(commit, name="adding", every="1h")
    assert "adding: Enqueued as job periodic_" in periodic.post(
        "periodicjob_do", row.pk, verb="run"
    )
    with commit():
        assert periodic.post("periodicjob_do", row.pk, verb="pause") == "adding: Paused."
    assert in_redis("adding").paused_ms is not None
    page = periodic.text("periodicjob_change", row.pk)
    assert "State paused" in page
    assert "Resume" in page
    with commit():
        assert periodic.post("periodicjob_do", row.pk, verb="resume") == "adding: Resumed."
    assert in_redis("adding").paused_ms is None
    assert [what for _, what in logged()][1:] == ["Paused.", "Resumed."]
    assert logged()[0][1].startswith("Enqueued as job periodic_")
    assert manual_worker.claim_one().payload == "[[1,2],{}]"


def test_actions_on_several(periodic: Site, commit: Commit) -> None:
    rows = [make(commit, name=name, every="1h") for name in "ab"]
    with commit():
        periodic.client.post(
            "/admin/django_redisqueue/periodicjob/",
            {"action": "pause_selected", "_selected_action": [row.pk for row in rows]},
        )
    assert all(in_redis(name).paused_ms for name in "ab")


def test_the_list_shows_what_redis_knows(periodic: Site, commit: Commit) -> None:
    make(commit, name="fine", cron="0 4 * * *")
    make(commit, name="stopped", every="1h", is_enabled=False)
    PeriodicJob.objects.create(name="new", task=tasks.add.name, every="1h")  # not committed
    make(commit, name="wrong", every="1h", args=[])
    page = periodic.text("periodicjob_changelist")
    assert "0 4 * * * enabled" in page
    assert "every 1h paused" in page
    assert "every 1h not in Redis yet" in page
    assert "tests.app.tasks.add cannot be called like this" in page


def test_the_list_shows_why_a_row_has_no_schedule(periodic: Site, commit: Commit) -> None:
    """Rows are not validated when code saves them."""
    make(commit, name="unreadable", cron="61 * * * *")
    make(commit, name="changed", every="1h")
    PeriodicJob.objects.filter(name="changed").update(every="often")
    page = periodic.text("periodicjob_changelist")
    assert "the minute of cron '61 * * * *' cannot be read" in page
    assert "every must be seconds" in page
    assert "not in Redis yet" not in page


def test_a_row_of_the_code_can_only_be_paused_and_run(periodic: Site, commit: Commit) -> None:
    store = Commands(producer_connection(shard_of()))
    store.announce_schedules("set", 60_000)
    code = definition("ping", Every("1h"), task=tasks.add.name, payload="[[1,2],{}]")
    store.define_schedules("set", [(code, 1)])
    row = PeriodicJob.objects.create(name="ping", task=tasks.add.name, every="1h", source="code")
    page = periodic.get("periodicjob_change", row.pk)
    assert 'name="cron"' not in page
    assert "deletelink" not in page
    with commit():
        periodic.post("periodicjob_do", row.pk, verb="pause")
    assert in_redis("ping").paused_ms is not None
    periodic.post("periodicjob_do", row.pk, verb="run")
    delete = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
    periodic.client.post("/admin/django_redisqueue/periodicjob/", delete)
    assert PeriodicJob.objects.filter(name="ping").exists()
    with commit():
        PeriodicJob.objects.create(name="own", task=tasks.add.name, args=[1, 2], every="2h")
    store.define_schedules("set", [(definition("own"), 1)])
    assert "the code defines a schedule with this name" in periodic.text("periodicjob_changelist")


def test_its_runs_are_listed(periodic: Site, commit: Commit) -> None:
    row = make(commit, name="adding", every="1h")
    for hour in (3, 4):
        due = datetime(2025, 5, 1, hour, tzinfo=UTC)
        JobRecord.objects.create(
            id=periodic_job_id("adding", round(due.timestamp() * 1000)), task=tasks.add.name,
            queue="default", status="completed", enqueued_at=due, started_at=due,
            finished_at=due,
        )  # fmt: skip
    page = periodic.text("periodicjob_change", row.pk)
    assert page.index("2025-05-01 04:00:00") < page.index("2025-05-01 03:00:00")


def test_permissions(redisqueue: None, staff: Callable[..., User], commit: Commit) -> None:
    row = make(commit, name="adding", every="1h")
    for permissions in ((), ("view_periodicjob",)):
        client = logged_in(staff(*permissions, name=f"user{len(permissions)}"))
        base = "/admin/django_redisqueue/periodicjob/"
        assert client.post(f"{base}{row.pk}/do/", {"verb": "run"}).status_code == 403
        assert client.post(f"{base}preview/", FORM).status_code == 403
        assert client.post(f"{base}add/", FORM).status_code == 403
        expected = 200 if permissions else 403
        response = client.get(f"{base}{row.pk}/change/")
        assert response.status_code == expected
        assert "Run now" not in response.content.decode()
    assert names_in_redis() == ["adding"]


def test_when_redis_is_down_a_message_says_so_and_nothing_is_lost(
    periodic: Site, commit: Commit, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    row = make(commit, name="adding", every="1h")
    assert "a change of schedules reaches Redis later" in caplog.text
    assert "nonexistent" in periodic.text("periodicjob_changelist")
    assert "nonexistent" in periodic.post("periodicjob_do", row.pk, verb="run")


def test_a_row_by_hand_is_checked_by_full_clean() -> None:
    with pytest.raises(ValidationError, match="never fires"):
        PeriodicJob(name="a", task=tasks.add.name, cron="0 0 30 2 *").clean()


def test_a_row_that_was_not_validated_is_reported_at_its_commit(
    periodic: Site, commit: Commit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    make(commit, name="nightly", cron="61 * * * *")
    expected = "the schedule nightly does not run as its row says: the minute of cron '61 * * * *'"
    assert expected in caplog.text
    assert "reaches Redis later" not in caplog.text
