"""The health strip: on every page, in live updates, and with links to the cause of the trouble."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue import JobQueue, Workflow
from tests.app import tasks
from tests.support.manual_worker import ManualWorker

from .site import Site, address, plain


def test_every_page_has_the_strip(site: Site, redisqueue: None) -> None:
    job = tasks.noop.enqueue()
    with Workflow() as workflow:
        workflow.add(tasks.noop)
    pages: list[tuple[str, ...]] = [
        ("overview",), ("queue", "default", "queued"), ("job", job.id), ("workflows",),
        ("workflow", workflow.id), ("jobrecord_changelist",),
    ]  # fmt: skip
    for page in pages:
        text = site.get(*page)
        assert "No worker is alive, and 2 jobs wait for one." in plain(text), page
        assert 'data-finding="no_worker"' in text
        assert 'role="alert"' not in text  # it contains durations: each change would be read aloud
        if page[0] != "jobrecord_changelist":
            assert 'id="drq-state" role="status" data-state="off" data-level="error"' in text


def test_nothing_is_shown_when_nothing_is_wrong(site: Site, manual_worker: ManualWorker) -> None:
    manual_worker.store.heartbeat(["c1"], (), ["default", "low"])
    tasks.noop.enqueue()
    text = site.get("overview")
    assert "data-finding" not in text
    assert 'data-level="ok"' in text


@pytest.mark.parametrize(
    ("page", "query"),
    [(("overview_live",), {}), (("queue", "low", "queued"), {"live": 1}),
     (("workflows",), {"live": 1})],
)  # fmt: skip
def test_live_updates_contain_the_strip_and_the_level(
    site: Site, manual_worker: ManualWorker, page: tuple[str, ...], query: dict[str, Any]
) -> None:
    manual_worker.store.heartbeat(["c1"], (), ["default"])
    answer = site.json(*page, **query)
    assert (answer["level"], answer["problems"]) == ("ok", 0)
    tasks.noop.using(queue_name="low").enqueue()
    answer = site.json(*page, **query)
    assert (answer["level"], answer["problems"]) == ("error", 1)
    assert "No worker serves queue low" in plain(answer["fragments"]["drq-health"])


def test_many_problems_are_counted(site: Site, manual_worker: ManualWorker, settings: Any) -> None:
    queues = {f"q{n}": {} for n in range(30)}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "QUEUES": {"default": {}, **queues}}
    for name in queues:
        JobQueue(name).pause()
    text = site.get("workflows")
    assert text.count('data-finding="queue_paused"') == 10
    assert "And 20 more." in text


def test_a_finding_leads_to_its_page(site: Site, manual_worker: ManualWorker) -> None:
    manual_worker.store.heartbeat(["c1"], (), ["default"])
    tasks.noop.using(queue_name="low").enqueue()
    there = address("queue", "low", "queued")
    assert f'<a href="{there}">No worker serves queue low' in site.get("overview")
    assert f'<a href="{there}">No worker' not in site.get("queue", "low", "queued")


def test_who_paused_a_queue_and_when(site: Site, manual_worker: ManualWorker, redis: Any) -> None:
    site.post("pause", "low", verb="pause")
    redis.hincrby(manual_worker.store.keys.queue("low").meta, "paused", -3 * 3_600_000)
    words = site.text("overview")
    assert "Queue low was paused 3 h ago by ada." in words
    assert "low paused 3 h ago by ada 0" in words


def test_a_name_cannot_inject_markup(site: Site, redisqueue: None) -> None:
    JobQueue("low").pause(by="<script>alert(1)</script>")
    assert "<script>alert" not in site.get("overview")


def test_findings_of_the_level_info_are_on_the_overview(site: Site, settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "MIRROR": False}
    assert 'drq-notice info"' in site.get("overview")
    assert "drq-notice" not in site.get("queue", "low", "queued")


def test_the_api_has_the_findings(site: Site, redisqueue: None) -> None:
    tasks.noop.enqueue()
    found = site.client.get("/jobs/health").json()
    assert found["status"] == "error"
    assert found["findings"] == [
        {
            "id": "no_worker",
            "level": "error",
            "message": "No worker is alive, and 1 job waits for one.",
            "remedy": "Start one: manage.py runworker.",
            "queue": None,
        }
    ]
