"""What the buttons do, and what the admin's log says about it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User

from django_redisqueue import Job, JobQueue, get_job
from django_redisqueue.broker.queries import Queries
from django_redisqueue.dashboard import actions, bulk, queue_page
from django_redisqueue.models import SavedFilter
from tests.app import tasks
from tests.support.manual_worker import ManualWorker, low
from tests.worker.processes import eventually

from .site import Site, address, logged, plain

LIST = ("act_on_list", "default", "failed")


def failed(manual_worker: ManualWorker, count: int, message: str = "boom") -> list[str]:
    """Fail this many jobs, with the arguments 0, 1, ...; returns their ids."""
    tasks.noop.enqueue_many([(f"no {n}",) for n in range(count)])
    return [manual_worker.fail_one(message) for _ in range(count)]


def counts(**expected: int) -> bool:
    stats = JobQueue().get_stats()
    return {name: stats[name] for name in expected} == expected


# -- one job


def test_retry_a_job(site: Site, manual_worker: ManualWorker) -> None:
    (job_id,) = failed(manual_worker, 1)
    assert site.post("act_on_job", job_id, verb="retry") == "The job was sent back to the queue."
    assert get_job(job_id).status == "queued"
    assert logged() == [(job_id, "Retry")]


def test_cancel_a_queued_job_and_a_running_one(site: Site, manual_worker: ManualWorker) -> None:
    first, second = tasks.noop.enqueue_many([(), ()])
    running = manual_worker.claim_one()
    assert running.id == first.id
    assert "cancelled, or asked to stop" in site.post(
        "act_on_job", first.id, verb="cancel", confirmed="yes"
    )
    assert "asked to stop" in site.text("job", first.id)
    site.post("act_on_job", second.id, verb="cancel", confirmed="yes")
    second.refresh()
    assert second.status == "cancelled"
    assert logged() == [(first.id, "Cancel"), (second.id, "Cancel")]


def test_delete_a_job(site: Site, manual_worker: ManualWorker) -> None:
    (job_id,) = failed(manual_worker, 1)
    asked = site.post("act_on_job", job_id, verb="delete")
    assert "This will <b>delete</b> 1 job of the queue <b>default</b>:" in asked
    assert "Delete the job</button>" in asked
    assert counts(failed=1)
    confirmed = site.post("act_on_job", job_id, verb="delete", confirmed="yes")
    assert "deleted from Redis" in confirmed
    assert counts(failed=0)
    site.get("job", job_id, code=404)


def test_enqueue_a_copy(site: Site, manual_worker: ManualWorker) -> None:
    low.using(priority=7).enqueue("x")
    (original,) = JobQueue("low").get_jobs("queued")
    text = site.post("act_on_job", original.id, verb="copy")
    assert "This copy was enqueued" in text
    jobs = JobQueue("low").get_jobs("queued")
    (copy,) = [job for job in jobs if job.id != original.id]
    assert isinstance(copy, Job)
    assert (copy.task_name, copy.args, copy.priority) == (low.name, ("x",), 7)
    assert logged() == [
        (original.id, f"Enqueued a copy, {copy.id}"),
        (copy.id, f"Enqueued as a copy of {original.id}"),
    ]


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("cancel", "the action 'cancel' does not apply to failed jobs"),
        ("explode", "'explode' is not an action; use one of retry, run_now, cancel, delete"),
        ("", "'' is not an action; use one of retry, run_now, cancel, delete"),
    ],
)
def test_an_impossible_action_is_a_message(
    site: Site, manual_worker: ManualWorker, verb: str, message: str
) -> None:
    (job_id,) = failed(manual_worker, 1)
    assert site.post("act_on_job", job_id, verb=verb) == message
    assert counts(failed=1)
    assert logged() == []


def test_a_copy_for_an_unknown_task_is_a_message(site: Site, redis: Any) -> None:
    job = tasks.noop.enqueue()
    key = next(key for key in redis.scan_iter() if job.id.encode() in key)
    redis.hset(key, "task", "shop.tasks.gone")
    assert "no task 'shop.tasks.gone' is registered" in site.post("act_on_job", job.id, verb="copy")


# -- some jobs of a list


def test_retry_some(site: Site, manual_worker: ManualWorker) -> None:
    ids = failed(manual_worker, 3)
    assert site.post(*LIST, verb="retry", id=ids[:2]) == "2 jobs sent back to the queue."
    assert counts(queued=2, failed=1)
    assert sorted(logged()) == sorted((each, "Retry (queue default, failed)") for each in ids[:2])


def test_deleting_some_asks_first(site: Site, manual_worker: ManualWorker) -> None:
    ids = failed(manual_worker, 3)
    asked = plain(site.post(*LIST, verb="delete", id=ids[:2]))
    assert "This will delete 2 jobs of the queue default" in asked
    assert ids[0] in asked
    assert counts(failed=3)
    done = site.post(*LIST, verb="delete", id=ids[:2], confirmed="yes")
    assert done == "2 jobs deleted from Redis."
    assert counts(failed=1)


def test_an_action_leads_back_to_where_one_was(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the last page of a filtered list, with the charts of a week."""
    monkeypatch.setattr(queue_page, "SIZE", 2)
    oldest, *_ = failed(manual_worker, 3, "declined")
    query = {"text": "declined", "span": "7d", "scale": "log"}
    page = html.unescape(site.get("queue", "default", "failed", **query))
    (following,) = re.findall(r'href="\S*?\?(\S*)" rel="next"', page)
    page = site.client.get(f"{address('queue', 'default', 'failed')}?{following}").content.decode()
    assert oldest in page
    (form,) = re.findall(r'<form[^>]* id="drq-list">.*?<div', page, re.DOTALL)
    fields = dict(re.findall(r'name="(?!csrf)(\w+)" value="(.*?)"', form))
    here = f"{address('queue', 'default', 'failed')}?{urlencode(fields)}"
    assert sorted(urlencode(fields).split("&")) == sorted(following.split("&"))

    def leads_to(name: str, *args: str, **more: str) -> str:
        return site.client.post(address(name, *args), {**fields, **more})["Location"]

    assert leads_to(*LIST, verb="retry") == here  # with nothing selected
    assert leads_to("pause", "default", verb="pause", list="failed") == here
    assert leads_to("pause", "default", verb="stop", list="failed") == here
    form = {**fields, "verb": "delete", "id": oldest}
    asked = site.client.post(address(*LIST), form).content.decode()
    assert f'href="{html.escape(here)}">No, go back' in asked
    assert dict(re.findall(r'name="(\w+)" value="(.*?)"', asked)).items() >= fields.items()
    assert leads_to(*LIST, verb="retry", id=oldest) == here
    assert "1 to 2" in plain(site.client.get(here).content.decode()), "that page is empty now"


