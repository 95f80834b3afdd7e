"""WAIT_REPLICAS: accepted jobs are on replicas; anything else is an error, or stays a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import JobQueue, chain
from django_redisqueue.broker import connection as connections
from django_redisqueue.broker import durability
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import (
    PRODUCER_TIMEOUT,
    RedisConnection,
    producer_connection,
    worker_connection,
)
from django_redisqueue.broker.redis_url import get_redis_url
from django_redisqueue.broker.scan import Scanner
from django_redisqueue.conf import get_settings
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import ConfigurationError, NotReplicated, ParentNotFound
from django_redisqueue.models import OutboxJob
from django_redisqueue.outbox.relay import Relay
from tests.app import tasks
from tests.support.round_trips import calls_of
from tests.support.servers import RedisServer
from tests.worker.processes import eventually

from ..support.stopwatch import Stopwatch


@pytest.fixture
def replica(
    pair: tuple[RedisServer, RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisServer]:
    """The replica of the emptied server that the settings name. It may take its time."""
    master, replica = pair
    client = master.client()
    client.flushall()
    eventually(lambda: client.wait(1, 200) == 1)  # even after a test that stopped it
    monkeypatch.setattr(connections, "PRODUCER_TIMEOUT", 30.0)
    settings.REDISQUEUE = {"CONNECTION": {"URL": master.url}, "WAIT_REPLICAS": 1}
    yield replica
    replica.resume()


@pytest.fixture
def pause(
    replica: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Pauses the replica; from then on, producers wait for it no longer than they should."""

    def act() -> None:
        replica.pause()
        monkeypatch.setattr(connections, "PRODUCER_TIMEOUT", PRODUCER_TIMEOUT)
        settings.REDISQUEUE = {**settings.REDISQUEUE}  # so this thread connects again

    return act


@pytest.fixture
def paused_replica(replica: RedisServer, pause: Callable[[], None]) -> RedisServer:
    """A replica that confirms nothing, although the master believes it to be healthy."""
    tasks.noop.enqueue("before")
    pause()
    return replica


def test_an_accepted_job_is_on_the_replica(replica: RedisServer) -> None:
    copy = replica.client()
    for _ in range(50):
        job = tasks.noop.enqueue()
        assert copy.exists(f"job_queue:{{0}}:job:{job.id}")
    for job in tasks.noop.enqueue_many([(n,) for n in range(250)])[::50]:
        assert copy.exists(f"job_queue:{{0}}:job:{job.id}")


def test_waiting_takes_no_additional_round_trip(
    replica: RedisServer, pair: tuple[RedisServer, RedisServer]
) -> None:
    tasks.noop.enqueue()
    client = pair[0].client()
    client.config_resetstat()
    tasks.noop.enqueue()
    assert (calls_of(client, "evalsha"), calls_of(client, "wait")) == (1, 1)


@pytest.mark.parametrize(
    "act",
    [
        lambda: tasks.noop.enqueue(1),
        lambda: tasks.noop.enqueue_many([(1,), (2,)]),
        lambda: chain(tasks.noop, tasks.noop).push(),
    ],
    ids=["one", "many", "workflow"],
)
def test_too_few_replicas_are_an_error_within_a_second(
    paused_replica: RedisServer, act: Callable[[], object]
) -> None:
    watch = Stopwatch()
    with pytest.raises(NotReplicated, match="has it, but only 0 of the 1 replicas of REDISQ"):
        act()
    assert watch.seconds < 1


def test_a_repeat_on_another_connection_does_not_confirm_it(paused_replica: RedisServer) -> None:
    jobs = [NewJob("a", "default", "app.task", "{}")]
    for _ in range(2):
        connection = producer_connection()
        with pytest.raises(NotReplicated):
            Commands(connection).enqueue(jobs)
        connection.close()
    paused_replica.resume()
    assert Commands(worker_connection()).enqueue(jobs) == [False]


def test_the_mirror_begins_when_replicas_have_the_id_of_the_data(
    paused_replica: RedisServer,
) -> None:
    """A master that a failover has given no id would be taken for another Redis."""
    # It waits for 0.6 s; Redis ends the wait at its next tick of 0.1 s.
    scanner = Scanner(RedisConnection(get_redis_url(), 0.9, 2.0))
    for _ in range(2):
        with pytest.raises(
            NotReplicated, match=r"but only 0 of the 1 replicas of REDISQ.* mirror begins"
        ):
            scanner.name()
    paused_replica.resume()
    name = Scanner(worker_connection()).name()
    assert paused_replica.client().hget("job_queue:{0}:meta", "incarnation") == name.encode()


def test_scripts_that_redis_has_forgotten(
    pause: Callable[[], None], pair: tuple[RedisServer, RedisServer]
) -> None:
    pair[0].client().script_flush()
    assert tasks.noop.enqueue().status == "queued"
    pause()
    pair[0].client().script_flush()
    with pytest.raises(NotReplicated):
        tasks.noop.enqueue()


def test_an_error_of_the_script_comes_first(replica: RedisServer) -> None:
    with pytest.raises(ParentNotFound):
        tasks.noop.using(after=["job_1_aaaaaaaaaa_0"]).enqueue()
    assert JobQueue().get_stats()["queued"] == 0
    tasks.noop.enqueue()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_row_is_deleted_when_replicas_have_its_job(
    paused_replica: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "FSYNCED_MS", 0)
    monkeypatch.setattr(durability, "WAIT_MS", 100)
    monkeypatch.setattr("django_redisqueue.outbox.relay.GRACE", timedelta(0))
    settings.REDISQUEUE = {**settings.REDISQUEUE, "OUTBOX": True, "MIRROR": False}
    with transaction.atomic():
        job = tasks.noop.enqueue()
    relay = Relay(Commands(worker_connection()), "default")
    relay.run_once()
    assert [row.pk for row in OutboxJob.objects.all()] == [job.id]
    paused_replica.resume()

    def is_deleted() -> bool:
        relay.run_once()
        return not OutboxJob.objects.exists()

    eventually(is_deleted)
    assert JobQueue().get_stats()["queued"] == 2


@pytest.mark.parametrize("wrong", [-1, True, "1", None])
def test_a_wrong_setting_is_named(settings: Any, wrong: object) -> None:
    settings.REDISQUEUE = {"WAIT_REPLICAS": wrong}
    with pytest.raises(ConfigurationError, match=r"WAIT_REPLICAS.*a whole number from 0 to 100"):
        get_settings()
