"""What the pages show."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import site as admin_site
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import RequestFactory
from django.utils import timezone

from django_redisqueue import JobQueue, Workflow
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.overview import QueueOverview, Rates
from django_redisqueue.conf import get_settings
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.dashboard import queue_page
from django_redisqueue.dashboard.charts import parse_choice
from django_redisqueue.dashboard.overview import QueueRow, Sample, parse_sample
from django_redisqueue.dashboard.pages import Page
from django_redisqueue.metrics.histograms import Sums
from django_redisqueue.models import JobEvent, JobRecord, MirrorState, Rollup
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.shards import shard_of

from .site import Site, address, plain

# -- the overview


def row(site: Site, queue: str = "default") -> str:
    """A queue's row, as text."""
    text = site.get("overview")
    return plain(text.partition(f'<tr data-queue="{queue}">')[2].partition("</tr>")[0])


def test_the_overview_has_every_queue_with_its_counts(
    site: Site, manual_worker: ManualWorker
) -> None:
    for n in range(3):
        tasks.noop.enqueue(n)
    later = tasks.noop.using(run_after=60).enqueue()
    for _ in range(2):
        tasks.noop.using(after=later).enqueue()
    manual_worker.fail_one()
    manual_worker.complete_one()
    JobQueue("low").pause()
    #                      queued running scheduled waiting retrying failed completed cancelled
    assert row(site).startswith("default 0 workers Pause default 1 0 1 2 0 1 1 0")
    assert "paused" not in row(site)
    assert re.match(r"low paused [\d.]+ m?s ago 0 workers Resume low( 0){8}", row(site, "low"))


def test_percentiles_and_failures_are_those_of_the_last_hour(site: Site) -> None:
    now = timezone.now()
    Rollup.objects.create(
        minute=now.replace(second=0, microsecond=0), queue="default", task="a.b", failed=3,
        wait="[0,0,4]", run="[9]",
    )  # fmt: skip
    assert row(site).endswith(" 3 0")
    assert re.search(r"[1-4] ms [1-4] ms [01] ms [01] ms 3 0$", row(site))


def test_rates_come_from_two_samples(site: Site, manual_worker: ManualWorker) -> None:
    first = site.json("overview_live")
    assert parse_sample(first["look"]) is not None
    for n in range(20):
        tasks.noop.enqueue(n)
    manual_worker.complete_one()
    before = parse_sample(first["look"])
    assert before is not None
    ago = Sample(before.now_ms - 9_000, before.shards, before.queues)  # as if it were 9 s ago
    queues = site.json("overview_live", look=str(ago))["fragments"]["drq-queues"]
    assert re.search(r'data-label="In, per second">[12]\.\d<', queues)
    assert re.search(r'data-label="Out, per second">0\.1<', queues)


@pytest.mark.parametrize(
    ("arrived", "ended", "paused_ms", "net", "drained"),
    [
        (1.0, 3.0, None, "−2", "empty in 5.0 s"),
        (3.0, 1.0, None, "+2", "not emptying"),
        (1.0, 1.0, None, "0", "not emptying"),
        (0.0, 2.0, 1, "−2", "not emptying"),
    ],
)
def test_a_queue_shows_when_it_will_be_empty(
    arrived: float, ended: float, paused_ms: int | None, net: str, drained: str
) -> None:
    queue = QueueOverview("q", 1, {"queued": 10}, {}, paused_ms)
    row = QueueRow(queue, Rates(arrived, ended), Sums())
    assert (row.net.replace(".0", ""), row.drained) == (net, drained)
    empty = QueueRow(QueueOverview("q", 1, {"queued": 0}, {}, None), row.rates, Sums())
    assert empty.drained == ""
    assert QueueRow(queue, None, Sums()).net == "–"


@pytest.mark.parametrize("look", ["", "x", "1~default", "1~default:a:b", "9" * 70_000, "1~a:1"])
def test_an_invalid_sample_gives_no_rates(site: Site, look: str) -> None:
    queues = site.json("overview_live", look=look)["fragments"]["drq-queues"]
    assert 'data-label="In, per second">–<' in queues


