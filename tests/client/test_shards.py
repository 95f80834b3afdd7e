"""Where jobs, workflows, gathers and schedules are stored with several shards."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from django_redisqueue import (
    Chunk,
    Gather,
    Job,
    JobQueue,
    Limit,
    Rate,
    Task,
    Workflow,
    chain,
    find_jobs,
    get_gather,
    get_job,
    get_workflow,
    listener,
    push_many,
    send_event,
    set_limit,
    task,
)
from django_redisqueue.broker.connection import HANGS, PRODUCER_TIMEOUT, producer_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.client import enqueue, placement, registry, schedules, transport
from django_redisqueue.client import gather as gathers
from django_redisqueue.client.placement import shard_of_schedule
from django_redisqueue.client.schedules import define
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ids import shard_of_id, shard_of_key
from django_redisqueue.core.schedules import Every, ScheduleData, Source
from django_redisqueue.exceptions import (
    InvalidOption,
    RedisUnavailable,
    WorkflowError,
)
from tests.app import tasks
from tests.support.servers import RedisServer

SHARDS = 4
NOBODY = "unix:///nonexistent/redis.sock"


@pytest.fixture(autouse=True)
def four(
    settings: Any, queue_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Four shards on the shared server, and tasks for one test."""
    settings.REDISQUEUE = {
        **queue_settings,
        "SHARDS": SHARDS,
        "QUEUES": {"default": {}, "mail": {}, "hot": {"SPREAD": True}},
        "LIMITS": {"stripe": {"concurrency": 2, "rate": (5, "1s")}},
        "INDEXED": ["workflow", "tags.tenant"],
    }
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    result: dict[str, Any] = settings.REDISQUEUE
    return result


def ship(who: str = "") -> None: ...


def second(result: Any, tenant: str = "") -> None: ...


def collect(items: Any) -> None: ...


def charge(tenant: str = "", order: int = 0) -> None: ...


def made(**options: Any) -> Task:
    return task(name="tests.charge", **options)(charge)


def shard(job: Job | Workflow) -> int:
    return shard_of_id(job.id)


def tenant_in(wanted: int) -> str:
    """A value that belongs to this shard."""
    return next(text for text in map(str, range(1000)) if shard_of_key(text, SHARDS) == wanted)


# Plain jobs


def test_a_queue_is_in_one_shard(redis: Redis, four: dict[str, Any]) -> None:
    for queue in ("default", "mail"):
        jobs = [tasks.noop.using(queue_name=queue).enqueue() for _ in range(5)]
        assert {shard(job) for job in jobs} == {shard_of_key(queue, SHARDS)}
        keys = Keys(four["PREFIX"], shard(jobs[0]))
        assert redis.llen(keys.queue(queue).queued) == 5
    assert get_job(jobs[0].id).queue_name == "mail"


def test_a_spread_queue_goes_to_all_shards_in_turn() -> None:
    hot = tasks.noop.using(queue_name="hot")
    found = [shard(hot.enqueue()) for _ in range(8)]
    assert found == [(found[0] + n) % SHARDS for n in range(8)]


def test_many_jobs_of_a_call_are_distributed_by_the_hundred() -> None:
    jobs = tasks.noop.using(queue_name="hot").enqueue_many([(n,) for n in range(250)])
    shards = [shard(job) for job in jobs]
    assert [len(set(shards[at : at + 100])) for at in (0, 100, 200)] == [1, 1, 1]
    assert len({shards[0], shards[100], shards[200]}) == 3
    assert JobQueue("hot").get_stats()["queued"] == 250


def test_all_jobs_of_a_key_are_in_its_shard() -> None:
    """Regardless of their tasks, queues and kinds of limits."""
    first = made(concurrency=Limit(1, key="tenant"), queue_name="mail")
    second = task(name="tests.other", rate=Rate("stripe", key="who"), queue_name="hot")(ship)
    for n in range(6):
        tenant = f"t{n}"
        expected = shard_of_key(tenant, SHARDS)
        assert shard(first.enqueue(tenant)) == shard(second.enqueue(tenant)) == expected


