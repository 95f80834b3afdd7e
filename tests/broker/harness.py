"""What the broker tests share: a shard that they operate directly, its whole keyspace, and the laws
that it must obey."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import pytest
from redis import Redis

from django_redisqueue.broker import sums
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import RedisConnection
from django_redisqueue.broker.keys import Keys, QueueKeys
from django_redisqueue.broker.overview import Fleet
from django_redisqueue.broker.queries import Queries
from django_redisqueue.broker.redis_url import RedisUrl
from django_redisqueue.broker.replies import ClaimedJob, ClaimReply, FinishCode, Outcome
from django_redisqueue.broker.shards import AllShards
from django_redisqueue.broker.workflows import WorkflowQueries
from django_redisqueue.core.ids import tag
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.exceptions import WrongKeyType
from tests.support.round_trips import calls_of

from ..support.cluster import ClusterNodes
from ..support.sentinels import Fleet as SentinelFleet
from ..support.servers import RedisServer
from ..support.stream import Written, events_of, written
from .lanes import check_lanes

LANE_KEYS = {"lane", "lanes", "shares", "passes", "parked"}  # of a queue, besides `keyed`
HELD = ("workflow", "held")  # where jobs are that their workflow holds back
T0 = 1_700_000_000_000  # ms, where the clock of every test begins
PAYLOAD = "[[],{}]"
FINISHED = ("completed", "failed", "cancelled")
_KINDS = {"queued": "list", "wake": "list", "meta": "hash"}  # of a queue's other keys: zset
ERROR = '{"type":"E","message":"no","traceback":""}'


# The type and the value of a key as stored in Redis, for scripts that begin with this.
READ = """
local readers = {
  hash = { 'HGETALL' }, list = { 'LRANGE', 0, -1 }, zset = { 'ZRANGE', 0, -1, 'WITHSCORES' },
  set = { 'SMEMBERS' }, stream = { 'XRANGE', '-', '+' }, string = { 'GET' },
}
local function read(key)
  local kind = redis.call('TYPE', key).ok
  local reader = readers[kind]
  if reader then return kind, redis.call(reader[1], key, unpack(reader, 2)) end
end
local found = {}
"""
# Every key with its type and value, in one round trip; with an argument, it also loses its TTL.
KEYSPACE = f"""{READ}
for at, key in ipairs(redis.call('KEYS', '*')) do
  if ARGV[1] then redis.call('PERSIST', key) end
  found[at] = {{ key, read(key) }}
