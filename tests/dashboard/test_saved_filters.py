"""Filters that a user saves under a name, and picks on any list of jobs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from django_redisqueue.dashboard import actions
from django_redisqueue.models import SavedFilter
from tests.app import tasks
from tests.support.hand import Hand

from .site import Site, address


def save(site: Site, name: str = "broken payments", **fields: str) -> str:
    given = {"verb": "save", "name": name, "list": "default/failed", "text": "declined", **fields}
    return site.post("filters", **given)


def links(page: str) -> list[tuple[str, str]]:
    """(name, parameters) of the saved filters on a page."""
    found = re.findall(r'name="filter".*?<a href="\?(.*?)">(.*?)</a>', page)
    return [(html.unescape(name), html.unescape(query)) for query, name in found]


def test_a_filter_is_saved_and_picked_on_every_list_of_jobs(site: Site, hand: Hand) -> None:
    tasks.noop.enqueue_many([(1,), (2,)])
    declined, other = hand.fail_one("card declined"), hand.fail_one("no such card")
    page = site.get("queue", "default", "failed", text="declined")
    assert '<input type="hidden" name="text" value="declined">' in page
    assert "The filter broken payments is saved." in save(site)
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
    assert "is deleted" in site.post("filters", verb="delete", filter=found.pk)
    assert "deleted meanwhile" in site.post("filters", verb="delete", filter=found.pk)
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": ""}, "the name of a filter has 1 to 80 characters"),
        ({"name": "x" * 81}, "the name of a filter has 1 to 80 characters"),
        ({"text": ""}, "there is no filter to save; set one first"),
        ({"since": "tomorrow"}, "since: 'tomorrow' is not a time"),
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
        assert ("which is the most; delete one first" in text) == (name == "c")
    mine = SavedFilter.objects.get(name="a")
    site.client.force_login(staff("view_jobrecord", name="bob"))
    assert links(site.get("jobrecord_changelist")) == []
    assert "you do not have this filter" in site.post("filters", verb="delete", filter=mine.pk)
    assert SavedFilter.objects.count() == 2
    save(site, "c")
    assert [name for name, _ in links(site.get("jobrecord_changelist"))] == ["c"]


def test_filters_need_the_permission_to_see_jobs(site: Site, staff: Callable[..., User]) -> None:
    site.client.force_login(staff("retry_job", name="bob"))
    assert site.client.post(address("filters"), {"verb": "save"}).status_code == 403
    assert site.client.get(address("filters")).status_code in (403, 405)
