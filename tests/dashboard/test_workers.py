"""The page of workers: a row for each, which opens to its children, and the orders for a worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from django_redisqueue.core.clock import real_ms
from django_redisqueue.core.records import WorkerReport
from django_redisqueue.dashboard import workers_page
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.shards import all_stores

from .site import Site, address, logged, plain

BOX = "box-1.aaaaaaaa.41.7"


def report(state: str = "running", queues: Sequence[str] = ("default",)) -> str:
    started_ms = real_ms() - 7_200_000
    made = dict.fromkeys(("1", "2", "maintenance3"), 3 * 2**20)
    return WorkerReport("web.example", "9.8", started_ms, state, tuple(queues), 2, 1, made).text()


def beat(worker: str, text: str = "", children: Sequence[object] = (1, 2)) -> list[str]:
    """Send a heartbeat to all shards; returns the orders for the worker from each."""
    with all_stores() as stores:
        ids = [f"{worker}.{n}" for n in children]
        return [one.heartbeat(ids, worker=worker, report=text).order for one in stores]


def rows(site: Site, **query: object) -> list[str]:
    found = re.findall(
        r'<tr data-id="[^"/]*\.\d+">\s*<th scope="row"><a.*?</tr>',
        site.get("workers", **query),
        re.S,
    )
    return [plain(row) for row in found]


def test_a_worker_with_its_report_and_the_jobs_of_its_children(
    site: Site, manual_worker: ManualWorker
) -> None:
    beat(BOX, report(), (1, 2, "maintenance3"))
    manual_worker.claim_request = workers_page_claim(manual_worker, f"{BOX}.1")
    tasks.noop.enqueue()
    running = manual_worker.claim_one()
    assert rows(site) == [
        "box-1 pid 41 web.example running default 1 of 2 1 9.0 MB 2 h 9.8 Quiet box-1 Stop box-1"
    ]
    words, text = site.text("workers"), site.get("workers")
    assert "Alive 1 Jobs running 1 Slots 2 Memory 9.0 MB" in words
    assert "3 child processes" in words
    assert re.search(r"1 alive tests.app.tasks.noop [^ ]+ [^ ]+ 0 3.0 MB", words)
    assert "2 alive idle – 0 3.0 MB maintenance3 alive – 0 3.0 MB" in words
    assert address("job", running.id) in text
    assert "Alive 1" in site.text("overview")
    assert re.search(r'queue=default">1 worker</a>', site.get("overview")), "who serves the queue"


def workers_page_claim(manual_worker: ManualWorker, child: str) -> Any:
    return type(manual_worker.claim_request)(child, manual_worker.claim_request.queues)


def test_a_worker_without_a_report(site: Site) -> None:
    """A worker of an older version, or one that Redis has forgotten."""
    beat(BOX)
    assert rows(site) == ["box-1 pid 41 alive – 0 – –"]
    assert "Alive 1" in site.text("workers")


def test_dead_workers_come_first_page_by_page(
    site: Site, manual_worker: ManualWorker, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_page, "SIZE", 4)
    for n in range(9):
        beat(f"w{n}.aaaaaaaa.1.1", report(queues=["low" if n % 2 else "default"]))
    redis.zadd(manual_worker.store.keys.workers, {"zz.aaaaaaaa.9.9.1": 1_000_000_000_000})
    assert [row.split()[0] for row in rows(site)] == ["zz", "w0", "w1", "w2"]
    assert "expired" in rows(site)[0]
    assert "Alive 9 of 10" in site.text("workers")
    assert "Page 1 of 3" in site.text("workers")
    assert [row.split()[0] for row in rows(site, page=3)] == ["w7", "w8"]
    assert [row.split()[0] for row in rows(site, queue="low")] == ["w1", "w3", "w5", "w7"]
    assert [row.split()[0] for row in rows(site, q="W3.AAA")] == ["w3"]
    assert len(rows(site, q="web.exam")) == 4
    assert "<details open>" in site.get("workers", q="w3")
    assert "No worker matches." in site.text("workers", q="nobody")


def test_a_worker_is_told_to_stop_once_a_user_has_confirmed(site: Site) -> None:
    beat(BOX, report())
    asked = site.post("order_worker", worker=BOX, order="stop")
    assert f"This will tell worker {BOX} to finish its running jobs" in plain(asked)
    assert set(beat(BOX, report())) == {""}
    text = site.post("order_worker", worker=BOX, order="stop", confirmed="yes")
    assert text == f"Worker {BOX} was told to {workers_page.TEXTS[workers_page.WorkerOrder.STOP]}."
    assert all(told.endswith(" stop") for told in beat(BOX, report()))
    ((who, what),) = logged()
    assert (who, what) == (
        f"worker {BOX}",
        "told to finish its running jobs within its grace period, and stop",
    )


@pytest.mark.parametrize(
    ("state", "buttons"),
    [("running", ["quiet", "stop"]), ("quiet", ["resume", "stop"]), ("stopping", [])],
)
def test_a_worker_is_offered_what_suits_its_state(
    site: Site, manual_worker: ManualWorker, state: str, buttons: list[str]
) -> None:
    beat(BOX, report(state))
    assert re.findall(r'name="order" value="(\w+)"', site.get("workers")) == buttons
    tasks.noop.enqueue()
    manual_worker.claim_request = workers_page_claim(manual_worker, f"{BOX}.1")
    manual_worker.claim_one()
    assert ("draining" in rows(site)[0]) == (state != "running")
    if "resume" in buttons:
        assert "told to take jobs again" in site.post("order_worker", worker=BOX, order="resume")


@pytest.mark.parametrize(
    ("worker", "order", "text"),
    [
        (BOX, "quiet", f"Worker {BOX} has not reported recently, so nothing was done."),
        (BOX, "dance", "'dance' is not an order; use quiet, resume, stop"),
        ("x y", "quiet", "'x y' is not the id of a worker"),
    ],
)
def test_invalid_orders(site: Site, worker: str, order: str, text: str) -> None:
    assert site.post("order_worker", worker=worker, order=order, confirmed="yes") == text
    assert logged() == []


def test_users_who_may_not_control_workers_see_no_buttons(site: Site, staff: Any) -> None:
    beat(BOX, report())
    site.client.force_login(staff("view_jobrecord", name="bob"))
    assert len(rows(site)) == 1
    assert 'name="order"' not in site.get("workers")


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\xff" * 10, report().replace("web", "\ud800")])
def test_a_foreign_value_is_not_a_report(
    site: Site, manual_worker: ManualWorker, text: str
) -> None:
    beat(BOX, text.encode("utf-8", "replace").decode())
    assert rows(site)[0].startswith("box-1 pid 41")


def test_foreign_keys_and_ids_are_shown_or_named(
    site: Site, manual_worker: ManualWorker, redis: Any
) -> None:
    keys = manual_worker.store.keys
    redis.zadd(keys.workers, {b"\xff<b>.x": 9e15, "nobody": 9e15})
    redis.lpush(keys.worker("nobody"), "theirs")
    assert "nobody alive – 0 – –" in site.text("workers")
    redis.set(keys.child_processing("nobody"), "theirs")
    words = site.text("workers")
    assert "A key of the queue has the wrong type" in words
    assert "nobody alive – 0 – –" in words


def test_without_redis_nothing_is_known(site: Site, settings: Any, queue_settings: Any) -> None:
    nowhere = {"URL": "unix:///nonexistent/redis.sock"}
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": nowhere}
    assert "The workers cannot be read: Redis does not answer." in site.text("workers")
    assert "The workers cannot be read: Redis does not answer." in site.text("overview")