end
return found
"""


class BrokerHarness:
    """One shard under test, at this server; on a cluster ``url`` names that. No wake token is taken
    unless the test does so explicitly."""

    def __init__(
        self, server: RedisServer | ClusterNodes | SentinelFleet, url: str = "", shard: int = 0
    ) -> None:
        url = url or server.url
        self.connection = RedisConnection(RedisUrl(url, url, tag(shard)), 5.0, 2.0, shard)
        self.store = Commands(self.connection)
        self.store.now_ms = T0
        self.queries = Queries(self.connection)
        self.workflows = WorkflowQueries(self.connection)
        self.keys = self.store.keys
        self.redis: Redis = server.client(decode_responses=True)
        self.call = 0

    @property
    def now(self) -> int:
        assert self.store.now_ms is not None
        return self.store.now_ms

    def advance(self, ms: int) -> None:
        self.store.now_ms = self.now + ms

    def close(self) -> None:
        self.connection.close()
        self.redis.close()

    def fleet(self, limit: int = 100) -> Fleet:
        return sums.fleet(AllShards(self.connection.at, [self.connection.shard]), limit)

    # -- verbs with defaults

    def add(self, *ids: str, queue: str = "default", **options: Any) -> list[bool]:
        """Enqueue jobs with these ids."""
        options = {"payload": PAYLOAD, **options}
        return self.store.enqueue([NewJob(name, queue, "app.task", **options) for name in ids])

    def claim(
        self,
        child: str = "c1",
        jobs: int = 1,
        queues: Sequence[str] = ("default",),
        *,
        min_priority: int = -100,
        call: int | None = None,
        resent: bool = False,
    ) -> ClaimReply:
        if call is None:
            self.call += 1
            call = self.call
        claim_request = ClaimRequest(child, tuple(queues), min_priority)
        return self.store.claim(claim_request, call, jobs, resent=resent)

    def take(self, child: str = "c1", **options: Any) -> ClaimedJob:
        """Claim exactly one job."""
        (job,) = self.claim(child, **options).jobs
        return job

    def taken(self, *args: Any, **options: Any) -> list[str]:
        """Claim; returns the ids, in order."""
        return [job.id for job in self.claim(*args, **options).jobs]

    def finish(self, *outcomes: Outcome, child: str = "c1") -> list[FinishCode]:
        """Report without claiming."""
        return self.store.finish(ClaimRequest(child, ()), 0, outcomes, 0)[0]

    def crash(self) -> None:
        """A child claims some jobs, dies, and is reaped."""
        self.claim("dead", 3)
        self.store.reap("dead", [])

    def end(self, *ids: str, kind: str = "completed", body: str = '"ok"', **where: Any) -> None:
        """Enqueue jobs (under these ids), run them and finish them."""
        self.add(*ids, **where)
        queues = [where.get("queue", "default")]
        for _ in ids:
            job = self.take("runner", queues=queues)
            assert job.id in ids
            assert self.finish(outcome(job, kind, body), child="runner") == [1]

    def advancing(self) -> Iterator[int]:
        """Do what scripts have deferred, one step at a time, until nothing is left."""
        for n in range(1000):
            if not self.store.advance():
                return
            yield n
        raise AssertionError("it goes on for ever")

    def steady(self, *children: str, ms: int = 15_001) -> None:
        """Let time pass, by default just over a lease, while Redis and these children are alive."""
        self.store.heartbeat(children)
        for step in (ms // 4, ms // 4, ms // 4, ms - 3 * (ms // 4)):
            self.advance(step)
            self.store.heartbeat(children)

    @contextmanager
    def broken(self, name: str, queue: str = "default") -> Iterator[str]:
        """Put a value of another program into one of a queue's keys. Yields the words of the
        error."""
        key = getattr(self.keys.queue(queue), name)
        if self.redis.exists(key):
            self.redis.rename(key, f"{key}:kept")
        self.redis.set(key, "theirs")
        yield f"the key {key} holds a string where a {_KINDS.get(name, 'zset')} belongs"
        assert self.redis.get(key) == "theirs"
        self.redis.delete(key)
        if self.redis.exists(f"{key}:kept"):
            self.redis.rename(f"{key}:kept", key)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """The block must leave every key as it is."""
        before = self.dump()
        yield
        assert self.dump() == before

    @contextmanager
    def refused_over(self, key: str, belongs: str = "") -> Iterator[None]:
        """Put a value of another program into a key. The block must be refused with an error that
        names the key (and what belongs there), and must write nothing."""
        self.redis.set(key, "theirs")
        words = re.escape(f"the key {key} holds a string where a {belongs}")
        with self.unchanged(), pytest.raises(WrongKeyType, match=words):
            yield

    @contextmanager
    def full(self) -> Iterator[None]:
        """Make Redis reach maxmemory."""
        self.redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.redis.config_set("maxmemory", 0)

    # -- looking

    def job(self, job_id: str) -> dict[str, str]:
        """The job's hash, with the implied fields."""
        return with_implied_fields(self.redis.hgetall(self.keys.job(job_id)))  # type: ignore[arg-type]

    def status(self, job_id: str) -> str | None:
        return self.redis.hget(self.keys.job(job_id), "status")  # type: ignore[return-value]

    def statuses(self, job_ids: Sequence[str]) -> list[str | None]:
        """Those of several jobs, in one round trip."""
        pipe = self.redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipe.hget(self.keys.job(job_id), "status")
        return pipe.execute()

    def ids(self, name: str, queue: str = "default") -> list[str]:
        """The ids in one of a queue's lists: ``queued`` with the next to run first, finished ones
        newest first, the others by their scores."""
        return _members(self.redis, getattr(self.keys.queue(queue), name))[
            :: -1 if name in ("queued", *FINISHED) else 1
        ]

    def held(self, child: str = "c1") -> list[str]:
        """The names of the runs, ``<call>:<id>``."""
        return [entry.partition(" ")[0] for entry in self.entries(child)]

    def entries(self, child: str = "c1") -> list[str]:
        """The names of the runs, and what the fast path knows of them."""
        return self.redis.lrange(self.keys.child_processing(child), 0, -1)  # type: ignore[return-value]

    def calls(self, *commands: str) -> list[int]:
        """How often these were called since the statistics were last reset."""
        return [calls_of(self.redis, command) for command in commands]

    def meta(self, queue: str = "default") -> dict[str, int]:
        return self.queries.meta(queue)

    def tokens(self, queue: str = "default") -> int:
        return self.redis.llen(self.keys.queue(queue).wake)  # type: ignore[return-value]

    def pop_token(self, queue: str = "default") -> bool:
        return self.redis.lpop(self.keys.queue(queue).wake) is not None

    def events(self, job_id: str | None = None) -> list[dict[str, Any]]:
        """The stream's events, with what they carry inline under its own name."""
        return [
            event.data | event.inline
            for event in self.written("job")
            if job_id in (None, event.data["jobId"])
        ]

    def written(self, field: str = "") -> list[Written]:
        """The events of the stream, only those of jobs (``event``) or of workflows
        (``workflow``)."""
        found = written(self.redis, self.keys.events)
        return [event for event in found if field in ("", event.field)]

    def event_statuses(self, job_id: str) -> list[str]:
        return [event["status"] for event in self.events(job_id)]

    def dump(self) -> dict[str, Any]:
        """Every key with its type and value."""
        return dict(sorted(_keyspace(self.redis, self.keys)))


