"""A new job's unique key and lane reach its hash, whatever creates it."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.queries import Queries
from django_redisqueue.client.tasks import callback_fields
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.models import OutboxJob
from django_redisqueue.outbox.rows import DatabaseOutbox, to_new_job
from django_redisqueue.testing.hashes import callback_job, new_hash

from ..app import tasks
from .gathers import Query
from .harness import PAYLOAD, BrokerHarness, invariants
from .workflows import BrokerWorkflow

UNIQUE, LANE = "until_finished app.task:1", "limit:tenant:42"
FIELDS = {"unique": UNIQUE, "lane": LANE}


def check(broker: BrokerHarness, job_id: str) -> None:
    """The hash has both fields, and ``seq``, so that no run of the job takes the fast path."""
    found = broker.job(job_id)
    assert {name: found[name] for name in FIELDS} == FIELDS
    assert found["watched"] == "ul"
    data = Queries(broker.connection).job(job_id)
    assert (data.unique, data.lane, data.seq > 0) == (UNIQUE, LANE, True)
    invariants(broker)


@pytest.mark.parametrize("after", ["", "wait parent"])
def test_a_job(broker: BrokerHarness, after: str) -> None:
    broker.add("parent")
    broker.add("a", after=after, **FIELDS)
    assert broker.job("a")["watched"] == ("aul" if after else "ul")
    assert broker.job("a")["seq"] == "1"
    assert not FIELDS.items() & broker.job("parent").items()


def test_a_job_of_a_workflow(broker: BrokerHarness) -> None:
    workflow = BrokerWorkflow(broker, {0: [], 1: [0]})
    workflow.jobs = [job._replace(**FIELDS) for job in workflow.jobs]
    assert workflow.push() == 1
    check(broker, workflow.job(0))
    check(broker, workflow.job(1))


def test_the_callback_of_a_workflow(broker: BrokerHarness) -> None:
    callback = {"complete_task": "app.then", "complete_payload": PAYLOAD}
    workflow = BrokerWorkflow(
        broker, {0: []}, complete_unique=UNIQUE, complete_lane=LANE, **callback
    )
    workflow.push()
    workflow.run_one()
    check(broker, f"{workflow.id}.complete0")


def test_the_jobs_of_a_gather(broker: BrokerHarness) -> None:
    query = Query(broker, "a", **FIELDS)
    listeners = [(*listener[:6], UNIQUE, LANE) for listener in query.plan.listeners]
    query.plan = query.plan._replace(listeners=listeners)
    assert query.start() == 1
    check(broker, query.job(0))
    query.finish(query.take())
    check(broker, query.job("then"))


@pytest.mark.django_db
def test_a_row_of_the_outbox() -> None:
    new = NewJob("job_1", "default", "app.task", PAYLOAD, **FIELDS)
    DatabaseOutbox().store([new], ["default"])
    found = to_new_job(OutboxJob.objects.get(pk="job_1"))
    assert (found.unique, found.lane) == (UNIQUE, LANE)


def test_in_memory() -> None:
    new = NewJob("job_1", "default", "app.task", PAYLOAD, **FIELDS)
    assert FIELDS.items() <= new_hash(new, 0).items()
    fields = iter(callback_fields("then", tasks.noop.s(), "flow_1_0.then"))
    plain = dict(zip(fields, fields, strict=True))
    assert "then_unique" not in plain
    assert "then_lane" not in plain
    made = callback_job({**plain, "then_unique": UNIQUE, "then_lane": LANE}, "then", "job_2")
    assert made is not None
    assert (made.unique, made.lane) == (UNIQUE, LANE)
