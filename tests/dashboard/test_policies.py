"""Policies in the admin: unique keys with their release, and schedules."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_redisqueue import Limit, task
from django_redisqueue.broker.commands import Commands
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Cron, Source
from django_redisqueue.models import Approval, PeriodicJob
from tests.app import tasks
from tests.broker.schedules import definition
from tests.support.logins import logged_in
from tests.support.manual_worker import ManualWorker

from .site import Site, address, logged, plain

MINUTE = 60_000


@pytest.fixture
def manual_worker(redisqueue: None) -> Iterator[ManualWorker]:
    """A ``ManualWorker`` in shard 0, where made-up ids are looked for."""
    made = ManualWorker(home=0)
    yield made
    made.close()


def own(
    manual_worker: ManualWorker, job_id: str, *keys: str, mode: str = "until_finished - -"
) -> None:
    unique = " ".join(f"{key} {mode}" for key in keys)
    manual_worker.store.enqueue([NewJob(job_id, "default", "app.pay", "[[],{}]", unique=unique)])


def test_each_limit_with_its_holders_and_waiting_jobs(
    site: Site, manual_worker: ManualWorker
) -> None:
    assert "No job holds a limit or waits for one." in site.text("limits")
    lanes = ["|c:stripe:a%2Fb c:stripe=2"] * 4 + ["|r:api: r:api=2/60000000/1"] * 2
    manual_worker.store.enqueue(
        [NewJob(f"job_{n}", "default", "t", "[[],{}]", lane=lane) for n, lane in enumerate(lanes)]
    )
    started = [job.id for _ in range(5) for job in manual_worker.claim()]
    assert started == ["job_0", "job_1", "job_4"]
    text = site.text("limits")
    assert re.search(r"stripe:a/b 2 of 2 job_0 , job_1 1 default [\d.]+ m?s", text)
    assert re.search(r"api rate 2 in 1m in (30|29|2\d\.\d) s 1 default [\d.]+ m?s", text)
    manual_worker.connection.call(
        "HSET", manual_worker.store.keys.job("job_0"), "status", "completed"
    )
    assert "job_0 not running , job_1" in site.text("limits")
    assert "stripe:a/b" in site.json("limits", live=1)["fragments"]["drq-limits"]


def release(client: Client, key: str, job_id: str, **more: str) -> int:
    form = {"key": key, "job": job_id, **more}
    return client.post(address("release_key"), form).status_code


def test_each_key_with_its_owner_and_its_age(site: Site, manual_worker: ManualWorker) -> None:
    assert "No job has a unique key." in site.text("unique_keys")
    now_ms = manual_worker.store.now_ms = (
        int(manual_worker.connection.call("TIME")[0]) * 1000 - 3 * MINUTE
    )
    own(manual_worker, "job_1", "app.pay:<b>")
    manual_worker.store.now_ms = now_ms + MINUTE
    own(manual_worker, "job_2", "app.pay:2", mode="for 3600000 -")
    text = site.text("unique_keys")
    assert re.search(r"app.pay:<b> job_1 app.pay queued 3 m( \d s)? with its job Release", text)
    assert re.search(r"app.pay:2 job_2 app.pay queued 2 m( \d s)? (57|58) m.* Release", text)
    assert "app.pay:2" in site.text("unique_keys", key="app.pay:2")
    assert "job_1" not in site.text("unique_keys", key="app.pay:2")
    assert "No job has this key." in site.text("unique_keys", key="app.pay:3")
    assert "job_1" in site.json("unique_keys", live=1)["fragments"]["drq-unique_keys"]


def test_a_key_that_passes_to_another_job_at_that_moment_stays_with_it(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a third job could run beside that one."""
    own(manual_worker, "job_1", "k")
    release_unique = Commands.release_unique

    def release_late(commands: Commands, *args: str) -> str:
        release_unique(manual_worker.store, "k")
        own(manual_worker, "job_2", "k")
        return release_unique(commands, *args)

    monkeypatch.setattr(Commands, "release_unique", release_late)
    told = site.post("release_key", key="k", job="job_1", confirmed="yes")
    assert told == "The job no longer has this key; nothing was done."
    assert "job_2" in site.text("unique_keys")


