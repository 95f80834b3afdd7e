"""Receivers run in one transaction with the cursor, and what happens when they break that
transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError, Error, IntegrityError, connection, connections, transaction
from django.db.models import F, Model
from redis import Redis

from django_redisqueue.mirror import signal_delivery
from django_redisqueue.mirror.signal_delivery import (
    JOB_SOURCE,
    SignalCursor,
    SignalDelivery,
    SignalSender,
)
from django_redisqueue.models import JobEvent, MirrorState, OutboxJob
from django_redisqueue.signals import JOB_SIGNALS, job_queued
from tests.app.models import Counter
from tests.app.tasks import noop
from tests.support.postgres import PostgresServer
from tests.support.shards import keys_of

from .conftest import IN_MEMORY
from .rows import event, record, state

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
BROKEN = "was broken by"  # logged when the receivers of an event are called again


@pytest.fixture(autouse=True)
def alone(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disconnects the receivers of the example project."""
    for signal in JOB_SIGNALS.values():
        monkeypatch.setattr(signal, "receivers", [])
    # one pass sends all signals, however slow
    monkeypatch.setattr(signal_delivery, "PASS_SECONDS", 60)
    state()


@contextmanager
def listening(*receivers: Callable[..., object]) -> Iterator[None]:
    """Connects receivers of job_queued, in this order."""
    with ExitStack() as stack:
        for receiver in receivers:
            job_queued.connect(receiver, weak=False)
            stack.callback(job_queued.disconnect, receiver)
        yield


def count(name: str) -> None:
    Counter.objects.get_or_create(name=name)
    Counter.objects.filter(name=name).update(value=F("value") + 1)


def first(event: JobEvent, **_: Any) -> None:
    """A receiver that writes its own row."""
    count(f"first {event.job_id}")


def last(event: JobEvent, **_: Any) -> None:
    count(f"last {event.job_id}")


def counted() -> dict[str, int]:
    return dict(Counter.objects.order_by("pk").values_list("name", "value"))


EVERYTHING_ONCE = {"first a": 1, "last a": 1, "first b": 1, "last b": 1}


def signalled() -> int:
    return MirrorState.objects.get().signalled


def is_caught_up() -> bool:
    return signalled() == JobEvent.objects.latest("id").id


# -- the cursor


def test_the_cursor_only_goes_forward_and_decides_who_was_first() -> None:
    cursor = SignalCursor(JOB_SOURCE, "default", 0)
    assert (cursor.advance(5), cursor.advance(5), cursor.advance(4)) == (True, False, False)
    assert (cursor.read(), signalled()) == (5, 5)
    assert SignalCursor(JOB_SOURCE, "default", 1).read() == 0


def test_an_event_that_another_bridge_has_signalled_is_skipped() -> None:
    sender = SignalSender(JOB_SOURCE, "default", SignalCursor(JOB_SOURCE, "default", 0))
    mine, theirs = event("a"), event("b")
    state(signalled=theirs.id)
    with listening(first):
        sender.send(mine, record("x"))
        sender.send(theirs, record("y"))
    assert counted() == {}
    assert signalled() == theirs.id


def test_a_receiver_works_in_the_transaction_that_moves_the_cursor() -> None:
    seen: list[tuple[bool, int]] = []

    def look(event: JobEvent, **_: Any) -> None:
        seen.append((connection.in_atomic_block, signalled() - event.id))

    event("a")
    with listening(look):
        SignalDelivery().run_once()
    assert seen == [(True, 0)]
    assert not connection.in_atomic_block


def test_a_receiver_that_ends_the_process_rolls_back_the_previous_one() -> None:
    def leave(**_: Any) -> None:
        raise SystemExit

    event("a")
    with listening(first, leave), pytest.raises(SystemExit):
        SignalDelivery().run_once()
    assert (counted(), signalled()) == ({}, 0)


def test_an_async_receiver_works_in_the_transaction_too() -> None:
    seen: list[bool] = []

    async def writes(event: JobEvent, **_: Any) -> None:
        await Counter.objects.acreate(name=f"async {event.job_id}")
        seen.append(await sync_to_async(lambda: connection.in_atomic_block)())

    event("a")
    with listening(writes):
        SignalDelivery().run_once()
    assert (seen, counted()) == ([True], {"async a": 0})
    assert is_caught_up()


class Elsewhere:
    """A router that puts the mirror into a different database from everything else."""

    def db_for_read(self, model: type[Model], **_: Any) -> str | None:
        return "other" if model._meta.app_label == "django_redisqueue" else None

    db_for_write = db_for_read


