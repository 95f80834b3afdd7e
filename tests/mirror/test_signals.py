"""Each status has a signal, sent after the commit and in order, even if receivers raise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from pytest_django import DjangoAssertNumQueries

from django_redisqueue.core.statuses import Status
from django_redisqueue.mirror import signal_delivery
from django_redisqueue.mirror.signal_delivery import SignalDelivery
from django_redisqueue.models import JobEvent, JobRecord, MirrorState
from django_redisqueue.signals import JOB_SIGNALS, job_completed, job_failed, job_queued

from .rows import event, record, state

pytestmark = pytest.mark.django_db


class Heard(list[tuple[str, str]]):
    """What a receiver got: the record's id and the signal's status, in order."""

    def __call__(self, *, record: JobRecord, event: JobEvent, **_: Any) -> None:
        assert record.pk == event.job_id
        self.append((record.id, event.status))


@contextmanager
def listening(*signals: Any, to: Callable[..., None] | None = None) -> Iterator[Heard]:
    heard = Heard()
    receiver = to or heard
    for signal in signals:
        signal.connect(receiver, weak=False)
    try:
        yield heard
    finally:
        for signal in signals:
            signal.disconnect(receiver)


@pytest.fixture(autouse=True)
def mirror_state() -> None:
    state()


@pytest.fixture(autouse=True)
def no_example_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disconnects the receivers of the example project."""
    for signal in JOB_SIGNALS.values():
        monkeypatch.setattr(signal, "receivers", [])
    # one pass sends all signals, however slow
    monkeypatch.setattr(signal_delivery, "PASS_SECONDS", 60)


def signalled() -> int:
    return MirrorState.objects.get().signalled


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_its_signal(status: Status) -> None:
    event("a", status.value)
    others = [signal for one, signal in JOB_SIGNALS.items() if one is not status]
    with listening(JOB_SIGNALS[status]) as heard, listening(*others) as unheard:
        assert SignalDelivery().run_once() is False
    assert heard == [("a", status.value)]
    assert unheard == []


def test_the_record_is_the_current_one_and_its_class_the_sender() -> None:
    record("a", "completed", result="42")
    first = event("a", "queued")
    received: list[Any] = []
    with listening(job_queued, to=lambda **named: received.append(named)):
        SignalDelivery().run_once()
    assert received[0]["sender"] is JobRecord
    assert (received[0]["record"].result_value, received[0]["record"].status) == (42, "completed")
    assert received[0]["event"] == first


def test_in_order_once_and_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_delivery, "EVENTS_PER_QUERY", 3)
    monkeypatch.setattr(signal_delivery, "IDS_PER_QUERY", 5)
    for n in range(11):
        event(f"j{n}", "completed")
        event(f"j{n}", "queued")
    with listening(job_completed) as heard:
        SignalDelivery().run_once()
        SignalDelivery().run_once()
    assert [job_id for job_id, _ in heard] == [f"j{n}" for n in range(11)]
    assert signalled() == JobEvent.objects.latest("id").id