def test_a_limit_without_a_key_is_found_by_its_name() -> None:
    assert shard(made(concurrency=Limit("stripe")).enqueue()) == shard_of_key("stripe", SHARDS)
    assert shard(made(concurrency=Limit(3)).enqueue()) == shard_of_key("tests.charge", SHARDS)


def test_shares_do_not_move_a_job() -> None:
    assert shard(made(fair_by="tenant").enqueue("a")) == shard_of_key("default", SHARDS)
    hot = made(fair_by="tenant", queue_name="hot")
    assert {shard(hot.enqueue("a")) for _ in range(SHARDS)} == set(range(SHARDS))


def test_chunks_fill_in_one_shard() -> None:
    chunked = task(name="tests.chunked", chunk=Chunk(10, by="tenant"), queue_name="hot")(collect)
    shards = [{shard(chunked.enqueue(tenant=t)) for _ in range(4)} for t in ("a", "b", "c", "d")]
    assert all(len(found) == 1 for found in shards)
    mail = chunked.using(queue_name="mail")
    assert {shard(mail.enqueue(tenant=t)) for t in "abcd"} == {shard_of_key("mail", SHARDS)}


def test_equal_unique_keys_are_in_the_same_shard() -> None:
    unique = made(unique="until_finished", unique_by="tenant")
    for n in range(6):
        job = unique.enqueue(f"t{n}", 1)
        again = unique.using(queue_name="mail").enqueue(f"t{n}", 2)
        assert (again.is_duplicate, again.id) == (True, job.id)
    assert len({shard(unique.enqueue(f"t{n}")) for n in range(20)}) == SHARDS


def test_a_limit_decides_where_a_unique_job_goes() -> None:
    both = made(concurrency=Limit(1, key="tenant"), unique="until_finished")
    job = both.enqueue("acme", 1)
    assert shard(job) == shard_of_key("acme", SHARDS)
    assert both.enqueue("acme", 1).is_duplicate
    assert not both.enqueue("acme", 2).is_duplicate


def by_order(tenant: str = "", order: int = 0) -> str:
    return str(order)


SEVERAL_SHARDS = [
    (
        {"concurrency": Limit(1, key="tenant"), "rate": Rate(5, "1s", key="order")},
        "tests.charge has limits that may be in different shards: Limit by tenant and Rate by "
        'order. With REDISQUEUE["SHARDS"] above 1, all limits of a task must have the same key',
    ),
    (
        {"concurrency": [Limit("stripe"), Limit(1, key="tenant")]},
        "Limit 'stripe' without a key and Limit by tenant",
    ),
    ({"concurrency": Limit(2), "rate": Rate("stripe")}, "Limit without a key and Rate 'stripe' wi"),
    (
        {"concurrency": Limit(1, key="tenant"), "unique": "until_finished", "unique_by": "order"},
        "jobs with the same unique key may differ in Limit by tenant. With REDISQUEUE",
    ),
    (
        {"concurrency": Limit(1, key="tenant"), "unique": "until_finished", "unique_by": by_order},
        "unique_by must include the parameters of the limit's key",
    ),
]


@pytest.mark.parametrize(("options", "words"), SEVERAL_SHARDS, ids=[w for _, w in SEVERAL_SHARDS])
def test_conditions_that_belong_to_several_shards_are_refused(
    settings: Any, options: dict[str, Any], words: str
) -> None:
    refused = made(**options)
    with pytest.raises(InvalidOption) as refusal:
        refused.enqueue("acme", 1)
    assert words in str(refusal.value)
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 1}
    refused.enqueue("acme", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": Limit(1, key="tenant"), "rate": Rate("stripe", key=("tenant",))},
        {"concurrency": Limit(1, key=by_order), "unique": "until_finished", "unique_by": by_order},
        {
            "concurrency": Limit(1, key="tenant"),
            "unique": "until_finished",
            "unique_by": ("order", "tenant"),
        },
        {"concurrency": Limit(1), "unique": "until_finished", "unique_by": "order"},
    ],
)
def test_conditions_that_belong_to_one_shard_are_accepted(options: dict[str, Any]) -> None:
    assert get_job(made(**options).enqueue("acme", 1).id).args == ("acme", 1)


