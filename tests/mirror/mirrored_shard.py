"""A shard that tests operate directly, a bridge on it, and checks that compare both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.db.models import Manager

from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.broker.entries import format_position
from django_redisqueue.broker.events import PAGE
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.replies import Outcome
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.mirror.bridge import Bridge, make_bridge
from django_redisqueue.models import (
    JobEvent,
    JobRecord,
    MirrorState,
    Rollup,
    WorkflowEvent,
    WorkflowRecord,
)
from tests.broker.harness import BrokerHarness, with_implied_fields
from tests.support.shards import all_keys
from tests.support.stream import Written, written


class MirroredShard:
    """A shard that tests operate directly, and a bridge that applies its events when ``mirror`` is
    called."""

    def __init__(self, broker: BrokerHarness) -> None:
        self.broker = broker
        self.bridge = Bridge()

    def close(self) -> None:
        self.bridge.connection.close()
        self.broker.close()

    def use_full_bridge(self, page: int = PAGE) -> None:
        """From now on use Redis's own clock, and a bridge with everything that belongs to it."""
        self.bridge.close()
        self.broker.store.now_ms = None
        self.bridge = make_bridge(get_settings(), page=page)

    def mirror(self, bridge: Bridge | None = None) -> None:
        """Apply all available events."""
        bridge = bridge or self.bridge
        while bridge.run_once():
            pass

    def record(self, job_id: str) -> JobRecord:
        return JobRecord.objects.get(pk=job_id)

    def workflow(self, workflow_id: str) -> WorkflowRecord:
        return WorkflowRecord.objects.get(pk=workflow_id)

    def workflow_statuses(self, workflow_id: str) -> list[str]:
        events = WorkflowEvent.objects.filter(workflow_id=workflow_id)
        return list(events.order_by("id").values_list("status", flat=True))

    def statuses(self, job_id: str) -> list[str]:
        return list(
            JobEvent.objects.filter(job_id=job_id).order_by("id").values_list("status", flat=True)
        )

    def run_jobs(self, count: int, name: str = "j") -> list[str]:
        """Run many jobs, with three events each; every tenth fails. Returns their ids."""
        ids = [f"{name}{n}" for n in range(count)]
        store = self.broker.store
        for at in range(0, count, 100):
            batch = [NewJob(job_id, "default", "app.task", f'[["{job_id}"],{{}}]')
                     for job_id in ids[at : at + 100]]  # fmt: skip
            store.enqueue(batch)
        claim_request, claim, call = ClaimRequest("w.1", ("default",)), None, 0
        while claim is None or claim.jobs:
            call += 1
            outcomes = [
                Outcome(job.id, job.lease, job.call, *_outcome(job.id))
                for job in (claim.jobs if claim else [])
            ]
            _, claim = store.finish(claim_request, call, outcomes, 100)
        return ids

    def assert_complete(self) -> None:
        """Every record agrees with Redis, and every event of the stream has one row."""
        check_events(self.broker)
        check_records(self.broker)


ERROR = '{"type":"ValueError","message":"no","traceback":""}'


def _outcome(job_id: str) -> tuple[str, str, str]:
    if job_id.endswith("7"):
        return "failed", ERROR, "max_attempts"
    return "completed", json.dumps(f"result of {job_id}"), ""


def check_events(broker: BrokerHarness) -> None:
    """The history equals the streams (whose first parts may have been trimmed), with each event
    once."""
    for keys in all_keys():
        _check_events(keys, written(broker.redis, keys.events))


def _check_events(keys: Keys, stream: Sequence[Written]) -> None:
    jobs, workflows, place = [], [], (0, 0)
    for place, _, field, text, _ in stream:
        event = json.loads(text)
        if field == "workflow":
            workflows.append((*place, event["workflowId"], event["status"], event["generation"]))
        else:
            jobs.append((*place, event["jobId"], event["status"], event["seq"]))
    _check_rows(JobEvent.objects, keys.shard, jobs, "job_id", "status", "seq")
    _check_rows(WorkflowEvent.objects, keys.shard, workflows, "workflow_id", "status", "generation")
    if stream or get_settings().shards == 1:  # a shard without events may not have a row yet
        assert MirrorState.objects.get(shard=keys.shard).position == format_position(place)


