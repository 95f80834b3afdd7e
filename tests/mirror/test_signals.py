"""Signals: one a status, after the rows, in order; a receiver that raises harms nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from pytest_django import DjangoAssertNumQueries

from django_redisqueue.mirror import signalling
from django_redisqueue.mirror.signalling import Signaller
from django_redisqueue.models import JobEvent, JobRecord, MirrorState
from django_redisqueue.signals import JOB_SIGNALS, job_completed, job_failed, job_queued
from django_redisqueue.states import Status

from .rows import event, record, state

pytestmark = pytest.mark.django_db


class Heard(list[tuple[str, str]]):
    """What a receiver was told: the record's id and status as of the signal, in order."""

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
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example project, which is installed here, listens too."""
    for signal in JOB_SIGNALS.values():
        monkeypatch.setattr(signal, "receivers", [])
    monkeypatch.setattr(signalling, "BUDGET", 60)  # one pass tells all, however slow


def signalled() -> int:
    return MirrorState.objects.get().signalled


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_its_signal(status: Status) -> None:
    event("a", status.value)
    others = [signal for one, signal in JOB_SIGNALS.items() if one is not status]
    with listening(JOB_SIGNALS[status]) as heard, listening(*others) as unheard:
        assert Signaller().run_once() is False
    assert heard == [("a", status.value)]
    assert unheard == []


def test_the_record_comes_as_it_is_by_then_and_from_its_class() -> None:
    record("a", "completed", result="42")
    first = event("a", "queued")
    told: list[Any] = []
    with listening(job_queued, to=lambda **named: told.append(named)):
        Signaller().run_once()
    assert told[0]["sender"] is JobRecord
    assert (told[0]["record"].result_value, told[0]["record"].status) == (42, "completed")
    assert told[0]["event"] == first


def test_in_order_once_and_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signalling, "PAGE", 3)
    monkeypatch.setattr(signalling, "SPAN", 5)
    for n in range(11):
        event(f"j{n}", "completed")
        event(f"j{n}", "queued")
    with listening(job_completed) as heard:
        Signaller().run_once()
        Signaller().run_once()
    assert [job_id for job_id, _ in heard] == [f"j{n}" for n in range(11)]
    assert signalled() == JobEvent.objects.latest("id").id


def test_few_records_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may have a megabyte."""
    monkeypatch.setattr(signalling, "RECORDS", 3)
    sizes: list[int] = []
    in_bulk = QuerySet.in_bulk

    def spy(rows: Any, ids: Any) -> Any:
        sizes.append(len(ids))
        return in_bulk(rows, ids)

    monkeypatch.setattr(QuerySet, "in_bulk", spy)
    for n in range(10):
        event(f"j{n}", "completed")
    with listening(job_completed) as heard:
        assert Signaller().run_once() is False
    assert heard == [(f"j{n}", "completed") for n in range(10)]
    assert sizes == [3, 3, 3, 1]


def test_a_detail_that_can_not_be_read_is_no_report_of_progress() -> None:
    event("a", "processing")
    JobEvent.objects.update(detail='{"progress":' + "[" * 100_000)
    with listening(*JOB_SIGNALS.values()) as heard:
        Signaller().run_once()
    assert heard == [("a", "processing")]


def test_a_gap_of_ids_is_jumped_over(
    monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    event("a", id=1)
    event("b", id=5_000_000)
    with listening(job_queued) as heard, django_assert_max_num_queries(25):
        Signaller().run_once()
    assert heard == [("a", "queued"), ("b", "queued")]


def test_a_receiver_that_raises_is_logged_with_the_job_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(**_: Any) -> None:
        with transaction.atomic():
            MirrorState.objects.create(shard=0)  # a database error inside, too

    event("a")
    event("b")
    with listening(job_queued, to=broken), listening(job_queued) as heard:
        Signaller().run_once()
    assert heard == [("a", "queued"), ("b", "queued")]
    ours = [one for one in caplog.records if one.name == "django_redisqueue"]
    assert [one.levelno for one in ours] == [logging.ERROR] * 2
    assert "job a: the receiver" in ours[0].getMessage()
    assert "broken of job_queued raised IntegrityError" in ours[0].getMessage()
    assert ours[0].exc_info is not None
    assert ours[0].exc_info[0] is IntegrityError


def test_a_bridge_that_dies_while_it_tells_tells_again() -> None:
    event("a")
    event("b")

    def dies(**_: Any) -> None:
        raise SystemExit

    with listening(job_queued, to=dies), pytest.raises(SystemExit):
        Signaller().run_once()
    assert signalled() == 0
    with listening(job_queued) as heard:
        Signaller().run_once()
    assert heard == [("a", "queued"), ("b", "queued")]


def test_slow_receivers_delay_the_signals_and_not_the_bridge() -> None:
    for n in range(3):
        event(f"j{n}")
    signaller = Signaller()
    with listening(job_queued) as heard:
        assert signaller.run_once(budget=0) is True
        assert heard == [("j0", "queued")]
        assert signaller.run_once(budget=0) is True
        assert signaller.run_once(budget=0) is False
    assert [job_id for job_id, _ in heard] == ["j0", "j1", "j2"]


def test_nobody_listens_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    last = event("a")
    signaller = Signaller()
    with django_assert_num_queries(2):
        for _ in range(10):
            assert signaller.run_once() is False
    assert signalled() == last.id
    monkeypatch.setattr(signalling, "SKIP", 0.0)
    JobEvent.objects.all().delete()
    Signaller().run_once()
    assert signalled() == last.id
    with listening(job_queued) as heard:
        signaller.run_once()
    assert heard == []


def test_nothing_new_costs_two_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    event("a")
    with listening(job_queued) as heard:
        Signaller().run_once()
        with django_assert_num_queries(2):
            Signaller().run_once()
    assert len(heard) == 1


def test_what_nobody_hears_of_moves_the_cursor_by_one_statement_a_page(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for n in range(100):
        event(f"j{n}", "processing")
        event("j0", "processing", detail={"progress": {"done": n, "total": 100, "note": ""}})
    event("one")
    JobRecord.objects.filter(pk__in=[f"j{n}" for n in range(1, 100)]).delete()
    with (
        listening(job_queued, JOB_SIGNALS[Status.PROCESSING]) as heard,
        django_assert_max_num_queries(15),
    ):
        Signaller().run_once()
    assert heard == [("j0", "processing"), ("one", "queued")]
    assert signalled() == JobEvent.objects.latest("id").id


def test_progress_is_no_transition_and_a_deleted_record_is_not_told_of() -> None:
    event("a", "processing")
    event("a", "processing", detail={"progress": {"done": 1, "total": 2, "note": ""}})
    event("b", "failed", detail={"error": {"type": "E", "message": '"progress"'}})
    event("c", "failed")
    JobRecord.objects.filter(pk="c").delete()
    with listening(JOB_SIGNALS[Status.PROCESSING], job_failed) as heard:
        Signaller().run_once()
    assert heard == [("a", "processing"), ("b", "failed")]
    assert signalled() == JobEvent.objects.latest("id").id


def test_the_cursor_never_goes_back() -> None:
    event("a")
    far = event("b").id + 100

    def overtaken(**_: Any) -> None:
        state(signalled=far)  # another bridge, meanwhile

    with listening(job_queued, to=overtaken):
        Signaller().run_once()
    assert signalled() == far
    Signaller().run_once()  # nobody listens, and it stands further on than the last event
    assert signalled() == far