# Parents


def test_a_job_goes_to_its_parents() -> None:
    parent = made(concurrency=Limit(9, key="tenant")).enqueue(tenant_in(3))
    assert shard(tasks.noop.using(after=parent).enqueue()) == 3
    assert get_job(parent.id).status == "queued"


def test_parents_in_two_shards() -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    one, other = limited.enqueue(tenant_in(1)), limited.enqueue(tenant_in(2))
    with pytest.raises(InvalidOption) as refusal:
        tasks.noop.using(after=[one, other]).enqueue()
    assert str(refusal.value) == (
        f"a job of {tasks.noop.name} cannot wait for both {one.id} (in shard 1) and {other.id} (in "
        "shard 2): its parents must be in one shard; make them jobs of one Workflow"
    )


def test_a_parent_elsewhere_than_the_limit() -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    parent = limited.enqueue(tenant_in(1))
    assert shard(limited.using(after=parent).enqueue(tenant_in(1))) == 1
    with pytest.raises(InvalidOption, match=f"cannot wait for {parent.id}, which is in shard 1"):
        limited.using(after=parent).enqueue(tenant_in(2))


# Workflows


def test_a_workflow_is_in_one_shard() -> None:
    flows = []
    for _ in range(40):
        with Workflow("w") as flow:
            first = flow.add(tasks.noop)
            flow.add(tasks.noop.using(queue_name="mail"), after=first)
        assert {shard(job) for job in flow.jobs()} == {shard(flow)}
        flows.append(flow)
    assert len({shard(flow) for flow in flows}) > 1
    assert get_workflow(flows[0].id).data.total == 2
    assert flows[1].cancel()
    assert flows[1].status == "cancelled"


def test_a_workflow_goes_to_the_key_of_its_jobs() -> None:
    limited_second = task(name="tests.ship", concurrency=Limit(9, key="tenant"))(second)
    limited = made(concurrency=Limit(9, key="tenant"))
    for wanted in range(SHARDS):
        with Workflow("w") as flow:
            first = flow.add(tasks.noop)
            last = flow.add(limited, tenant_in(wanted), after=first)
            flow.add(limited, tenant_in(wanted), after=last)
        assert shard(flow) == shard(first) == shard(last) == wanted
        assert first.refresh() is None
        assert first.status == "queued"
        assert [job.id for job in find_jobs(workflow=flow, status="unfinished")] == [
            f"{flow.id}.2", f"{flow.id}.1", f"{flow.id}.0",
        ]  # fmt: skip
    chained = chain(tasks.noop.s(), limited_second.s(tenant_in(2)))
    assert shard(chained) == 2


def test_a_callback_places_its_workflow() -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    for wanted in range(SHARDS):
        with Workflow("w", on_complete=limited.s(tenant_in(wanted))) as flow:
            flow.add(tasks.noop)
        assert shard(flow) == wanted


def test_two_keys_of_a_workflow() -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    flow = Workflow("nightly")
    flow.add(limited, tenant_in(1))
    with pytest.raises(WorkflowError) as refusal:
        flow.add(limited, tenant_in(2))
    assert str(refusal.value) == (
        "workflow 'nightly' is in shard 1, but the jobs that share the limit or unique key "
        f"({tenant_in(2)}) of a job of tests.charge are in shard 2. Its job of tests.charge "
        "determines the shard: put this one into another workflow, or let a job enqueue it"
    )
    assert len(flow) == 1