def test_cancel_some_queued_jobs(site: Site, redisqueue: None) -> None:
    jobs = tasks.noop.enqueue_many([(n,) for n in range(3)])
    ids = [job.id for job in jobs[:2]]
    site.post("act_on_list", "default", "queued", verb="cancel", id=ids, confirmed="yes")
    assert counts(cancelled=2)


def test_jobs_that_have_changed_meanwhile_are_reported(
    site: Site, manual_worker: ManualWorker
) -> None:
    first, second = failed(manual_worker, 2)
    get_job(first).requeue()
    text = site.post(*LIST, verb="retry", id=[first, second])
    assert "1 job sent back to the queue." in text
    assert "1 job had changed or disappeared meanwhile, and was left alone." in text
    assert logged() == [(second, "Retry (queue default, failed)")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verb": "retry"}, "no jobs are selected; select some jobs, or all of them"),
        ({"verb": "retry", "id": ["a b"]}, "'a b' is not a valid job id"),
        ({"verb": "retry", "id": [f"j{n}" for n in range(101)]}, "select at most 100"),
        ({"verb": "cancel", "id": "x"}, "the action 'cancel' does not apply to failed jobs"),
        ({"verb": "retry", "scope": "all", "since": "soon"}, "since: 'soon' is not a valid time"),
        (
            {"verb": "retry", "scope": "all", "confirmed": "yes", "before_ms": "now"},
            "before_ms must be an instant in milliseconds, not 'now'",
        ),
    ],
)
def test_bad_input_is_a_message_and_changes_nothing(
    site: Site, manual_worker: ManualWorker, fields: dict[str, Any], message: str
) -> None:
    failed(manual_worker, 1)
    assert message in site.post(*LIST, **fields)
    assert counts(failed=1)
    assert logged() == []


@pytest.mark.parametrize("page", [("default", "strange"), ("unknown", "failed"), ("<b>", "failed")])
def test_a_missing_object_is_not_found(site: Site, page: tuple[str, str]) -> None:
    site.get("queue", *page, code=404)


# -- all matching jobs


def confirm(site: Site, **fields: Any) -> str:
    """Request the action for all, and confirm as the page's form does."""
    page = site.post(*LIST, scope="all", **fields)
    assert "are you sure?" in page
    before = page.partition('name="before_ms" value="')[2].partition('"')[0]
    return site.post(*LIST, scope="all", confirmed="yes", before_ms=before, **fields)