def test_a_key_is_released_and_logged(site: Site, manual_worker: ManualWorker) -> None:
    own(manual_worker, "job_1", "k")
    asked = site.post("release_key", key="k", job="job_1")
    assert "release the unique key <b>k</b>, which job <b>job_1</b> holds" in asked
    assert f'href="{address("unique_keys")}">No, go back' in asked
    assert logged() == []
    fields = {"key": "k", "job": "job_1", "confirmed": "yes"}
    assert site.post("release_key", **fields) == "k is free. Job job_1 was not changed."
    assert logged() == [("job_1", "Release unique key k")]
    own(manual_worker, "job_2", "k")
    told = site.post("release_key", **fields)
    assert told == "The job no longer has this key; nothing was done."
    assert "job_2" in site.text("unique_keys")
    assert len(logged()) == 1


def test_releasing_needs_its_permission(
    staff: Callable[..., User], manual_worker: ManualWorker
) -> None:
    own(manual_worker, "job_1", "k")
    client = logged_in(staff("view_jobrecord", "retry_job", "clear_queue", "pause_queue"))
    assert release(client, "k", "job_1") == 403
    assert 'value="release"' not in Site(client).get("unique_keys")
    assert "job_1" in Site(client).text("unique_keys")
    assert client.get(address("release_key")).status_code == 405
    strict = logged_in(staff("view_jobrecord", "cancel_job", name="bob"), enforce_csrf_checks=True)
    assert release(strict, "k", "job_1") == 403
    assert "job_1" in Site(client).text("unique_keys")


def test_pages_of_keys_continue_after_the_last_one(site: Site, manual_worker: ManualWorker) -> None:
    manual_worker.store.now_ms = 1_760_000_000_000
    for n in range(120):
        own(manual_worker, f"job_{n:03}", f"key{n:03}")
    seen: list[str] = []
    url = address("unique_keys")
    while url:
        text = site.client.get(url).content.decode()
        seen += re.findall(r'drq-long">(key\d+)<', text)
        manual_worker.store.release_unique(seen[0])  # pages do not shift
        link = re.search(r'<a href="([^"]*)" rel="next">', text)
        url = html.unescape(link[1]) if link else ""
    assert seen == [f"key{n:03}" for n in range(120)]
    assert "After must be the value that the previous page" in site.text("unique_keys", after="x")


@pytest.fixture
def schedules(manual_worker: ManualWorker) -> Commands:
    """A running schedule, a paused one, one with an error, and a late one."""
    now_ms = int(manual_worker.connection.call("TIME")[0]) * 1000
    cron = Cron("0 4 * * *", timezone="Asia/Tokyo")
    admin: dict[str, Any] = {"source": Source.ADMIN}
    manual_worker.store.define_schedules(
        "",
        [
            (definition("runs", cron, task=tasks.noop.name, **admin), now_ms + 5 * MINUTE),
            (definition("paused", **admin), now_ms + MINUTE),
            (definition("wrong", error="no task <b>", **admin), None),
            (definition("late", **admin), now_ms - 5 * MINUTE),
        ],
    )
    manual_worker.store.pause_schedule("paused", True)
    return manual_worker.store


def test_each_schedule_with_its_state(site: Site, schedules: Commands) -> None:
    PeriodicJob.objects.create(name="runs", task=tasks.noop.name, cron="0 4 * * *")
    text = site.text("schedules")
    order = [text.index(f" {name} ") for name in ("late", "runs", "paused")]
    assert order == sorted(order), "by their next due times, stopped ones last"
    assert re.search(r"late app.task every 1m late \d{4}-\d\d-\d\d [\d:]+ 0 0 0", text)
    assert re.search(r"runs tests\S+ 0 4 \* \* \* Asia/Tokyo runs \d{4}-\d\d-\d\d [\d:]+ 0", text)
    assert re.search(r"paused app.task every 1m paused for \d+ m?s 0 0 0", text)
    assert re.search(r"wrong app.task every 1m error no task <b> 0 0 0", text)