@pytest.mark.one_server("changes its server's state")
def test_an_eviction_policy_that_loses_jobs_is_an_error(site: Site, redis: Any) -> None:
    assert 'role="alert"' not in site.get("overview")
    redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        words = site.text("overview")
    finally:
        redis.config_set("maxmemory-policy", "noeviction")
    assert (
        "Redis has the maxmemory-policy allkeys-lru: when its memory is full, it deletes" in words
    )


def test_a_blocked_queue_is_an_error(site: Site, redis: Any) -> None:
    key = Keys(get_settings().prefix).queue("low").retrying
    redis.set(key, "theirs")
    try:
        words = site.text("overview")
    finally:
        redis.delete(key)
    assert f"Queue low is blocked: {key} should have another type" in words


def test_a_queue_removed_from_the_settings_is_reported(site: Site) -> None:
    store = Commands(worker_connection())
    store.enqueue([NewJob("job_1", "former", "a.task", "[[],{}]")])
    store.connection.close()
    words = site.text("overview")
    assert (
        'Queue former has unfinished jobs in Redis (1), but is not in REDISQUEUE["QUEUES"]' in words
    )


def test_problems_of_the_mirror_are_reported(site: Site, settings: Any) -> None:
    state = MirrorState.objects.create(shard=0, gaps=2, gap_at=timezone.now())
    assert "The mirror missed events 2 times" in site.text("overview")
    state.left_out, state.incomplete, state.fault = 3, 4, "5-0: queue is <list>"
    state.fault_at = timezone.now()
    state.save()
    words = site.text("overview")
    assert "The mirror left out 3 events and shortened 4" in words
    assert "5-0: queue is" in words
    state.problem = "this Redis is another one"
    state.save()
    assert "The mirror has stopped: this Redis is another one" in site.text("overview")
    settings.REDISQUEUE = {**settings.REDISQUEUE, "MIRROR": False}
    assert "The mirror is off" in site.text("overview")


def test_how_far_the_mirror_is_behind(site: Site, manual_worker: ManualWorker) -> None:
    assert "Mirror up to date" in site.text("overview")
    connection, key = manual_worker.connection, manual_worker.store.keys.events
    connection.call("XADD", key, "1000-0", ":alike", "{}", "x", "")
    words = site.text("overview")
    assert re.search(r"The mirror is \d+ d( \d+ h)? behind\. Check that a worker", words)
    MirrorState.objects.create(shard=connection.shard, position="1000-0")
    assert "Mirror up to date" in site.text("overview")


