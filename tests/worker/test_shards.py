"""Real workers on several shards: on one server, and on two."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.queries import Queries
from django_redisqueue.broker.scripts import load
from django_redisqueue.broker.shards import AllShards, agree_on_shards
from django_redisqueue.core.codec import encode_payload
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

from . import tasks
from .harness import WorkerHarness
from .processes import eventually

SHARDS = 4


@pytest.fixture
def shards(harness: WorkerHarness) -> Shards:
    harness.configure(SHARDS=SHARDS)
    return Shards(harness)


class Shards:
    """Jobs in each shard of a harness."""

    def __init__(self, harness: WorkerHarness) -> None:
        self.harness = harness

    def enqueue(self, shard: int, *names: str, task: Any = tasks.run, more: Any = ()) -> list[str]:
        """Jobs of ``tasks.run`` in this shard, or of a task that also takes ``more``."""
        jobs = [
            NewJob(
                new_job_id(shard), "default", task.name,
                encode_payload((self.harness.book, name, *more), {}, 10_000, task.name),
            )
            for name in names
        ]  # fmt: skip
        connection = worker_connection(shard)
        Commands(connection).enqueue(jobs)
        connection.close()
        return [job.id for job in jobs]

    def status(self, job_id: str, shard: int) -> str | None:
        connection = worker_connection(shard)
        try:
            return Queries(connection).statuses([job_id])[0]
        finally:
            connection.close()

    def until(self, ids: dict[int, list[str]], status: str = "completed") -> None:
        """Wait until all these jobs, by their shards, have the status."""
        eventually(
            lambda: all(
                self.status(job_id, shard) == status for shard in ids for job_id in ids[shard]
            ),
            why=self.harness.report,
        )


def names(shard: int, count: int) -> list[str]:
    return [f"s{shard}n{n}" for n in range(count)]


@pytest.mark.one_server("a proxy stands before it")
def test_a_claim_whose_reply_was_lost_is_sent_again_before_an_idle_wait(
    shards: Shards, fresh_proxy: Callable[..., Proxy]
) -> None:
    """Meanwhile the child claims from another shard in vain; its waits could take 15 s each."""
    proxy = fresh_proxy(shards.harness.server.address)
    shards.harness.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    for shard in range(SHARDS):
        proxy.drop_replies(2, matching=load("finish").sha.encode())
        (job_id,) = shards.enqueue(shard, f"lost{shard}")
        is_completed = lambda: shards.status(job_id, shard) == "completed"  # noqa: B023, E731
        eventually(is_completed, 5, why=shards.harness.report)
        assert proxy.dropped == 2 * (shard + 1)
    assert set(shards.harness.runs().values()) == {1}


@pytest.mark.one_server("a proxy stands before it")
def test_a_claim_whose_reply_was_lost_is_released_while_its_child_runs_a_job_of_another_shard(
    shards: Shards, fresh_proxy: Callable[..., Proxy]
) -> None:
    harness, gate = shards.harness, shards.harness.gate()
    proxy = fresh_proxy(harness.server.address)
    harness.worker("--processes", "1", address=proxy.address).wait_until_up(2)
    key = Keys(shard=1).meta
    call = f"{load('finish').sha}\r\n$1\r\n1\r\n${len(key)}\r\n{key}"  # from shard 1
    proxy.drop_replies(1000, matching=call.encode())
    (lost,) = shards.enqueue(1, "lost")
    eventually(lambda: shards.status(lost, 1) == "processing", why=harness.report)
    held = shards.enqueue(2, "held", task=tasks.run_until_gate_opens, more=(gate,))
    eventually(lambda: harness.runs()["held"], why=harness.report)
    proxy.drop_replies(0)
    harness.worker("--processes", "1")
    shards.until({1: [lost]})
    harness.open_gate(gate)
    shards.until({2: held})
    assert harness.runs() == {"lost": 1, "held": 1}


@pytest.mark.one_server("there are two")
def test_an_outcome_does_not_wait_for_a_job_of_another_shard(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer]
) -> None:
    """Its server was down when the job ended, and then the child claimed a slow job."""
    other = fresh_server(appendfsync="always")
    harness.configure(SHARDS=2, CONNECTION={"URL": [harness.server.url, other.url]})
    shards, gates = Shards(harness), (harness.gate(), harness.gate())
    harness.worker("--processes", "1").wait_until_up(2)
    ended = shards.enqueue(1, "ended", task=tasks.run_until_gate_opens, more=gates[:1])
    eventually(lambda: harness.runs()["ended"], why=harness.report)
    other.stop()
    harness.open_gate(gates[0])
    slow = shards.enqueue(0, "slow", task=tasks.run_until_gate_opens, more=gates[1:])
    eventually(lambda: harness.runs()["slow"], why=harness.report)
    other.start()
    shards.until({1: ended})
    harness.open_gate(gates[1])
    shards.until({0: slow})
    assert harness.runs() == {"ended": 1, "slow": 1}


@pytest.mark.one_server("there are two")
def test_a_child_is_recycled_even_if_it_cannot_report_to_a_shard(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer]
) -> None:
    """Its supervisor reports what it leaves behind."""
    other = fresh_server(appendfsync="always")
    harness.configure(SHARDS=2, CONNECTION={"URL": [harness.server.url, other.url]})
    shards, gate = Shards(harness), harness.gate()
    harness.worker("--processes", "1", "--max-jobs", "2").wait_until_up(2)
    ended = shards.enqueue(1, "ended", task=tasks.run_until_gate_opens, more=(gate,))
    eventually(lambda: harness.runs()["ended"], why=harness.report)
    other.stop()
    harness.open_gate(gate)
    shards.until({0: shards.enqueue(0, *names(0, 5))})
    other.start()
    shards.until({1: ended})
    assert set(harness.runs().values()) == {1}


@pytest.mark.one_server("there are two")
def test_the_last_progress_to_an_unavailable_server_delays_no_outcome(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer]
) -> None:
    other = fresh_server(appendfsync="always")
    harness.configure(SHARDS=2, CONNECTION={"URL": [harness.server.url, other.url]})
    shards = Shards(harness)
    harness.worker("--processes", "1", "--threads", "2").wait_until_up(2)
    told = shards.enqueue(1, "told", task=tasks.run_then_report, more=(1.0,))
    eventually(lambda: harness.runs()["told"], why=harness.report)
    other.stop()
    time.sleep(1.5)  # it reports into the void, and ends
    shards.until({0: shards.enqueue(0, *names(0, 5))})
    other.start()
    shards.until({1: told})
    assert set(harness.runs().values()) == {1}


def test_one_child_serves_all_shards(shards: Shards) -> None:
    """Jobs that wait when it starts, and jobs that arrive while it is idle."""
    harness = shards.harness
    ids = {shard: shards.enqueue(shard, *names(shard, 20)) for shard in range(SHARDS)}
    worker = harness.worker("--processes", "1").wait_until_up(2)
    shards.until(ids)
    for shard in (3, 0, 2, 1):
        shards.until({shard: shards.enqueue(shard, f"late{shard}")})
    assert set(harness.runs().values()) == {1}
    worker.term()
    assert worker.wait() == 0, worker.output


def test_burst_empties_every_shard(shards: Shards) -> None:
    ids = {shard: shards.enqueue(shard, *names(shard, 5)) for shard in (1, 3)}
    worker = shards.harness.worker("--processes", "1", "--burst")
    assert worker.wait() == 0, worker.output
    shards.until(ids)


@pytest.mark.one_server("there are two")
def test_burst_waits_for_an_unavailable_server(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer]
) -> None:
    other = fresh_server()
    harness.configure(SHARDS=2, CONNECTION={"URL": [harness.server.url, other.url]})
    shards = Shards(harness)
    ids = {shard: shards.enqueue(shard, f"in{shard}") for shard in range(2)}
    agree_on_shards(AllShards(worker_connection().at))
    other.stop()
    worker = harness.worker("--processes", "1", "--burst")
    shards.until({0: ids[0]})
    assert harness.scripts_beside(heartbeats=3) < 50  # within 1.2 s
    other.start()
    assert worker.wait() == 0, worker.output
    shards.until(ids)


def test_a_job_under_an_id_of_another_shard_ends_as_failed(shards: Shards) -> None:
    """This includes an id of a shard that does not exist, and one of another form, which would
    belong to shard 0."""
    (good,) = shards.enqueue(1, "good")
    misplaced = [new_job_id(3), new_job_id(40), "mine"]
    payload = encode_payload((shards.harness.book, "misplaced"), {}, 10_000, tasks.run.name)
    connection = worker_connection(1)
    Commands(connection).enqueue(
        [NewJob(job_id, "default", tasks.run.name, payload) for job_id in misplaced]
    )
    worker = shards.harness.worker("--processes", "1", "--burst")
    assert worker.wait() == 0, worker.output
    found = [Queries(connection).job(job_id) for job_id in misplaced]
    connection.close()
    assert [(job.status, job.reason) for job in found] == [("failed", "corrupt")] * 3
    assert f"the id {misplaced[1]} belongs to shard 40, but the job is in shard 1" in worker.output
    assert "belongs to shard 0, but the job is in shard 1" in str(found[2].error)
    assert shards.status(good, 1) == "completed"
    assert shards.harness.runs() == {"good": 1}


def test_a_killed_child_loses_nothing_in_any_shard(shards: Shards) -> None:
    """It dies in a job of one shard, after jobs of other shards that it may not have reported."""
    harness = shards.harness
    done = {shard: shards.enqueue(shard, *names(shard, 10)) for shard in range(SHARDS)}
    gate = harness.gate()
    worker = harness.worker("--processes", "1").wait_until_up(2)
    shards.until(done)
    held = shards.enqueue(2, "held", task=tasks.run_until_gate_opens, more=(gate,))
    eventually(lambda: harness.runs()["held"], why=harness.report)
    pid = harness.pid("held")
    behind = {shard: shards.enqueue(shard, f"behind{shard}") for shard in range(SHARDS)}
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: harness.runs()["held"] == 2, why=harness.report)
    harness.open_gate(gate)
    shards.until({2: held, **{shard: behind[shard] for shard in (0, 1, 3)}})
    shards.until(behind)
    assert all(times == 1 for name, times in harness.runs().items() if name != "held")
    worker.term()
    assert worker.wait() == 0, worker.output


def test_a_dead_worker_is_recovered_in_every_shard(shards: Shards) -> None:
    harness = shards.harness
    gates = {shard: harness.gate() for shard in (1, 2)}
    first = harness.worker("--processes", "2").wait_until_up(3)
    held = {
        shard: shards.enqueue(shard, f"held{shard}", task=tasks.run_until_gate_opens, more=(gate,))
        for shard, gate in gates.items()
    }
    eventually(lambda: len(harness.runs()) == 2, why=harness.report)
    first.kill()
    second = harness.worker("--processes", "2")
    eventually(lambda: set(harness.runs().values()) == {2}, why=harness.report)
    for gate in gates.values():
        harness.open_gate(gate)
    shards.until(held)
    second.term()
    assert second.wait() == 0, second.output


@pytest.mark.slow
@pytest.mark.one_server("there are two")
def test_a_server_that_does_not_answer_does_not_delay_the_others(
    harness: WorkerHarness, fresh_server: Callable[..., RedisServer]
) -> None:
    """It hangs for more than two leases. Once it is back, its own jobs run, each once."""
    other = fresh_server()
    harness.configure(SHARDS=2, CONNECTION={"URL": [harness.server.url, other.url]})
    shards = Shards(harness)
    worker = harness.worker("--processes", "2").wait_until_up(3)
    gate = harness.gate()
    held = shards.enqueue(1, "held", task=tasks.run_until_gate_opens, more=(gate,))
    eventually(lambda: harness.runs()["held"], why=harness.report)
    waiting = shards.enqueue(1, *names(1, 20))
    shards.until({1: waiting})
    other.pause()
    try:
        for n in range(4):  # a lease is 1.5 s
            shards.until({0: shards.enqueue(0, *(f"round{n}.{m}" for m in range(10)))})
            if n == 1:
                harness.open_gate(gate)  # it ends while its shard is unavailable
    finally:
        other.resume()
    shards.until({1: held})
    shards.until({1: shards.enqueue(1, "after")})
    assert set(harness.runs().values()) == {1}, harness.report()
    worker.term()
    assert worker.wait() == 0, worker.output
