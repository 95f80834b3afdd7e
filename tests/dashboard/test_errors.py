"""The pages of errors: what they list, filter and show, and what happens to a group's jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone

from django_redisqueue import JobQueue, get_job
from django_redisqueue.conf import get_settings
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.core.statuses import Status
from django_redisqueue.dashboard import bulk
from django_redisqueue.mirror.bridge import Bridge
from django_redisqueue.mirror.writer import MirrorWriter
from django_redisqueue.models import ErrorGroup
from tests.app import tasks
from tests.support.manual_worker import ManualWorker, low

from .site import Site, address, logged, plain, rows

TRACE = 'Traceback (most recent call last):\n  File "/a/shop/tasks.py", line 3, in charge\n'


@pytest.fixture
def both(redisqueue: None) -> Iterator[ManualWorker]:
    made = ManualWorker("default", "low")
    yield made
    made.close()


def mirror() -> None:
    """Apply all events of every shard."""
    for shard in range(get_settings().shards):
        bridge = Bridge(MirrorWriter(ManualWorker().connection.at(shard)))
        while bridge.run_once():
            pass
        bridge.connection.close()


def fail(
    manual_worker: ManualWorker, message: str, kind: str = "ValueError", how: str = "failed"
) -> str:
    """Make the next job end like this; returns its id."""
    job = manual_worker.claim_one()
    delay = "1000000" if how == "retrying" else ""
    manual_worker.settle(job, how, encode_error(kind, message, TRACE, 9999), delay)
    return job.id


@pytest.fixture
def known(both: ManualWorker) -> dict[str, ErrorGroup]:
    """Two groups, by exception: one of three jobs in two queues, and one of a retried attempt."""
    tasks.noop.enqueue_many([(), ()])
    fail(both, "order 1 <b>")
    fail(both, "order 2 <b>")
    low.enqueue()
    fail(both, "no", "KeyError", "retrying")
    mirror()
    older = ErrorGroup.objects.filter(exception="ValueError")
    older.update(last_seen=F("last_seen") - timedelta(seconds=1))  # not in the same millisecond
    return {group.exception: group for group in ErrorGroup.objects.all()}


def test_the_list_has_a_row_for_each_group(site: Site, known: dict[str, ErrorGroup]) -> None:
    newest, older = rows(site.get("errors"))
    assert newest.startswith(f"KeyError no {low.name} a/shop/tasks.py in charge 0 1 ")
    assert older.startswith(
        f"ValueError order <n> <b> {tasks.noop.name} a/shop/tasks.py in charge 2 0 "
    )
    assert older.endswith(" default")
    assert 'aria-label="2 in the last 7 days"><path d="M82 20v-20h1.5v20z"/>' in site.get("errors")
    live = site.json("errors", live=1)["fragments"]["drq-errors"]
    assert [row.split()[0] for row in rows(live)] == ["KeyError", "ValueError"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"task": "noop"}, ["ValueError"]),
        ({"queue": "low"}, ["KeyError"]),
        ({"text": "ORDER"}, ["ValueError"]),
        ({"order": "count"}, ["ValueError", "KeyError"]),
        ({"state": "silenced"}, []),
        ({"state": "all"}, ["KeyError", "ValueError"]),
    ],
)
def test_filters(
    site: Site, known: dict[str, ErrorGroup], query: dict[str, str], expected: list[str]
) -> None:
    assert [row.split()[0] for row in rows(site.get("errors", **query))] == expected
    assert "must be one of silenced, all" in site.text("errors", state="?")


def test_the_list_is_paged(site: Site) -> None:
    now = timezone.now()
    ErrorGroup.objects.bulk_create(
        ErrorGroup(id=f"{n:032}", task="a", exception=f"E{n}", first_seen=now, last_seen=now)
        for n in range(60)
    )
    first = site.get("errors", task="a")
    assert len(rows(first)) == 50
    assert "?task=a&amp;start=50" in first
    assert len(rows(site.get("errors", start=50))) == 10


def test_the_page_of_a_group(site: Site, known: dict[str, ErrorGroup]) -> None:
    group = known["ValueError"]
    words = site.text("error", group.pk)
    assert "Failed jobs 2 Retried attempts 0" in words
    assert f"{group.job_id} : ValueError : order 2 <b>" in words
    assert 'File "/a/shop/tasks.py", line 3, in charge' in words
    assert words.count("failed") >= 2
    site.get("error", "0" * 32, code=404)
    site.get("error", "no group", code=404)


def test_its_failed_jobs_are_retried_in_every_queue_and_shard(
    site: Site, both: ManualWorker
) -> None:
    tasks.noop.enqueue_many([(), (), ()])
    others = fail(both, "else")
    for n in range(2):
        fail(both, f"order {n}")
    tasks.noop.using(queue_name="low").enqueue()
    fail(both, "order 9")
    mirror()
    group = ErrorGroup.objects.get(message="order <n>")
    page = ("act_on_error", group.pk)
    asked = site.post(*page, verb="retry")
    assert "The mirror has 3 jobs" in plain(asked)
    assert JobQueue().get_stats()["queued"] == 0
    before = re.search(r'name="before_ms" value="(\d+)"', asked)
    assert before is not None
    told = site.post(*page, verb="retry", confirmed="yes", before_ms=before[1])
    assert told == "3 jobs sent back to the queue."
    assert [JobQueue(name).get_stats()["queued"] for name in ("default", "low")] == [2, 1]
    assert get_job(others).status == "failed"
    assert logged() == [(f"error {group.pk}", "Retry its failed jobs: 3 jobs")]
    again = fail(both, "order 5")  # before the mirror knows about any of it
    told = site.post(*page, verb="retry", confirmed="yes", before_ms=before[1])
    assert told == "0 jobs sent back to the queue."
    assert get_job(again).status == "failed"


def test_many_are_deleted_by_a_job(
    site: Site, both: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "INLINE", 1)
    tasks.noop.enqueue_many([(), ()])
    for n in range(2):
        fail(both, f"order {n}")
    mirror()
    group = ErrorGroup.objects.get()
    page = ("act_on_error", group.pk)
    assert "a worker will do this" in site.post(*page, verb="delete")
    before_ms = bulk.now_ms() + 1000
    told = site.post(*page, verb="delete", confirmed="yes", before_ms=before_ms)
    assert told.startswith("Delete its failed jobs: a worker is doing this")
    job = both.claim_one()
    assert job.task == "django_redisqueue.bulk"
    args = get_job(job.id).args
    status = Status(args[2])
    action = bulk.BulkAction(bulk.VERBS[args[0]], args[1], status, args[3], group=args[-1])
    assert sum(bulk.perform(action, lambda *_: True).complete()) == 2
    assert JobQueue().get_stats()["failed"] == 0


def test_silenced_errors_are_counted_and_left_out_of_the_list(
    site: Site, known: dict[str, ErrorGroup], both: ManualWorker
) -> None:
    pk = known["ValueError"].pk
    assert "is silenced" in site.post("act_on_error", pk, verb="silence")
    assert [row.split()[0] for row in rows(site.get("errors"))] == ["KeyError"]
    assert "Silenced by ada since" in site.text("error", pk)
    tasks.noop.enqueue()
    fail(both, "order 3 <b>")
    mirror()
    group = ErrorGroup.objects.get(pk=pk)
    assert (group.count, group.silenced_by) == (3, "ada")
    assert "is listed again" in site.post("act_on_error", pk, verb="unsilence")
    assert len(rows(site.get("errors"))) == 2
    assert logged() == [(f"error {pk}", "Silence"), (f"error {pk}", "Unsilence")]


@pytest.mark.parametrize(
    ("verb", "permission"),
    [("retry", "retry_job"), ("silence", "retry_job"), ("delete", "clear_queue")],
)
def test_each_action_needs_its_permission(
    staff: Callable[..., User],
    site: Site,
    known: dict[str, ErrorGroup],
    verb: str,
    permission: str,
) -> None:
    pk = known["ValueError"].pk
    rest = {"view_jobrecord", "retry_job", "clear_queue"} - {permission}
    site.client.force_login(staff(*rest, name="bob"))
    assert f'value="{verb}"' not in site.get("error", pk)
    form = {"verb": verb, "confirmed": "yes", "before_ms": "9"}
    assert site.client.post(address("act_on_error", pk), form).status_code == 403
    assert site.client.get(address("act_on_error", pk)).status_code == 405
    assert ErrorGroup.objects.get(pk=pk).silenced_at is None


def test_an_impossible_action_is_explained_on_the_page(
    site: Site, known: dict[str, ErrorGroup]
) -> None:
    page = ("act_on_error", known["ValueError"].pk)
    assert "'burn' is not an action" in site.post(*page, verb="burn")
    assert "does not apply to failed jobs" in site.post(*page, verb="cancel")
    assert "before_ms must be" in site.post(*page, verb="retry", confirmed="yes")