def test_what_a_schedule_has_run_and_missed(
    site: Site, manual_worker: ManualWorker, schedules: Commands
) -> None:
    key = manual_worker.store.keys.schedule("late")
    manual_worker.connection.call(
        "HSET", key, "last_ms", 1_760_000_000_000, "last_job", "periodic_1", "fired", 12,
        "missed", 3, "skipped", 2,
    )  # fmt: skip
    assert re.search(
        r"late app.task every 1m late \S+ \S+ 2025-10-09 \S+ 12 3 2", site.text("schedules")
    )
    assert address("job", "periodic_1") in site.get("schedules")
    manual_worker.connection.call("HSET", key, "fired", "many")
    assert re.search(r"late error the hash of schedule late cannot be read", site.text("schedules"))
    fragment = site.json("schedules", live=1)["fragments"]["drq-schedules"]
    assert "0 4 * * *" in fragment


def test_the_page_of_a_job_says_why_it_does_not_run(
    site: Site, manual_worker: ManualWorker
) -> None:
    manual_worker.store.heartbeat([manual_worker.claim_request.child], (), ["default"])
    lane = "|c:stripe:42 c:stripe=1"
    for name in ("job_1", "job_2"):
        manual_worker.store.enqueue([NewJob(name, "default", "t", "[[],{}]", lane=lane)])
    manual_worker.claim_one()
    manual_worker.claim()
    assert "It waits for limit stripe:42, 1 of 1, held by job_1." in site.text("job", "job_2")
    assert 'id="drq-why"' not in site.get("job", "job_1")
    part = site.json("job", "job_2", live=1)["fragments"]["drq-job"]
    assert "It waits for limit stripe:42" in part
    manual_worker.connection.call("DEL", manual_worker.store.keys.queue("default").parked)
    manual_worker.connection.call("SET", manual_worker.store.keys.limits, "theirs")
    assert "It waits for a free worker." in site.text("job", "job_2")


def test_the_page_of_a_job_has_its_keys_and_its_steps(
    site: Site, manual_worker: ManualWorker
) -> None:
    own(manual_worker, "job_1", "k", "<l>")
    manual_worker.store.release_unique("k")
    steps = manual_worker.store.keys.steps("job_1")
    fields = {"step:charge <1>": "null", "step:mail": "{}", "cursor:rows": "[7]", "bytes": "9"}
    manual_worker.connection.call("HSET", steps, *sum(fields.items(), ()))
    text = site.text("job", "job_1")
    assert "Unique keys <l> Release <l>" in text
    assert "Stored state Walks rows Steps done charge <1> mail" in text
    fields = {"key": "<l>", "back": "job"}
    asked = site.post("release_key", **fields, job="job_1")
    assert f'href="{address("job", "job_1")}">No, go back' in asked
    told = site.post("release_key", **fields, job="job_1", confirmed="yes")
    assert told == "<l> is free. Job job_1 was not changed."
    told = site.post("release_key", **fields, job="no/id", confirmed="yes")
    assert told == "The job no longer has this key; nothing was done."
    assert "Unique keys" not in site.text("job", "job_1")
    manual_worker.connection.call(
        "HSET", steps, *sum(((f"step:{n:03}", "1") for n in range(120)), ())
    )
    assert "And 23 more." in site.text("job", "job_1")
    manual_worker.connection.call("DEL", steps)
    manual_worker.connection.call("SET", steps, "theirs")
    assert "The reason why it is not running cannot be read" in site.text("job", "job_1")


def test_a_job_that_waits_for_an_approval_leads_to_it(
    staff: Callable[..., User], manual_worker: ManualWorker
) -> None:
    manual_worker.store.enqueue([NewJob("job_1", "default", "t", "[[],{}]", when="+60000")])
    now_ms = int(manual_worker.connection.call("TIME")[0]) * 1000
    key = manual_worker.store.keys.job("job_1")
    waits = ("waits_for", "approval:job_1:refund", "parked_ms", now_ms)
    manual_worker.connection.call("HSET", key, *waits)
    row = Approval.objects.create(job_id="job_1", name="refund", task="t", queue="default")
    for permissions, is_linked in ((("view_jobrecord",), False), (("view_approval",), True)):
        client = logged_in(staff("view_jobrecord", *permissions, name=permissions[0]))
        page = Site(client).get("job", "job_1")
        assert "It has waited for the approval refund for" in page
        assert "<dt>Timeout</dt>" in page
        assert (address("approval_change", row.pk) in page) == is_linked


