"""Lists of jobs: run now, their filters and columns."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.utils import timezone

from django_redisqueue import JobQueue
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.dashboard import bulk, charts, queue_page
from django_redisqueue.models import ApiToken, Rollup
from tests.app import tasks
from tests.mirror.rows import record
from tests.support.manual_worker import ManualWorker
from tests.worker.processes import eventually

from .site import Site, logged, plain


def later(count: int = 3) -> list[str]:
    jobs = tasks.noop.using(run_after=3600).enqueue_many([(f"no {n}",) for n in range(count)])
    return [job.id for job in jobs]


def run_now(site: Site, status: str, **fields: Any) -> str:
    return site.post("act_on_list", "default", status, verb="run_now", **fields)


# -- run now


def test_one_job_and_several_jobs_run_now(site: Site, manual_worker: ManualWorker) -> None:
    first, second, third = later()
    assert site.post("act_on_job", first, verb="run_now") == "The job was moved into the queue."
    assert run_now(site, "scheduled", id=[second]) == "1 job moved into the queue."
    tasks.flaky.enqueue("k", 9)
    for _ in range(2):
        manual_worker.complete_one()
    failing = manual_worker.claim_one()
    manual_worker.settle(failing, "retrying", encode_error("E", "no", "", 99), "3600000")
    assert run_now(site, "retrying", id=[failing.id]) == "1 job moved into the queue."
    assert manual_worker.claim_one().id == failing.id
    assert JobQueue().get_stats()["scheduled"] == 1
    assert logged()[0] == (first, "Run now")
    assert "the action 'run_now' does not apply" in run_now(site, "queued", id=[third])


def test_the_message_says_why_a_parked_job_cannot_run_now(
    site: Site, manual_worker: ManualWorker
) -> None:
    job = tasks.noop.enqueue()
    manual_worker.settle(manual_worker.claim_one(), "parked", "paid:42", "")
    assert "run_now" not in site.get("job", job.id)
    text = run_now(site, "scheduled", id=[job.id])
    assert "1 job had changed or disappeared meanwhile, or cannot run until a wait ends" in text


@pytest.mark.parametrize("at_once", [True, False])
def test_all_matching_jobs_run_now(
    site: Site, manual_worker: ManualWorker, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(60)
    monkeypatch.setattr(bulk, "INLINE", 100 if at_once else 5)
    page = run_now(site, "scheduled", scope="all", text="No 1")
    assert "Run now those that match" in plain(page)
    before = page.partition('name="before_ms" value="')[2].partition('"')[0]
    run_now(site, "scheduled", scope="all", text="No 1", tag="", confirmed="yes", before_ms=before)
    if not at_once:
        (job,) = JobQueue().get_jobs("queued")
        bulk.bulk(type("Context", (), {"job": job, "progress": print, "cancelled": False})(),
                  *job.args, **job.kwargs)  # fmt: skip
    stats = JobQueue().get_stats()
    assert (stats["scheduled"], stats["queued"]) == (49, 11 + (not at_once))


def test_without_a_filter_all_run_now_and_none_is_cleared(
    site: Site, manual_worker: ManualWorker
) -> None:
    later(7)
    page = run_now(site, "scheduled", scope="all")
    before = page.partition('name="before_ms" value="')[2].partition('"')[0]
    assert "7 jobs moved into the queue" in run_now(
        site, "scheduled", scope="all", confirmed="yes", before_ms=before
    )
    assert JobQueue().get_stats()["queued"] == 7


def test_the_oldest_wait_and_the_pauses_of_a_queue(site: Site, manual_worker: ManualWorker) -> None:
    assert "Oldest wait –" in site.text("queue", "default", "queued")
    tasks.noop.enqueue()
    page = site.json("queue", "default", "queued", live=1)["fragments"]["drq-queuefacts"]
    assert re.search(r"Oldest wait [\d.]+ m?s", plain(page))
    for verb in ("pause", "resume", "pause"):
        site.post("pause", "default", verb=verb)
    site.post("pause", "low", verb="pause")
    words = site.text("queue", "default", "queued")
    assert re.search("Paused .* by ada", words)
    assert [words.count(f"{what} by ada") for what in ("Pause", "Resume")] == [2, 1]


def test_pauses_from_every_source_are_in_the_history(site: Site, redisqueue: None) -> None:
    queue = JobQueue()
    queue.pause()
    queue.resume(by="a deploy <b>")
    queue.pause(by="a deploy <b>", share="gold")
    assert api_calls(site, "/pauses/resume?share=gold") == {"changed": True}
    site.post("pause", "low", verb="pause")
    history = plain(site.get("queue", "default", "queued").partition("Pauses</summary>")[2])
    lines = [
        line.split("  ")[0] for line in re.findall(r":\d\d (\D+?)(?= \d{4}-| Charts)", history)
    ]
    assert lines == [
        "Resume of share gold by ada (API token deploy)",
        "Pause of share gold by a deploy <b>",
        "Resume by a deploy <b>",
        "Pause by code",
    ]


def test_the_history_of_pauses_is_bounded(site: Site, redisqueue: None) -> None:
    for n in range(12):
        JobQueue().pause(by=f"n{n}")
        JobQueue().resume(by=f"n{n}")
    page = site.get("queue", "default", "queued")
    assert (page.count("Pause by n"), page.count("Resume by n")) == (10, 10)
    assert "by n1<" not in page


def api_calls(site: Site, path: str) -> Any:
    """POST to the API with a token of the site's user."""
    _, text = ApiToken.create(User.objects.get(username="ada"), "deploy")
    given = {"HTTP_AUTHORIZATION": f"Bearer {text}", "content_type": "application/json"}
    return site.client.post(f"/jobs{path}", **given).json()


