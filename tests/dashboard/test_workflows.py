"""The pages of workflows: the list, a workflow with its graph, and the actions on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_redisqueue import Workflow, get_workflow
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.queries import Queries
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.dashboard import records_page, workflow_detail, workflows_page
from django_redisqueue.dashboard.workflows_page import PARTS
from django_redisqueue.models import JobRecord, WorkflowEvent, WorkflowRecord
from tests.app import tasks
from tests.support.logins import logged_in
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_with

from .site import Site, address, logged

DURATION = r"[\d.]+ m?s"
PROGRESS = '{"done":1,"total":4,"note":""}'
ALL = {"view_jobrecord", "retry_job", "cancel_job", "pause_queue", "clear_queue"}


def fan(width: int = 2, name: str = "nightly") -> Workflow:
    """One job, ``width`` jobs that depend on it, and one that depends on all of these."""
    with Workflow(name) as workflow:
        first = workflow.add(tasks.noop, "first")
        middle = [workflow.add(tasks.noop, n, after=first) for n in range(width)]
        workflow.add(tasks.add, 1, 2, after=middle)
    return workflow


def recorded(workflow_id: str, status: str = "completed", **fields: Any) -> WorkflowRecord:
    fields = {"made_at": timezone.now(), "total": 4, **fields}
    return WorkflowRecord.objects.create(id=workflow_id, status=status, **fields)


def boxes(site: Site, workflow_id: str) -> list[tuple[str, str]]:
    """(status by colour, status by text) of each box."""
    found = re.findall(
        r'class="drq-box (\w+)".*?drq-box-status">([^<]*)<', site.get("workflow", workflow_id), re.S
    )
    return [(colour, text) for colour, text in found]


# -- one workflow


def test_the_page_shows_counts_and_the_graph(site: Site, manual_worker: ManualWorker) -> None:
    workflow = fan()
    manual_worker.complete_one()
    manual_worker.fail_one()
    words = site.text("workflow", workflow.id)
    assert "Workflow nightly" in words
    assert "1 of 4 jobs completed, 1 failed" in words
    assert boxes(site, workflow.id) == [
        ("completed", "completed"), ("failed", "failed"), ("queued", "queued"),
        ("waiting", "waiting"),
    ]  # fmt: skip
    text = site.get("workflow", workflow.id)
    assert text.count('class="drq-edge"') == 4
    assert address("job", f"{workflow.id}.3") in text
    assert "<title>Job 3: tests.app.tasks.add, waiting, 1, 2</title>" in text


def test_boxes_show_what_their_jobs_do_and_the_first_failure_is_quoted(
    site: Site, manual_worker: ManualWorker
) -> None:
    workflow = fan()
    manual_worker.complete_one()
    assert "First failure" not in site.text("workflow", workflow.id)
    failing, running = manual_worker.claim(2)
    manual_worker.settle(failing, "failed", encode_error("ValueError", "card declined", "", 999))
    for store in manual_worker.stores:
        store.progress(manual_worker.claim_request.child, running.id, running.lease, PROGRESS)
    page = site.get("workflow", workflow.id)
    assert '<text x="12" y="33" class="drq-box-argument">&quot;first&quot;</text>' in page
    assert re.search(rf'class="drq-box-time">{DURATION}<', page)
    assert re.search(r'class="drq-box-time">25 % ', page)
    words = site.text("workflow", workflow.id)
    assert "First failure: tests.app.tasks.noop 0 ValueError : card declined" in words
    bars = page.partition('id="drq-workflowtimes"')[2].partition("</ol>")[0]
    for each in ("completed", "failed", "processing"):
        assert bars.count(f'class="ran {each}"') == 1
    assert re.search(rf"noop \"first\" completed, waited {DURATION}, ran {DURATION}", words)


def test_the_numbers_of_drawings_have_no_separators(site: Site, settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
    now = timezone.now()
    recorded("flow_1_0", total=1, completed=1)
    JobRecord.objects.create(
        id="flow_1_0.0", task="app.step", queue="default", status="completed", payload="[[],{}]",
        enqueued_at=now, started_at=now, finished_at=now + timedelta(seconds=1),
    )  # fmt: skip
    page = site.get("workflow", "flow_1_0")
    bars = page.partition('id="drq-workflowtimes"')[2].partition("</ol>")[0]
    assert 'width="1000"' in bars


def test_a_fan_out_is_one_box_until_it_is_unfolded(site: Site, redisqueue: None) -> None:
    workflow = fan(12)
    assert [text for _, text in boxes(site, workflow.id)] == ["queued", "12 × waiting", "waiting"]
    assert "One box per job" in site.text("workflow", workflow.id)
    page = site.get("workflow", workflow.id, boxes="all")
    assert page.count('class="drq-box waiting"') == 13


def test_the_timeline_of_jobs_deleted_from_redis(site: Site) -> None:
    """Records have no parents, so each job counts as waiting from its enqueueing on."""
    now = timezone.now()
    recorded("flow_1_0", total=2, completed=2)
    for n in range(2):
        JobRecord.objects.create(
            id=f"flow_1_0.{n}", task="app.step", queue="default", status="completed",
            payload="[[],{}]", enqueued_at=now, started_at=now + timedelta(seconds=n + 1),
            finished_at=now + timedelta(seconds=n + 3),
        )  # fmt: skip
    words = site.text("workflow", "flow_1_0")
    assert "completed, waited 1.0 s, ran 2.0 s" in words
    assert "completed, waited 2.0 s, ran 2.0 s 4.0 s from left to right." in words
    page = site.get("workflow", "flow_1_0")
    assert '<rect class="ran completed" x="250" y="0" width="500"' in page


def test_the_jobs_by_status(site: Site, manual_worker: ManualWorker) -> None:
    workflow = fan(3)
    manual_worker.complete_one()
    listed = re.compile(rf'<span class="drq-task">{workflow.id}\.(\d+)<')

    def jobs(**query: object) -> list[int]:
        return [int(n) for n in listed.findall(site.get("workflow", workflow.id, **query))]

    assert jobs() == [0, 1, 2, 3, 4]
    assert jobs(status="waiting") == [4]
    assert jobs(status="queued") == [1, 2, 3]
    assert jobs(status="completed") == [0]
    text = site.text("workflow", workflow.id, status="completed")
    assert "1 job of the 5 searched (positions 1 to 5)" in text
    assert jobs(status="nonsense") == [0, 1, 2, 3, 4]
    assert jobs(start=3) == [3, 4]
    assert "No failed jobs." in site.text("workflow", workflow.id, status="failed")


def test_the_jobs_page_by_page(
    site: Site, redisqueue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow_detail, "SIZE", 3)
    monkeypatch.setattr(workflow_detail, "SCANNED", 6)
    monkeypatch.setattr(workflow_detail, "CHUNK", 4)
    workflow = fan(20)
    queries = Queries(producer_connection(shard_of_id(workflow.id)))
    numbers: list[str] = []
    for status, wanted in (("", range(22)), ("waiting", range(1, 22)), ("failed", ())):
        start, numbers = "0", []
        while start:
            found = workflow_detail.list_workflow_jobs(queries, workflow.id, 22, status, int(start))
            assert 0 < found.seen <= 6
            assert len(found.rows) <= 3
            numbers += [row.id.rpartition(".")[2] for row in found.rows]
            start = found.following
        assert numbers == [str(n) for n in wanted]
    assert f"{address('workflow', workflow.id)}?start=3" in site.get("workflow", workflow.id)


def test_jobs_deleted_from_redis_are_read_from_their_records(
    site: Site, manual_worker: ManualWorker, redis: Any
) -> None:
    workflow = fan()
    manual_worker.complete_one()
    redis.delete(keys_with(workflow.id).job(f"{workflow.id}.0"))
    JobRecord.objects.create(
        id=f"{workflow.id}.0", task="tests.app.tasks.noop", queue="default", status="completed",
        enqueued_at=timezone.now(),
    )  # fmt: skip
    assert "Redis has pruned 1 of the jobs" in site.text("workflow", workflow.id)
    assert boxes(site, workflow.id)[0] == ("completed", "completed")
    redis.delete(keys_with(workflow.id).job(f"{workflow.id}.1"))
    assert ("unknown", "unknown") in boxes(site, workflow.id)


def test_a_cleaned_workflow_is_shown_from_its_record(site: Site) -> None:
    at = timezone.now()
    recorded(
        "flow_1_x_0", name="old", completed=3, cancelled=1, made_at=at - timedelta(seconds=90),
        ended_at=at, cleaned_at=at,
    )  # fmt: skip
    WorkflowEvent.objects.create(
        workflow_id="flow_1_x_0", status="cleaned", at=at, total=4, completed=3, cancelled=1,
        entry_ms=1,
    )  # fmt: skip
    words = site.text("workflow", "flow_1_x_0")
    assert "Redis has pruned this workflow; this is its record." in words
    assert "3 of 4 jobs completed, 1 cancelled" in words
    assert (
        "Redis has pruned the jobs, so it is no longer known which job waited for which." in words
    )
    assert "after 1 m 30 s" in words
    assert "cleaned 3 of 4 completed, 1 cancelled" in words
    assert 'name="verb"' not in site.get("workflow", "flow_1_x_0")


def test_an_unfinished_workflow_that_is_gone_is_reported(site: Site) -> None:
    recorded("flow_1_x_0", "running")
    assert "Redis no longer has this workflow" in site.text("workflow", "flow_1_x_0")
    recorded("flow_2_x_0", "failed", reason="lost")
    words = site.text("workflow", "flow_2_x_0")
    assert "Redis lost this workflow" in words
    assert "failed lost" in words


def test_an_unknown_workflow_is_not_found(site: Site) -> None:
    site.get("workflow", "flow_1_x_0", code=404)
    site.get("workflow", "no such form", code=404)


def test_a_large_graph_is_folded_and_a_larger_one_is_not_drawn(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = fan(300)
    assert not all(manual_worker.advance() for _ in range(100)), "it goes on for ever"
    words = site.text("workflow", workflow.id)
    assert "Jobs that are alike (task, status, and what they wait for) share a box." in words
    assert boxes(site, workflow.id) == [
        ("queued", "queued"), ("waiting", "300 × waiting"), ("waiting", "waiting"),
    ]  # fmt: skip
    monkeypatch.setattr(workflow_detail, "DRAWN", 300)
    assert "The graph is too large to draw (302 jobs)." in site.text("workflow", workflow.id)


def test_more_edges_than_can_be_read_are_not_drawn(
    site: Site, redisqueue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = fan(2)  # ".0", ".0" and ".1 .2"
    monkeypatch.setattr(workflow_detail, "CHUNK", 2)
    monkeypatch.setattr(workflow_detail, "NAMES", 9)
    assert len(boxes(site, workflow.id)) == 4
    monkeypatch.setattr(workflow_detail, "NAMES", 8)
    assert "The graph of 4 jobs is too large to draw" in site.text("workflow", workflow.id)


def test_the_callbacks_of_its_end(site: Site, manual_worker: ManualWorker) -> None:
    with Workflow("calls", on_complete=tasks.noop.s()) as workflow:
        workflow.add(tasks.noop)
    manual_worker.complete_one()
    assert f"Callback {workflow.id}.complete0 queued" in site.text("workflow", workflow.id)


def test_only_changes_are_sent_again(site: Site, manual_worker: ManualWorker) -> None:
    workflow = fan()
    answer = site.json("workflow", workflow.id, live=1)["fragments"]
    assert list(answer) == ["drq-health", *(f"drq-{part}" for part in PARTS)]
    assert "0 of 4 jobs completed" in answer["drq-workflow"]
    manual_worker.complete_one()
    assert (
        "1 of 4 jobs completed"
        in site.json("workflow", workflow.id, live=1)["fragments"]["drq-workflow"]
    )


def test_without_redis_the_record_is_shown(site: Site, settings: Any) -> None:
    recorded("flow_1_x_0", "completed", completed=4, ended_at=timezone.now())
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    words = site.text("workflow", "flow_1_x_0")
    assert "4 of 4 jobs completed" in words
    assert "Redis does not answer. This is the record of the workflow" in words
    assert "The jobs cannot be read: Redis does not answer." in words
    assert "No jobs." not in words
    assert "4 of 4 jobs completed" in site.text("workflows")
    assert "Redis does not answer. These are the records" in site.text("workflows")
    recorded("flow_2_x_0", "running", completed=1)
    assert "no longer has this workflow" not in site.text("workflow", "flow_2_x_0")
    assert "does not answer" in site.get("workflow", "flow_3_x_0", code=503)


def test_a_jobs_page_leads_to_its_workflow(site: Site, redisqueue: None) -> None:
    workflow = fan()
    assert f'href="{address("workflow", workflow.id)}"' in site.get("job", f"{workflow.id}.0")
    assert "/workflows/flow" not in site.get("job", tasks.noop.enqueue().id)


# -- the list


def test_the_list_has_live_counts(site: Site, manual_worker: ManualWorker) -> None:
    workflow = fan()
    recorded(workflow.id, "running", name="nightly")
    recorded(
        "flow_1_x_0",
        "failed",
        name="old",
        completed=2,
        failed=1,
        made_at=timezone.now() - timedelta(1),
    )
    manual_worker.complete_one()
    words = site.text("workflows")
    assert "1 of 4 jobs completed" in words
    assert "2 of 4 jobs completed, 1 failed" in words
    assert words.index("nightly") < words.index("old")
    assert "1 of 4 jobs completed" in site.json("workflows", live=1)["fragments"]["drq-workflows"]


def test_the_list_by_status_and_name(site: Site) -> None:
    for n, (status, name) in enumerate(
        [("failed", "a"), ("running", "a"), ("failed", "b"), ("completed", "a")]
    ):
        recorded(f"flow_{n}_x_0", status, name=name)

    def ids(**query: str) -> list[str]:
        return re.findall(r"flow_(\d)_x_0/", site.get("workflows", **query))

    assert ids() == ["3", "2", "1", "0"]
    assert ids(status="failed") == ["2", "0"]
    assert ids(name="a") == ["3", "1", "0"]
    assert ids(name="a", status="failed") == ["0"]
    assert ids(name="none") == []
    assert "'ill' is not a status" in site.text("workflows", status="ill")
    assert "is not a valid position" in site.text("workflows", after="x")


@pytest.mark.parametrize("query", [{}, {"status": "failed"}, {"name": "a"}])
def test_the_list_continues_by_key(
    site: Site, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    monkeypatch.setattr(records_page, "SIZE", 2)
    now = timezone.now()
    for n in range(7):  # three of them at the same time
        recorded(f"flow_{n}_x_0", "failed", name="a", made_at=now + timedelta(seconds=n // 3))
    seen, text = [], site.get("workflows", **query)
    for _ in range(10):
        seen += re.findall(r'class="drq-id"><a href="[^"]*flow_(\d)_x_0/', text)
        following = re.search(r'href="([^"]*)" rel="next"', text)
        if not following:
            break
        text = site.client.get(following[1].replace("&amp;", "&")).content.decode()
    assert seen == ["6", "5", "4", "3", "2", "1", "0"]


def test_without_a_mirror_the_list_says_so(site: Site, settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "MIRROR": False}
    assert "there is no list of workflows" in site.text("workflows")


def test_the_admins_own_addresses_lead_there(site: Site) -> None:
    recorded("flow_1_26_0")
    assert (
        "flow_1_26_0"
        in site.client.get("/admin/django_redisqueue/workflowrecord/", follow=True).content.decode()
    )
    quoted = quote("flow_1_26_0")
    changed = site.client.get(f"/admin/django_redisqueue/workflowrecord/{quoted}/change/")
    assert changed["Location"] == address("workflow", "flow_1_26_0")


# -- actions


def test_pause_release_cancel_and_clean_up(site: Site, manual_worker: ManualWorker) -> None:
    workflow = fan()
    page = ("act_on_workflow", workflow.id)
    assert "is paused: running jobs finish" in site.post(*page, verb="pause")
    assert workflow.data.is_paused
    assert "Pause would change nothing now: the workflow is running and paused" in site.post(
        *page, verb="pause"
    )
    assert "was released" in site.post(*page, verb="release")
    assert not workflow.data.is_paused
    assert "Cancel: are you sure?" in site.post(*page, verb="cancel")
    assert workflow.status == "running"
    assert "was cancelled" in site.post(*page, verb="cancel", confirmed="yes")
    assert (workflow.status, workflow.data.cancelled) == ("cancelled", 4)
    assert "no longer be retried as part of it" in site.post(*page, verb="clean")
    recorded(workflow.id, "cancelled")
    site.post(*page, verb="clean", confirmed="yes")
    store = manual_worker.store_of(workflow.id)
    assert store.connection.call("EXISTS", store.keys.workflow(workflow.id)) == 0
    name = f"workflow {workflow.id}"
    assert logged() == [
        (name, "Pause"), (name, "Release"), (name, "Cancel"), (name, "Clean up"),
    ]  # fmt: skip
    assert (
        "Clean up"
        in site.client.get(
            f"/admin/django_redisqueue/workflowrecord/{quote(workflow.id)}/history/"
        ).content.decode()
    )


def test_failed_jobs_are_retried(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workflow("w") as workflow:
        for n in range(5):
            workflow.add(tasks.noop, n, on_failure="go_on")
    for _ in range(3):
        manual_worker.fail_one()
    monkeypatch.setattr(workflows_page, "RETRIED", 2)
    told = site.post("act_on_workflow", workflow.id, verb="retry")
    assert "2 jobs sent back to the queue." in told
    assert "Not retried yet: 1 job." in told
    site.post("act_on_workflow", workflow.id, verb="retry")
    assert (workflow.data.failed, workflow.data.queued) == (0, 5)
    assert "would change nothing now" in site.post("act_on_workflow", workflow.id, verb="retry")
    assert logged()[0] == (f"workflow {workflow.id}", "Retry failed jobs: 2 jobs")


def test_an_unknown_action(site: Site, redisqueue: None) -> None:
    workflow = fan()
    told = site.post("act_on_workflow", workflow.id, verb="explode")
    assert "'explode' is not an action; use one of pause, release, retry, cancel, clean" in told


VERBS = [
    ("pause", "pause_queue"), ("cancel", "cancel_job"), ("retry", "retry_job"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "permission"), VERBS)
def test_each_action_needs_its_permission_a_post_and_a_token(
    staff: Callable[..., User], manual_worker: ManualWorker, verb: str, permission: str
) -> None:
    with Workflow("w") as workflow:
        workflow.add(tasks.noop, on_failure="go_on")
        workflow.add(tasks.noop)
    manual_worker.fail_one()
    form = {"verb": verb, "confirmed": "yes"}
    url = address("act_on_workflow", workflow.id)
    before = get_workflow(workflow.id).data
    others, client = Client(), Client()
    others.force_login(staff(*(ALL - {permission}), name="bob"))
    assert others.post(url, form).status_code == 403
    assert f'value="{verb}"' not in others.get(address("workflow", workflow.id)).content.decode()
    strict = logged_in(staff(*ALL, name="eve"), enforce_csrf_checks=True)
    assert strict.post(url, form).status_code == 403
    client.force_login(staff("view_jobrecord", permission))
    assert client.get(url, form).status_code == 405
    assert get_workflow(workflow.id).data == before
    assert f'value="{verb}"' in client.get(address("workflow", workflow.id)).content.decode()
    assert client.post(url, form).status_code == 302
    assert get_workflow(workflow.id).data != before