def test_the_overview_has_a_line_for_each_of_them(site: Site, schedules: Commands) -> None:
    text = site.text("overview")
    assert (
        "Policies Schedules 4, 1 paused, 1 with an error (wrong), 1 late (late), next late now"
        in text
    )
    assert "4, 1 paused" in site.json("overview_live")["fragments"]["drq-policies"]
    assert address("schedules") in site.get("overview")
    unique = "k until_finished - -"
    schedules.enqueue([NewJob("job_1", "default", "t", "[[],{}]", unique=unique)])
    assert "Policies Unique keys 1 Schedules 4" in site.text("overview")


def test_without_redis(site: Site, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    for page in ("limits", "unique_keys", "schedules", "waits"):
        assert "Redis does not answer." in site.text(page)


def park(manual_worker: ManualWorker, job_id: str, event: str, due: str = "") -> None:
    manual_worker.store.enqueue([NewJob(job_id, "default", "app.pay", "[[],{}]")])
    manual_worker.settle(manual_worker.claim_one(), "parked", event, due)


def test_waits_of_jobs(staff: Callable[..., User], manual_worker: ManualWorker) -> None:
    client = logged_in(staff("view_jobrecord", "view_approval"))
    site = Site(client)
    assert "No job waits for an event." in site.text("waits")
    now_ms = manual_worker.store.now_ms = (
        int(manual_worker.connection.call("TIME")[0]) * 1000 - 3 * MINUTE
    )
    park(manual_worker, "job_1", "paid:<b>")
    park(manual_worker, "job_2", "approval:job_2:refund")
    park(manual_worker, "job_3", "", str(now_ms + 63 * MINUTE))
    row = Approval.objects.create(
        job_id="job_2", name="refund", task="t", queue="q", permission="a.b", question="Refund?"
    )
    text = site.text("waits")
    assert "For events 1 For approvals 1 Asleep 1" in text
    assert re.search(r"paid:<b> job_1 app.pay default 3 m( \d+ s)? none", text)
    page = site.get("waits", kind="approval")
    assert f'href="{address("approval_change", row.pk)}"' in page
    assert re.search(r"refund Refund\? job_2 app.pay default 3 m.* none Approve", plain(page))
    text = site.text("waits", kind="sleep")
    assert re.search(r"job_3 app.pay default 3 m( \d+ s)? (1 h|5\d m.*)", text)
    assert "paid:" in site.text("waits", kind="nonsense")
    assert "paid:" in site.json("waits", live=1)["fragments"]["drq-waits"]


def test_waits_are_paged(site: Site, manual_worker: ManualWorker) -> None:
    for n in range(51):
        manual_worker.store.now_ms = 1_760_000_000_000 + n
        park(manual_worker, f"job_{n:02}", "", "9000000000000")
    page = site.get("waits", kind="sleep")
    (found,) = re.findall(r'href="([^"]*)" rel="next"', page)
    following = plain(site.client.get(html.unescape(found)).content.decode())
    assert "job_50" in following
    assert "job_49 app" not in following
    assert "job_50" not in plain(page)


def test_approvals_are_only_shown_to_users_who_may_see_them(
    staff: Callable[..., User], manual_worker: ManualWorker
) -> None:
    park(manual_worker, "job_1", "approval:job_1:refund")
    Approval.objects.create(
        job_id="job_1", name="refund", task="t", queue="q", permission="a.b", question="Of 42?"
    )
    client = logged_in(staff("view_jobrecord"))
    text = Site(client).text("waits", kind="approval")
    assert "refund job_1" in text
    assert "Of 42?" not in text
    assert "Approve" not in text


# -- overrides and pauses


@task(concurrency=Limit(5, key="tenant"), fair_by="tenant", name="tests.limited")
def limited(tenant: str) -> None: ...


def change(site: Site, verb: str, **fields: str) -> str:
    """Ask, and confirm."""
    asked = site.post("change_limit", verb=verb, **fields)
    assert "are you sure?" in asked
    return site.post("change_limit", verb=verb, confirmed="yes", **fields)


def test_a_limit_is_overridden_and_restored(site: Site, manual_worker: ManualWorker) -> None:
    limited.enqueue("acme")
    manual_worker.claim_one()
    assert "tests.limited:acme 1 of 5 job" in site.text("limits")
    which = {"limit": "tests.limited", "key": "acme"}
    assert "to 9" in site.post("change_limit", verb="set", number="9", **which)
    assert "1 of 5" in site.text("limits"), "it was not confirmed"
    told = change(site, "set", number="9", **which)
    assert told == "Done: set limit tests.limited:acme to 9."
    assert "1 of 9 set by hand" in site.text("limits")
    again = change(site, "set", number="9", **which)
    assert again == "Already done: set limit tests.limited:acme to 9."
    change(site, "set", number="none", **which)
    assert "1 of 5 job" in site.text("limits")
    change(site, "weigh", share="acme", weight="3")
    name = "limit tests.limited:acme"
    assert logged() == [
        (name, f"Set {name} to 9"), (name, f"Remove the number of {name}"),
        ("share acme", "Set the weight of share acme to 3"),
    ]  # fmt: skip


def test_a_share_and_a_limit_are_paused_and_resumed(
    site: Site, manual_worker: ManualWorker
) -> None:
    limited.enqueue("acme")
    change(site, "pause", share="acme", queue="default")
    change(site, "pause", limit="tests.limited", key="x", queue="default")
    assert manual_worker.claim() == []
    text = site.text("limits")
    assert re.search(r"limit tests.limited:x default ada \d.* Resume", text)
    assert re.search(r"share acme default ada \d.* Resume", text)
    told = site.post("resume_part", queue="default", part="s:acme")
    assert told == "share acme is resumed in queue default."
    manual_worker.claim_one()
    told = site.post("resume_part", queue="default", part="s:acme")
    assert told == "It was already resumed; nothing was done."
    assert [what for _, what in logged()] == [
        "Pause share acme in queue default", "Pause limit tests.limited:x in queue default",
        "Resume share acme in queue default",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"verb": "set", "limit": "nope", "number": "5"}, "no task has a Limit 'nope'"),
        ({"verb": "set", "limit": "tests.limited", "number": "many"}, "number must be written as"),
        ({"verb": "set", "limit": "tests.limited", "key": "[", "number": "5"}, "a JSON array"),
        ({"verb": "set", "limit": "tests.limited", "number": "5"}, "pass one as key="),
        ({"verb": "weigh", "share": "a", "weight": "0"}, "a weight must be a whole number from 1"),
        ({"verb": "weigh", "share": "a", "weight": "x"}, "to remove what was set, not 'x'"),
        ({"verb": "pause", "queue": "default"}, "name a share or a limit"),
        ({"verb": "pause", "queue": "nope", "share": "a"}, "unknown queue 'nope'"),
        ({"verb": "pause", "queue": "default", "limit": "nope"}, "no task has a Limit or Rate"),
        ({"verb": "stop"}, "use set, weigh or pause"),
    ],
)
@pytest.mark.parametrize("confirmed", ["no", "yes"])
def test_an_invalid_change_is_explained(
    site: Site, fields: dict[str, str], words: str, confirmed: str
) -> None:
    assert words in site.post("change_limit", confirmed=confirmed, **fields)
    assert logged() == []


def test_changes_need_their_permission_and_the_token(
    staff: Callable[..., User], redisqueue: None
) -> None:
    client = logged_in(staff("view_jobrecord"))
    assert "Set the number" not in Site(client).get("limits")
    for name in ("change_limit", "resume_part"):
        assert client.post(address(name), {"verb": "pause"}).status_code == 403
        guarded = logged_in(
            staff("view_jobrecord", "pause_queue", name=name), enforce_csrf_checks=True
        )
        assert guarded.post(address(name), {"verb": "pause"}).status_code == 403
        assert guarded.get(address(name)).status_code == 405
