"""A process that clears or requeues a whole list is killed half-way: the workers do the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from django_redisqueue import JobQueue
from tests.support.proxy import Proxy
from tests.support.shards import keys_of
from tests.worker import tasks
from tests.worker.processes import eventually
from tests.worker.stage import Stage

JOBS, LATER = 1000, 10
SLOW_MS = 25  # each way: a step takes 50 ms, and all of them a second


@pytest.mark.one_server("stops its server, or has a proxy in front of it")
@pytest.mark.parametrize("verb", ["clear", "requeue_all"])
def test_what_a_killed_process_leaves_is_done_once(
    stage: Stage, fresh_proxy: Callable[..., Proxy], verb: str
) -> None:
    worker = stage.worker("--processes", "1").wait_until_up(2)
    queue = JobQueue()
    queue.pause()
    tasks.run.enqueue_many([(stage.book, f"meant{n}") for n in range(JOBS)])
    assert queue.clear("queued") == JOBS
    proxy = fresh_proxy(stage.server.address, delay_ms=SLOW_MS)
    call = f"from django_redisqueue import JobQueue; JobQueue().{verb}('cancelled')"
    caller = stage.worker("-c", call, command="shell", address=proxy.address)
    eventually(lambda: stage.stats()["cancelled"] < JOBS - 100, every=0.002, why=stage.report)
    caller.kill()
    left = stage.stats()["cancelled"]
    assert left > 100, "it was killed too late to leave anything"
    for job in tasks.run.enqueue_many([(stage.book, f"later{n}") for n in range(LATER)]):
        job.cancel()
    eventually(lambda: stage.stats()["cancelled"] == LATER, 30, why=stage.report)
    eventually(lambda: not stage.redis.exists(keys_of().continuations), why=stage.report)
    assert "goes on without its caller" in worker.output
    queue.resume()
    requeued = JOBS if verb == "requeue_all" else 0
    stage.until_done(requeued, cancelled=LATER)
    assert stage.runs() == Counter([f"meant{n}" for n in range(requeued)])
    assert stage.count("requeued_total") == requeued