def test_retry_all(site: Site, manual_worker: ManualWorker) -> None:
    failed(manual_worker, 60)
    assert confirm(site, verb="retry") == "60 jobs sent back to the queue."
    assert counts(queued=60, failed=0)
    assert logged() == [("queue default", "Retry all failed jobs: 60 jobs")]


@pytest.mark.parametrize("language", ["en", "de"])
def test_numbers_in_forms_have_no_separators(
    site: Site, manual_worker: ManualWorker, settings: Any, language: str
) -> None:
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = language, True
    failed(manual_worker, 2)
    assert confirm(site, verb="retry") == "2 jobs sent back to the queue."
    SavedFilter.objects.create(pk=1234, user=User.objects.get(), name="mine", query="text=x")
    assert 'name="filter" value="1234"' in site.get("queue", "default", "failed")


def test_retry_all_matching(site: Site, manual_worker: ManualWorker) -> None:
    failed(manual_worker, 12)
    assert confirm(site, verb="retry", text="no 1") == "3 jobs sent back to the queue."  # 1 10 11
    assert counts(queued=3, failed=9)
    assert logged() == [
        ("queue default", "Retry all failed jobs that match “no 1” in arguments or error: 3 jobs")
    ]


def test_a_confirmation_does_not_state_the_number_of_matches(
    site: Site, manual_worker: ManualWorker
) -> None:
    failed(manual_worker, 12)
    page = site.post(*LIST, scope="all", verb="retry", text="no 1")
    assert "The list has 12 jobs now." in page
    assert "Jobs that do not match or arrive later are left alone." in page
    assert "Retry those that match</button>" in page
    assert "Retry 12 jobs</button>" in site.post(*LIST, scope="all", verb="retry")


def test_a_confirmation_of_selected_jobs_states_their_number(
    site: Site, manual_worker: ManualWorker
) -> None:
    """Also in a filtered list, whose other jobs are left alone."""
    job_id = failed(manual_worker, 12)[0]
    page = site.post(*LIST, id=job_id, verb="delete", text="no 1")
    assert "Delete 1 job</button>" in page


def test_delete_all_matching_a_task(site: Site, manual_worker: ManualWorker) -> None:
    failed(manual_worker, 2)
    tasks.add.enqueue(1, 2)
    manual_worker.fail_one()
    assert confirm(site, verb="delete", task=tasks.add.name) == "1 job deleted from Redis."
    assert counts(failed=2)


def test_cancel_all_waiting_whatever_their_priority(site: Site, redisqueue: None) -> None:
    for n, priority in enumerate([0, 5, -5, 0]):
        tasks.noop.using(priority=priority).enqueue(n)
    page = site.post("act_on_list", "default", "queued", verb="cancel", scope="all")
    before = page.partition('name="before_ms" value="')[2].partition('"')[0]
    tasks.noop.enqueue("came later")
    text = site.post(
        "act_on_list", "default", "queued",
        verb="cancel", scope="all", confirmed="yes", before_ms=int(before),
    )  # fmt: skip
    assert text == "4 jobs cancelled, or asked to stop."
    assert counts(cancelled=4, queued=1)


def test_jobs_that_arrive_after_the_confirmation_are_left_alone(
    site: Site, manual_worker: ManualWorker
) -> None:
    failed(manual_worker, 2)
    page = site.post(*LIST, verb="delete", scope="all")
    before = page.partition('name="before_ms" value="')[2].partition('"')[0]
    eventually(lambda: Queries(manual_worker.connection).now_ms() > int(before))
    (late,) = failed(manual_worker, 1, "later")
    done = site.post(*LIST, verb="delete", scope="all", confirmed="yes", before_ms=before)
    assert done == "2 jobs deleted from Redis."
    assert get_job(late).status == "failed"


def test_a_long_list_is_left_to_a_worker(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "INLINE", 5)
    failed(manual_worker, 6)
    text = confirm(site, verb="retry", text="no")
    assert "a worker is doing this. This page shows the progress" in text
    (job,) = JobQueue().get_jobs("queued")
    assert isinstance(job, Job)
    assert (job.task_name, job.priority) == ("django_redisqueue.bulk", 100)
    assert job.args[:3] == ("retry", "default", "failed")
    assert counts(failed=6)
    what = f"Retry all failed jobs that match “no” in arguments or error, by job {job.id}"
    assert logged() == [("queue default", what)]


def test_a_paused_queue_lets_another_do_the_bulk(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "INLINE", 0)
    failed(manual_worker, 1)
    JobQueue().pause()
    confirm(site, verb="retry")
    assert JobQueue("low").get_stats()["queued"] == 1
    JobQueue("low").pause()
    assert "every queue is paused" in confirm(site, verb="retry")


