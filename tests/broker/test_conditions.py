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
from .lab import PAYLOAD, Lab, invariants
from .workflows import LabWorkflow

UNIQUE, LANE = "until_finished app.task:1", "limit:tenant:42"
FIELDS = {"unique": UNIQUE, "lane": LANE}


def check(lab: Lab, job_id: str) -> None:
    """The hash has both fields, and ``seq``, so that no run of the job takes the fast path."""
    found = lab.job(job_id)
    assert {name: found[name] for name in FIELDS} == FIELDS
    assert found["watched"] == "ul"
    data = Queries(lab.connection).job(job_id)
    assert (data.unique, data.lane, data.seq > 0) == (UNIQUE, LANE, True)
    invariants(lab)


@pytest.mark.parametrize("after", ["", "wait parent"])
def test_a_job(lab: Lab, after: str) -> None:
    lab.add("parent")
    lab.add("a", after=after, **FIELDS)
    assert lab.job("a")["watched"] == ("aul" if after else "ul")
    assert lab.job("a")["seq"] == "1"
    assert not FIELDS.items() & lab.job("parent").items()


def test_a_job_of_a_workflow(lab: Lab) -> None:
    workflow = LabWorkflow(lab, {0: [], 1: [0]})
    workflow.jobs = [job._replace(**FIELDS) for job in workflow.jobs]
    assert workflow.push() == 1
    check(lab, workflow.job(0))
    check(lab, workflow.job(1))


def test_the_callback_of_a_workflow(lab: Lab) -> None:
    callback = {"complete_task": "app.then", "complete_payload": PAYLOAD}
    workflow = LabWorkflow(lab, {0: []}, complete_unique=UNIQUE, complete_lane=LANE, **callback)
    workflow.push()
    workflow.run_one()
    check(lab, f"{workflow.id}.complete0")


def test_the_jobs_of_a_gather(lab: Lab) -> None:
    query = Query(lab, "a", **FIELDS)
    listeners = [(*listener[:6], UNIQUE, LANE) for listener in query.plan.listeners]
    query.plan = query.plan._replace(listeners=listeners)
    assert query.start() == 1
    check(lab, query.job(0))
    query.finish(query.take())
    check(lab, query.job("then"))


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