def test_few_records_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may be a megabyte."""
    monkeypatch.setattr(signal_delivery, "RECORDS_PER_QUERY", 3)
    sizes: list[int] = []
    in_bulk = QuerySet.in_bulk

    def spy(rows: Any, ids: Any) -> Any:
        sizes.append(len(ids))
        return in_bulk(rows, ids)

    monkeypatch.setattr(QuerySet, "in_bulk", spy)
    for n in range(10):
        event(f"j{n}", "completed")
    with listening(job_completed) as heard:
        assert SignalDelivery().run_once() is False
    assert heard == [(f"j{n}", "completed") for n in range(10)]
    assert sizes == [3, 3, 3, 1]


def test_an_unreadable_detail_is_not_a_progress_report() -> None:
    event("a", "processing")
    JobEvent.objects.update(detail='{"progress":' + "[" * 100_000)
    with listening(*JOB_SIGNALS.values()) as heard:
        SignalDelivery().run_once()
    assert heard == [("a", "processing")]


@pytest.mark.one_shard("with several, the end of a page is read in a transaction")
def test_a_gap_of_ids_is_skipped(
    monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    event("a", id=1)
    event("b", id=5_000_000)
    with listening(job_queued) as heard, django_assert_max_num_queries(25):
        SignalDelivery().run_once()
    assert heard == [("a", "queued"), ("b", "queued")]


def test_a_receiver_that_raises_is_logged_with_the_job_and_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(**_: Any) -> None:
        with transaction.atomic():
            MirrorState.objects.create(shard=0)  # a database error inside, too

    event("a")
    event("b")
    with listening(job_queued, to=broken), listening(job_queued) as heard:
        SignalDelivery().run_once()
    assert heard == [("a", "queued"), ("b", "queued")]
    ours = [one for one in caplog.records if one.name == "django_redisqueue"]
    assert [one.levelno for one in ours] == [logging.ERROR] * 2
    assert "job a: the receiver" in ours[0].getMessage()
    assert "broken of job_queued raised IntegrityError" in ours[0].getMessage()
    assert ours[0].exc_info is not None
    assert ours[0].exc_info[0] is IntegrityError


def test_a_bridge_that_dies_in_a_receiver_sends_the_signal_again() -> None:
    event("a")
    event("b")

    def dies(**_: Any) -> None:
        raise SystemExit

    with listening(job_queued, to=dies), pytest.raises(SystemExit):
        SignalDelivery().run_once()
    assert signalled() == 0
    with listening(job_queued) as heard:
        SignalDelivery().run_once()
    assert heard == [("a", "queued"), ("b", "queued")]


def test_slow_receivers_delay_the_signals_and_not_the_bridge() -> None:
    for n in range(3):
        event(f"j{n}")
    delivery = SignalDelivery()
    with listening(job_queued) as heard:
        assert delivery.run_once(seconds=0) is True
        assert heard == [("j0", "queued")]
        assert delivery.run_once(seconds=0) is True
        assert delivery.run_once(seconds=0) is False
    assert [job_id for job_id, _ in heard] == ["j0", "j1", "j2"]


def test_slow_receivers_do_not_look_like_a_stuck_bridge() -> None:
    promised: list[float] = []
    event("a")
    event("b")
    with listening(job_queued) as heard:
        SignalDelivery(keep_alive=promised.append).run_once()
    assert promised == [signal_delivery.RECEIVER_TIMEOUT] * len(heard) == [300.0] * 2


@pytest.mark.one_shard("with several, the end of a page is read in a transaction")
def test_without_receivers_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    last = event("a")
    delivery = SignalDelivery()
    with django_assert_num_queries(2):
        for _ in range(10):
            assert delivery.run_once() is False
    assert signalled() == last.id
    monkeypatch.setattr(signal_delivery, "SKIP_INTERVAL", 0.0)
    JobEvent.objects.all().delete()
    SignalDelivery().run_once()
    assert signalled() == last.id
    with listening(job_queued) as heard:
        delivery.run_once()
    assert heard == []


@pytest.mark.one_shard("with several, the end of a page is read in a transaction")
def test_two_queries_find_nothing_new(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    event("a")
    with listening(job_queued) as heard:
        SignalDelivery().run_once()
        with django_assert_num_queries(2):
            SignalDelivery().run_once()
    assert len(heard) == 1


@pytest.mark.one_shard("with several, the end of a page is read in a transaction")
def test_events_without_receivers_move_the_cursor_once_per_page(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    # Ids increase over all tests of a process, and skipping many of them costs a query.
    state(signalled=event("before").id)
    for n in range(100):
        event(f"j{n}", "processing")
        event("j0", "processing", detail={"progress": {"done": n, "total": 100, "note": ""}})
    event("one")
    JobRecord.objects.filter(pk__in=[f"j{n}" for n in range(1, 100)]).delete()
    with (
        listening(job_queued, JOB_SIGNALS[Status.PROCESSING]) as heard,
        django_assert_max_num_queries(15),
    ):
        SignalDelivery().run_once()
    assert heard == [("j0", "processing"), ("one", "queued")]
    assert signalled() == JobEvent.objects.latest("id").id


def test_progress_and_deleted_records_send_no_signal() -> None:
    event("a", "processing")
    event("a", "processing", detail={"progress": {"done": 1, "total": 2, "note": ""}})
    event("b", "failed", detail={"error": {"type": "E", "message": '"progress"'}})
    event("c", "failed")
    JobRecord.objects.filter(pk="c").delete()
    with listening(JOB_SIGNALS[Status.PROCESSING], job_failed) as heard:
        SignalDelivery().run_once()
    assert heard == [("a", "processing"), ("b", "failed")]
    assert signalled() == JobEvent.objects.latest("id").id


def test_the_cursor_never_goes_back() -> None:
    event("a")
    far = event("b").id + 100

    def overtaken(**_: Any) -> None:
        state(signalled=far)  # another bridge, meanwhile

    with listening(job_queued, to=overtaken):
        SignalDelivery().run_once()
    assert signalled() == far
    SignalDelivery().run_once()  # there are no listeners, and it is further on than the last event
    assert signalled() == far
