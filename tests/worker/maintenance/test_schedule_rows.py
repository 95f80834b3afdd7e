"""Rows of PeriodicJob and schedules in Redis are kept in sync, whichever of them changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Cron, Every, task
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.client.placement import shard_of_schedule
from django_redisqueue.client.schedules import code_schedules, define, drop, pause, run_now
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_key
from django_redisqueue.core.redaction import REDACTED
from django_redisqueue.core.schedules import Schedule, ScheduleData, Source
from django_redisqueue.exceptions import InvalidOption
from django_redisqueue.models import PeriodicJob
from django_redisqueue.worker.maintenance.schedules import ScheduleDeployment, ScheduleRows
from tests.app import tasks
from tests.support.round_trips import calls_of

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.one_shard("the maintenance of one shard, but for the test that says how many"),
]


@task(redact=("card",))
def charge(card: str, amount: int = 1) -> None: ...


class Shard:
    """A worker's maintenance, run by the test."""

    def __init__(self, number: int = 0) -> None:
        self.store = Commands(producer_connection(number))
        self.queries = ScheduleQueries(producer_connection(number))
        self.store.now_ms = self.queries.now_ms()
        self.deploy()

    def deploy(self, **schedules: Schedule) -> None:
        """Start a worker whose code has these schedules of one task."""
        code = [
            define(name, Source.CODE, tasks.add.name, one, [1, 2])
            for name, one in schedules.items()
        ]
        self.deploy_code(ScheduleDeployment(self.store, code))

    def deploy_code(
        self, deployment: ScheduleDeployment, places: Mapping[str, int] | None = None
    ) -> None:
        assert self.store.now_ms is not None
        self.store.now_ms += 1
        deployment.run_once()
        self.rows = ScheduleRows(self.store, deployment.digest, places or {})

    def sync(self) -> None:
        self.rows.run_once()

    def read(self, name: str) -> ScheduleData:
        found = self.queries.schedule(name)
        assert isinstance(found, ScheduleData)
        return found


@pytest.fixture
def shard(queue_settings: dict[str, Any]) -> Shard:
    return Shard()


def make(name: str = "row", **fields: Any) -> PeriodicJob:
    """A row that did not reach Redis when it was saved."""
    return PeriodicJob.objects.create(
        **{"name": name, "task": tasks.add.name, "args": [1, 2], "every": "1h", **fields}
    )


def test_a_row_that_did_not_reach_redis_is_sent_again(shard: Shard) -> None:
    row = make(overlap="skip")
    make("paused", is_enabled=False)
    shard.sync()
    assert shard.read("row").schedule == Every("1h", overlap="skip")
    assert shard.read("row").paused_ms is None
    assert shard.read("paused").paused_ms is not None
    row.every = "2h"
    row.save()
    shard.sync()
    assert shard.read("row").schedule.timing == "2h"
    row.delete()
    shard.sync()
    assert shard.queries.names() == ["paused"]


def test_a_redis_that_lost_everything_gets_the_rows_again(shard: Shard, redis: Any) -> None:
    shard.deploy(code=Every("1h"))
    make()
    shard.sync()
    PeriodicJob.objects.update(is_enabled=False)
    redis.flushdb()
    shard.sync()  # its code must define its schedules first: no row is lost meanwhile
    assert PeriodicJob.objects.count() == 2
    shard.deploy(code=Every("1h"))
    shard.sync()
    assert {shard.read(name).paused_ms is None for name in ("code", "row")} == {False}


def test_schedules_of_the_code_have_rows(shard: Shard) -> None:
    shard.deploy(a=Cron("0 4 * * *", timezone="Asia/Tokyo", misfire="all"), b=Every("5m"))
    shard.sync()
    a, b = PeriodicJob.objects.order_by("name")
    assert (a.source, a.cron, a.timezone, a.misfire) == ("code", "0 4 * * *", "Asia/Tokyo", "all")
    assert (a.task, a.args, a.kwargs) == (tasks.add.name, [1, 2], {})
    assert (b.every, b.cron, b.queue_name) == ("5m", "", "default")
    PeriodicJob.objects.filter(name="b").update(is_enabled=False)
    shard.deploy(b=Every("10m"), c=Every("1m"))
    shard.sync()
    rows = [(row.name, row.every, row.is_enabled) for row in PeriodicJob.objects.order_by("name")]
    assert rows == [("b", "10m", False), ("c", "1m", True)]
    assert shard.read("b").paused_ms is not None


