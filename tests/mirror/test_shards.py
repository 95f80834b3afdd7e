"""One mirror of several shards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any

import pytest
from django.db import connection, transaction

from django_redisqueue import signals
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.replies import Outcome
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.mirror.bridge import make_bridge
from django_redisqueue.mirror.signal_delivery import JOB_SOURCE, SignalDelivery
from django_redisqueue.models import JobEvent, JobRecord, MirrorState, OutboxJob, Rollup
from django_redisqueue.outbox.relay import Relay
from django_redisqueue.outbox.rows import DatabaseOutbox
from tests.worker.processes import PATIENCE

from .rows import event, state

SHARDS = 3


@pytest.fixture
def shards(mirrored: None, database: str, settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": SHARDS}


def enqueue(shard: int, jobs: int) -> list[NewJob]:
    made = [NewJob(new_job_id(shard), "default", "app.task", "[[],{}]") for _ in range(jobs)]
    connection = worker_connection(shard)
    Commands(connection).enqueue(made)
    connection.close()
    return made


def run(shard: int, jobs: int) -> None:
    """Claim and complete this many jobs."""
    connection = worker_connection(shard)
    store, request = Commands(connection), ClaimRequest("c1", ("default",))
    claimed = store.claim(request, 1, jobs).jobs
    outcomes = [Outcome(job.id, job.lease, job.call, "completed", "1") for job in claimed]
    store.finish(request, 2, outcomes, 0)
    connection.close()


def mirror(shard: int) -> None:
    bridge = make_bridge(get_settings(), shard=shard)
    while bridge.run_once():
        continue
    bridge.close()


@pytest.mark.usefixtures("shards")
def test_each_shard_has_a_cursor_and_keeps_the_records_of_others() -> None:
    """The first pass of a shard reconciles all its records with Redis."""
    ids = [job.id for shard in range(SHARDS) for job in enqueue(shard, 4)]
    for shard in (*range(SHARDS), *range(SHARDS)):
        mirror(shard)
    records = JobRecord.objects.values_list("id", "status", "reason")
    assert sorted(records) == sorted((job_id, "queued", "") for job_id in ids)
    states = MirrorState.objects.order_by("shard")
    assert [(state.shard, state.unreconciled) for state in states] == [
        (shard, False) for shard in range(SHARDS)
    ]
    assert len({state.incarnation for state in states}) == SHARDS


@pytest.mark.usefixtures("shards")
def test_a_lost_shard_only_loses_its_own_jobs() -> None:
    kept, lost = enqueue(0, 2), enqueue(2, 2)
    for shard in (0, 2):
        mirror(shard)
    connection = worker_connection(2)
    connection.call("DEL", *[Commands(connection).keys.job(job.id) for job in lost])
    connection.close()
    MirrorState.objects.update(unreconciled=True)
    for shard in (0, 2):
        mirror(shard)
    reasons = dict(JobRecord.objects.values_list("id", "reason"))
    assert reasons == {**{job.id: "" for job in kept}, **{job.id: "lost" for job in lost}}


@pytest.mark.usefixtures("shards")
def test_signals_are_sent_once_by_the_bridge_of_the_shard() -> None:
    heard: list[str] = []

    def receive(record: JobRecord, **_: object) -> None:
        heard.append(record.id)

    signals.job_completed.connect(receive)
    try:
        ids = [job.id for shard in range(SHARDS) for job in enqueue(shard, 3)]
        for shard in range(SHARDS):
            run(shard, 3)
        for shard in (2, 0, 1, 2, 0, 1):
            mirror(shard)
    finally:
        signals.job_completed.disconnect(receive)
    assert sorted(heard) == sorted(ids)


@pytest.mark.usefixtures("mirrored", "on_postgres")
def test_a_signal_is_not_overtaken_by_those_of_another_shard(settings: Any) -> None:
    """A bridge that was suspended in its transaction already has a successor."""
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": SHARDS}
    heard: list[str] = []
    slow, fast = new_job_id(0), new_job_id(1)
    state(position="1-0")
    has_written, may_commit = Event(), Event()

    def be_suspended() -> None:
        with transaction.atomic():
            state(position="2-0")
            event(slow, "completed")
            has_written.set()
            may_commit.wait(PATIENCE)
        connection.close()

    def deliver() -> None:
        SignalDelivery(JOB_SOURCE, 0).run_once()
        connection.close()

    def receive(record: JobRecord, **_: object) -> None:
        heard.append(record.id)

    signals.job_completed.connect(receive)
    try:
        with ThreadPoolExecutor(2) as threads:
            predecessor = threads.submit(be_suspended)
            has_written.wait(PATIENCE)
            event(fast, "completed")
            successor = threads.submit(deliver)
            wait([successor], timeout=0.3)
            may_commit.set()
            predecessor.result()
            successor.result()
        SignalDelivery(JOB_SOURCE, 0).run_once()
    finally:
        signals.job_completed.disconnect(receive)
    assert heard == [slow]


@pytest.mark.usefixtures("shards")
def test_rollups_add_up_over_shards() -> None:
    for shard in range(SHARDS):
        enqueue(shard, 5)
        run(shard, 5)
    for shard in range(SHARDS):
        mirror(shard)
    assert sum(Rollup.objects.values_list("completed", flat=True)) == 5 * SHARDS
    assert JobEvent.objects.filter(status="completed").count() == 5 * SHARDS


@pytest.mark.usefixtures("shards")
def test_the_relay_of_a_shard_sends_its_own_rows() -> None:
    jobs = [
        NewJob(new_job_id(shard), "default", "app.task", "[[],{}]", stored=True)
        for shard in range(SHARDS)
    ]
    DatabaseOutbox().store(jobs, ["default"])
    OutboxJob.objects.update(created_at="2020-01-01T00:00:00Z")
    for shard, job in enumerate(jobs):
        connection = worker_connection(shard)
        Relay(Commands(connection), "default").run_once()
        assert [connection.call("EXISTS", Commands(connection).keys.job(one.id)) for one in jobs] \
            == [one is job for one in jobs]  # fmt: skip
        connection.close()
    assert not OutboxJob.objects.filter(relayed_at=None).exists()


@pytest.mark.usefixtures("shards")
def test_a_worker_that_knows_one_shard_leaves_rows_of_new_shards_alone(settings: Any) -> None:
    """It would send them to its own shard, which refuses them."""
    jobs = [
        NewJob(new_job_id(shard), "default", "app.task", "[[],{}]", stored=True)
        for shard in range(SHARDS)
    ]
    DatabaseOutbox().store(jobs, ["default"])
    OutboxJob.objects.update(created_at="2020-01-01T00:00:00Z")
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 1}
    connection = worker_connection()
    Relay(Commands(connection), "default").run_once()
    keys = [Commands(connection).keys.job(job.id) for job in jobs]
    assert [connection.call("EXISTS", key) for key in keys] == [1, 0, 0]
    connection.close()