@pytest.mark.parametrize("database", [IN_MEMORY], indirect=True)
def test_the_transaction_is_in_the_mirrors_database(
    queue_settings: dict[str, Any], redis: Redis, settings: Any
) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    state()
    seen: list[object] = []

    def look(**_: Any) -> None:
        seen.extend(connections[alias].in_atomic_block for alias in ("default", "other"))
        noop.enqueue()
        seen.append(OutboxJob.objects.using("other").count())

    event("a")
    assert JobEvent.objects.using("default").count() == 0
    with listening(look):
        SignalDelivery().run_once()
    assert seen == [False, True, 1]
    assert is_caught_up()
    assert redis.llen(keys_of().queue("default").queued) == 1


# -- receivers that break the transaction


def lets_an_error_out(**_: Any) -> None:
    MirrorState.objects.create(shard=0)


def swallows_an_error(**_: Any) -> None:
    with suppress(IntegrityError):
        MirrorState.objects.create(shard=0)


def swallows_one_of_raw_sql(**_: Any) -> None:
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM tests_app_nothing")


def asks_for_a_rollback(**_: Any) -> None:
    if connection.in_atomic_block:
        transaction.set_rollback(True)


def calls_rollback(**_: Any) -> None:
    if connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")


def breaks_a_constraint_checked_at_the_commit(**_: Any) -> None:
    LogEntry.objects.create(user_id=999, object_repr="x", action_flag=1)