def outcome(
    job: ClaimedJob, kind: str = "completed", body: str = '"ok"', detail: str = ""
) -> Outcome:
    """An outcome of a claimed job, with a valid detail if none is given."""
    if kind in ("retrying", "delayed"):
        detail = detail or "1000"
    if kind == "queued":
        body = ""
    return Outcome(job.id, job.lease, job.call, kind, body, detail)


def _keyspace(redis: Redis, keys: Keys) -> Iterator[tuple[str, tuple[str, Any]]]:
    """On a cluster, the keyspace of the node that has these keys."""
    found: Any = redis.eval(KEYSPACE, 1, keys.meta)
    return ((key, (kind, shaped(kind, value))) for key, kind, value in found)


def shaped(kind: str, value: Any) -> Any:
    """A hash as a dict, a sorted set as pairs with a number, a set as a set."""
    if kind == "hash":
        return dict(zip(value[::2], value[1::2], strict=True))
    if kind == "zset":
        return list(zip(value[::2], map(float, value[1::2]), strict=True))
    return set(value) if kind == "set" else value


def _members(redis: Redis, key: str) -> list[str]:
    found = redis.lrange(key, 0, -1) if redis.type(key) == "list" else redis.zrange(key, 0, -1)
    return found  # type: ignore[return-value]


def long_id(n: int) -> str:
    """An id as long as generated ones: Redis frees 4 KB of its stream at a time."""
    return f"job_1700000000000_{n:010d}_0"


def with_implied_fields(job: dict[str, str]) -> dict[str, str]:
    """A job's hash, with the fields that its status implies (fast_path/implied_fields.lua)."""
    status = job.get("status")
    if "lease" in job or status not in ("processing", "completed"):
        return job
    return {**job, "lease": "1", "seq": str(int(job.get("seq", 2)) + (status == "completed"))}


def job_events(dump: dict[str, Any], keys: Keys) -> Iterator[tuple[str, str, int]]:
    """What the stream says about jobs, oldest first: id, status and seq of each event."""
    for name, parts in dump.get(keys.events, ("stream", []))[1]:
        yield from _job_events(name, *parts)


def _check_last_events(
    events: Iterator[tuple[str, str, int]], jobs: dict[str, dict[str, str]]
) -> None:
    """The last event of each job that has any in the stream agrees with the job."""
    last = {job_id: is_so for job_id, *is_so in events}
    for job_id, (status, seq) in last.items():
        job = jobs.get(job_id, {})
        if job.get("audit", "all") == "all" and "status" in job:
            assert (status, seq) == (job["status"], int(with_implied_fields(job).get("seq", 1))), (
                job_id
            )


@lru_cache(10_000)
def _job_events(name: str, *parts: str) -> list[tuple[str, str, int]]:
    """What an entry of the stream says about jobs: id, status and seq of each event."""
    data = [event.data for event in events_of([(name, list(parts))]) if event.field == "job"]
    return [(one["jobId"], one["status"], one["seq"]) for one in data]


