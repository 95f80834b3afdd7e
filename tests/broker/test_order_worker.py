"""order_worker: what a worker is told, and what it reports about itself."""

from __future__ import annotations

import pytest

from django_redisqueue.core.records import (
    WorkerOrder,
    WorkerReport,
    parse_report,
    worker_of,
)

from .lab import Lab

WORKER = "w.m.1.2"
REPORT = WorkerReport("host", "1.0", 5, "running", ("default",), 2, 3, {"1": 7})


def test_an_order_stays_for_the_next_heartbeats(lab: Lab) -> None:
    assert not lab.store.order_worker(WORKER, WorkerOrder.STOP, 1), "there is no such worker"
    assert lab.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == ""
    assert lab.store.order_worker(WORKER, WorkerOrder.STOP, 1)
    assert lab.store.order_worker(WORKER, WorkerOrder.QUIET, 2)
    for _ in range(2):
        assert lab.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == "2 quiet"
    assert lab.store.heartbeat([], worker="another", report="{}").order == ""
    assert parse_report(lab.redis.get(lab.keys.worker(WORKER))) == REPORT
    for key in (lab.keys.worker(WORKER), lab.keys.worker_order(WORKER)):
        assert 0 < lab.redis.pttl(key) <= 600_000


def test_foreign_keys_do_not_stop_heartbeats(lab: Lab) -> None:
    lab.redis.lpush(lab.keys.worker(WORKER), "theirs")
    lab.redis.lpush(lab.keys.worker_order(WORKER), "theirs")
    assert lab.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == ""
    assert lab.store.order_worker(WORKER, WorkerOrder.RESUME, 3)
    assert lab.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == "3 resume"


def test_a_report_survives_a_round_trip_through_redis() -> None:
    assert parse_report(REPORT.text()) == REPORT
    assert (REPORT.slots, REPORT.memory) == (6, 7)
    assert worker_of("w.m.1.2.33") == "w.m.1.2"


@pytest.mark.parametrize(
    "text",
    [
        None, "", "[]", "{}", "nonsense", REPORT.text().replace('"running"', '"dancing"'),
        REPORT.text().replace("7", '"many"'), REPORT.text().replace('{"1":', '[{"1":') + "]",
        REPORT.text().replace('["default"]', "[1]"),
    ],
)  # fmt: skip
def test_a_foreign_value_is_not_a_report(text: str | None) -> None:
    assert parse_report(text) is None