def test_a_paused_row_does_not_pause_a_schedule_of_the_same_name_in_code(shard: Shard) -> None:
    """As when a team moves a schedule from the admin into code."""
    make(is_enabled=False)
    shard.sync()
    shard.deploy(row=Every("5m"))
    shard.sync()
    found = shard.read("row")
    assert (found.source, found.paused_ms) == (Source.CODE, None)
    assert found.next_ms == Every("5m").after(shard.store.now_ms or 0)
    PeriodicJob.objects.get().delete()
    shard.sync()
    row = PeriodicJob.objects.get()
    assert (row.source, row.every, row.is_enabled) == ("code", "5m", True)


def test_a_row_shows_as_much_of_a_cron_expression_as_fits(shard: Shard) -> None:
    """PostgreSQL would otherwise refuse it, and with it all rows after it."""
    minutes = ",".join(map(str, range(0, 60, 2)))
    shard.deploy(row=Cron(f"{minutes} 6,7,8,9,10,11,12,13 * * *", timezone="UTC"))
    shard.sync()
    shown = PeriodicJob.objects.get().cron
    assert len(shown) == 100
    assert shown.startswith("0,2,4")
    assert shown.endswith("…")


@pytest.mark.parametrize("every", [300, timedelta(minutes=5), "5m"])
def test_a_row_accepts_every_duration(shard: Shard, every: object) -> None:
    make(every=every, jitter=60)
    shard.sync()
    row = PeriodicJob.objects.get()
    assert (row.every, row.jitter) == ("5m", "1m")
    assert shard.read("row").schedule.timing == "5m"
    valid = PeriodicJob(name="valid", task=tasks.add.name, args=[1, 2], every=every, jitter=60)
    valid.full_clean()
    assert (valid.every, valid.jitter) == ("5m", "1m")


def test_old_code_does_not_touch_the_rows(shard: Shard) -> None:
    shard.deploy(a=Every("1h"))
    old = shard.rows
    shard.deploy(b=Every("1h"), c=Every("1h"))
    shard.sync()
    old.run_once()
    assert list(PeriodicJob.objects.order_by("name").values_list("name", flat=True)) == ["b", "c"]


def test_redacted_arguments_are_not_shown(shard: Shard) -> None:
    code = define("charge", Source.CODE, charge.name, Every("1h"), ["4242"], {"amount": 5})
    shard.deploy_code(ScheduleDeployment(shard.store, [code]))
    shard.sync()
    row = PeriodicJob.objects.get()
    assert (row.args, row.kwargs) == ([REDACTED], {"amount": 5})
    assert "4242" in shard.read("charge").job.payload


def test_a_row_whose_task_is_gone_shows_its_error_and_the_others_run(
    shard: Shard, caplog: pytest.LogCaptureFixture
) -> None:
    make("gone", task="app.gone")
    make("broken", every="now and then")
    make("number", args=5)
    make()
    shard.sync()
    assert "no task 'app.gone' is registered" in shard.read("gone").error
    assert not shard.read("row").is_stopped
    assert "the schedule broken does not run as its row says: every must be" in caplog.text
    assert "the schedule number does not run as its row says: args must be a list" in caplog.text


@pytest.mark.one_server("looks at its server's clients and commands")
def test_nothing_is_compared_while_nothing_changes(shard: Shard, redis: Any) -> None:
    make()
    shard.sync()
    before = calls_of(redis, "hgetall")
    for _ in range(3):
        shard.sync()
    assert calls_of(redis, "hgetall") == before