# -- law 1


def invariants(broker: BrokerHarness, *, tokens: bool = True) -> dict[str, Any]:
    """Run ``check_keyspace`` over everything. ``tokens``: no token has been taken. Returns the
    checked keyspace."""
    dump = broker.dump()
    check_keyspace(dump, broker.keys, tokens=tokens)
    return dump


def check_keyspace(dump: dict[str, Any], keys: Keys, *, tokens: bool) -> None:
    """Check law 1 over a whole keyspace, and what follows from it."""
    base = keys.base
    assert all(key.startswith(base) for key in dump)
    jobs = {
        key.removeprefix(f"{base}job:"): value
        for key, (kind, value) in dump.items()
        if key.startswith(f"{base}job:") and kind == "hash"
    }
    _check_index(dump, jobs, base)
    _check_last_events(job_events(dump, keys), jobs)
    steps = _check_steps(dump, jobs, base)
    _check_waits(dump, jobs, base)
    check_lanes(dump, jobs, base)
    places = _places(dump, base)
    for job_id in jobs.keys() | places.keys():
        if not _waits_for_its_workflow(keys, dump, job_id, jobs.get(job_id, {})):
            _check_one_place(job_id, jobs.get(job_id, {}), places.get(job_id, Counter()))
    queues = {
        place[0]
        for found in places.values()
        for place in found
        if place[0] not in ("child", HELD[0])
    }
    held = _held_results(dump)
    for queue in queues | held.keys():
        _check_queue(keys.queue(queue), dump, jobs, tokens, held[queue], steps)


def _waits_for_its_workflow(
    keys: Keys, dump: dict[str, Any], job_id: str, job: dict[str, str]
) -> bool:
    """Such a job is in no list before its workflow starts, and is cancelled in a later step."""
    if job.get("status") != "waiting":
        return False
    workflow = dump.get(keys.workflow(job_id.rpartition(".")[0]), ("hash", {}))[1]
    return workflow.get("status") in ("building", "cancelled")


def _places(dump: dict[str, Any], base: str) -> dict[str, Counter[tuple[str, str]]]:
    """Id -> how often it is in (queue, list) or ('child', child)."""
    places: dict[str, Counter[tuple[str, str]]] = {}
    for key, (kind, value) in dump.items():
        if kind not in ("list", "zset") or key.endswith(":wake"):
            continue
        name = key.removeprefix(base)
        if name.startswith("q:"):
            _, queue, *rest = name.split(":")
            if rest and rest[0] in LANE_KEYS:
                continue
            place = (queue, rest[0] if rest else "queued")
        elif name.startswith("child:"):
            place = ("child", name.split(":")[1])
        elif name.endswith(":held"):
            place = HELD
        else:
            continue
        for item in value:
            member = item[0] if kind == "zset" else item.partition(" ")[0].rpartition(":")[2]
            places.setdefault(member, Counter())[place] += 1
    return places


def _check_index(dump: dict[str, Any], jobs: dict[str, dict[str, str]], base: str) -> None:
    """The index sets contain the unfinished jobs whose options name them, and no others."""
    expected: dict[str, set[str]] = {}
    for job_id, job in jobs.items():
        if job.get("status", FINISHED[0]) not in FINISHED:
            for entry in _indexed(job.get("options", "{}")):
                expected.setdefault(f"{base}index:{entry}", set()).add(job_id)
    start = f"{base}index:"
    assert {key: dump[key][1] for key in dump if key.startswith(start)} == expected


@cache
def _indexed(options: str) -> list[str]:
    found: str = json.loads(options).get("index", "")
    return found.split()


def _check_steps(dump: dict[str, Any], jobs: dict[str, dict[str, str]], base: str) -> Counter[str]:
    """Only marked jobs that have not completed have stored steps; returns the counted sizes."""
    start, sizes = f"{base}steps:", Counter[str]()
    for key in (key for key in dump if key.startswith(start)):
        kind, fields = dump[key]
        job = jobs[key.removeprefix(start)]
        assert kind == "hash"
        assert "s" in job["watched"]
        assert job["status"] != "completed"
        others = {name: value for name, value in fields.items() if name != "bytes"}
        size = sum(len(name) + len(value.encode()) + 100 for name, value in others.items())
        assert int(fields["bytes"]) == size
        sizes[key.removeprefix(start)] = size
    return sizes