@pytest.mark.parametrize("read", [lambda flow, job: flow.id, lambda flow, job: job.id])
def test_an_id_that_was_read_stays(read: Any) -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    flow = Workflow("nightly")
    known = read(flow, flow.add(tasks.noop))
    other = (shard_of_id(known) + 1) % SHARDS
    with pytest.raises(WorkflowError, match="Add that job before anything reads the id of the wor"):
        flow.add(limited, tenant_in(other))
    flow.add(limited, tenant_in(shard_of_id(known)))


def test_many_workflows_go_to_their_shards() -> None:
    def flows() -> Iterator[Workflow]:
        for _ in range(30):
            flow = Workflow("w")
            flow.add(tasks.noop)
            pushed.append(flow)
            yield flow

    pushed: list[Workflow] = []
    assert push_many(flows()) == 30
    assert len({shard(flow) for flow in pushed}) > 1
    assert [flow.data.total for flow in pushed] == [1] * 30


# Gathers and events


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(gathers, "_topics", {})
    found: Task = listener("shards.asked", name="tests.asked")(charge)
    return found


def test_a_gather_goes_by_its_key(asked: Task, settings: Any) -> None:
    for n in range(6):
        gather = Gather.start(f"g{n}", topic="shards.asked", then=tasks.noop)
        assert shard_of_id(gather.id) == shard_of_key(f"g{n}", SHARDS)
        assert {shard(job) for job in gather.jobs()} == {shard_of_id(gather.id)}
        assert gather.jobs()[0].status == "queued"
        assert get_gather(f"g{n}") == gather
        assert gather.results == {}


def test_a_gather_is_found_after_the_number_has_changed(asked: Task, settings: Any) -> None:
    gathers = [Gather.start(f"g{n}", topic="shards.asked", then=tasks.noop) for n in range(6)]
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 7}
    assert [get_gather(f"g{n}") for n in range(6)] == gathers


def test_a_callback_of_a_gather_elsewhere(asked: Task) -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    key = tenant_in(1)
    Gather.start(key, topic="shards.asked", then=limited.s(tenant=tenant_in(1)))
    with pytest.raises(InvalidOption, match=r"tests.charge cannot be the then callback in shard"):
        Gather.start(tenant_in(2), topic="shards.asked", then=limited.s(tenant=tenant_in(1)))


def test_an_event_goes_to_every_shard(redis: Redis, four: dict[str, Any]) -> None:
    send_event("paid", 7)
    for n in range(SHARDS):
        assert redis.get(Keys(four["PREFIX"], n).event("paid")) == b"7"


# Queues as a whole


def limited_jobs(count: int) -> list[Job]:
    """Jobs of one queue, in each shard in turn."""
    limited = made(concurrency=Limit(9, key="tenant"), queue_name="mail")
    return [limited.enqueue(tenant_in(n % SHARDS), n) for n in range(count)]


def test_stats_and_pages_are_those_of_all_shards() -> None:
    jobs = limited_jobs(8)
    queue = JobQueue("mail")
    assert queue.get_stats()["queued"] == 8
    found = queue.get_jobs("queued")  # the first job of each shard, then the second of each
    assert {job.id for job in found[:4]} == {job.id for job in jobs[:4]}
    assert {job.id for job in found[4:]} == {job.id for job in jobs[4:]}
    assert [job.id for job in queue.get_jobs("queued", 2, 4)] == [job.id for job in found[2:5]]
    assert queue.get_jobs("queued", 8, 9) == []
    for job in jobs[:6]:
        assert job.cancel()
    assert len(queue.get_jobs("cancelled")) == 6
    for job in jobs[:2]:
        job.requeue()
    assert {job.status for job in map(get_job, [jobs[0].id, jobs[1].id])} == {"queued"}