@pytest.mark.one_server("looks at its server's clients and commands")
def test_at_rest_redis_is_only_asked_if_a_row_has_changed(
    shard: Shard, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    shard.rows = ScheduleRows(shard.store, shard.rows._set_digest, is_quiet=lambda: True)
    shard.sync()
    redis.config_resetstat()
    for _ in range(3):
        shard.sync()
    assert calls_of(redis, "hget") == 0
    make("another")
    shard.sync()
    assert not shard.read("another").is_stopped
    shard.store.remove_schedules("", ["another"])  # by other means
    shard.sync()
    assert "another" not in shard.queries.names()
    shard.rows._full_at = 0.0
    shard.sync()
    assert "another" in shard.queries.names()


def test_run_now(shard: Shard) -> None:
    make(jitter="5m")
    shard.sync()
    pause("row", True)
    job = run_now("row")
    assert (job.status.value, job.args, job.task_name) == ("queued", (1, 2), tasks.add.name)
    assert run_now("row").id != job.id
    with pytest.raises(InvalidOption, match="the schedule never cannot be run: it is not in Redis"):
        run_now("never")
    make("gone", task="app.gone")
    shard.sync()
    with pytest.raises(InvalidOption, match=r"cannot be run: no task 'app\.gone'"):
        run_now("gone")


def test_a_schedule_is_in_one_of_several_shards(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    """Each shard's maintenance sees all rows and all code."""
    queues = [f"q{n}" for n in range(8)]
    code = {
        f"code.{queue}": {"task": tasks.noop.name, "every": "1h", "queue_name": queue}
        for queue in queues
    }
    settings.REDISQUEUE = {
        **queue_settings, "SHARDS": 4, "QUEUES": {name: {} for name in queues}, "SCHEDULES": code,
    }  # fmt: skip
    coded = [one for one in code_schedules() if one.name in code]
    places = {one.name: shard_of_schedule(one.name, one.job, get_settings()) for one in coded}
    for queue in queues:
        make(f"row.{queue}", queue_name=queue)
    shards = [Shard(number) for number in range(4)]
    for number, shard in enumerate(shards):
        mine = [one for one in coded if places[one.name] == number]
        shard.deploy_code(ScheduleDeployment(shard.store, mine), places)
    expected = {
        number: sorted(
            name
            for queue in queues
            for name in (f"code.{queue}", f"row.{queue}")
            if shard_of_key(queue, 4) == number
        )
        for number in range(4)
    }
    for _ in range(2):
        for shard in shards:
            shard.sync()
        assert {n: sorted(shard.queries.names()) for n, shard in enumerate(shards)} == expected
        known = dict(PeriodicJob.objects.values_list("name", "pk"))
        assert sorted(known) == sorted(name for names in expected.values() for name in names)
    PeriodicJob.objects.filter(name="row.q0").update(queue_name="q1")
    for shard in shards:
        shard.rows._full_at = 0.0
        shard.sync()
    found = [name for shard in shards for name in shard.queries.names()]
    assert sorted(found) == sorted(known)
    assert "row.q0" in shards[shard_of_key("q1", 4)].queries.names()
    assert dict(PeriodicJob.objects.values_list("name", "pk")) == known


@pytest.mark.parametrize("verb", ["create", "change", "delete"])
def test_what_the_admin_saves_during_a_comparison_is_compared_next_time(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The comparison had read the rows before, so it restores their state in Redis."""
    if verb != "create":
        make()
        shard.sync()
        make("other")  # so that there is something to compare
    names = ScheduleQueries.names

    def save_first(queries: ScheduleQueries) -> list[str]:
        monkeypatch.setattr(ScheduleQueries, "names", names)
        if verb == "create":
            make().put()
        elif verb == "change":
            row = PeriodicJob.objects.get(name="row")
            row.every = "2h"
            row.save()
            row.put()
        else:
            PeriodicJob.objects.get(name="row").delete()
            drop("row")
        return queries.names()

    monkeypatch.setattr(ScheduleQueries, "names", save_first)
    shard.sync()
    shard.sync()
    found = shard.queries.schedule("row")
    expected = {"create": "1h", "change": "2h", "delete": None}[verb]
    assert (found.schedule.timing if isinstance(found, ScheduleData) else None) == expected