# -- queues


def test_pause_and_resume(site: Site, redisqueue: None) -> None:
    assert "is paused: running jobs finish" in site.post("pause", "low", verb="pause")
    assert JobQueue("low").is_paused
    assert "is resumed" in site.post("pause", "low", verb="resume", back="overview")
    assert not JobQueue("low").is_paused
    site.post("pause", "low", verb="resume")
    assert logged() == [("queue low", "Pause"), ("queue low", "Resume")]
    assert site.post("pause", "low", verb="stop") == "'stop' is not an action; use pause or resume"


# -- saved filters


def save(site: Site, name: str = "broken payments", **fields: str) -> str:
    given = {"verb": "save", "name": name, "list": "default/failed", "text": "declined", **fields}
    return site.post("filters", **given)


def links(page: str) -> list[tuple[str, str]]:
    """(name, parameters) of the saved filters on a page."""
    found = re.findall(r'name="filter".*?<a href="\?(.*?)">(.*?)</a>', page)
    return [(html.unescape(name), html.unescape(query)) for query, name in found]


def test_a_filter_is_saved_and_picked_on_every_list_of_jobs(
    site: Site, manual_worker: ManualWorker
) -> None:
    tasks.noop.enqueue_many([(1,), (2,)])
    declined, other = (
        manual_worker.fail_one("card declined"),
        manual_worker.fail_one("no such card"),
    )
    page = site.get("queue", "default", "failed", text="declined")
    assert '<input type="hidden" name="text" value="declined">' in page
    assert "The filter broken payments was saved." in save(site)
    ((name, query),) = links(site.get("queue", "default", "failed"))
    assert name == "broken payments"
    chosen = site.client.get(f"{address('queue', 'default', 'failed')}?{query}").content.decode()
    assert declined in chosen
    assert other not in chosen
    assert links(site.get("queue", "low", "queued")) == [(name, query)]
    assert links(site.get("jobrecord_changelist")) == [(name, query)]


def test_after_saving_the_list_is_shown_with_the_filter(site: Site, redisqueue: None) -> None:
    form = {"verb": "save", "name": "x", "text": "a b", "list": "default/failed"}
    answer = site.client.post(address("filters"), form)
    assert answer["Location"] == f"{address('queue', 'default', 'failed')}?text=a+b"
    form = {"verb": "save", "name": "x", "status": "failed", "list": ""}
    answer = site.client.post(address("filters"), form)
    assert answer["Location"] == f"{address('jobrecord_changelist')}?status=failed"
    assert site.client.post(address("filters"), {**form, "list": "no/such"}).status_code == 404


def test_the_same_name_is_saved_again_and_a_filter_is_deleted(site: Site) -> None:
    save(site, text="one")
    save(site, text="two <b>")
    (found,) = SavedFilter.objects.all()
    assert found.query == "text=two+%3Cb%3E"
    assert "was deleted" in site.post("filters", verb="delete", filter=found.pk)
    assert "it was probably deleted" in site.post("filters", verb="delete", filter=found.pk)
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "a filter's name must have 1 to 80 characters"),
        ({"name": "x" * 81}, "a filter's name must have 1 to 80 characters"),
        ({"text": ""}, "there is no filter to save; set a filter first"),
        ({"since": "tomorrow"}, "since: 'tomorrow' is not a valid time"),
        ({"status": "gone"}, "'gone' is not a status"),
    ],
)
def test_what_cannot_be_saved_is_explained(
    site: Site, fields: dict[str, str], problem: str
) -> None:
    assert problem in save(site, **fields)
    assert not SavedFilter.objects.exists()


def test_a_user_has_a_bounded_number_and_only_their_own(
    site: Site, staff: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MAX_FILTERS", 2)
    for name in ("a", "b", "c", "a"):
        text = save(site, name)
        assert ("already have 2 filters; delete one first" in text) == (name == "c")
    mine = SavedFilter.objects.get(name="a")
    site.client.force_login(staff("view_jobrecord", name="bob"))
    assert links(site.get("jobrecord_changelist")) == []
    assert "the filter does not exist" in site.post("filters", verb="delete", filter=mine.pk)
    assert SavedFilter.objects.count() == 2
    save(site, "c")
    assert [name for name, _ in links(site.get("jobrecord_changelist"))] == ["c"]


def test_filters_need_the_permission_to_see_jobs(site: Site, staff: Callable[..., User]) -> None:
    site.client.force_login(staff("retry_job", name="bob"))
    assert site.client.post(address("filters"), {"verb": "save"}).status_code == 403
    assert site.client.get(address("filters")).status_code in (403, 405)
