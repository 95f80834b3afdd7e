"""The bytes counted for finished jobs are those that they occupy in Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from tests.worker.processes import eventually

from ..support.servers import RedisServer
from .harness import PAYLOAD, BrokerHarness, outcome

CHILD = "web1.example.com.1234.abcdef.3"
JOBS = 400
ERROR = json.dumps({"type": "ValueError", "message": "no", "traceback": "a line of it\n" * 90})
TAGS = json.dumps({"tags": {f"tag{n}": f"value {n} of it" for n in range(10)}})
# A single script, so that Redis does nothing else between the two readings: its timer shrinks the
# buffers of clients that made large calls.
TAKE_AWAY = """
local function used_memory()
  return tonumber(string.match(redis.call('INFO', 'memory'), 'used_memory:(%d+)'))
end
local before = used_memory()
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end
redis.call('DEL', KEYS[1])
return before - used_memory()
"""
SHAPES: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "arguments of 64 bytes": {"payload": f'[["{"x" * 55}"],{{}}]'},  # the longest in one piece
    "arguments of 65 bytes": {"payload": f'[["{"x" * 56}"],{{}}]'},
    "an argument of 200 bytes": {"payload": json.dumps([["x" * 192], {}])},
    "a result of 100 bytes": {"body": json.dumps("y" * 98)},
    "a result of 2000 bytes": {"body": json.dumps("y" * 1998)},
    "a timeout": {"options": '{"timeout":60}'},
    "ten tags": {"options": TAGS},
    "audited, so on the slow path": {"audit": "final"},
    "failed with a traceback": {"kind": "failed", "body": ERROR},
    "retried": {"retried": True},
    "cancelled": {"kind": ""},
}


def run(
    broker: BrokerHarness,
    kind: str = "completed",
    body: str = "null",
    retried: bool = False,
    **job: Any,
) -> str:
    """Run this many jobs of this shape, under ids as long as real ones; returns their status."""
    for at in range(0, JOBS, 100):
        ids = [f"job_1700000000000_{at + n:010}_0" for n in range(100)]
        broker.add(*ids, **job)
        if not kind:
            broker.store.cancel(ids)
        held = broker.claim(CHILD, jobs=100).jobs
        if retried:
            broker.finish(*[outcome(job, "retrying", ERROR, "0") for job in held], child=CHILD)
            held = broker.claim(CHILD, jobs=100).jobs
        assert broker.finish(*[outcome(job, kind, body) for job in held], child=CHILD) in (
            [1] * 100, [],
        )  # fmt: skip
    return kind or "cancelled"


def freed(broker: BrokerHarness, status: str) -> int:
    """Delete the jobs of this status. Returns the memory freed."""
    finished = getattr(broker.keys.queue("default"), status)
    # Newer servers free the data of the test before this one in a thread.
    eventually(lambda: not broker.redis.info("memory")["lazyfree_pending_objects"])
    used: int = broker.redis.eval(TAKE_AWAY, 1, finished, broker.keys.job("*"))  # type: ignore[assignment]
    return used


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bytes_counted_are_those_used_by_redis(broker: BrokerHarness, shape: str) -> None:
    freed(broker, run(broker))  # so that what a server creates once already exists
    broker.redis.delete(broker.keys.queue("default").meta)
    status = run(broker, **SHAPES[shape])
    assert len(broker.ids(status)) == JOBS
    counted, used = broker.meta()["finished_bytes"], freed(broker, status)
    # Measured on 6.2 and 7.0. Newer servers need less memory for keys and tables.
    version = tuple(map(int, broker.redis.info("server")["redis_version"].split(".")[:2]))
    least, most = (0.85, 1.15) if version <= (7, 0) else (0.5, 2)
    assert least * used <= counted <= most * used, (counted / JOBS, used / JOBS)


def test_a_long_queue_or_child_name_is_counted(broker: BrokerHarness) -> None:
    """A value of more than 64 bytes turns the hash into a table."""
    broker.add("a", "b")
    (job,) = broker.claim("c" * 65).jobs
    broker.finish(outcome(job), child="c" * 65)
    broker.finish(outcome(broker.take()))
    long, short = (int(broker.job(name)["bytes"]) for name in "ab")
    encodings = [broker.redis.object("encoding", broker.keys.job(name)) for name in "ab"]
    assert encodings[0] == "hashtable" != encodings[1]
    assert long > short + 600


def test_a_result_counts_the_same_on_both_paths(broker: BrokerHarness) -> None:
    for length in (10, 64, 65, 500):
        broker.redis.flushdb()
        for name, audit in (("fast", ""), ("slow", "failed")):
            broker.add(name, payload=PAYLOAD, audit=audit)
            broker.finish(outcome(broker.take(), body="9" * length))
        fast, slow = (int(broker.job(name)["bytes"]) for name in ("fast", "slow"))
        assert 0 < slow - fast < 200  # its hash has more fields


def test_a_server_that_refuses_object_counts_every_job_as_a_table() -> None:
    with RedisServer() as server, closing(BrokerHarness(server)) as broker:
        broker.redis.execute_command("ACL", "SETUSER", "default", "-object")
        broker.add(*[f"j{n}" for n in range(80)], audit="failed")  # on the slow path
        for _ in range(2):  # with more running jobs than a list may hold
            held = [*broker.claim(jobs=20).jobs, *broker.claim(jobs=20).jobs]
            assert set(broker.finish(*[outcome(job) for job in held])) <= {1}
        assert len(broker.ids("completed")) == 80
        assert broker.meta()["finished_bytes"] > 80 * 675
