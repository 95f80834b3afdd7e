"""Fill a site with data and request its pages; print the milliseconds of each page, as JSON."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import django
from django.db import connection

from .measure import timed

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import reverse  # noqa: E402
from django.utils import timezone  # noqa: E402

from django_redisqueue.broker.commands import ClaimRequest, Commands  # noqa: E402
from django_redisqueue.broker.connection import worker_connection  # noqa: E402
from django_redisqueue.broker.keys import Keys  # noqa: E402
from django_redisqueue.broker.replies import Outcome, OutcomeKind  # noqa: E402
from django_redisqueue.core.records import WorkerReport  # noqa: E402
from django_redisqueue.metrics.histograms import add, encode  # noqa: E402
from django_redisqueue.metrics.rollups import floor  # noqa: E402
from django_redisqueue.models import ErrorGroup, JobEvent, JobRecord, Rollup  # noqa: E402

from .project import tasks  # noqa: E402

ERROR = json.dumps({"type": "OSError", "message": "no route", "traceback": "Traceback\n" * 20})
TASKS = [f"shop.tasks.task_{n}" for n in range(5)]
STATUSES = ["completed"] * 90 + ["failed"] * 10
NOW = timezone.now()
GROUPS = 10_000
GATHERS = 10_000
ROUNDS = 40
CHILDREN = 8  # of each worker that run jobs
WARM = 3


def fill_records(count: int) -> None:
    """Create a week's records, with ids in chronological order."""
    fields = ("id", "task", "queue", "status", "payload", "error", "error_group", "worker",
              "correlation_id", "enqueued_at", "started_at", "finished_at")  # fmt: skip
    rest = {"priority": 0, "result": "", "error_type": "", "tags": "", "reason": "", "progress": "",
            "attempts": 1, "requeues": 0, "epoch": 0, "seq": 3}  # fmt: skip
    columns = ", ".join([*fields, *rest])
    marks = ", ".join(["%s"] * len(fields) + ["%s"] * len(rest))
    chance = random.Random(1)
    step = timedelta(days=7) / count

    def rows() -> Iterator[tuple[Any, ...]]:
        for n in range(count):
            at = NOW - step * (count - n)
            text = at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
            status = chance.choice(STATUSES)
            yield (
                f"job_{int(at.timestamp() * 1000)}_{n:010}_0", chance.choice(TASKS),
                "default" if n % 5 else "low", status, f'[["de/django-{n}.po"],{{"limit":{n}}}]',
                *((ERROR, group(n)) if status == "failed" else ("", None)),
                "box-1.aaaaaaaa.1.1.1", f"request-{n // 5}", text, text, text, *rest.values(),
            )  # fmt: skip

    sql = f"INSERT INTO {JobRecord._meta.db_table} ({columns}) VALUES ({marks})"
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")  # these rows need not survive a crash
        cursor.execute("PRAGMA cache_size=-200000")
        left = rows()
        while batch := list(islice(left, 20_000)):
            cursor.executemany(sql, batch)
    connection.close()  # measure with the usual settings


def group(n: int) -> str:
    """The error group of a record: half of all records are in the same one."""
    return f"{n % GROUPS if n % 2 else 0:032x}"


def fill_errors() -> None:
    """Create error groups, each with a count in every hour of the last week."""
    hour = int(NOW.timestamp()) // 3600
    hours = json.dumps({str(hour - ago): 5 for ago in range(168)})
    ErrorGroup.objects.bulk_create(
        (
            ErrorGroup(
                id=f"{n:032x}", task=TASKS[n % 5], exception="shop.errors.CardRefused",
                message=f"card of customer <n> refused by {n}", frame="shop/tasks.py in charge",
                queues=" default low ", count=n, first_seen=NOW - timedelta(days=7),
                last_seen=NOW - timedelta(seconds=n), hours=hours, error=ERROR,
            )
            for n in range(GROUPS)
        ),
        batch_size=1000,
    )  # fmt: skip


def fill_figures() -> None:
    """Create a week's rollup rows for two queues with five tasks each, merged as they age."""
    chance = random.Random(2)

    def histogram() -> str:
        counts: list[int] = []
        for _ in range(100):
            add(counts, chance.lognormvariate(5, 2))
        return encode(counts)

    steps = [timedelta(minutes=1)] * 120 + [timedelta(minutes=10)] * 144
    steps += [timedelta(hours=1)] * 170
    at, rows = floor(NOW, timedelta(minutes=1)), []
    for step in steps:
        at = floor(at - timedelta(seconds=1), step)
        rows += [
            Rollup(
                minute=at,
                queue=queue,
                task=task,
                enqueued=100,
                completed=100,
                wait=histogram(),
                run=histogram(),
            )
            for queue in ("default", "low")
            for task in TASKS
        ]
    Rollup.objects.bulk_create(rows, batch_size=1000)


