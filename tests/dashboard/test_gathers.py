"""The pages of gathers: the list, and a gather with its parts, its first failure and its
timeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_redisqueue import Gather, get_gather
from django_redisqueue.broker.workflows import GatherQueries
from django_redisqueue.client.transport import connection_of
from django_redisqueue.dashboard import gathers_page
from tests.client.gather import tasks
from tests.support.manual_worker import ManualWorker

from .site import Site, address, plain, rows


def start(key: str = "report-42", **options: object) -> Gather:
    given = {"payload": {"record_id": 42}, "threshold": 2, "then": tasks.merge, **options}
    return Gather.start(key, topic="report", **given)  # type: ignore[arg-type]


def test_the_page_of_a_gather_follows_it_to_its_end(
    site: Site, manual_worker: ManualWorker
) -> None:
    gather = start()
    words = site.text("gather", "report-42")
    assert "Gather report-42" in words
    assert "collecting" in words
    assert "Results 0 of 3, 2 needed" in words
    assert "Missing accounts funds users" in words
    assert "No known job has started." in words
    failed = manual_worker.fail_one("no funds <b>")  # funds: its priority is the highest
    manual_worker.complete_one("[42,1]")
    page = site.get("gather", "report-42")
    assert "First failure: tests.client.gather.tasks.funds" in plain(page)
    assert "ValueError : no funds <b>" in plain(page)
    assert "1 of 3 jobs completed, 1 failed" in plain(page)
    # at the top, in the timeline and among the parts
    assert page.count(f'href="{address("job", failed)}"') == 3
    assert len(rows(page)) == 3
    assert re.search(r"failed, waited [\d.]+ m?s, ran [\d.]+ m?s", plain(page))
    manual_worker.complete_one("2")
    parts = site.json("gather", "report-42", live=1)["fragments"]
    assert set(parts) == {"drq-health", "drq-gather", "drq-workflowtimes", "drq-gatherjobs"}
    words = plain(parts["drq-gather"])
    assert "released" in words
    assert "Results 2 of 3, 2 needed Missing at its end funds" in words
    assert f"Callback {gather.follow_up.id} queued" in words  # type: ignore[union-attr]


def start_at(n: int, **options: object) -> Gather:
    """A gather with the key ``g<n>``, started ``n`` ms after the first."""
    gather = start(f"g{n}", **options)
    connection = connection_of(gather.id)
    connection.call("ZADD", GatherQueries(connection).keys.newest_gathers, 1000 + n, gather.key)
    return gather


def test_the_list_has_the_gathers_of_all_shards(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No gathers." in site.text("gathers")
    for n in range(5):
        start_at(n)
    manual_worker.complete_one("1")
    found = rows(site.get("gathers"))
    assert [row.split()[0] for row in found] == [f"g{n}" for n in (4, 3, 2, 1, 0)]
    assert sorted(re.findall(r"(\d) of 3 jobs completed", " ".join(found))) == list("00001")
    monkeypatch.setattr(gathers_page, "SIZE", 2)
    second = site.get("gathers", start=2)
    assert [row.split()[0] for row in rows(second)] == ["g2", "g1"]
    assert "?start=4" in second
    assert "Older ›" not in site.get("gathers", start=4)
    assert f'href="{address("gather", "g2")}"' in second
    live = site.json("gathers", live=1)["fragments"]["drq-gathers"]
    assert [row.split()[0] for row in rows(live)] == ["g4", "g3"]


def test_the_list_can_be_filtered(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(12):
        start_at(n, threshold=1)
    ended = set[str]()
    while len(ended) < 4:
        ended.add(manual_worker.complete_one("1").rpartition(".")[0])
    keys = [f"g{n}" for n in range(11, -1, -1)]
    released = [key for key in keys if get_gather(key).id in ended]
    assert len(released) == 4

    def shown(**query: object) -> list[str]:
        return [row.split()[0] for row in rows(site.get("gathers", **query))]

    assert shown(status="released") == released
    assert shown(status="collecting") == [key for key in keys if key not in released]
    assert shown(status="failed") == []
    assert shown(status="no such") == keys
    assert shown(key="G1") == ["g11", "g10", "g1"]
    assert shown(key="g1", status="released") == [key for key in released if "g1" in key]
    monkeypatch.setattr(gathers_page, "SIZE", 2)
    assert shown(key="g1") == ["g11", "g10"]
    assert "key=g1&amp;start=10" in site.get("gathers", key="g1")
    assert shown(key="g1", start=10) == ["g1"]
    monkeypatch.setattr(gathers_page, "SLICE", 5)
    page = site.get("gathers", key="g1", start=3)
    assert "Nothing found so far. 5 gathers searched." in plain(page)
    assert "Continue searching ›" in page
    assert "key=g1&amp;start=8" in page
    live = site.json("gathers", live=1, key="g1")["fragments"]["drq-gathers"]
    assert [row.split()[0] for row in rows(live)] == ["g11", "g10"]
    assert "is not allowed in text" in site.text("gathers", key="a\x00")


def test_the_search_box_finds_gathers(site: Site, manual_worker: ManualWorker) -> None:
    live, ended = start("report-42"), start("report-43", threshold=1)
    other = start("other")
    while not ended.data.status.is_final:
        manual_worker.complete_one("1")
    page = site.get("search", q="report-43")
    assert f'href="{address("gather", "report-43")}">report-43</a>' in page
    assert address("gather", "report-42") not in page
    start_at(10**13)
    start("g", threshold=1)
    page = site.get("search", q="g")
    assert re.findall(r">(g\d*)</a>", page) == ["g", f"g{10**13}"]
    words = site.text("search", q="REPORT-")
    assert {"report-42", "report-43"} == set(re.findall(r"Gather (\S+)", words))
    assert "Gather other" not in words
    for gather in (live, ended, other):
        found = site.client.get(address("search"), {"q": gather.id})
        assert found["Location"] == address("gather", gather.key)
        connection = connection_of(gather.id)
        connection.call("DEL", GatherQueries(connection).keys.newest_gathers)
    assert "Gather report-42" in site.text("search", q="report-42")  # from the previous version
    assert "Gather" not in site.text("search", q="report-4").replace("Gathers", "")
    for unknown in ("gather_1_none_0", "gather_1_none_99", "gather_x"):
        assert f"with {unknown} in arguments or error" in site.text("search", q=unknown)


def test_a_job_of_a_gather_links_to_it(site: Site, manual_worker: ManualWorker) -> None:
    (job, *_) = start().jobs()
    assert f'<a href="{address("gather", "report-42")}">report-42</a>' in site.get("job", job.id)


def test_missing_and_unreadable_gathers(site: Site, redisqueue: None) -> None:
    gather = start("spoilt")
    connection = connection_of(gather.id)
    connection.call("HSET", GatherQueries(connection).keys.gather_plan("spoilt"), "status", "?")
    assert "the gather 'spoilt' cannot be read" in site.text("gather", "spoilt")
    (row,) = rows(site.get("gathers"))
    assert row.startswith("spoilt unreadable the gather 'spoilt' cannot be read")
    for key in ("none", "no key!"):
        assert site.client.get(address("gather", key)).status_code == 404


def test_without_redis_the_pages_say_so(site: Site, settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "unix:///nonexistent/redis.sock"}}
    assert "gathers have no record" in site.text("gathers")
    answer = site.client.get(address("gather", "report-42"))
    assert answer.status_code == 503
    assert "Redis does not answer, and gathers have no record." in answer.content.decode()


def test_only_staff_who_may_view_jobs_see_gathers(
    site: Site, staff: Callable[..., User], redisqueue: None
) -> None:
    site.client.force_login(staff("retry_job", name="bob"))
    for page in (("gathers",), ("gather", "report-42")):
        assert site.client.get(address(*page)).status_code == 403