def _check_rows(
    found: Manager[Any], shard: int, stream: Sequence[tuple[Any, ...]], *names: str
) -> None:
    rows = list(found.order_by("id").values_list("entry_ms", "entry_no", *names))
    if get_settings().shards > 1:
        rows = [row for row in rows if shard_of_id(row[2]) == shard]
    assert rows[len(rows) - len(stream) :] == stream
    assert rows == sorted(set(rows))


def check_records(broker: BrokerHarness) -> None:
    """The records agree with the jobs' hashes."""
    assert list(differences(job_hashes(broker))) == []


def job_hashes(broker: BrokerHarness) -> dict[str, dict[str, str]]:
    """The hash of each job in Redis, by its id."""
    found = [
        key
        for keys in all_keys()
        for key in broker.redis.scan_iter(f"{keys.base}job:*", count=10_000, _type="hash")
    ]
    pipeline = broker.redis.pipeline(transaction=False)
    for key in found:
        pipeline.hgetall(key)
    return {key.rpartition(":")[2]: job for key, job in zip(found, pipeline.execute(), strict=True)}


def differences(jobs: Mapping[str, dict[str, str]]) -> Iterator[str]:
    """How the records differ from these job hashes, which are keyed by id."""
    records = {record.id: record for record in JobRecord.objects.iterator()}
    for job_id in records.keys() ^ jobs.keys():
        yield f"{job_id} is only in {'the mirror' if job_id in records else 'Redis'}"
    for job_id in records.keys() & jobs.keys():
        record, job = _of_record(records[job_id]), _of_hash(jobs[job_id])
        for name in (name for name in job if record[name] != job[name]):
            yield f"{job_id} has {name} {record[name]!r} in the mirror, {job[name]!r} in Redis"


def _of_hash(job: dict[str, str]) -> dict[str, Any]:
    """The fields of a hash in the form of a record."""
    names = ("task", "status", "payload", "result", "error", "reason", "progress")
    found: dict[str, Any] = {name: job.get(name, "") for name in names}
    found["queue"] = job.get("queue", "default")
    found["priority"] = int(job.get("priority", 0))
    found["requeues"] = int(job.get("generation", 0))
    found["seq"] = int(with_implied_fields(job).get("seq", 1))
    for name in ("enqueued", "started", "finished", "due"):
        found[name] = int(job[f"{name}_ms"]) if f"{name}_ms" in job else None
    if job["status"] not in ("scheduled", "retrying"):
        found["due"] = None
    return found


def _of_record(record: JobRecord) -> dict[str, Any]:
    names = ("task", "status", "payload", "result", "error", "reason", "queue", "priority")
    found = {name: getattr(record, name) for name in (*names, "progress", "requeues", "seq")}
    for name in ("enqueued", "started", "finished", "due"):
        moment = getattr(record, f"{name}_at")
        found[name] = round(moment.timestamp() * 1000) if moment else None
    return found


@contextmanager
def refusing(job_id: str) -> Iterator[None]:
    """Make the database refuse the record of this job."""
    table = JobRecord._meta.db_table
    is_sqlite = connection.vendor == "sqlite"
    begin, end = (
        (f"CREATE TRIGGER refusing BEFORE INSERT ON {table} WHEN NEW.id = '{job_id}' "
         "BEGIN SELECT RAISE(ABORT, 'refused'); END", "DROP TRIGGER refusing")
        if is_sqlite else
        (f"ALTER TABLE {table} ADD CONSTRAINT refusing CHECK (id <> '{job_id}')",
         f"ALTER TABLE {table} DROP CONSTRAINT refusing")
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(begin)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(end)


def counts(rows: Sequence[Rollup] | None = None) -> dict[str, int]:
    """The rollup's counts, over all rows."""
    rows = list(Rollup.objects.all()) if rows is None else rows
    names = ("enqueued", "completed", "failed", "retried", "cancelled")
    return {name: sum(getattr(row, name) for row in rows) for name in names}