def test_how_many_events_are_kept(site: Site, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue_many([()] * 1234)
    assert "Events kept 1,234" in site.text("overview")
    manual_worker.connection.call("DEL", manual_worker.store.keys.meta)
    assert "Events kept unknown" in site.text("overview")


@pytest.mark.parametrize(
    ("name", "query"),
    [("overview", {}), ("tasks", {}), ("jobrecord_changelist", {"since": "2026-01-31 14:30"})],
)
def test_without_time_zones_a_page_still_works(
    site: Site, settings: Any, name: str, query: Any
) -> None:
    """Without them there is no mirror, and most databases refuse aware times."""
    settings.USE_TZ = False
    assert site.text(name, **query)


def test_without_redis_the_page_still_works(site: Site, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    words = site.text("overview")
    assert "Redis at unix:///nonexistent/redis.sock does not answer" in words
    assert "Redis does not answer, so the current numbers of jobs are unknown." in words
    assert "The workers cannot be read: Redis does not answer." in words
    assert "Start one: python manage.py runworker" not in words
    site.get("overview_live")
    assert "does not answer" in site.text("queue", "default", "failed")
    assert site.post("pause", "default", verb="pause").count("does not answer") >= 1


def test_without_redis_pages_show_the_records_and_their_age(site: Site, settings: Any) -> None:
    now = timezone.now()
    Rollup.objects.create(
        minute=now.replace(second=0, microsecond=0), queue="default", task="a.b", failed=7
    )
    for n, status in enumerate(("queued", "failed")):
        JobRecord.objects.create(
            id=f"job_{n}", task="a.b", queue="default", status=status, payload="[[],{}]",
            enqueued_at=now,
        )  # fmt: skip
    MirrorState.objects.create(shard=0, updated_at=now - timedelta(minutes=3))
    url = {"URL": "unix:///nonexistent/redis.sock"}
    settings.REDISQUEUE = {"CONNECTION": url, "MIRROR": True}
    age = "the mirror was last updated 3 m"  # and perhaps some seconds
    words = site.text("overview")
    assert age in words
    assert "default 0 0 7 0" in words
    words = site.text("queue", "default", "queued")
    assert age in words
    assert "job_0" in words
    assert "job_1" not in words
    assert "No queued jobs" not in words
    assert "The mirror has no such record." in site.text("queue", "default", "retrying")
    words = site.text("job", "job_1")
    assert f"Redis does not answer. This is the record of the job; {age}" in words
    assert "pruned this job" not in words
    words = plain(site.get("job", "job_9", code=503))
    assert "Redis does not answer, and the mirror has no record of the job." in words


def test_charts_as_figures_and_columns(site: Site) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    for ago, completed in ((2, 6), (90, 12), (60 * 24 * 3, 60)):
        Rollup.objects.create(
            minute=now - timedelta(minutes=ago), queue="default", task="a", completed=completed
        )
    answer = site.json("overview_charts", span="1h")
    assert sum(filter(None, answer["chart"]["completed"])) == 6
    assert "drq-figures" in answer["fragments"]
    assert answer["label"] in site.get("overview", span="1h")
    for which, completed in (("default", 6), ("low", 0)):
        answer = site.json("overview_charts", queue=which)
        assert sum(filter(None, answer["chart"]["completed"])) == completed
    assert "1h&amp;scale=log" in site.get("overview", span="1h")
    assert "0 jobs enqueued, 78 completed, 0 failed, 0 attempts retried." in site.get(
        "overview", span="7d"
    )
    assert "Last 1 hour" in site.get("overview", span="<script>")


def test_the_names_in_a_url_of_charts_suit_every_database() -> None:
    request = RequestFactory().get("/", {"queue": "a\0", "task": "\0"})
    choice = parse_choice(Page(request, admin_site.get_model_admin(JobRecord)))
    assert (choice["queue"], choice["task"]) == ("a\ufffd", "\ufffd")


def test_charts_are_drawn_in_the_time_zone_of_their_table(site: Site, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert '"zone": "Europe/Berlin"' in site.get("overview")


def test_retried_attempts_are_in_the_figures_the_chart_and_the_row(site: Site) -> None:
    ago = timezone.now() - timedelta(minutes=2)
    Rollup.objects.create(minute=ago, queue="default", task="a", completed=6, retried=4)
    found = site.json("overview_charts", span="1h")
    figures = plain(found["fragments"]["drq-figures"])
    assert "Completed Failed Retried" in figures
    assert " 0 6 0 4 " in figures
    assert sum(filter(None, found["chart"]["retried"])) == 4
    assert '<span class="drq-quiet">4</span></td>' in site.get("overview")


# -- a queue


def place(passed: int) -> str:
    """The position after so many plain jobs of the queue ``default``."""
    return queue_page.parse_place("").behind([shard_of()] * passed).text


def test_a_page_of_a_queue(site: Site, redisqueue: None) -> None:
    jobs = tasks.noop.enqueue_many([(f"argument {n}",) for n in range(60)])
    words = site.text("queue", "default", "queued")
    assert '"argument 0"' in words
    assert '"argument 49"' in words
    assert '"argument 50"' not in words
    assert "1 to 50 Next" in words
    assert jobs[0].id in words
    second = site.text("queue", "default", "queued", start=place(50))
    assert '"argument 50"' in second
    assert "« First 51 to 60" in second
    assert "Next" not in second


def test_the_counts_and_the_list_are_live(site: Site, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue()
    assert "Queued 1" in site.text("queue", "default", "failed")
    failed = manual_worker.fail_one()
    other = tasks.noop.enqueue("no such text").id
    answer = site.json("queue", "default", "failed", live=1)
    assert list(answer["fragments"]) == [
        "drq-health",
        "drq-tabs",
        "drq-queuepause",
        "drq-queuefacts",
        "drq-queuejobs",
    ]
    assert "Failed 1" in plain(answer["fragments"]["drq-tabs"])
    assert "Pause the queue" in answer["fragments"]["drq-queuepause"]
    JobQueue().pause()  # by another user
    answer = site.json("queue", "default", "failed", live=1)
    assert 'value="resume"' in answer["fragments"]["drq-queuepause"]
    assert failed in answer["fragments"]["drq-queuejobs"]
    (live,) = re.findall(r'"url": "([^"]*)"', site.get("queue", "default", "queued", text="such"))
    found = site.client.get(live.replace("\\u0026", "&")).json()["fragments"]["drq-queuejobs"]
    assert other in found, "with the filter of the page"
    assert "1 job of the 1 searched" in plain(found)


def test_a_list_does_not_contain_cancelled_jobs(site: Site, redisqueue: None) -> None:
    """Its id stays in Redis's list until a claim drops it."""
    job, other = tasks.noop.enqueue("x"), tasks.noop.enqueue("y")
    job.cancel()
    text = site.get("queue", "default", "queued")
    assert (job.id in text, other.id in text) == (False, True)
    assert job.id in site.get("queue", "default", "cancelled")


def test_filters(site: Site, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue("apple pie")
    tasks.noop.enqueue("pear")
    tasks.add.enqueue(1, 2)
    for _ in range(3):
        manual_worker.fail_one()
    page = ("queue", "default", "failed")
    assert "1 job of the 3 searched" in site.text(*page, text="APPLE")
    assert "1 job of the 3 searched" in site.text(*page, task=tasks.add.name)
    assert "None of the jobs searched match." in site.text(*page, text="nothing like it")
    soon = (timezone.now() + timedelta(minutes=5)).isoformat()
    assert "3 jobs of the 3" in site.text(*page, until=soon)
    assert "0 jobs of the 3" in site.text(*page, since=soon)
    assert "2 jobs of the 3" in site.text(*page, since="2020-01-01T00:00", task=tasks.noop.name)
    assert "since: 'soon' is not a valid time; write it as 2026-01-31 14:30" in site.get(
        *page, since="soon"
    ).replace("&#x27;", "'").replace("Since", "since")


def test_a_filter_searches_a_bounded_slice_and_offers_to_continue(
    site: Site, redisqueue: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_page, "SCANNED", 20)
    monkeypatch.setattr(queue_page, "CHUNK", 10)
    tasks.noop.enqueue_many([(f"argument {n}",) for n in range(45)])
    page = ("queue", "default", "queued")
    first = site.get(*page, text="argument 44")
    assert "0 jobs of the 20 searched (positions 1 to 20)" in plain(first)
    assert f"start={place(20)}&amp;text=argument+44" in first
    assert f"start={place(40)}" in site.get(*page, text="argument 44", start=place(20))
    last = site.text(*page, text="argument 44", start=place(40))
    assert "1 job of the 5 searched (positions 41 to 45)" in last
    assert "Go on" not in last


def test_an_unreadable_job_has_a_row_that_says_so(
    site: Site, manual_worker: ManualWorker, redis: Any
) -> None:
    broken, fine = tasks.noop.enqueue_many([("a",), ("b",)])
    redis.hset(manual_worker.store.keys.job(broken.id), "payload", "{nonsense")
    words = site.text("queue", "default", "queued")
    assert f"{broken.id} unreadable" in words
    assert fine.id in words
    assert '"b"' in words
    words = site.text("job", broken.id)
    assert "Some of this job cannot be read." in words
    assert tasks.noop.name in words
    assert "unreadable: Expecting property name" in words
    assert "The job was cancelled" in site.post(
        "act_on_job", broken.id, verb="cancel", confirmed="yes"
    )


# -- a job


def test_a_time_at_the_end_of_the_calendar_breaks_no_page(
    site: Site, manual_worker: ManualWorker, redis: Any, settings: Any
) -> None:
    settings.TIME_ZONE = "Pacific/Kiritimati"  # the first time zone to reach the year 10000
    job = tasks.noop.using(run_after=60).enqueue()
    for far in ("253402300800000", "9" * 30):
        redis.hset(manual_worker.store.keys.job(job.id), "due_ms", far)
        assert job.id in site.text("queue", "default", "scheduled")
        assert "9999" in site.text("job", job.id)


def test_a_job_with_everything(site: Site, manual_worker: ManualWorker) -> None:
    job = tasks.progress.enqueue(4)
    claimed = manual_worker.claim_one()
    manual_worker.store.progress(
        manual_worker.claim_request.child,
        job.id,
        claimed.lease,
        '{"done":1,"total":4,"note":"step 1"}',
    )
    words = site.text("job", job.id)
    assert "processing tests.app.tasks.progress" in words
    assert "1 of 4, 25 % step 1" in words
    manual_worker.settle(claimed, "completed", '{"found":[1,2]}')
    assert '"found": [' in site.text("job", job.id)


def test_a_failed_job_shows_its_error_and_traceback(
    site: Site, manual_worker: ManualWorker
) -> None:
    job = tasks.noop.enqueue("an argument")
    manual_worker.fail_one("no good")
    words = site.text("job", job.id)
    assert "ValueError : no good Traceback ..." in words
    assert 'x "an argument"' in words


def record(job_id: str = "job_1", **values: Any) -> JobRecord:
    return JobRecord.objects.create(
        **{
            "id": job_id, "task": "tests.app.tasks.add", "queue": "default", "status": "failed",
            "payload": '[["old"],{"b":1}]', "error_type": "OSError",
            "error": '{"type":"OSError","message":"gone","traceback":"Traceback: line 1"}',
            "enqueued_at": timezone.now(), **values,
        }
    )  # fmt: skip


def test_a_job_deleted_from_redis_is_shown_from_its_record(site: Site) -> None:
    record()
    for n, (status, detail) in enumerate(
        [
            ("queued", ""),
            ("processing", '{"progress":{"done":1,"total":2,"note":"half"}}'),
            ("failed", '{"error":{"type":"OSError","message":"gone"},"reason":"timeout"}'),
            ("queued", "no JSON at all"),
        ]
    ):
        JobEvent.objects.create(
            job_id="job_1", status=status, queue="default", task="t", seq=n, at=timezone.now(),
            detail=detail, entry_ms=n, worker="box.aaaaaaaa.1.2.3",
        )  # fmt: skip
    words = site.text("job", "job_1")
    assert "Redis has pruned this job; this is its record." in words
    assert 'a "old" b 1' in words
    assert "OSError : gone Traceback: line 1" in words
    assert "processing box, child 3 1 of 2, half" in words
    assert "failed box, child 3 OSError: gone; reason timeout" in words
    assert "no JSON at all" in words
    assert 'value="retry"' not in site.get("job", "job_1")
    assert "This copy was enqueued" in site.post("act_on_job", "job_1", verb="copy")
    (copy,) = JobQueue().get_jobs("queued")
    assert (copy.args, dict(copy.kwargs)) == (("old",), {"b": 1})  # type: ignore[union-attr]


def test_an_unreadable_record_says_so(site: Site) -> None:
    record(payload="{", error="[]")
    assert "the record of job job_1 cannot be read" in site.text("job", "job_1")
    assert "the record of job job_1 cannot be read" in site.text("jobrecord_changelist")
    assert "cannot be copied" in site.post("act_on_job", "job_1", verb="copy")


def test_a_workflow_job_links_to_its_parents_and_children(site: Site, redisqueue: None) -> None:
    with Workflow() as workflow:
        first, second = workflow.add(tasks.noop, 1), workflow.add(tasks.noop, 2)
        last = workflow.add(tasks.noop, 3, after=[first, second])
    words = site.text("job", last.id)
    assert "waiting tests.app.tasks.noop" in words
    assert f"Comes after {first.id} {second.id}" in words
    assert f"Waited for by {last.id}" in site.text("job", first.id)
    assert f'href="{address("job", last.id)}"' in site.get("job", second.id)


def test_a_job_outside_workflows_links_to_its_parents(site: Site, redisqueue: None) -> None:
    first = tasks.noop.enqueue()
    last = tasks.noop.using(after=first).enqueue()
    assert f"Dependencies Comes after {first.id}" in site.text("job", last.id)
    assert f"Waited for by {last.id}" in site.text("job", first.id)


def test_the_tags_of_a_job_are_shown_from_redis_and_from_the_mirror(
    site: Site, redisqueue: None
) -> None:
    job = tasks.noop.using(tags={"tenant": "4 & 2"}).enqueue()
    assert "Tag tenant 4 & 2" in site.text("job", job.id)
    site.post("act_on_job", job.id, verb="copy")
    assert [copy.tags for copy in JobQueue().get_jobs("queued")] == [{"tenant": "4 & 2"}] * 2
    record(tags='{"zone":"eu"}')
    assert "Tag zone eu" in site.text("job", "job_1")


def test_up_to_a_hundred_followers_of_a_job_are_shown(site: Site, redisqueue: None) -> None:
    with Workflow() as workflow:
        first = workflow.add(tasks.noop)
        for _ in range(130):
            workflow.add(tasks.noop, after=first)
    assert site.get("job", first.id).count("<dd><a ") == 101, "and its queue"


def test_an_unknown_job_is_not_found(site: Site) -> None:
    assert "Job job_never is neither in Redis nor" in site.get("job", "job_never", code=404)
    site.get("job", "job_never", code=404, live=1)
    told = site.client.post(address("act_on_job", "job_never"), {"verb": "retry"}, follow=True)
    assert "job job_never" in " ".join(map(str, told.context["messages"])).lower()
    site.get("job", "<b>", code=404)


def test_redacted_values_are_shown_nowhere_but_still_copied(
    site: Site, manual_worker: ManualWorker
) -> None:
    job = tasks.noop.enqueue("4111-1111")
    options = '{"redact":[0]}'
    manual_worker.connection.call("HSET", manual_worker.store.keys.job(job.id), "options", options)
    pages = [("job", job.id), ("queue", "default", "queued")]
    for page in pages:
        assert "4111-1111" not in site.get(*page)
        assert "[redacted]" in site.get(*page)
    assert "0 jobs of the 1" in site.text("queue", "default", "queued", text="4111-1111")
    site.post("act_on_job", job.id, verb="copy")
    assert manual_worker.claim(2)[1].payload == '[["4111-1111"],{}]'
    record(payload='[["[redacted]"],{}]')
    assert "the arguments are redacted" in site.post("act_on_job", "job_1", verb="copy")


def test_the_page_of_a_record_is_that_of_its_job(site: Site) -> None:
    """At the URLs that the admin builds from ids, such as those of its recent actions."""
    record(id="job_1_26")
    base = f"{address('jobrecord_changelist')}{quote('job_1_26')}"
    response = site.client.get(f"{base}/change/")
    assert response.status_code == 302
    assert response["Location"] == address("job", "job_1_26")
    assert site.client.get(f"{base}/history/").status_code == 200


def test_the_app_index_leads_to_the_dashboard(site: Site) -> None:
    response = site.client.get("/admin/django_redisqueue/")
    assert address("overview") in response.content.decode()


def test_the_admin_lists_the_dashboard_for_users_who_may_see_it(
    site: Site, staff: Callable[..., User]
) -> None:
    entry = f'<a href="{address("dashboard_changelist")}">Queues and jobs</a>'
    assert entry in site.client.get("/admin/").content.decode()
    marked = entry.replace(">", ' aria-current="page">', 1)
    assert marked in site.get("workflows"), "the sidebar"
    followed = site.client.get(address("dashboard_changelist"))
    assert followed["Location"] == address("overview")
    site.client.force_login(staff("pause_queue", name="bob"))
    assert entry not in site.client.get("/admin/").content.decode()
    assert site.client.get(address("dashboard_changelist")).status_code == 403


@pytest.mark.parametrize(
    ("page", "entry"), [("overview", "dashboard"), ("jobrecord_changelist", "jobrecord")]
)
def test_the_sidebar_marks_the_entry_of_the_page(site: Site, page: str, entry: str) -> None:
    assert re.findall(r'<tr class="model-(\w+) current-model', site.get(page)) == [entry]


@pytest.mark.parametrize("number", ["x", "-1", "9" * 20, "9" * 5000], ids=len)
def test_an_invalid_start_is_the_first_page(site: Site, number: str) -> None:
    tasks.noop.enqueue()
    assert "1 to 1" in site.text("queue", "default", "queued", start=number)
    assert "No worker has a lease" in site.text("workers", page=number)
