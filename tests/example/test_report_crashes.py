"""Reports by real workers that die at every step: each is created once, and complete."""

from __future__ import annotations

import csv
import os
import random
import signal
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import get_gather
from example_project.reports.comparing import plain_join
from example_project.reports.models import FileDownloadRecord
from example_project.reports.tasks import request_report
from tests.outbox.conftest import OutboxHarness
from tests.outbox.test_lost import DIE_BEFORE_SENDING
from tests.support.commands import output_of
from tests.worker.harness import WorkerHarness
from tests.worker.processes import eventually

REPORTS = 6
DEATHS = 3  # at each step
MOST_DEATHS = 240  # at random
USERS = 60
MODULES = ["example_project.reports.tasks", "tests.example.killer"]


@pytest.fixture
def kills(outbox_harness: OutboxHarness, tmp_path: Path, settings: Any) -> Path:
    """The killer's folder, on a harness whose database has users, and whose results of users are
    too large for Redis."""
    made = tmp_path / "kills"
    (made / "spent").mkdir(parents=True)
    media = str(tmp_path / "media")
    settings.MEDIA_ROOT = media
    outbox_harness.harness.environment |= {
        "REDISQUEUE_TEST_DEATHS": str(made),
        "REDISQUEUE_TEST_MEDIA": media,
    }
    outbox_harness.harness.configure(
        TASK_MODULES=MODULES, MAX_RECOVERIES=100, MAX_RESULT_BYTES=4096
    )
    output_of("makereportdata", users=USERS)
    return made


def ended(records: list[FileDownloadRecord]) -> bool:
    for record in records:
        record.refresh_from_db()
    return all(record.status != "requested" for record in records)


def under_way(harness: WorkerHarness, record: FileDownloadRecord) -> None:
    """Wait until something runs, or until the report is ready: it may be that fast."""
    eventually(lambda: harness.stats()["processing"] or ended([record]), why=harness.report)


def check(harness: WorkerHarness, records: list[FileDownloadRecord], jobs: int = 4) -> None:
    """Each is ready, and its only file complete; each of its jobs was accepted once."""
    expected = [list(map(str, line)) for line in plain_join()]
    assert len(expected) > USERS / 2
    harness.until_done(jobs * len(records), timeout=60)
    assert harness.count("completed_total") == jobs * len(records)
    for record in records:
        record.refresh_from_db()
        assert (record.status, record.rows, record.problem) == ("ready", len(expected), "")
        storage = record.file.storage
        (only,) = storage.listdir(record.folder)[1]
        assert record.file.name == f"{record.folder}/{only}"
        with record.file.open() as file:
            text = file.read().decode()
        assert list(csv.reader(StringIO(text, newline="")))[1:] == expected
        assert get_gather(record.key).done_count == 3


def test_killed_at_each_step(outbox_harness: OutboxHarness, kills: Path, tmp_path: Path) -> None:
    harness = outbox_harness.harness
    steps = (
        *("asking-users", "found-users", "asking-funds", "found-funds", "asking-accounts"),
        *("found-accounts", "joined", "within", "written", "ready", "swept"),
    )
    for step in steps:
        for n in range(DEATHS):
            (kills / f"{step}.{n}").touch()
    records = [request_report() for _ in range(REPORTS)]
    harness.worker("--processes", "3")
    check(harness, records)
    deaths = len(steps) * DEATHS
    assert len(list((kills / "spent").iterdir())) == deaths, "a kill that was not tried"
    assert harness.count("recovered_total") == deaths
    large = list((tmp_path / "media" / "redisqueue").iterdir())
    assert len(large) >= REPORTS, "no result went through the storage"


def test_a_site_that_dies_after_its_commit(outbox_harness: OutboxHarness, kills: Path) -> None:
    harness = outbox_harness.harness
    harness.configure(TASK_MODULES=[*MODULES, "tests.outbox.quick"])
    ask = "from example_project.reports.tasks import request_report; request_report()"
    outbox_harness.run(DIE_BEFORE_SENDING + ask, kill=signal.SIGKILL, OUTBOX=True)
    record = FileDownloadRecord.objects.get()
    assert harness.stats()["queued"] == 0
    harness.worker("--processes", "1")
    eventually(lambda: ended([record]), 30, why=harness.report)
    harness.until_done(5)  # the outbox starts the gather with a job
    check(harness, [record], jobs=5)


@pytest.mark.slow
def test_killed_at_random(outbox_harness: OutboxHarness, kills: Path) -> None:
    """Children, and the supervisor now and then, while reports are asked for all the time.

        A kill may fall between two jobs, the more often the faster they are, so this continues
    until enough jobs were hit.
    """
    harness, chance = outbox_harness.harness, random.Random(4)
    worker = harness.worker("--processes", "3").wait_until_up(4)
    records = []
    for death in range(MOST_DEATHS):
        if death >= 24 and harness.count("recovered_total") > 5:
            break
        records.append(request_report())
        if death % 8 == 7:
            worker.kill()
            worker = harness.worker("--processes", "3").wait_until_up(4)
        else:
            under_way(harness, records[-1])
            child = chance.choice(eventually(lambda worker=worker: worker.children))
            with suppress(ProcessLookupError):  # it has just ended on its own
                os.kill(child, signal.SIGKILL)
    eventually(lambda: ended(records), 60, why=harness.report)
    assert harness.count("recovered_total") > 5, "hardly any job was hit"
    check(harness, records)


def test_a_merge_that_always_dies_is_reported_and_its_retry_delivers(
    outbox_harness: OutboxHarness, kills: Path
) -> None:
    harness = outbox_harness.harness
    harness.configure(MAX_RECOVERIES=3, MIRROR=True)
    (kills / "poison").touch()
    record = request_report()
    harness.worker("--processes", "1")
    eventually(lambda: ended([record]), 30, why=harness.report)
    assert record.status == "failed"
    assert "the worker process died 3 times" in record.problem
    assert not record.file
    (kills / "poison").unlink()
    get_gather(record.key).follow_up.requeue()
    harness.until_done(4)
    check(harness, [record])
