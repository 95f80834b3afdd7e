"""order_worker: what a worker is told, and what it reports about itself."""

from __future__ import annotations

import pytest

from django_redisqueue.core.records import (
    WorkerOrder,
    WorkerReport,
    parse_report,
    worker_of,
)

from .harness import BrokerHarness

WORKER = "w.m.1.2"
REPORT = WorkerReport("host", "1.0", 5, "running", ("default",), 2, 3, {"1": 7})


def test_an_order_stays_for_the_next_heartbeats(broker: BrokerHarness) -> None:
    assert not broker.store.order_worker(WORKER, WorkerOrder.STOP, 1), "there is no such worker"
    assert broker.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == ""
    assert broker.store.order_worker(WORKER, WorkerOrder.STOP, 1)
    assert broker.store.order_worker(WORKER, WorkerOrder.QUIET, 2)
    for _ in range(2):
        assert broker.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == "2 quiet"
    assert broker.store.heartbeat([], worker="another", report="{}").order == ""
    assert parse_report(broker.redis.get(broker.keys.worker(WORKER))) == REPORT
    for key in (broker.keys.worker(WORKER), broker.keys.worker_order(WORKER)):
        assert 0 < broker.redis.pttl(key) <= 600_000


def test_an_order_is_published_at_once(broker: BrokerHarness) -> None:
    broker.store.heartbeat([], worker=WORKER, report=REPORT.text())
    with broker.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(broker.keys.control)
        pubsub.get_message(timeout=5)
        broker.store.order_worker(WORKER, WorkerOrder.STOP, 1)
        message = pubsub.get_message(timeout=5)
    assert message is not None
    assert message["data"] == f"order {WORKER} 1 stop"


def test_a_full_redis_accepts_it(broker: BrokerHarness) -> None:
    broker.store.heartbeat([], worker=WORKER, report=REPORT.text())
    with broker.full():
        assert broker.store.order_worker(WORKER, WorkerOrder.STOP, 1)


def test_foreign_keys_do_not_stop_heartbeats(broker: BrokerHarness) -> None:
    broker.redis.lpush(broker.keys.worker(WORKER), "theirs")
    broker.redis.lpush(broker.keys.worker_order(WORKER), "theirs")
    assert broker.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == ""
    assert broker.store.order_worker(WORKER, WorkerOrder.RESUME, 3)
    assert broker.store.heartbeat([], worker=WORKER, report=REPORT.text()).order == "3 resume"


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
