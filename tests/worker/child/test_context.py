"""What a task can see of its own job."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from django_redisqueue import Job
from django_redisqueue.client import gather
from django_redisqueue.exceptions import (
    GatherNotFound,
    InvalidArguments,
    JobAbandoned,
    LeaseLost,
    RedisUnavailable,
)
from django_redisqueue.worker.child import context as context_module
from django_redisqueue.worker.child.context import JobContext
from tests.worker.parts import claimed

from .test_steps import Memory


@pytest.mark.parametrize(
    ("job_id", "workflow_id"),
    [
        ("flow_1700000000000_aaaaaaaaaa_3.12", "flow_1700000000000_aaaaaaaaaa_3"),
        ("flow_1700000000000_aaaaaaaaaa_0.complete1", "flow_1700000000000_aaaaaaaaaa_0"),
        ("gather_1700000000000_aaaaaaaaaa_0.1", None),
        ("job_1700000000000_aaaaaaaaaa_0", None),
    ],
)
def test_a_job_knows_its_workflow_without_asking_redis(
    job_id: str, workflow_id: str | None
) -> None:
    context = JobContext(claimed(job_id), lambda _: pytest.fail("reported"), Memory())
    assert context.workflow_id == workflow_id


def test_progress_is_cheap_and_its_last_report_is_never_left_out() -> None:
    reports: list[str] = []
    context = JobContext(claimed(), lambda text: reports.append(text) is None, Memory())
    for done in range(1, 1001):
        context.progress(done, 1000)
    assert len(reports) <= 3
    assert json.loads(reports[-1]) == {"done": 1000, "total": 1000, "note": ""}


NO_NUMBERS = ["half", None, True, -1, -0.5, 2**63 + 1, float("nan"), float("inf"), Decimal(1)]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_progress_that_is_not_a_number_is_refused_and_not_reported(value: Any) -> None:
    context = JobContext(claimed(), lambda _: pytest.fail("reported"), Memory())
    words = re.escape(f"must be a number from 0 to 2**63, not {value!r}")
    with pytest.raises(InvalidArguments, match=f"progress: done {words}"):
        context.progress(value, 1)
    with pytest.raises(InvalidArguments, match=f"progress: total {words}"):
        context.progress(1, value)


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (None, "progress: note must be text, not None"),
        (b"half", "progress: note must be text, not b'half'"),
        ("\ud800", "progress: note has a lone surrogate, which is not Unicode text"),
    ],
)
def test_a_note_that_is_not_text_is_refused_and_not_reported(note: Any, words: str) -> None:
    context = JobContext(claimed(), lambda _: pytest.fail("reported"), Memory())
    with pytest.raises(InvalidArguments) as caught:
        context.progress(1, 2, note)
    assert str(caught.value) == words


@pytest.mark.parametrize(("done", "total"), [(0, 0), (3, 2), (0.5, 2**63)])
def test_unusual_progress_is_reported(done: float, total: float) -> None:
    reports: list[str] = []
    JobContext(claimed(), lambda text: reports.append(text) is None, Memory()).progress(done, total)
    assert [json.loads(text) for text in reports] == [{"done": done, "total": total, "note": ""}]


@pytest.mark.parametrize("left_out", [0, 1, 10_000])
def test_a_note_that_is_too_long_is_cut_and_shows_it(left_out: int) -> None:
    reports: list[str] = []
    context = JobContext(claimed(), lambda text: reports.append(text) is None, Memory())
    context.progress(1, 1, "x" * (1000 + left_out))
    assert json.loads(reports[0])["note"] == ("x" * 999 + "…" if left_out else "x" * 1000)


def test_progress_of_a_job_that_another_worker_has_ends_this_run() -> None:
    context = JobContext(claimed(), lambda _: False, Memory())
    with pytest.raises(JobAbandoned):
        context.progress(1, 1)


def test_progress_without_redis_does_not_end_the_run() -> None:
    def away(_: str) -> bool:
        raise RedisUnavailable("gone")

    JobContext(claimed(), away, Memory()).progress(1, 1)


def test_reading_parent_results_waits_while_redis_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [RedisUnavailable("gone"), RedisUnavailable("gone"), {"job_0": 7}]

    class Transport:
        def parent_results(self, job_id: str) -> dict[str, Any]:
            answer = answers.pop(0)
            if isinstance(answer, RedisUnavailable):
                raise answer
            return dict(answer)

    monkeypatch.setattr(context_module, "transport", Transport)
    assert JobContext(claimed(), lambda _: True, Memory()).parent_results == {"job_0": 7}
    assert answers == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("aparent_results", {"job_0": 7}), ("agather", None), ("aprevious_due_at", None)],
)
def test_async_tasks_do_not_ask_redis_on_their_event_loop(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    asked: list[threading.Thread] = []

    def in_this_thread(answer: Any) -> Any:
        asked.append(threading.current_thread())
        return answer

    transport = SimpleNamespace(
        parent_results=lambda _: in_this_thread({"job_0": 7}),
        gather_key=lambda _: in_this_thread(None),
    )
    monkeypatch.setattr(context_module, "transport", lambda: transport)
    monkeypatch.setattr(gather, "transport", lambda: transport)
    monkeypatch.setattr(
        Job, "data", property(lambda _: in_this_thread(SimpleNamespace(previous_due_ms=None)))
    )
    context = JobContext(claimed("gather_1.0"), lambda _: True, Memory())
    assert asyncio.run(getattr(context, name)()) == value
    assert asked != []
    assert threading.current_thread() not in asked


@pytest.mark.parametrize("name", ["parent_results", "gather"])
def test_a_run_unknown_to_redis_is_not_a_failure(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The former master may be answering while the job runs legitimately, so the job runs again."""

    class Transport:
        def parent_results(self, job_id: str) -> dict[str, Any]:
            raise LeaseLost(f"Redis has no record that job {job_id} is running")

        gather_key = parent_results

    monkeypatch.setattr(context_module, "transport", Transport)
    monkeypatch.setattr(gather, "transport", Transport)
    with pytest.raises(JobAbandoned, match=r"no record that job gather_1\.0 is running"):
        getattr(JobContext(claimed("gather_1.0"), lambda _: True, Memory()), name)


@pytest.mark.parametrize(
    ("later", "error"), [(LeaseLost("Redis does not know"), JobAbandoned), ("key", GatherNotFound)]
)
def test_a_gather_that_is_gone_ends_the_run_if_its_job_is_gone_too(
    monkeypatch: pytest.MonkeyPatch, later: str | LeaseLost, error: type[BaseException]
) -> None:
    """A failover happened between the two questions; otherwise the gather was deleted while its job
    ran."""
    answers: list[str | LeaseLost] = ["key", later]

    class Transport:
        def gather_key(self, job_id: str) -> str:
            answer = answers.pop(0)
            if isinstance(answer, LeaseLost):
                raise answer
            return answer

        def gather(self, key: str) -> None:
            return None

    monkeypatch.setattr(gather, "transport", Transport)
    monkeypatch.setattr(gather, "transport_of_jobs", lambda _: Transport())
    found = JobContext(claimed("gather_1.0"), lambda _: True, Memory()).gather
    assert found is not None
    with pytest.raises(error):
        found.results  # noqa: B018
    assert answers == []