def _check_waits(dump: dict[str, Any], jobs: dict[str, dict[str, str]], base: str) -> None:
    """The ids that wait for an event are unfinished jobs, and include all that are parked for
    it."""
    start = f"{base}awaiting:"
    found = {
        (key.removeprefix(start), job_id)
        for key in dump
        if key.startswith(start)
        for job_id, _ in dump[key][1]
    }
    for event, job_id in found:
        assert jobs[job_id]["waits_for"] == event
        assert jobs[job_id]["status"] not in FINISHED
    for job_id, job in jobs.items():
        if job.get("status") == "scheduled" and job.get("waits_for"):
            assert (job["waits_for"], job_id) in found
    listed = {
        (key.removeprefix(f"{base}waits:"), job_id)
        for key in dump
        if key.startswith(f"{base}waits:")
        for job_id, _ in dump[key][1]
    }
    assert listed == {
        (_kind_of_wait(job["waits_for"]), job_id)
        for job_id, job in jobs.items()
        if job.get("status") == "scheduled" and "waits_for" in job
    }


def _kind_of_wait(event: str) -> str:
    if not event:
        return "sleep"
    return "approval" if event.startswith("approval:") else "event"


def _check_one_place(job_id: str, job: dict[str, str], places: Counter[tuple[str, str]]) -> None:
    queue, status = job.get("queue", "default"), job.get("status")
    if "lingers" in job and status in (None, "cancelled"):
        places = places - Counter({place: 1 for place in places if place[1] == "queued"})
    if status != "waiting" and HELD in places:  # it may linger there until its workflow is released
        places = places - Counter({HELD: places[HELD]})
    if status == "waiting" and not re.fullmatch(r"flow_.*\.\d+", job_id):
        expected = [(queue, "waiting")]
    elif status == "waiting":
        expected = [] if int(job.get("waits", 0)) else [HELD]
    elif status == "queued":
        is_moved = places[queue, "priority"] == 1  # moved aside, or by compact
        listed = "priority" if "priority" in job or is_moved else "queued"
        listed = "keyed" if "lane" in job else listed
        expected = [(queue, listed)]
    elif status == "processing":
        expected = [(queue, "processing"), ("child", job["child"])]
    elif "deleted" in job:
        expected = [(queue, "deleted")]
    else:
        expected = [(queue, status)] if status else []
    assert dict(places) == dict.fromkeys(expected, 1), (
        f"{job_id} is {status} ({job}), but stands in {places}"
    )


def _held_results(dump: dict[str, Any]) -> Counter[str]:
    """Bytes of the results that gathers hold, by the queue in which they count. Those of an expired
    gather count until something looks at it."""
    held: Counter[str] = Counter()
    for key, (kind, plan) in dump.items():
        if kind == "hash" and key.endswith(":plan"):
            counted = int(plan.get("counted", 0))
            if key.removesuffix(":plan") in dump:
                results = dump[key.removesuffix(":plan")][1]
                assert counted == sum(
                    len(text) for name, text in results.items() if name != "queryDoneCount"
                )
            is_failed = plan["status"] == "failed" and "failure_queue" in plan
            held[plan["failure_queue" if is_failed else "then_queue"]] += counted
    return held


def _check_queue(
    keys: QueueKeys,
    dump: dict[str, Any],
    jobs: dict[str, dict[str, str]],
    tokens: bool,
    held: int,
    steps: Counter[str],
) -> None:
    meta = dump.get(keys.meta, ["hash", {}])[1]
    size = held
    for name in (*FINISHED, "deleted"):
        for job_id, ended_ms in dump.get(getattr(keys, name), ["zset", []])[1]:
            job = jobs[job_id]
            assert ended_ms >= int(job["finished_ms"])
            texts = [job.get(part, "") for part in ("payload", "options", "result", "error")]
            assert 300 < int(job["bytes"]) - sum(map(len, texts)) - steps[job_id] < 2000
            size += int(job["bytes"])
    assert int(meta.get("finished_bytes", 0)) == size
    wake = dump.get(keys.wake, ["list", []])[1]
    has_work = keys.queued in dump or keys.priority in dump or keys.shares in dump
    assert len(wake) <= 1
    if tokens and has_work and "paused" not in meta:
        assert len(wake) == 1, f"{keys.base} has work and no token"
