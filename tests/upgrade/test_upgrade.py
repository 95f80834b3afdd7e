"""The previous version's data with this version, and both versions side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from django_redisqueue import JobQueue, get_gather, get_job, get_workflow
from django_redisqueue.broker.entries import format_position
from django_redisqueue.core.statuses import FINAL
from django_redisqueue.models import JobRecord, MirrorState, OutboxJob, Receipt
from tests.gauntlet.evidence import Evidence, RedisClock, read_events, read_keyspace
from tests.gauntlet.ledger import Ledger
from tests.mirror.mirrored_shard import differences
from tests.support.stream import last
from tests.worker.processes import eventually

from .conftest import UpgradeHarness
from .fixture import TABLES, load, restore_keys, restore_rows
from .site import unpack_previous

pytestmark = [
    pytest.mark.one_shard("the previous version has one"),
    pytest.mark.slow,
]
PATIENCE = 120.0  # s


def until_ended(ids: Iterable[str], why: object) -> None:
    left = set(ids)

    def have_ended() -> bool:
        left.difference_update({each for each in left if get_job(each).status in FINAL})
        return not left

    eventually(have_ended, PATIENCE, every=0.1, why=lambda: (left, why))


def until_mirrored(harness: UpgradeHarness) -> None:
    """Wait until the mirror is at the end of the stream, and the outbox is empty."""

    def at_the_end() -> bool:
        newest, state = last(harness.redis, "job_queue:{0}:events"), MirrorState.objects.first()
        return bool(newest and state and state.position == format_position(newest.place)) and (
            not OutboxJob.objects.exists()
        )

    eventually(at_the_end, PATIENCE, every=0.1)


def assert_all_ended_once(harness: UpgradeHarness) -> None:
    """Nothing is left in Redis; the mirror agrees with it; each job has one end for each time that
    it was enqueued or requeued."""
    keyspace, _ = read_keyspace(harness.redis)
    events = read_events(RedisClock([]))
    found = Evidence(Ledger(harness.folder), keyspace=keyspace, events=events)
    assert {job["status"] for job in found.jobs.values()} <= {str(status) for status in FINAL}
    # The mirror never has a redacted argument.
    assert [each for each in differences(found.jobs) if "[redacted]" not in each] == []
    for job_id, job in found.jobs.items():
        assert len(found.ends(job_id)) == 1 + int(job.get("generation", 0)), job_id
    left = ("processing", "waiting", "scheduled", "retrying", "priority", "q:default", "q:paused")
    assert not [key for key in keyspace if key.endswith(left)]


def test_the_previous_versions_data(harness: UpgradeHarness) -> None:
    old = load(age=timedelta(minutes=2))
    restore_keys(harness.redis, old.keys)
    call_command("migrate", "django_redisqueue", TABLES, verbosity=0)
    state = MigrationExecutor(connection).loader.project_state(("django_redisqueue", TABLES))
    restore_rows(state.apps, old.rows)
    call_command("migrate", verbosity=0)

    worker = harness.worker(harness.site(), "--processes", "2", "--queues", "default,paused")
    names = dict(old.names)
    workflow, gather = names.pop("workflow"), names.pop("gather")
    paused = names.pop("paused")
    until_ended(names.values(), lambda: worker.output)
    assert get_job(paused).status == "queued"
    JobQueue("paused").resume()
    failed = get_job(names["failed"])
    assert failed.error is not None
    assert failed.error.message == "broken"
    failed.requeue()
    until_ended([paused, failed.id], lambda: worker.output)
    eventually(lambda: get_gather(gather).status == "released", PATIENCE)
    until_mirrored(harness)

    assert_all_ended_once(harness)
    results = {name: get_job(each).result for name, each in names.items()}
    assert results == {
        "completed": 3, "receipt": 5, "failed": "mended", "retrying": "steady",
        "processing": "alone", "cancelled": None, "follower": 11,
        "first": 2, "second": "workflow", "third": 4,
        "queued": 2, "urgent": 4, "redacted": "charged", "scheduled": 6,
        "stored": 16, "outbox": 18,
    }  # fmt: skip
    assert "4111" not in repr(get_job(names["redacted"]).kwargs)
    assert get_job(names["retrying"]).attempts == 1
    assert {get_job(names[name]).recoveries for name in ("processing", "second")} == {1}
    assert get_workflow(workflow).status == "completed"
    merged = JobRecord.objects.get(task="tests.upgrade.tasks.merge")
    assert json.loads(merged.result) == {"quick_half": 7, "held_half": 8}
    assert Receipt.objects.filter(pk=names["receipt"]).exists()


@pytest.mark.parametrize("harness", ["postgresql"], indirect=True)
@pytest.mark.parametrize("goes_back", [False, True])
def test_a_rolling_deploy(harness: UpgradeHarness, tmp_path: Path, goes_back: bool) -> None:
    """Both versions enqueue, claim, recover and mirror side by side, in the order of the docs; and
    the same on the way back to the previous version, which keeps the new tables."""
    package = tmp_path / "previous"
    package.mkdir()
    if problem := unpack_previous(package):
        pytest.skip(problem)
    first, second = harness.site(package=package), harness.site()
    if goes_back:
        first, second = second, first
    stopped = harness.worker(first, "--name", "first-1", "--processes", "1")
    killed = harness.worker(first, "--name", "first-2", "--processes", "1")
    until_ended(second.act("produce", "5"), lambda: killed.output)

    last_one = harness.worker(second, "--name", "second-1", "--processes", "2")
    with ThreadPoolExecutor() as pool:
        producers = [pool.submit(site.act, "produce", "150") for site in (first, second)]
        eventually(lambda: ran_by("second-1") and ran_by("first-2"), PATIENCE, every=0.05)
        killed.end()
        stopped.term()
        ids = [job_id for producer in producers for job_id in producer.result()]
    assert stopped.wait() == 0, stopped.output
    until_ended(ids, lambda: last_one.output)
    until_mirrored(harness)

    assert_all_ended_once(harness)
    assert {get_job(job_id).status for job_id in ids} == {"completed"}
    assert JobRecord.objects.filter(status="completed").count() == 5 * (5 + 150 + 150)
    for logged in (stopped.output, last_one.output):
        assert "Traceback" not in logged, logged


def ran_by(worker: str) -> bool:
    return JobRecord.objects.filter(worker__startswith=worker, status="completed").exists()
