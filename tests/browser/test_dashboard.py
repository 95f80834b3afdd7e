"""The dashboard in a real Chromium, with a content security policy of ``default-src 'self'``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.http import HttpResponse
from django.utils import timezone

from django_redisqueue import Gather, JobQueue, get_job
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.core.job_data import NewJob, encode_error
from django_redisqueue.dashboard import job_page, overview, queue_page, tasks_page
from django_redisqueue.models import (
    Approval,
    ErrorGroup,
    JobEvent,
    JobRecord,
    MirrorState,
    PeriodicJob,
    Rollup,
)
from django_redisqueue.telemetry import correlate
from tests.app import tasks
from tests.client.gather import tasks as gather_tasks
from tests.support.manual_worker import ManualWorker
from tests.worker.processes import WorkerProcess, eventually

from .visitor import Visitor

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
StartWorker = Callable[[], WorkerProcess]


def test_a_count_changes_live(visitor: Visitor) -> None:
    visitor.go("overview").mark()
    cell = visitor.count("default", "queued")
    assert cell.inner_text() == "0"
    visitor.sees("Live", "#drq-state")
    cell.focus()
    for n in range(3):
        tasks.noop.enqueue(n)
    cell.filter(has_text="3").wait_for()
    assert visitor.is_marked()
    assert cell.evaluate("cell => cell === document.activeElement"), "the focus stays where it was"


def test_the_trail_and_the_tabs_look_alike_in_every_admin(visitor: Visitor) -> None:
    visitor.go("overview")
    trail = visitor.page.locator("div.breadcrumbs")
    colour = "trail => getComputedStyle(trail).backgroundColor"
    assert trail.evaluate(colour) == "rgb(38, 75, 93)"
    tab = visitor.page.locator(".drq-nav a").first
    assert tab.evaluate("tab => getComputedStyle(tab).textDecorationLine") == "none"


def test_no_button_covers_a_figure_beside_the_sidebar(visitor: Visitor) -> None:
    """It covered digits, so that 257 failed jobs seemed to be 2."""
    visitor.page.set_viewport_size({"width": 1280, "height": 800})
    visitor.go("overview")
    covered = visitor.page.evaluate(
        """() => {
            const wide = document.querySelector(".drq-wide:has(#drq-queue-table)");
            wide.style.width = "700px";  // less than the table needs, as with larger figures
            const cells = [...document.querySelectorAll("#drq-queue-table td.n")];
            const boxes = cells.map((cell) => cell.getBoundingClientRect());
            return [...document.querySelectorAll("#drq-queue-table button")].filter((button) => {
                const { left, right, top, bottom } = button.getBoundingClientRect();
                const isCovered = (one) =>
                    one.left < right && one.right > left && one.top < bottom && one.bottom > top;
                return boxes.some(isCovered);
            }).length;
        }"""
    )
    assert covered == 0
    assert visitor.page.locator("#drq-queue-table button").count() == 2


def test_the_errors_of_records_are_in_sight_beside_the_sidebar(visitor: Visitor) -> None:
    known_error("job_1700000000000_0123456789_0", "no good " * 20)
    JobRecord.objects.update(task="shop.tasks.process_payment", worker=f"{'w' * 20}.aa.1.1.1:1")
    visitor.page.set_viewport_size({"width": 1280, "height": 800})
    visitor.go("jobrecord_changelist")
    hidden = "one => one.scrollWidth - one.clientWidth"
    assert visitor.page.locator(".drq-wide:has(.drq-jobs)").evaluate(hidden) == 0


def test_the_long_name_of_a_task_hides_no_figures(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1920 pixels and a zoom of 200%."""
    for module in (overview, tasks_page):
        monkeypatch.setattr(module, "task_names", lambda: ["shop.tasks." + "recalculate_" * 10])
    visitor.page.set_viewport_size({"width": 960, "height": 500})
    visitor.go("overview")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 960
    visitor.go("tasks")
    wide = visitor.page.locator(".drq-wide").bounding_box()
    figure = visitor.page.locator("td[data-label=Failed]").first.bounding_box()
    assert figure["x"] + figure["width"] <= wide["x"] + wide["width"]