def test_finished_jobs_of_all_shards_are_listed_newest_first() -> None:
    jobs = limited_jobs(8)
    for job in jobs:
        job.cancel()
        end = time.monotonic() + 10
        while get_job(job.id).data.finished_ms == _redis_ms():
            assert time.monotonic() < end
    found = [job.id for job in JobQueue("mail").get_jobs("cancelled")]
    assert found == [job.id for job in jobs[::-1]]


def _redis_ms() -> int:
    seconds, micros = producer_connection().call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def test_a_page_at_a_large_offset() -> None:
    with pytest.raises(
        InvalidOption, match="the first 10,000 jobs of a list can be read, not 10000"
    ):
        JobQueue("mail").get_jobs("queued", 9_990, 10_000)


def test_clear_and_requeue_reach_all_shards() -> None:
    limited_jobs(150)
    queue = JobQueue("mail")
    assert queue.clear("queued", limit=60) == 60
    assert queue.clear("queued") == 90
    assert queue.requeue_all("cancelled") == 150
    assert queue.get_stats()["queued"] == 150


def test_pauses_reach_all_shards(redis: Redis, four: dict[str, Any]) -> None:
    queue = JobQueue("mail")
    assert queue.pause()
    assert not queue.pause()
    assert queue.is_paused
    metas = [Keys(four["PREFIX"], n).queue("mail").meta for n in range(SHARDS)]
    assert all(redis.hexists(meta, "paused") for meta in metas)
    assert queue.resume()
    assert not queue.is_paused
    made(concurrency=Limit(9, key="tenant"))
    assert queue.pause(limit="tests.charge", key="acme")
    assert len(queue.get_pauses()) == 1
    assert queue.resume(limit="tests.charge", key="acme")
    assert queue.get_pauses() == []


def test_a_limit_is_set_in_all_shards(redis: Redis, four: dict[str, Any]) -> None:
    made(concurrency=Limit(9, key="tenant"))
    assert set_limit("tests.charge", 3, key="acme")
    numbers = [redis.hgetall(Keys(four["PREFIX"], n).limits) for n in range(SHARDS)]
    assert b"3" in numbers[0].values()
    assert numbers == numbers[:1] * SHARDS


def test_unique_keys_of_all_shards() -> None:
    unique = made(unique="until_finished")
    jobs = [unique.enqueue(f"t{n}") for n in range(10)]
    found = transport.transport().unique_keys(0, 100)
    assert {one.job_id for one in found} == {job.id for job in jobs}
    assert [one.taken_ms for one in found] == sorted(one.taken_ms for one in found)
    assert transport.transport().unique_keys(4, 3) == found[4:7]
    assert transport.transport().release_unique(found[0].key) == found[0].job_id
    assert not unique.enqueue(f"t{[job.id for job in jobs].index(found[0].job_id)}").is_duplicate


def test_jobs_are_found_in_all_shards() -> None:
    hot = tasks.noop.using(queue_name="hot", tags={"tenant": "acme"})
    jobs = [hot.enqueue() for _ in range(8)]
    found = find_jobs(tags={"tenant": "acme"}, status="unfinished")
    assert {job.id for job in found} == {job.id for job in jobs}
    assert len(find_jobs(tags={"tenant": "acme"}, status="unfinished", limit=3)) == 3


# Schedules


def test_a_schedule_is_where_its_jobs_are() -> None:
    plain = define("plain", Source.ADMIN, tasks.noop.name, Every("1h"))
    hot = define("hot", Source.ADMIN, tasks.noop.name, Every("1h"), queue_name="hot")
    settings = get_settings()
    assert shard_of_schedule("plain", plain.job, settings) == shard_of_key("default", SHARDS)
    assert shard_of_schedule("hot", hot.job, settings) == shard_of_key("hot", SHARDS)
    schedules.put(plain)
    assert schedules.pause("plain", True)
    assert not schedules.pause("plain", True)
    assert schedules.pause("plain", False)
    job = schedules.run_now("plain")
    assert shard(job) == shard_of_key("default", SHARDS)
    assert job.status == "queued"
    schedules.drop("plain")
    assert schedules.find_schedule("plain") is None


