"""A page costs the same number of queries and round trips for ten rows and for a thousand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_redisqueue import Workflow
from django_redisqueue.broker.base import slices
from django_redisqueue.broker.commands import Commands
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Source
from django_redisqueue.health.facts import OUTBOX_ROWS
from django_redisqueue.models import (
    ErrorGroup,
    JobEvent,
    JobRecord,
    Rollup,
    WorkflowEvent,
    WorkflowRecord,
)
from tests.app import tasks
from tests.broker.schedules import definition
from tests.support.manual_worker import ManualWorker
from tests.support.round_trips import round_trips

from .site import Site

Page = tuple[str, ...]
PAGES: list[tuple[Page, dict[str, object]]] = [
    (("overview",), {}),
    (("overview",), {"span": "7d"}),
    (("overview_live",), {}),
    (("overview_charts",), {"span": "24h"}),
    (("queue", "default", "failed"), {}),
    (("queue", "default", "queued"), {}),
    (("queue", "default", "failed"), {"text": "no such text"}),
    (("job", "job_0"), {}),
    (("jobrecord_changelist",), {}),
    (("jobrecord_changelist",), {"status": "failed", "queue": "default"}),
    (("jobrecord_changelist",), {"queue": "default"}),
    (("jobrecord_changelist",), {"text": "no such text"}),
    (("jobrecord_changelist",), {"id": "job_"}),
    (("errors",), {}),
    (("errors",), {"order": "count", "task": "a", "text": "no", "queue": "default"}),
    (("error", "group1"), {}),
    (("overview",), {"queue": "default", "task": "a.b", "scale": "log"}),
    (("tasks",), {}),
    (("tasks",), {"sort": "failed", "live": 1}),
    (("task",), {"name": "a.b"}),
    (("workers",), {}),
    (("workers",), {"page": 2, "live": 1}),
    (("limits",), {}),
    (("unique_keys",), {}),
    (("unique_keys",), {"key": "key7"}),
    (("schedules",), {}),
    (("waits",), {"kind": "approval"}),
    (("search",), {"q": "g1"}),
    (("gathers",), {}),
    (("gathers",), {"status": "collecting", "key": "g"}),
    (("gather", "g1"), {}),
    (("workflows",), {}),
    (("workflows",), {"name": "n", "status": "failed"}),
    (("workflows",), {"name": "n"}),
    (("workflow", "flow_1_0"), {}),
    (("workflow", "flow_1_0"), {"status": "failed"}),
]
UNIQUE = "until_finished - -"
# Upper limits: two of the queries are for the session and the user, and four of the round trips are
# only made while lanes are parked.
QUERIES, TRIPS = 16, 14


@pytest.fixture
def cost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Page, dict[str, object]], tuple[int, int]]:
    def measure(page: Page, query: dict[str, object]) -> tuple[int, int]:
        with round_trips(monkeypatch) as made, CaptureQueriesContext(connection) as queries:
            site.get(*page, **query)
        # Django opens a savepoint for statements that may fail within the test's own transaction.
        asked = [query for query in queries if "SAVEPOINT" not in query["sql"]]
        return len(asked), len(made)

    return measure


def limits(store: Commands, numbers: range) -> None:
    """A limit for each number, with a stuck slot and a parked lane."""
    keys = store.keys
    for n in numbers:
        store.connection.pipeline(
            [
                ("ZADD", keys.slots, 0, f"c:l:{n} job_{n}"),
                ("ZADD", keys.waiting_limits, 0, f"c:l:{n} low"),
                ("ZADD", keys.queue("low").parked_at(f"c:l:{n}"), 0, "|c:l:1"),
            ]
        )


def gathers(store: Commands, numbers: range) -> None:
    """Gathers of three listeners, whose jobs are gone."""
    keys = store.keys
    plan = {
        "payload": "[[],{}]", "status": "collecting", "threshold": 1, "listeners": "a b c",
        "polls": 1, "made_ms": 1,
    }  # fmt: skip
    fields = [part for pair in plan.items() for part in pair]
    for n in numbers:
        store.connection.pipeline(
            [
                ("ZADD", keys.newest_gathers, n, f"g{n}"),
                ("HSET", keys.gather_plan(f"g{n}"), "id", f"gather_1_{n}_0", *fields),
            ]
        )


def fill(manual_worker: ManualWorker, first: int, last: int) -> None:
    """Failed and queued jobs, workers that run some of them, records, events and rollups."""
    store = Commands(manual_worker.connection)
    numbers = range(first, last)
    tasks.noop.enqueue_many([(n,) for n in numbers])
    for _ in numbers:
        manual_worker.fail_one()
    tasks.noop.enqueue_many([(n,) for n in numbers])
    store.heartbeat([f"w.aaaaaaaa.1.1.{n}" for n in numbers])
    store.enqueue(
        [NewJob(f"own_{n}", "low", "t", "[[],{}]", unique=f"key{n} {UNIQUE}") for n in numbers][
            :100
        ]
    )
    limits(store, numbers)
    gathers(store, numbers)
    for part in slices(numbers):
        store.define_schedules("", [(definition(f"s{n}", source=Source.ADMIN), n) for n in part])
    now = timezone.now()
    JobRecord.objects.bulk_create(
        JobRecord(
            id=f"job_{n}", task="a.b", queue="default", status="failed", payload="[[],{}]",
            enqueued_at=now - timedelta(seconds=n), error_group="group1",
        )
        for n in numbers
    )  # fmt: skip
    ErrorGroup.objects.bulk_create(
        ErrorGroup(
            id=f"group{n}", task="a.b", exception="E", message="no", queues=" default ",
            first_seen=now, last_seen=now, hours="{}", error='{"type":"E","message":"no"}',
        )
        for n in numbers
    )  # fmt: skip
    JobEvent.objects.bulk_create(
        JobEvent(job_id="job_0", status="queued", queue="q", task="t", at=now, entry_ms=n)
        for n in numbers
    )
    WorkflowRecord.objects.bulk_create(
        WorkflowRecord(
            id=f"flow_{n}_0", name="n", status="failed", made_at=now - timedelta(seconds=n)
        )
        for n in numbers
    )
    WorkflowEvent.objects.bulk_create(
        WorkflowEvent(workflow_id="flow_1_0", status="paused", at=now, entry_ms=n) for n in numbers
    )
    Rollup.objects.bulk_create(
        Rollup(minute=now - timedelta(minutes=n), queue="default", task="a.b", completed=1)
        for n in numbers
    )


@pytest.mark.slow
def test_the_cost_of_a_page_does_not_depend_on_the_number_of_rows(
    site: Site,
    manual_worker: ManualWorker,
    cost: Callable[[Page, dict[str, object]], tuple[int, int]],
) -> None:
    fill(manual_worker, 0, 60)  # more than a page, so that there is a next page both times
    site.get("overview")  # content types and scripts are cached from now on
    small = [cost(*page) for page in PAGES]
    fill(manual_worker, 60, 1000)
    large = [cost(*page) for page in PAGES]
    for (page, query), before, after in zip(PAGES, small, large, strict=True):
        if query.get("text") and page[0] == "queue":
            assert after[1] <= before[1] + 6, "a scan looks at four chunks at the most"
        else:
            assert after == before, (page, query)
        assert after[0] <= QUERIES, (page, query)
        assert after[1] <= TRIPS, (page, query)


def test_no_page_counts_rows(site: Site, redisqueue: None) -> None:
    for page, query in PAGES:
        if page[0] in ("jobrecord_changelist", "workflows"):
            with CaptureQueriesContext(connection) as queries:
                site.get(*page, **query)
            found = [each["sql"] for each in queries if "COUNT(" in each["sql"]]
            # The health report counts the outbox, but only a limited number of its rows.
            assert not [sql for sql in found if f"LIMIT {OUTBOX_ROWS}" not in sql]


def test_round_trips_are_counted(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual_worker.connection.call("PING")  # a new connection introduces itself
    with round_trips(monkeypatch) as made:
        manual_worker.connection.call("PING")
        manual_worker.connection.pipeline([("PING",), ("PING",)])
    assert len(made) == 2


def test_the_page_of_a_workflow_reads_500_jobs_in_three_round_trips(
    site: Site,
    manual_worker: ManualWorker,
    cost: Callable[[Page, dict[str, object]], tuple[int, int]],
) -> None:
    def flow_of(jobs: int) -> Workflow:
        with Workflow() as workflow:
            for n in range(jobs):
                workflow.add(tasks.noop, n)
        return workflow

    pages: list[Page] = [("workflow", flow_of(jobs).id) for jobs in (10, 500, 2000, 6000)]
    site.get("overview")
    ten, page_full, many, too_many = [cost(page, {})[1] for page in pages]
    assert (page_full, many) == (ten, ten + 9)
    assert too_many < many, "it is not drawn"