def test_two_clicks_on_a_slow_server_enqueue_one_copy(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue_copy = job_page._enqueue_copy

    def slow(*arguments: Any) -> HttpResponse:
        response = enqueue_copy(*arguments)
        time.sleep(0.6)
        return response

    monkeypatch.setattr(job_page, "_enqueue_copy", slow)
    job = tasks.noop.enqueue()
    visitor.go("job", job.id)
    visitor.sees("Live", "#drq-state")
    visitor.page.evaluate(
        """() => {
            const copy = document.querySelector("button[value=copy]");
            copy.click();
            setTimeout(() => copy.click(), 200);
        }"""
    )
    visitor.is_told("This copy was enqueued.")
    assert JobQueue("default").get_stats()["queued"] == 2


def test_the_focus_stays_with_its_row(visitor: Visitor, manual_worker: ManualWorker) -> None:
    """It went to the next row, so that the key Enter would have acted on another unique key."""
    for at, key in enumerate(("k1", "k2", "k3")):
        manual_worker.store.now_ms = 1_700_000_000_000 + at
        unique = f"{key} until_finished - -"
        manual_worker.store.enqueue(
            [NewJob(f"job_{key}", "default", "t", "[[],{}]", unique=unique)]
        )
    visitor.go("unique_keys")
    visitor.sees("Live", "#drq-state")
    visitor.page.get_by_role("button", name="Release k2").focus()
    manual_worker.store.release_unique("k1")
    visitor.expect("#drq-unique_keys tbody tr").to_have_count(2)
    focused = "document.activeElement.textContent"
    assert visitor.page.evaluate(focused) == "Release k2"
    visitor.page.evaluate(  # as in a list whose order changes
        """() => {
            const table = document.getElementById("drq-unique_keys").cloneNode(true);
            table.querySelector("tbody").append(table.querySelector("tbody tr"));
            drqLive.show({ "drq-unique_keys": table.innerHTML });
        }"""
    )
    assert visitor.page.evaluate(focused) == "Release k2"


def test_a_click_on_a_button_that_has_just_become_another_is_ignored(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    """The user meant Cancel, but the job had failed, and an update put Retry in that place."""
    tasks.noop.enqueue("x")
    job = manual_worker.claim_one()
    visitor.go("job", job.id).mark()
    visitor.sees("Live", "#drq-state")
    visitor.page.evaluate(
        """() => new MutationObserver(() => {
            const retry = document.querySelector("button[value=retry]");
            if (!retry || window.clicked) return;
            window.clicked = true;
            const { dataset } = document.body;
            addEventListener("submit", (event) => { dataset.ignored = event.defaultPrevented; });
            retry.click();
        }).observe(document.getElementById("drq-job"), { subtree: true, childList: true })"""
    )
    manual_worker.settle(job, "failed", encode_error("E", "no", "", 99))
    visitor.expect("body[data-ignored=true]").to_have_count(1)
    assert visitor.is_marked()
    visitor.click("Retry")
    visitor.is_told("sent back to the queue")


def test_the_badge_turns_red_with_the_health_strip(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    manual_worker.store.heartbeat(["c1"], (), ["default", "low"])
    visitor.go("overview")
    visitor.page.locator("#drq-state[data-state=live][data-level=ok]").wait_for()
    manual_worker.connection.call("ZREM", manual_worker.store.keys.serving, "low")
    tasks.noop.using(queue_name="low").enqueue()
    visitor.sees("No worker serves queue low", "#drq-health")
    badge = visitor.page.locator("#drq-state[data-level=error]")
    visitor.expect(badge).to_have_text("Live: 1 problem")
    assert badge.evaluate("badge => getComputedStyle(badge).color") == "rgb(186, 33, 33)"


def test_polls_wait_for_the_previous_answer(visitor: Visitor) -> None:
    """A slow server never gets two requests at a time."""
    visitor.go("overview")
    open_requests, most = [0], [0]

    def slow(route: Any) -> None:
        open_requests[0] += 1
        most[0] = max(most[0], open_requests[0])
        visitor.page.wait_for_timeout(300)
        route.continue_()
        open_requests[0] -= 1

    visitor.page.route("**/dashboard/live/**", slow)
    with visitor.page.expect_response("**/dashboard/live/**"):
        pass
    with visitor.page.expect_response("**/dashboard/live/**"):
        pass
    assert most[0] == 1
    visitor.page.unroute_all(behavior="wait")


def test_a_server_that_is_down_is_reported_until_it_is_back(visitor: Visitor) -> None:
    visitor.go("overview")
    visitor.sees("Live", "#drq-state")
    visitor.page.route("**/dashboard/live/**", lambda route: route.abort())
    visitor.sees("The server does not answer; retrying", "#drq-state")
    visitor.page.unroute_all(behavior="wait")
    visitor.sees("Live", "#drq-state")


def test_a_logged_out_user_is_told_even_if_the_login_is_on_another_site(visitor: Visitor) -> None:
    visitor.go("overview")
    visitor.sees("Live", "#drq-state")
    to_login = {"status": 302, "headers": {"Location": "http://login.invalid/"}}
    visitor.page.route("**/dashboard/live/**", lambda route: route.fulfill(**to_login))
    visitor.sees("You are logged out; reload the page", "#drq-state")


def test_a_failed_job_is_retried(visitor: Visitor, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue("x")
    job_id = manual_worker.fail_one("no good")
    visitor.go("overview")
    visitor.count("default", "failed").click()
    visitor.page.get_by_role("link", name=job_id).click()
    visitor.sees("no good")
    visitor.click("Retry")
    visitor.is_told("The job was sent back to the queue.")
    visitor.sees("queued")
    assert get_job(job_id).status == "queued"
    assert LogEntry.objects.get().object_repr == job_id


def known_error(job_id: str, text: str = "no good") -> None:
    """What the mirror knows about a failed job and its error."""
    now = timezone.now()
    JobRecord.objects.create(
        id=job_id, task=text, queue="default", status="failed", payload="[[],{}]", enqueued_at=now,
        error_group="g1",
    )  # fmt: skip
    ErrorGroup.objects.create(
        id="g1", task=text, exception=text, message=text, frame=text, queues=f" {text} ", count=1,
        failed=1, first_seen=now, last_seen=now, job_id=job_id, silenced_by=text, silenced_at=now,
        hours=f'{{"{int(now.timestamp()) // 3600}":1}}',
        error=json.dumps({"type": text, "message": text, "traceback": f"{text}\n" * 9}),
    )  # fmt: skip


def test_the_jobs_of_an_error_are_retried(visitor: Visitor, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue("x")
    job_id = manual_worker.fail_one("no good")
    known_error(job_id)
    visitor.go("overview").page.get_by_role("link", name="Errors").click()
    visitor.sees("Live", "#drq-state")
    visitor.sees("No errors.")
    visitor.page.get_by_label("Silenced").select_option("yes")
    visitor.click("Filter")
    visitor.page.wait_for_url("**state=silenced**")
    visitor.page.get_by_role("link", name="no good").click()
    visitor.click("Unsilence")
    visitor.is_told("The error is listed again.")
    visitor.click("Retry its failed jobs")
    visitor.click("Retry 1 job")
    visitor.is_told("1 job sent back to the queue.")
    assert get_job(job_id).status == "queued"


def test_a_running_job_is_cancelled(visitor: Visitor, worker: StartWorker) -> None:
    worker()
    job = tasks.sleep.enqueue(60)
    visitor.go("workers")
    visitor.sees("tests.app.tasks.sleep", "#drq-workerlist")
    visitor.page.get_by_role("link", name="tests.app.tasks.sleep").click()
    visitor.click("Cancel")
    visitor.click("Cancel the job")
    visitor.page.locator(
        "#drq-job .drq-badge.cancelled", has_text=re.compile("^cancelled$")
    ).first.wait_for()
    job.refresh()
    assert job.status == "cancelled"


def test_a_worker_is_watched_and_told_to_be_quiet(visitor: Visitor, worker: StartWorker) -> None:
    worker()
    visitor.go("workers").mark()
    visitor.sees("maintenance", "#drq-workerlist")  # the children of the only worker
    children = visitor.page.locator("#drq-workerlist summary")
    children.click()
    job = tasks.sleep.enqueue(60)
    jobs = visitor.page.locator("td[data-label=Jobs]")
    jobs.filter(has_text=re.compile("^1$")).wait_for()
    running = visitor.page.get_by_role("link", name="tests.app.tasks.sleep")
    visitor.expect(running).to_be_hidden()  # what was closed stays closed
    children.click()
    running.wait_for()
    assert visitor.is_marked()
    visitor.click("Quiet")
    visitor.sees("finish its running jobs and take no more")
    visitor.click("Yes, quiet")
    visitor.is_told("was told to finish its running jobs")
    visitor.page.locator(".drq-badge.quiet").wait_for(timeout=30_000)
    visitor.sees("draining", "#drq-workerlist")
    job.cancel()
    jobs.filter(has_text=re.compile("^0$")).wait_for(timeout=30_000)
    visitor.click("Resume")
    visitor.page.locator(".drq-badge.running").wait_for(timeout=30_000)
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    width = visitor.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390


def test_all_matching_jobs_are_retried_by_a_worker(
    visitor: Visitor, manual_worker: ManualWorker, worker: StartWorker
) -> None:
    tasks.noop.enqueue_many([("retry me",)] * 1050)
    tasks.noop.enqueue_many([("leave me",)] * 50)
    store, calls = manual_worker.store, iter(range(1000, 2000))
    while jobs := store.claim(manual_worker.claim_request, next(calls), 64).jobs:
        for job in jobs:
            manual_worker.settle(job, "failed", '{"type":"E","message":"no","traceback":""}')
    visitor.go("queue", "default", "failed", query="?text=retry")
    visitor.sees("50 jobs of the 100 searched")
    visitor.sees("Live", "#drq-state")
    visitor.page.get_by_label("All failed jobs that match").check()
    visitor.click("Retry")
    visitor.sees("The list has 1,100 jobs now")
    worker()
    visitor.click("Retry those that match")
    visitor.is_told("a worker is doing this. This page shows the progress")
    visitor.page.locator("#drq-job .drq-badge.completed").first.wait_for()
    visitor.sees('"jobs": 1050')
    eventually(lambda: JobQueue().get_stats()["completed"] == 1051)
    assert JobQueue().get_stats()["failed"] == 50


def test_some_are_selected_and_deleted(visitor: Visitor, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue_many([(n,) for n in range(3)])
    ids = [manual_worker.fail_one() for _ in range(3)]
    visitor.go("queue", "default", "failed")
    visitor.sees("Live", "#drq-state")
    visitor.page.get_by_label("Select all on this page").check()
    visitor.page.get_by_label(f"Select {ids[0]}").uncheck()
    visitor.expect("#drq-selected").to_have_text("(2)")
    visitor.click("Delete")
    visitor.sees("This will delete 2 jobs of the queue default")
    visitor.click("Delete 2 jobs")
    visitor.is_told("2 jobs deleted from Redis.")
    assert JobQueue().get_stats()["failed"] == 1


def test_a_selection_stays_while_the_list_changes(
    visitor: Visitor, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The selection is by id, although rows are added above it and it moves to the next page."""
    monkeypatch.setattr(queue_page, "SIZE", 3)
    tasks.noop.enqueue_many([(n,) for n in range(6)])
    visitor.go("queue", "default", "failed").sees("No failed jobs.")
    first, second = manual_worker.fail_one(), manual_worker.fail_one()
    visitor.sees(first)
    box = visitor.page.get_by_label(f"Select {first}")
    box.check()
    later = [manual_worker.fail_one()]
    visitor.sees(later[0])
    assert box.is_checked()
    assert box.evaluate("box => box === document.activeElement"), "the focus stays where it was"
    assert not visitor.page.get_by_label(f"Select {second}").is_checked()
    later.append(manual_worker.fail_one())
    visitor.sees(later[1])
    visitor.sees("(1, 1 not in this list now)", "#drq-selected")
    visitor.page.get_by_label(f"Select {later[1]}").check()
    visitor.click("Delete")
    visitor.sees("This will delete 2 jobs of the queue default")
    assert first in visitor.page.content()
    assert later[1] in visitor.page.content()


def test_a_queue_is_paused_and_resumed(visitor: Visitor) -> None:
    visitor.go("overview")
    visitor.click("Pause low")
    visitor.sees("paused", "tr[data-queue=low]")
    assert JobQueue("low").is_paused
    visitor.click("Resume low")
    visitor.is_told("The queue low is resumed.")
    assert not JobQueue("low").is_paused


def test_a_share_is_paused_after_a_confirmation_and_resumed(visitor: Visitor) -> None:
    visitor.go("limits")
    form = visitor.page.get_by_role("form", name="Pause a share or a limit")
    form.get_by_label("Share").fill("acme")
    form.get_by_role("button", name="Pause").click()
    assert JobQueue().get_pauses() == []
    visitor.click("Yes, pause share acme in queue default")
    visitor.sees("share acme")
    assert JobQueue().get_pauses() == ["share acme"]
    visitor.click("Resume share acme")
    visitor.is_told("acme is resumed in queue default.")
    assert JobQueue().get_pauses() == []


def test_an_approval_is_found_among_what_jobs_wait_for(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    job = tasks.noop.enqueue()
    manual_worker.settle(manual_worker.claim_one(), "parked", f"approval:{job.id}:refund")
    Approval.objects.create(
        job_id=job.id, name="refund", task="t", queue="default", permission="auth.add_group"
    )
    visitor.go("overview").page.get_by_role("link", name="Waits").click()
    visitor.page.get_by_role("link", name="For approvals").click()
    visitor.page.get_by_role("link", name="Approve or reject").click()
    visitor.click("Approve", exact=True)
    visitor.is_told(f"of {job.id} is approved.")


DRAWN_TEXTS = """() => {
    const texts = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = (text) => texts.push(text);
    document.documentElement.dataset.theme = "dark";  // draws the charts again
    return new Promise((done) => setTimeout(() => {
        CanvasRenderingContext2D.prototype.fillText = draw;
        done(texts);
    }));
}"""


def test_the_marks_of_a_chart_are_hours_of_the_site_wherever_the_browser_is(
    visitor: Visitor,
) -> None:
    devtools = visitor.page.context.new_cdp_session(visitor.page)
    devtools.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})  # UTC+05:30
    visitor.go("overview", query="?span=24h")
    visitor.page.locator(".u-axis").first.wait_for(state="attached")
    clock = [text for text in visitor.page.evaluate(DRAWN_TEXTS) if ":" in text]
    assert clock
    assert all(text.endswith(":00") for text in clock)
    devtools.detach()


CLICK_TWICE = """(button) => {
    const isStopped = [];
    addEventListener("submit", (event) => {
        isStopped.push(event.defaultPrevented);
        event.preventDefault();
    });
    button.click();
    button.click();
    return isStopped;
}"""


@pytest.mark.parametrize("button", ["Approve", "Run now"])
def test_a_double_click_decides_or_runs_once(visitor: Visitor, button: str) -> None:
    """Otherwise the answer to the second would be that the decision was not accepted, or the job
    would run twice."""
    if button == "Approve":
        row = Approval.objects.create(
            job_id=tasks.noop.enqueue().id, name="refund", permission="auth.add_group"
        )
        visitor.go("approval_change", row.pk)
    else:
        periodic = PeriodicJob.objects.create(name="often", task=tasks.noop.name, every="1h")
        visitor.go("periodicjob_change", periodic.pk)
    found = visitor.page.get_by_role("button", name=button, exact=True)
    assert found.evaluate(CLICK_TWICE) == [False, True]


XSS = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def poisoned(manual_worker: ManualWorker) -> str:
    """Puts the payload into everything that comes from outside; returns the id of a job."""
    keys, connection = Keys(manual_worker.store.keys.prefix), worker_connection()
    running = tasks.noop.enqueue(
        XSS,
    )
    claimed = manual_worker.claim_one()
    note = f'{{"done":1,"total":2,"note":"{XSS}"}}'
    manual_worker.store.progress(manual_worker.claim_request.child, running.id, claimed.lease, note)
    failed = tasks.noop.enqueue({XSS: XSS})
    manual_worker.fail_one(XSS)
    for job_id in (running.id, failed.id):
        connection.call("HSET", keys.job(job_id), "task", XSS)
    connection.call("HSET", keys.job(failed.id), "progress", note)
    connection.call("ZADD", keys.queue("default").failed, 10**14, XSS, 10**14, "broken")
    connection.call("HSET", keys.job("broken"), "status", XSS, "task", XSS, "payload", "[[],{}]")
    connection.call("ZADD", keys.workers, 1, XSS)
    connection.close()
    now = timezone.now()
    known_error("job_of_group", XSS)
    for job_id in (failed.id, XSS):
        JobRecord.objects.create(
            id=job_id, task=XSS, queue=XSS, status="failed", payload=f'[["{XSS}"],{{}}]',
            error=f'{{"type":"{XSS}","message":"{XSS}","traceback":"{XSS}"}}', worker=XSS,
            reason="poison", enqueued_at=now,
        )  # fmt: skip
    JobEvent.objects.create(
        job_id=failed.id, status="failed", queue=XSS, task=XSS, worker=XSS, at=now, entry_ms=1,
        detail=f'{{"error":{{"type":"{XSS}","message":"{XSS}"}},"other":"{XSS}"}}',
    )  # fmt: skip
    MirrorState.objects.create(shard=0, problem=XSS)
    Rollup.objects.create(minute=now, queue=XSS, task=XSS, completed=1)
    return failed.id


def test_content_from_outside_is_shown_as_text(visitor: Visitor, poisoned: str) -> None:
    visitor.go("overview")
    pages: list[tuple[tuple[object, ...], str]] = [
        (("overview",), ""),
        (("overview",), f"?span={XSS}"),
        (("workers",), f"?q={XSS}&queue={XSS}&page={XSS}"),
        (("queue", "default", "failed"), ""),
        (("queue", "default", "processing"), ""),
        (("queue", "default", "failed"), f"?text={XSS}&task={XSS}"),
        (("queue", "default", "failed"), f"?since={XSS}"),
        (("job", poisoned), ""),
        (("jobrecord_changelist",), ""),
        (("jobrecord_changelist",), f"?queue={XSS}&task={XSS}&text={XSS}&id={XSS}"),
        (("jobrecord_changelist",), f"?status={XSS}&after={XSS}"),
        (("errors",), f"?state=all&text={XSS}&order={XSS}"),
        (("errors",), "?state=all"),
        (("error", "g1"), f"?after={XSS}"),
    ]
    for page, query in pages:
        visitor.go(*page, query=query)  # type: ignore[arg-type]
        if page[0] in ("overview", "job", "queue"):
            visitor.sees("Live", "#drq-state")  # an update of the live part has arrived, too
        assert XSS in visitor.page.locator("body").inner_text() or XSS in str(
            visitor.page.eval_on_selector_all("input", "all => all.map(one => one.value)")
        ), page
        injected = (
            "document.querySelectorAll('img[src=x], [onerror], script:not([src]):not([type])')"
        )
        assert visitor.page.evaluate(f"{injected}.length") == 0, page
    visitor.go("queue", "default", "failed", query=f"?text={XSS[:4]}")
    visitor.sees("Live", "#drq-state")  # an update that arrives during a click may move its target
    visitor.page.get_by_label("All failed jobs that match").check()
    visitor.click("Delete")
    visitor.sees(f"“{XSS[:4]}” in arguments or error")


def test_a_page_says_that_its_job_has_been_deleted(visitor: Visitor) -> None:
    """It said that the server did not answer."""
    job = tasks.noop.enqueue()
    visitor.go("job", job.id)
    visitor.sees("Live", "#drq-state")
    job.cancel()
    JobQueue().clear("cancelled")
    visitor.sees("This no longer exists", "#drq-state")
    visitor.click("Enqueue a copy")
    visitor.sees(f"Job {job.id} is neither in Redis nor in the mirror.")
    visitor.expect(".drq-nav a").not_to_have_count(0)


def test_an_unknown_queue_is_not_found(visitor: Visitor) -> None:
    visitor.go("overview")
    response = visitor.page.goto(f"{visitor.base}/admin/django_redisqueue/jobrecord/queues/{XSS}/")
    assert response is not None
    assert response.status in (302, 404)


PAGES = [
    ("overview",), ("queue", "default", "failed"), ("job",), ("jobrecord_changelist",), ("limits",),
    ("unique_keys",), ("waits",), ("workers",), ("errors",), ("error", "g1"), ("tasks",),
    ("schedules",), ("workflows",), ("gathers",), ("gather", "g" * 128), ("search", "?q=ggg"),
    ("search", f"?q={'r' * 128}"), ("copy_job",),
]  # fmt: skip


def test_pages_fit_a_phone_and_label_their_content(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    with correlate("r" * 128):
        tasks.noop.enqueue("a long argument " * 20)
    job_id = manual_worker.fail_one("a long message " * 40)
    Gather.start(
        "g" * 128, topic="report", payload={"record_id": 42}, threshold=2, then=gather_tasks.merge
    )
    manual_worker.store.heartbeat([manual_worker.claim_request.child, f"{'w' * 60}.aaaaaaaa.1.1.1"])
    policies = {"unique": f"{'k' * 150} until_finished - -", "lane": f"|c:l:{'v' * 60} c:l=1"}
    manual_worker.store.enqueue([NewJob("unique", "default", "app.pay", "[[],{}]", **policies)])
    manual_worker.claim_one()
    now = timezone.now()
    Rollup.objects.create(minute=now, queue="default", task="a", completed=5, wait="[5]", run="[5]")
    known_error(job_id, "a_long_word_" * 16)
    ErrorGroup.objects.update(silenced_at=None)
    JobRecord.objects.update(correlation_id="r" * 128)
    visitor.go("overview")
    for width in (1360, 390):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        for page in PAGES:
            name, *more = [*page, *([job_id] if page in (("job",), ("copy_job",)) else [])]
            query = "".join(one for one in more if one.startswith("?"))
            visitor.go(name, *[one for one in more if one != query], query=query)
            wide = visitor.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, (page, width)
            nameless = visitor.page.evaluate(
                "[...document.querySelectorAll('#content :is(input, select):not([type=hidden])')]"
                ".filter(one => !one.labels.length && !one.ariaLabel).map(one => one.outerHTML)"
            )
            assert nameless == []
            mute = visitor.page.evaluate(
                "[...document.querySelectorAll('#content table.drq-cards')]"
                ".filter(one => !one.caption).length"
            )
            assert mute == 0


def test_filters_are_folded_on_a_phone(visitor: Visitor, manual_worker: ManualWorker) -> None:
    Gather.start("report-42", topic="report", payload={"record_id": 42}, then=gather_tasks.merge)
    lists = [
        ("queue", "default", "failed"), ("jobrecord_changelist",), ("errors",), ("workers",),
        ("workflows",), ("gathers",),
    ]  # fmt: skip
    for width, shown in ((1400, True), (390, False)):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        for page in lists:
            visitor.go(*page)
            visitor.expect("form.drq-filter >> nth=0").to_be_visible(visible=shown)
    visitor.page.get_by_text("Filter", exact=True).first.click()
    visitor.page.locator("select[name=status]").select_option("collecting")
    visitor.click("Filter", exact=True)
    visitor.sees("report-42", "#drq-gathers")
    visitor.expect("form.drq-filter").to_be_visible()  # as long as it is set


def test_charts_are_drawn_and_have_their_figures_as_a_table(visitor: Visitor) -> None:
    now = timezone.now()
    Rollup.objects.create(minute=now, queue="default", task="a", completed=5, wait="[5]", run="[5]")
    visitor.go("overview")
    visitor.expect("#drq-charts canvas").to_have_count(2)
    drawn = (
        "[...document.querySelectorAll('#drq-charts canvas')].every(one => one.getContext('2d')"
        ".getImageData(0, 0, one.width, one.height).data.some(value => value))"
    )
    visitor.page.wait_for_function(drawn)
    label = visitor.page.locator("#drq-throughput").get_attribute("aria-label")
    assert "Last 1 hour: 0 jobs enqueued, 5 completed, 0 failed" in label
    visitor.page.get_by_text("Figures as a table").press("Enter")
    visitor.sees("Waited, median", "#drq-figures")
    visitor.page.get_by_role("link", name="7 days").click()
    visitor.page.wait_for_url("**/dashboard/?span=7d")
    visitor.expect("#drq-charts canvas").to_have_count(2)
    visitor.page.locator("#drq-charts select[name=queue]").select_option("low")
    visitor.click("Show")
    visitor.sees("Throughput and latency of queue low", "#drq-charts")
    visitor.page.get_by_role("link", name="Logarithmic").click()
    visitor.page.wait_for_url("**/dashboard/?span=7d&queue=low&scale=log")
    visitor.go("tasks")
    visitor.page.get_by_role("link", name="a", exact=True).click()
    visitor.page.get_by_role("link", name="Logarithmic").click()
    visitor.page.wait_for_url("**&scale=log**")
    visitor.sees("The task is not registered in this process")
    visitor.expect("#drq-charts canvas").to_have_count(2)
    visitor.page.emulate_media(color_scheme="dark")
    visitor.page.wait_for_function(drawn)
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    visitor.go("queue", "default", "queued")
    charts = visitor.page.locator("#drq-throughput canvas")
    visitor.expect(charts).to_be_hidden()  # folded on a phone
    visitor.page.get_by_text("Charts", exact=True).click()
    visitor.expect(charts).to_be_visible()
    visitor.page.wait_for_function("document.querySelector('#drq-throughput canvas').width > 200")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_next_runs_are_shown_before_saving(visitor: Visitor) -> None:
    visitor.go("periodicjob_add").mark()
    visitor.page.fill("#id_cron", "30 2 29 2 *")
    visitor.click("Preview the next runs")
    visitor.sees("02-29 02:30:00", "#drq-preview")
    visitor.expect("#drq-preview li").to_have_count(5)
    visitor.page.fill("#id_cron", "0 0 30 2 *")
    visitor.click("Preview the next runs")
    visitor.sees("never fires", "#drq-preview")
    Session.objects.all().delete()
    visitor.click("Preview the next runs")
    visitor.sees("You are logged out", "#drq-preview")
    assert visitor.is_marked()