def fill_redis(failed: int, workers: int) -> None:
    commands = Commands(worker_connection())
    claim_request = ClaimRequest("filler", ("default",))
    tasks.noop.enqueue_many([(f"de/django-{n}.po",) for n in range(failed)])
    claim, call = commands.claim(claim_request, 1, 64), 1
    while claim.jobs:
        call += 1
        outcomes = [
            Outcome(job.id, job.lease, job.call, OutcomeKind.FAILED, ERROR) for job in claim.jobs
        ]
        _, claim = commands.finish(claim_request, call, outcomes, 64)
    tasks.noop.enqueue_many([(n,) for n in range(workers)])
    for n in range(workers):
        worker = f"box-{n}.aaaaaaaa.{n}.1"
        memory = dict.fromkeys([*map(str, range(CHILDREN)), "maintenance8", "bridge9"], 60_000_000)
        report = WorkerReport(
            f"box-{n}", "0.2.0", int(NOW.timestamp() * 1000), "running", ("default", "low"),
            CHILDREN, 1, memory,
        )  # fmt: skip
        commands.heartbeat([f"{worker}.{one}" for one in memory], (), (), worker, report.text())
        commands.claim(ClaimRequest(f"{worker}.0", ("default",)), 1, 1)


def fill_gathers() -> None:
    """Start gathers of two listeners each, whose jobs no longer exist."""
    connection, keys = worker_connection(), Keys()
    plan = {
        "payload": "[[],{}]", "status": "collecting", "threshold": 1, "listeners": "users funds",
        "polls": 1, "made_ms": 1,
    }  # fmt: skip
    fields = [part for pair in plan.items() for part in pair]
    for n in range(GATHERS):
        key = f"report-{n}"
        connection.pipeline(
            [
                ("ZADD", keys.newest_gathers, n, key),
                ("HSET", keys.gather_plan(key), "id", f"gather_1_{n}_0", *fields),
            ]
        )


def pages(failed: int) -> dict[str, str]:
    """The names and URLs of the pages."""
    base = "admin:django_redisqueue_"
    middle = (NOW - timedelta(days=3)).replace(tzinfo=None).isoformat(timespec="seconds")
    errors, largest = reverse(f"{base}errors"), f"{0:032x}"
    records, overview = reverse(f"{base}jobrecord_changelist"), reverse(f"{base}overview")
    queue = reverse(f"{base}queue", args=["default", "failed"])
    search, gathers = reverse(f"{base}search"), reverse(f"{base}gathers")
    first = JobRecord.objects.order_by("-enqueued_at")[0].id
    JobEvent.objects.bulk_create(
        JobEvent(job_id=first, status="processing", queue="q", task="t", at=NOW, entry_ms=n)
        for n in range(500)
    )
    after = f"{int(datetime.now(UTC).timestamp() * 1e6) - 3 * 86_400_000_000}.job_x"
    return {
        "overview, 1 hour": overview,
        "overview, 7 days": f"{overview}?span=7d",
        "overview, what is live": reverse(f"{base}overview_live"),
        "charts, 7 days": reverse(f"{base}overview_charts") + "?span=7d",
        "workers": reverse(f"{base}workers"),
        "workers, what is live": reverse(f"{base}workers") + "?live=1&page=40",
        "tasks, 1 hour": reverse(f"{base}tasks"),
        "tasks, 7 days": reverse(f"{base}tasks") + "?span=7d&q=shop",
        "one task, 7 days": reverse(f"{base}task") + f"?span=7d&name={TASKS[0]}",
        "failed jobs, first page": queue,
        "failed jobs, deep in the list": f"{queue}?start={failed - 100}",
        "failed jobs, text without a match": f"{queue}?text=nowhere",
        "one job with 500 events": reverse(f"{base}job", args=[first]),
        "errors": errors,
        "errors, deep in the list": f"{errors}?start={GROUPS - 100}",
        "errors, most often": f"{errors}?order=count",
        "errors, text without a match": f"{errors}?text=nowhere",
        "errors, of a task and a queue": f"{errors}?task=task_1&queue=low",
        "one error of many jobs": reverse(f"{base}error", args=[largest]),
        "records": records,
        "records, three days back": f"{records}?after={after}",
        "records, failed": f"{records}?status=failed",
        "records, of a queue": f"{records}?queue=low",
        "records, failed of a queue": f"{records}?status=failed&queue=low",
        "records, failed of a task": f"{records}?status=failed&task={TASKS[0]}",
        "records, of an unknown task": f"{records}?task=shop.tasks.none",
        "records, of a queue and a task": f"{records}?queue=low&task={TASKS[1]}",
        "records, until three days ago": f"{records}?until={middle}",
        "records, text without a match": f"{records}?text=nowhere",
        "records, cancelled (none)": f"{records}?status=cancelled",
        "records, text, status and queue": f"{records}?text=po&status=failed&queue=low",
        "records, of a correlation id": f"{records}?correlation=request-7",
        "records, of that id and a status": f"{records}?correlation=request-7&status=failed",
        "search, a key of a gather": f"{search}?q=report-7",
        "search, text without a match": f"{search}?q=nowhere",
        "gathers": gathers,
        "gathers, released (none)": f"{gathers}?status=released",
        "gathers, a key deep in the list": f"{gathers}?key=report-7&start=9000",
        "records, by an id's prefix": f"{records}?id={first[:12]}",
        "records, by a prefix of all ids": f"{records}?id=job_",
    }


def main(records: int, failed: int, workers: int) -> None:
    fill_records(records)
    fill_errors()
    fill_figures()
    fill_redis(failed, workers)
    fill_gathers()
    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    found: dict[str, list[float]] = {}
    for name, address in pages(failed).items():

        def visit(address: str = address) -> None:
            response = client.get(address)
            if response.status_code != 200:
                raise RuntimeError(f"{address}: {response.status_code}")

        found[name] = [timed(visit) * 1000 for _ in range(WARM + ROUNDS)][WARM:]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