def test_a_schedule_moves_with_its_queue() -> None:
    for queue in ("default", "mail", "hot"):
        definition = define("moving", Source.ADMIN, tasks.noop.name, Every("1h"), queue_name=queue)
        schedules.put(definition)
        found = schedules.find_schedule("moving")
        assert isinstance(found, ScheduleData)
        assert found.job.queue == queue


# Servers that are unavailable


@pytest.fixture
def half(settings: Any, four: dict[str, Any], redis_server: RedisServer) -> None:
    """Shards 0 and 2 are on the shared server; 1 and 3 are unreachable."""
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}


def test_a_spread_job_goes_elsewhere_if_its_server_cannot_be_reached(half: None) -> None:
    hot = tasks.noop.using(queue_name="hot")
    jobs = [hot.enqueue() for _ in range(8)]
    assert Counter(shard(job) for job in jobs).keys() == {0, 2}
    assert [job.status for job in jobs] == ["queued"] * 8
    many = hot.enqueue_many([(n,) for n in range(250)])
    assert {shard(job) for job in many} <= {0, 2}


def test_other_jobs_wait_for_their_shard(half: None) -> None:
    limited = made(concurrency=Limit(9, key="tenant"))
    limited.enqueue(tenant_in(2))
    with pytest.raises(RedisUnavailable, match="nonexistent"):
        limited.enqueue(tenant_in(1))


def test_a_hanging_server_delays_one_enqueue_per_second(
    half: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = 1000.0, list[int]()

    def hang(shard: int, jobs: Any) -> None:
        nonlocal clock
        asked.append(shard)
        if shard in (1, 3):
            clock += PRODUCER_TIMEOUT
            error = RedisUnavailable("it does not answer")
            error.unsent = True
            raise error

    monkeypatch.setattr(placement, "_enqueue", hang)
    monkeypatch.setattr(placement, "_hang_until", {})
    monkeypatch.setattr(placement.time, "monotonic", lambda: clock)
    jobs = [tasks.noop.using(queue_name="hot").enqueue() for _ in range(20)]
    assert {shard(job) for job in jobs} == {0, 2}
    assert len([one for one in asked if one in (1, 3)]) == 1
    clock += HANGS + 0.1
    [tasks.noop.using(queue_name="hot").enqueue() for _ in range(4)]
    assert len([one for one in asked if one in (1, 3)]) == 2


def test_after_a_lost_reply_the_job_goes_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be in Redis."""
    sent: list[str] = []

    def lose(shard: int, jobs: Any) -> None:
        sent.extend(job.id for job in jobs)
        raise RedisUnavailable("the reply was lost")

    monkeypatch.setattr(placement, "_enqueue", lose)
    with pytest.raises(RedisUnavailable, match="lost"):
        tasks.noop.using(queue_name="hot").enqueue()
    assert len(sent) == 1


def test_a_known_id_goes_nowhere_else(half: None) -> None:
    """An id that was returned inside a transaction stays valid."""
    new = tasks.noop.using(queue_name="hot")._new_job((), {})
    while shard_of_id(new.id) in (0, 2):
        new = tasks.noop.using(queue_name="hot")._new_job((), {})
    new.is_known = True
    with pytest.raises(RedisUnavailable):
        enqueue.submit((new,), enqueue.DeliveryMode(False, False))


def test_sums_and_verbs_of_a_queue_are_never_wrong(half: None) -> None:
    queue = JobQueue("mail")
    for ask in (queue.get_stats, queue.pause, lambda: queue.get_jobs("queued")):
        with pytest.raises(RedisUnavailable, match="nonexistent"):
            ask()
    assert queue.is_paused  # two of the four shards are enough to know
    with pytest.raises(RedisUnavailable, match="nonexistent"):
        queue.clear("queued")