# -- filters and columns


@pytest.fixture
def failed(manual_worker: ManualWorker) -> None:
    """Two tasks, with tags, workers and errors."""
    tasks.noop.using(tags={"tenant": "42"}, priority=5).enqueue("Apple")
    manual_worker.fail_one("card declined")
    tasks.add.enqueue(1, 2)
    manual_worker.fail_one("pear gone")


FILTERS: list[tuple[dict[str, str], str]] = [
    ({"task": "NOOP"}, "Apple"),
    ({"task": "tests.app.tasks.add"}, "pear"),
    ({"text": "appl"}, "Apple"),
    ({"text": "DECLINED"}, "Apple"),
    ({"text": "valueerror", "task": "app.tasks.a"}, "pear"),
    ({"tag": "tenant=4"}, "Apple"),
    ({"tag": "42"}, "Apple"),
]


@pytest.mark.parametrize(("which", "found"), FILTERS)
def test_filters_by_parts_of_words_in_redis_and_in_the_mirror(
    site: Site, failed: None, which: dict[str, str], found: str
) -> None:
    rows = {"Apple": ("noop", '["Apple"]', "card declined"), "pear": ("add", "[1,2]", "pear gone")}
    for name, (task, args, message) in rows.items():
        record(
            f"job_{name}", "failed", task=f"tests.app.tasks.{task}", payload=f"[{args},{{}}]",
            error=encode_error("ValueError", message, "", 999), worker="box.aaaaaaaa.1.2.3",
            tags='{"tenant":"42"}' if name == "Apple" else "",
        )  # fmt: skip
    (other,) = {"Apple", "pear"} - {found}
    for page in (("queue", "default", "failed"), ("jobrecord_changelist",)):
        words = site.text(*page, **which)
        assert rows[found][2] in words, page
        assert rows[other][2] not in words, page


def test_a_filter_by_worker(site: Site, manual_worker: ManualWorker, failed: None) -> None:
    record("job_1", "failed", task="app.t", worker="box-7.aaaaaaaa.1.2.3")
    assert "app.t" in site.text("jobrecord_changelist", worker="BOX-7")
    assert "app.t" not in site.text("jobrecord_changelist", worker="box-8")
    child = manual_worker.claim_request.child
    assert "Apple" in site.text("queue", "default", "failed", worker=child[:8])
    assert "Apple" not in site.text("queue", "default", "failed", worker="nobody")
    assert '<option value="tenant=42">' in site.get("queue", "default", "failed")


def test_the_columns_of_a_list(site: Site, manual_worker: ManualWorker, failed: None) -> None:
    words = site.text("queue", "default", "failed")
    child = manual_worker.claim_request.child
    row = rf'noop job_\w+ "Apple" tenant=42 5 1 of 1 [\d: -]+ [\d.]+ m?s {child}'
    assert re.search(row, words), words
    tasks.noop.enqueue()
    manual_worker.claim_one()
    eventually(lambda: re.search(r"1 of 1 [\d: -]+ [\d.]+ m?s test_", site.text(
        "queue", "default", "processing")))  # fmt: skip


def test_a_tag_may_have_the_name_of_a_method_of_a_dict(site: Site, redisqueue: None) -> None:
    job = tasks.noop.using(tags={"items": "42"}).enqueue()
    record("job_1", tags='{"items":"42"}')
    assert "items=42" in site.text("queue", "default", "queued")
    assert "items=42" in site.text("jobrecord_changelist")
    assert "Tag items 42" in site.text("job", job.id)


# -- the charts of a queue


def test_a_queue_has_charts_of_only_its_jobs(site: Site, redisqueue: None) -> None:
    ago = timezone.now() - timedelta(minutes=90)
    for queue, completed in (("default", 6), ("low", 1)):
        Rollup.objects.create(minute=ago, queue=queue, task="a.b", completed=completed)
    page = site.get("queue", "default", "failed", span="24h", scale="log", task="a.b", queue="low")
    assert "Throughput and latency of queue default" in plain(page)
    assert "Last 24 hours: 0 jobs enqueued, 6 completed" in page
    (where,) = re.findall(r'"charts": "(.*?)"', page)
    assert "span=24h&queue=default&scale=log" in json.loads(f'"{where}"')


def test_the_charts_and_the_filter_of_a_queue_keep_each_other(
    site: Site, redisqueue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_page, "SIZE", 1)
    tasks.noop.enqueue_many([("x",), ("x",)])
    page = html.unescape(site.get("queue", "default", "queued", span="7d", text="x"))
    assert '<a href="/admin/django_redisqueue/jobrecord/queues/default/queued/' in page
    assert "?span=1h&text=x" in page  # another time range
    assert '<input type="hidden" name="span" value="7d">' in page  # another filter
    (following,) = re.findall(r'href="[^"]*\?(.*?)" rel="next"', page)
    assert {"text=x", "span=7d"} < set(following.split("&"))
    assert re.search(r"\bstart=[\d.]+", following)


def test_without_figures_a_queue_shows_its_jobs(
    site: Site, redisqueue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise DatabaseError("no such table")

    monkeypatch.setattr(charts, "figures", broken)
    job = tasks.noop.enqueue()
    words = site.text("queue", "default", "queued")
    assert "The charts cannot be read. " in words
    assert "no such table" in words
    assert job.id in words
