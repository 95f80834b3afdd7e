"""The pages with several shards: on one server, and on two, one of which does not answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_redisqueue import JobQueue, get_job
from django_redisqueue.broker.commands import Commands
from django_redisqueue.client.transport import connection_of
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob, WaitKind
from django_redisqueue.core.records import WorkerReport
from django_redisqueue.core.schedules import Source
from django_redisqueue.dashboard import bulk, queue_page
from django_redisqueue.dashboard.periodic import read_states
from tests.app import tasks
from tests.broker.schedules import definition
from tests.support.manual_worker import ManualWorker
from tests.support.round_trips import round_trips
from tests.support.servers import RedisServer

from .site import Site, logged, plain

SHARDS = 4


@pytest.fixture
def redisqueue(queue_settings: dict[str, Any], settings: Any) -> None:
    """Four shards on the shared server."""
    settings.REDISQUEUE = {
        **queue_settings, "SHARDS": SHARDS, "QUEUES": {"default": {}, "hot": {"SPREAD": True}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def other_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def other(
    redisqueue: None, other_server: RedisServer, settings: Any, queue_settings: dict[str, Any]
) -> Iterator[RedisServer]:
    """A second server, with shards 1 and 3."""
    url = queue_settings["CONNECTION"]["URL"]
    settings.REDISQUEUE |= {"CONNECTION": {"URL": [url, other_server.url]}}
    settings.REDISQUEUE = dict(settings.REDISQUEUE)
    yield other_server
    if not other_server.answers():
        other_server.restart()
    other_server.client().flushall()


@pytest.fixture
def manual_workers(redisqueue: None) -> Iterator[list[ManualWorker]]:
    """A ``ManualWorker`` that claims in each shard."""
    made = [ManualWorker("default", "hot") for _ in range(SHARDS)]
    for shard, manual_worker in enumerate(made):
        manual_worker.stores = [Commands(manual_worker.connection.at(shard))]
    yield made
    for manual_worker in made:
        manual_worker.close()


def spread(count: int) -> list[str]:
    """The ids of jobs of the queue ``hot``, in each shard in turn."""
    ids = [new_job_id(n % SHARDS) for n in range(count)]
    for n, job_id in enumerate(ids):
        job = NewJob(job_id, "hot", tasks.noop.name, f"[[{n}],{{}}]")
        Commands(connection_of(job_id)).enqueue([job])
    return ids


def fail_all(manual_workers: list[ManualWorker], count: int) -> list[str]:
    """Make this many jobs fail, in each shard in turn."""
    spread(count)
    return [manual_workers[n % SHARDS].fail_one(f"no {n}") for n in range(count)]


def ids_on(text: str) -> list[str]:
    return re.findall(r'name="id" value="([^"]*)"', text)


# A queue's list


def test_a_list_contains_the_jobs_of_all_shards_page_by_page(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_page, "SIZE", 5)
    jobs = spread(12)
    first = site.get("queue", "hot", "queued")
    assert set(ids_on(first)[:4]) == set(jobs[:4])
    assert "1 to 5" in first
    seen, start = [*ids_on(first)], re.search(r"start=([0-9.]+)", first)
    while start:
        text = site.get("queue", "hot", "queued", start=start[1])
        seen += ids_on(text)
        start = re.search(r'start=([0-9.]+)[^>]*rel="next"', text)
    assert sorted(seen) == sorted(jobs)
    assert "11 to 12" in text


def test_finished_jobs_of_all_shards_are_listed_newest_first(
    site: Site, manual_workers: list[ManualWorker]
) -> None:
    failed = fail_all(manual_workers, 8)
    assert ids_on(site.get("queue", "hot", "failed")) == failed[::-1]


def test_a_server_that_is_down_is_named_and_the_jobs_of_the_others_are_shown(
    site: Site, other: RedisServer
) -> None:
    jobs = spread(8)
    other.stop()
    text = site.get("queue", "hot", "queued")
    assert sorted(ids_on(text)) == sorted(jobs[0::2])
    assert "Shards 1, 3 do not answer, so their jobs are not shown" in text
    assert other.url.removeprefix("unix://").split("?")[0] in text


def test_a_filter_searches_all_shards(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_page, "CHUNK", 3)
    jobs = spread(10)
    text = site.get("queue", "hot", "queued", text="7")
    assert ids_on(text) == [jobs[7]]
    assert "1 job of the 10 searched" in text


@pytest.mark.parametrize("start", ["1.2", "x.0.0.0", "1.2.3.4.5", "7"])
def test_a_position_from_another_number_of_shards_restarts_the_list(site: Site, start: str) -> None:
    (job_id,) = spread(1)
    assert ids_on(site.get("queue", "hot", "queued", start=start)) == [job_id]


def test_a_job_and_its_page_are_in_its_shard(
    site: Site, manual_workers: list[ManualWorker]
) -> None:
    failed = fail_all(manual_workers, 4)
    for job_id in failed:
        assert "ValueError" in site.get("job", job_id)
        assert (
            site.post("act_on_job", job_id, verb="retry") == "The job was sent back to the queue."
        )
        assert get_job(job_id).status == "queued"


# The overview and the policies


def put_policies() -> None:
    """In each shard: a limit, a unique key, a schedule and a sleeping job."""
    for shard in range(SHARDS):
        job_id = new_job_id(shard)
        commands = Commands(connection_of(job_id))
        unique = f"key{shard} until_finished - -"
        commands.enqueue([NewJob(job_id, "default", tasks.noop.name, "[[],{}]", unique=unique)])
        commands.define_schedules("", [(definition(f"s{shard}", source=Source.ADMIN), shard + 1)])
        keys = commands.keys
        commands.connection.pipeline(
            [
                ("ZADD", keys.slots, 0, f"c:l:{shard} {job_id}"),
                ("HSET", keys.job(job_id), "status", "scheduled", "waits_for", ""),
                ("ZADD", keys.waits(WaitKind.SLEEP), shard + 1, job_id),
            ]
        )


PAGES = {"limits": "l:{}", "unique_keys": "key{}", "schedules": "s{}", "waits": "_{}"}
QUERIES = {"waits": {"kind": "sleep"}}


def table(site: Site, name: str, **query: str) -> str:
    found = site.json(name, live=1, **QUERIES.get(name, {}), **query)
    return plain(found["fragments"][f"drq-{name}"])


@pytest.mark.parametrize(("name", "mark"), PAGES.items())
def test_policies_cover_all_shards_and_a_dead_one_is_named(
    site: Site, other: RedisServer, name: str, mark: str
) -> None:
    put_policies()

    def shown() -> list[int]:
        text = table(site, name)
        return [shard for shard in range(SHARDS) if re.search(rf"{mark.format(shard)}\b", text)]

    assert shown() == [0, 1, 2, 3]
    other.stop()
    assert shown() == [0, 2]
    assert "Shards 1, 3 do not answer" in site.text(name, **QUERIES.get(name, {}))


def test_a_unique_key_is_found_in_any_shard(site: Site, other: RedisServer) -> None:
    put_policies()
    assert "key3" in table(site, "unique_keys", key="key3")
    other.stop()
    assert (
        table(site, "unique_keys", key="key3") == "No job has this key in the shards that answer."
    )


@pytest.mark.one_server("has one, and another")
def test_the_overview_has_a_line_for_each_server_that_answers(
    site: Site, other: RedisServer, redis_server: RedisServer
) -> None:
    spread(8)
    text = site.text("overview")
    assert re.search(r"Shards 0, 2 .* Events kept 4 .* Shards 1, 3 .* Events kept 4", text)
    assert re.search(r"hot 0 workers Pause hot 8\b", text)
    other.stop()
    text = site.text("overview")
    assert "Shards 0, 2 Memory" in text
    assert "Shards 1, 3 Memory" not in text
    assert "Shards 1, 3 do not answer" in text
    assert re.search(r"hot 0 workers Pause hot 4\b", text)


def test_several_shards_take_the_round_trips_of_one(
    site: Site, redisqueue: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_policies()

    def cost(shards: int, ask: Callable[[], object]) -> int:
        settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": shards}
        ask()  # opens the connections
        with round_trips(monkeypatch) as made:
            ask()
        return len(made)

    asks = {name: partial(site.get, name) for name in ("overview", *PAGES)}
    for name, ask in {**asks, "states": partial(read_states, ["s0", "s3"])}.items():
        assert cost(4, ask) == cost(1, ask) > 0, name


# Actions


def test_selected_jobs_are_acted_on_in_their_shards(
    site: Site, manual_workers: list[ManualWorker]
) -> None:
    failed = fail_all(manual_workers, 6)
    text = site.post("act_on_list", "hot", "failed", verb="retry", id=failed)
    assert text == "6 jobs sent back to the queue."
    assert JobQueue("hot").get_stats()["queued"] == 6


def confirm(site: Site, **fields: Any) -> str:
    page = site.post("act_on_list", "hot", "failed", scope="all", **fields)
    before = page.partition('name="before_ms" value="')[2].partition('"')[0]
    fields = {**fields, "scope": "all", "confirmed": "yes", "before_ms": before}
    return site.post("act_on_list", "hot", "failed", **fields)


def test_all_jobs_of_all_shards_are_acted_on(
    site: Site, manual_workers: list[ManualWorker]
) -> None:
    fail_all(manual_workers, 10)
    assert confirm(site, verb="retry") == "10 jobs sent back to the queue."
    assert JobQueue("hot").get_stats()["queued"] == 10


def test_a_bulk_action_reports_its_progress_over_all_shards(
    manual_workers: list[ManualWorker], db: None
) -> None:
    fail_all(manual_workers, 10)
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> bool:
        told.append((done, total))
        return True

    action = bulk.BulkAction(bulk.RETRY, "hot", queue_page.Status.FAILED, bulk.now_ms() + 1000)
    assert sum(bulk.perform(action, tell).complete()) == 10
    assert told == [(0, 10), (3, 10), (6, 10), (8, 10), (10, 10)]


WEIGHT = {"share": "a", "weight": "3", "verb": "weigh", "confirmed": "yes"}
PART = {"queue": "hot", "part": "l:stripe"}


@pytest.mark.parametrize(
    ("name", "where", "fields", "done"),
    [
        ("pause", ("hot",), {"verb": "pause"}, ("queue hot", "Pause")),
        ("change_limit", (), WEIGHT, ("share a", "Set the weight of share a to 3")),
        ("resume_part", (), PART, ("limit stripe", "Resume limit stripe in queue hot")),
    ],
)
def test_what_only_some_shards_have_done_is_told_and_logged(
    site: Site, other: RedisServer, name: str, where: Any, fields: Any, done: tuple[str, str]
) -> None:
    """The user was shown only an error, and the log did not say who had paused the queue."""
    other.stop()
    told = site.post(name, *where, **fields)
    assert told.startswith("This was done in the shards that accepted it. Repeat it when all")
    assert "does not answer" in told
    what, text = done
    assert logged() == [(what, f"{text}, but not in all shards")]


def test_what_no_shard_did_is_not_logged(site: Site, other: RedisServer, settings: Any) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": {"URL": other.url}}
    other.stop()
    assert "This was done" not in site.post("pause", "hot", verb="pause")
    assert logged() == []


# Workers


def test_workers_are_those_of_the_shards_that_answer(
    site: Site, other: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = "box-1.aaaaaaaa.41.7"
    text = WorkerReport("h", "1", 1, "running", ("hot",), 2, 1).text()
    stores = [Commands(connection_of(new_job_id(shard))) for shard in range(SHARDS)]
    for store in stores:
        store.heartbeat([f"{worker}.1"], worker=worker, report=text)
    site.get("workers")
    with round_trips(monkeypatch) as made:
        assert "running hot 0 of 2" in site.text("workers")
    assert len(made) <= 2 * 14, "two servers, each with the round trips of one shard"
    other.stop()
    words = site.text("workers")
    assert "Shards 1, 3 do not answer" in words
    assert "running hot 0 of 2" in words
    assert "was told to" in site.post("order_worker", worker=worker, order="resume")
    told = [stores[shard].heartbeat([], worker=worker, report=text).order for shard in (0, 2)]
    assert len(set(told)) == 1
    assert told[0].endswith(" resume")