SPOILERS = [
    lets_an_error_out,
    swallows_an_error,
    asks_for_a_rollback,
    breaks_a_constraint_checked_at_the_commit,
]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_broken_transaction_affects_no_other_receiver_and_no_event(
    spoil: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    event("a")
    event("b")
    with listening(first, spoil, last):
        assert SignalDelivery().run_once() is False
    assert counted() == EVERYTHING_ONCE
    assert is_caught_up()
    ours = [one.getMessage() for one in caplog.records if one.name == "django_redisqueue"]
    spoilt = [text for text in ours if BROKEN in text]
    assert [text.partition(":")[0] for text in spoilt] == ["job a", "job b"]
    assert all(spoil.__name__ in text and "transaction.atomic()" in text for text in spoilt)


@on_postgresql
@pytest.mark.parametrize("spoil", [swallows_one_of_raw_sql, calls_rollback])
def test_a_broken_transaction_that_django_believes_to_be_valid(
    spoil: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    event("a")
    event("b")
    with listening(first, spoil, last):
        SignalDelivery().run_once()
    assert counted() == EVERYTHING_ONCE
    assert is_caught_up()
    assert caplog.text.count(BROKEN) == 2


def test_the_receiver_that_raised_the_error_is_named(caplog: pytest.LogCaptureFixture) -> None:
    event("a")
    with listening(first, lets_an_error_out, last):
        SignalDelivery().run_once()
    assert "job a: the transaction of the receivers of job_queued was broken by lets_an" in (
        caplog.text
    )
    assert "job a: the receiver lets_an_error_out of job_queued raised IntegrityError" in (
        caplog.text
    )
    assert "the receiver last" not in caplog.text
    caplog.clear()
    event("b")
    with listening(first, asks_for_a_rollback, last):
        SignalDelivery().run_once()
    assert "was broken by first or asks_for_a_rollback (" in caplog.text


def test_an_error_inside_its_own_atomic_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def careful(event: JobEvent, **_: Any) -> None:
        heard.append(event.job_id)
        with transaction.atomic():
            count("half done")
            MirrorState.objects.create(shard=0)

    event("a")
    event("b")
    with listening(first, careful, last):
        SignalDelivery().run_once()
    assert counted() == EVERYTHING_ONCE
    assert heard == ["a", "b"]
    assert BROKEN not in caplog.text
    assert "careful of job_queued raised IntegrityError" in caplog.text


def test_writes_before_another_exception_stay() -> None:
    def fails(**_: Any) -> None:
        count("half done")
        raise ZeroDivisionError

    event("a")
    with listening(fails, last):
        SignalDelivery().run_once()
    assert counted() == {"half done": 1, "last a": 1}
    assert is_caught_up()


def test_a_receiver_without_a_name_that_raises_does_not_end_the_bridge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(**_: Any) -> None:
        raise ZeroDivisionError

    event("a")
    event("b")
    with listening(first, partial(fails)):
        SignalDelivery().run_once()
    assert counted() == {"first a": 1, "first b": 1}
    assert is_caught_up()
    assert "ZeroDivisionError" in caplog.text


# -- the connection is lost


def again(delivery: SignalDelivery) -> None:
    """Calls again after an error, like the bridge."""
    connection.close()
    delivery.run_once()


@on_postgresql
def test_after_a_lost_connection_the_signal_is_sent_later(on_postgres: PostgresServer) -> None:
    lost: list[str] = []

    def loses_it(event: JobEvent, **_: Any) -> None:
        if not lost:
            lost.append(event.job_id)
            on_postgres.terminate(connection.settings_dict["NAME"])

    event("a")
    event("b")
    delivery = SignalDelivery()
    with listening(first, loses_it, last):
        with pytest.raises(Error):
            delivery.run_once()
        assert (counted(), signalled()) == ({}, 0)
        again(delivery)
    assert counted() == EVERYTHING_ONCE
    assert is_caught_up()


@on_postgresql
@pytest.mark.parametrize("how", ["closes", "terminates"])
def test_a_receiver_that_always_loses_the_connection_does_not_stop_the_others(
    how: str, on_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    def loses_it(**_: Any) -> None:
        if how == "closes":
            connection.close()
        else:
            on_postgres.terminate(connection.settings_dict["NAME"])

    event("a")
    delivery = SignalDelivery()
    with listening(first, loses_it):
        with pytest.raises(Error):
            delivery.run_once()
        again(delivery)
    assert counted() == {"first a": 1}
    assert is_caught_up()
    assert caplog.text.count(BROKEN) == 1


@on_postgresql
def test_a_lost_reply_to_commit_repeats_nothing(
    on_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses_the_reply(**_: Any) -> None:
        wrapper, commit = connections["default"], connection.commit

        def committed() -> None:
            monkeypatch.delattr(wrapper, "commit")
            commit()
            on_postgres.terminate(connection.settings_dict["NAME"])
            with wrapper.cursor() as cursor:
                cursor.execute("SELECT 1")  # what COMMIT would have raised

        monkeypatch.setattr(wrapper, "commit", committed, raising=False)

    event("a")
    with listening(first, loses_the_reply):
        assert SignalDelivery().run_once() is False
    assert counted() == {"first a": 1}
    assert is_caught_up()


# -- after the commit


def test_hooks_that_raise_affect_neither_the_bridge_nor_other_hooks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[str] = []

    def fails() -> None:
        raise ZeroDivisionError

    def hooks(event: JobEvent, **_: Any) -> None:
        for hook in (fails, partial(fails), partial(called.append, event.job_id)):
            transaction.on_commit(hook)

    event("a")
    event("b")
    with listening(hooks, last):
        assert SignalDelivery().run_once() is False
    assert called == ["a", "b"]
    assert counted() == {"last a": 1, "last b": 1}
    assert is_caught_up()
    assert caplog.text.count("of a receiver of job_queued raised: ") == 4
    assert "job b: an on_commit hook of a receiver of job_queued raised: test_hooks" in caplog.text


@pytest.mark.parametrize("spoil", [None, lets_an_error_out])
def test_enqueued_jobs_are_rows_of_the_transaction_and_are_sent_once(
    spoil: Callable[..., None] | None, queue_settings: dict[str, Any], redis: Redis
) -> None:
    rows: list[int] = []

    def enqueues(**_: Any) -> None:
        noop.enqueue()
        rows.append(OutboxJob.objects.count())

    event("a")
    with listening(enqueues, *([spoil] if spoil else [])):
        SignalDelivery().run_once()
    queued = redis.llen(keys_of().queue("default").queued)
    sent_alone = spoil is not None  # outside a transaction, and without the outbox
    assert (queued, OutboxJob.objects.count()) == (1, 0 if sent_alone else 1)
    assert rows == ([1] if spoil is None else [1, 0])


# -- on SQLite, other writers need the lock


def test_it_makes_room_for_other_writers_but_not_for_slow_receivers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal_delivery, "MAX_HOLD", 0.001)
    seen: list[object] = []
    delivery = SignalDelivery()
    throttle = delivery._sender._throttle
    monkeypatch.setattr(throttle, "wait", lambda: seen.append("wait"))
    monkeypatch.setattr(throttle, "record", seen.append)

    def slow(**_: Any) -> None:
        seen.append("received")
        time.sleep(0.002)

    event("a")
    event("b")
    with listening(slow):
        delivery.run_once()
    assert seen == ["wait", "received", 0.001] * 2
