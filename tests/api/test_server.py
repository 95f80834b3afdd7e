"""Events from a real ASGI server, to clients on real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis

from django_redisqueue.api import hub as hub_module
from django_redisqueue.api import streaming
from django_redisqueue.api.hub import STREAMS_A_USER, hub
from tests.app import tasks
from tests.support.asgi_server import event_stream, serving
from tests.support.stopwatch import Stopwatch
from tests.worker.processes import eventually


@pytest.fixture
def port(threads_db: None, queue_settings: dict[str, Any]) -> Iterator[int]:
    """A server's port on loopback."""
    with serving() as port:
        yield port


def test_events_reach_a_client_and_its_slot_is_freed_when_it_disconnects(
    port: int, token: str
) -> None:
    reader = event_stream(port, token)
    assert reader.answer.status == 200
    reader.line("id: ")
    job = tasks.noop.enqueue()
    assert job.id in reader.line("data: ")
    assert hub.streams == 1
    reader.close()
    eventually(lambda: hub.streams == 0)


def test_many_clients_share_one_reader_and_other_requests_are_answered(
    port: int, token: str, redis: Redis
) -> None:
    before = len(redis.client_list())
    readers = [event_stream(port, token) for _ in range(STREAMS_A_USER)]
    for reader in readers:
        reader.line("id: ")
    watch = Stopwatch()
    job = tasks.noop.enqueue()
    for reader in readers:
        assert job.id in reader.line("data: ")
    assert watch.seconds < 5
    # the reader, the thread that catches up, and this one
    assert len(redis.client_list()) - before <= 3
    refused = event_stream(port, token)
    assert refused.answer.status == 429
    refused.close()
    for reader in readers:
        reader.close()
    eventually(lambda: hub.streams == 0)


def test_a_client_that_reads_nothing_uses_little_memory_and_is_disconnected(
    port: int, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "STALL_TIMEOUT", 1.0)
    sent = []
    real = streaming.to_frames
    monkeypatch.setattr(
        streaming, "to_frames", lambda *a: (out := real(*a), sent.append(len(out)))[0]
    )
    reader = event_stream(port, token, after="0-0")
    reader.line("id: ")
    for _ in range(120):
        tasks.noop.enqueue_many([()] * 500)
    eventually(lambda: hub.streams == 0, timeout=20)
    assert sum(sent) < 8_000_000  # what the kernel accepted of about 14 MB
    reader.close()


@pytest.fixture
def later() -> Iterator[ExitStack]:
    """What must be done after the server has gone."""
    with ExitStack() as stack:
        yield stack


def test_a_server_that_stops_ends_its_streams(later: ExitStack, port: int, token: str) -> None:
    reader = event_stream(port, token)
    later.callback(reader.close)
    reader.line("id: ")
    assert hub.streams == 1  # and now the fixture stops the server
