"""``queuemonitor --once`` and its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management.base import CommandError

from django_redisqueue import JobQueue
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Source
from tests.app import tasks
from tests.broker.schedules import definition
from tests.support.commands import output_of
from tests.support.manual_worker import ManualWorker

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def monitor(*arguments: str) -> str:
    return output_of("queuemonitor", "--once", *arguments)


@pytest.fixture
def busy(queue_settings: dict[str, Any], settings: Any) -> Iterator[ManualWorker]:
    """1,002 queued, 1 waits for another, 1 processing, 1 completed, 1 failed; low is paused."""
    settings.REDISQUEUE = {**queue_settings, "QUEUES": {"default": {}, "low": {}}}
    manual_worker = ManualWorker()
    last = tasks.noop.enqueue_many([()] * 1005)[-1]
    tasks.noop.using(after=last).enqueue()
    manual_worker.store.heartbeat([manual_worker.claim_request.child])
    manual_worker.complete_one()
    manual_worker.fail_one()
    manual_worker.claim_one()
    JobQueue("low").pause(by="ann")
    yield manual_worker
    manual_worker.close()


def test_the_table(busy: ManualWorker) -> None:
    lines = [line.split() for line in monitor().splitlines()]
    assert lines[0] == [
        "queue", "queued", "processing", "scheduled", "waiting", "retrying", "completed", "failed",
        "cancelled", "in/s", "out/s", "oldest",
    ]  # fmt: skip
    assert lines[1][:11] == ["default", "1,002", "1", "0", "1", "0", "1", "1", "0", "-", "-"]
    assert lines[2][:3] == ["low", "(paused)", "0"]
    assert lines[4] == ["1", "children", "of", "workers", "alive"]
    assert " ".join(lines[5]).startswith("WARNING: Queue low was paused ")
    assert " by ann. Resume it" in " ".join(lines[5])
    assert lines[-1][0] == busy.claim_request.child
    assert "tests.app.tasks.noop" in lines[-1]


def test_json(busy: ManualWorker) -> None:
    found = json.loads(monitor("--json", "--queue", "default"))
    (queue,) = found["queues"]
    assert queue["name"] == "default"
    assert queue["counts"] == {
        "queued": 1002, "processing": 1, "completed": 1, "failed": 1, "cancelled": 0,
        "scheduled": 0, "retrying": 0, "waiting": 1,
    }  # fmt: skip
    assert (queue["totals"]["completed"], queue["totals"]["failed"]) == (1, 1)
    assert (queue["paused"], queue["inPerSecond"]) == (False, None)
    assert 0 <= queue["oldestSeconds"] < 60
    assert found["health"]["status"] == "ok", "low was not asked for"
    assert [each["id"] for each in found["health"]["findings"]] == ["mirror_off"]
    (child,) = found["workers"]["shown"]
    assert (found["workers"]["children"], found["workers"]["alive"]) == (1, 1)
    assert (child["task"], child["held"]) == ("tests.app.tasks.noop", 1)
    assert 0 < child["leaseSeconds"] <= 15


def test_policies(busy: ManualWorker) -> None:
    for name in ("job_1", "job_2"):
        busy.store.enqueue(
            [
                NewJob(
                    name, "low", "t", "[[],{}]", unique=f"{name}\x1b until_finished - -",
                    lane="|c:\x1b:42 c:\x1b=1",
                )
            ]
        )  # fmt: skip
    JobQueue("low").resume()
    manual_worker = ManualWorker("low")
    manual_worker.claim_one()
    manual_worker.claim()
    manual_worker.close()
    schedule = definition("report", source=Source.ADMIN)
    busy.store.define_schedules("", [(schedule, 1_760_000_000_000)])
    manual_worker = ManualWorker("parking")
    for name, event, due in (("job_3", "paid:42", ""), ("job_4", "", "9000000000000")):
        manual_worker.store.enqueue([NewJob(name, "parking", "t", "[[],{}]")])
        manual_worker.settle(manual_worker.claim_one(), "parked", event, due)
    manual_worker.close()
    lines = monitor().splitlines()
    assert any(line.startswith(r"limits: \x1b:42 1 of 1, 1 lane parked, oldest ") for line in lines)
    assert "unique keys: 2" in lines
    assert "schedules: 1, 1 late (report), next report now" in lines
    assert "waits: 1 for events, 1 asleep" in lines
    found = json.loads(monitor("--json"))["policies"]
    assert found["uniqueKeys"] == 2
    assert (found["schedules"]["total"], found["schedules"]["paused"]) == (1, 0)
    assert found["schedules"]["due"][0]["name"] == "report"
    assert found["schedules"]["late"][0]["name"] == "report"
    assert found["schedules"]["late"][0]["seconds"] > 60
    assert found["waits"] == {"event": 1, "approval": 0, "sleep": 1}
    (limit,) = found["limits"]
    assert (limit["used"], limit["most"], limit["holders"]) == (1, 1, ["job_1"])
    assert limit["parkedLanes"] == 1


def test_without_workers(queue_settings: dict[str, Any]) -> None:
    assert "no worker is alive: start one with manage.py runworker" in monitor()


def test_without_redis_it_raises_a_clear_error(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    with pytest.raises(CommandError, match=r"/nonexistent/redis.sock does not answer"):
        monitor()


def test_a_dead_shard_is_named_and_the_others_are_counted(
    queue_settings: dict[str, Any], settings: Any
) -> None:
    urls = [queue_settings["CONNECTION"]["URL"], "unix:///nonexistent/redis.sock"]
    settings.REDISQUEUE = {**queue_settings, "SHARDS": 4, "CONNECTION": {"URL": urls}}
    for shard in (0, 2):
        job = NewJob(new_job_id(shard), "default", "t", "[[],{}]")
        Commands(producer_connection(shard)).enqueue([job])
    text = monitor()
    assert text.splitlines()[1].split()[:2] == ["default", "2"]
    assert "ERROR: Shards 1, 3 do not answer, so their jobs are not shown" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queue", "nope"], "unknown queue 'nope'; REDISQUEUE[\"QUEUES\"] has: default"),
        (["--queue", ","], "name at least one queue"),
        (["--interval", "0"], "must be 0.1 seconds or more, not '0'"),
        (
            ["--interval", "soon"],
            "must be zero or more seconds, or a duration such as 90s, not 'soon'",
        ),
    ],
)
def test_bad_arguments(queue_settings: dict[str, Any], arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        monitor(*arguments)
    assert words in str(caught.value)
