"""What a running job asks of Redis, on its own connection."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis

from django_redisqueue.broker.connection import RedisConnection
from django_redisqueue.broker.replies import ClaimedJob, WaitState
from django_redisqueue.broker.workflows import WorkflowQueries
from django_redisqueue.client import large_results
from django_redisqueue.conf import get_settings
from django_redisqueue.core.codec import encode_stored
from django_redisqueue.exceptions import JobAbandoned, RedisUnavailable, WrongKeyType
from django_redisqueue.worker.child.executor import encode
from django_redisqueue.worker.child.job_redis import FILE_SECONDS, JobRedis
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.servers import RedisServer
from tests.support.shards import keys_with
from tests.worker.parts import claimed
from tests.worker.processes import PATIENCE

pytestmark = pytest.mark.usefixtures("queue_settings")


@pytest.mark.parametrize("value", ["x", "-3000", "1.5", ""])
def test_an_unreadable_count_of_delays_counts_as_none(redis: Redis, value: str) -> None:
    redis.hset(keys_with("job_1").job("job_1"), "delays", value)
    assert JobRedis("c1", get_settings()).unknown_task_delays("job_1") == 0


def test_the_file_of_a_large_result_may_take_long_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a child may go without a sign of life."""

    def parent_results(self: Any, job_id: str, decode: Callable[[str], Any]) -> dict[str, Any]:
        return {"parent": decode(encode_stored("file"))}

    monkeypatch.setattr(WorkflowQueries, "parent_results", parent_results)
    monkeypatch.setattr(large_results, "read_result", str.upper)
    keep_alive = Mock()
    assert JobRedis("c1", get_settings(), keep_alive).parent_result("job_1") == "FILE"
    keep_alive.assert_called_with(FILE_SECONDS)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_child_with_several_shards_does_not_wait_to_prepare_a_job(
    settings: Any, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": shards}
    errors = [RedisUnavailable("away")] * 2  # the first may come from a cut connection

    def parent_results(self: Any, job_id: str, decode: Any) -> dict[str, Any]:
        if errors:
            raise errors.pop()
        return {"parent": 7}

    monkeypatch.setattr(WorkflowQueries, "parent_results", parent_results)
    job_redis = JobRedis("c1", get_settings())
    if shards == 1:
        assert job_redis.parent_result("job_1") == 7
    else:
        with pytest.raises(RedisUnavailable):
            job_redis.parent_result("job_1")


def test_a_parent_overwritten_by_another_program_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WorkflowQueries, "parent_results", Mock(side_effect=WrongKeyType("x")))
    with pytest.raises(WrongKeyType):
        JobRedis("c1", get_settings()).parent_result("job_1")


@pytest.mark.parametrize("ask", ["load", "save", "check_wait", "report"])
def test_a_master_that_does_not_know_the_run_is_not_asked_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    """It may be a former master that is cut off."""
    look_again = Mock()
    monkeypatch.setattr(RedisConnection, "look_again", look_again)
    steps, job = JobRedis("c1", get_settings()), claimed(lease=2)
    if ask == "load":
        with pytest.raises(JobAbandoned, match="was taken over"):
            steps.load(job)
    elif ask == "save":
        assert steps.save(job, "step:s", "1") == 0
    elif ask == "check_wait":
        reply = steps.check_wait(job, "event", None, sleeps=False)
        assert reply.state is WaitState.LEASE_LOST
    else:
        assert not steps.report(job, "{}")
    look_again.assert_called_once()


def test_a_step_waits_while_the_login_is_refused(
    fresh_server: Callable[..., RedisServer], settings: Any
) -> None:
    """A password that is changed before the settings are costs a running job no attempt."""
    server = fresh_server(tcp=True)
    admin = server.client()
    change = partial(admin.execute_command, "ACL", "SETUSER", "queue")
    change("on", ">old", "~*", "&*", "+@all")
    url = f"redis://queue:old@{server.address}/0"
    settings.REDISQUEUE = {**settings.REDISQUEUE, "CONNECTION": {"URL": url}}
    tasks.noop.enqueue()
    manual_worker = ManualWorker()
    held = manual_worker.claim_one()
    job_redis = JobRedis(manual_worker.claim_request.child, get_settings())
    change("<old", ">new")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(job_redis.save, held, "step:s", "1")
        assert not wait([answer], 0.3).done
        change(">old")
        assert answer.result(PATIENCE) == 1


def test_threads_get_their_own_answers(redis: Redis, manual_worker: ManualWorker) -> None:
    tasks.noop.enqueue()
    held = manual_worker.claim_one()
    steps = JobRedis(manual_worker.claim_request.child, get_settings())

    def ask(job: ClaimedJob) -> set[bool]:
        return {steps.report(job, "{}") for _ in range(50)}

    with ThreadPoolExecutor(5) as pool:
        # Meanwhile the main thread may be preparing the next job.
        instants = pool.submit(lambda: {steps.waited_since(held) for _ in range(50)})
        stale = held._replace(lease=7)
        assert list(pool.map(ask, [held, stale, held, stale])) == [{True}, {False}] * 2
        assert len(instants.result()) == 1


def test_a_master_that_does_not_know_the_run_is_not_asked_where_a_large_result_goes(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_again = Mock()
    monkeypatch.setattr(RedisConnection, "look_again", look_again)
    large = "x" * get_settings().max_result_bytes
    with pytest.raises(JobAbandoned, match="was taken over"):
        encode(large, claimed(), get_settings())
    look_again.assert_called_once()


@pytest.mark.one_server("counts its server's connections")
def test_threads_do_not_connect_for_each_question(
    redis: Redis, manual_worker: ManualWorker
) -> None:
    """A connection costs several round trips, and many more with TLS."""
    tasks.noop.enqueue()
    held = manual_worker.claim_one()
    job_redis = JobRedis(manual_worker.claim_request.child, get_settings())
    before = redis.info("stats")["total_connections_received"]
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda _: job_redis.report(held, "{}"), range(50)))
    assert redis.info("stats")["total_connections_received"] - before <= 2


@pytest.mark.one_server("looks at its server's clients and commands")
def test_a_connection_that_was_cut_since_its_last_use_is_replaced(redis: Redis) -> None:
    job_redis = JobRedis("c1", get_settings())
    assert job_redis.unknown_task_delays("job_1") == 0
    redis.client_kill_filter(_type="normal", skipme=True)
    assert job_redis.unknown_task_delays("job_1") == 0


@pytest.mark.one_server("counts its server's connections")
def test_a_master_that_does_not_know_the_run_is_not_asked_by_other_connections(
    redis: Redis,
) -> None:
    """Other threads' connections may lead to the former master too."""

    def connect() -> int:
        """Open all connections, as three threads would; returns the number opened."""
        before: int = redis.info("stats")["total_connections_received"]
        with job_redis._commands("job_1") as first, job_redis._commands("job_1") as second:
            assert not job_redis.report(claimed(lease=2), "{}")  # by a third thread
            for commands in (first, second):
                commands.connection.call("PING")
        after: int = redis.info("stats")["total_connections_received"]
        return after - before

    job_redis = JobRedis("c1", get_settings())
    assert [connect(), connect()] == [3, 3]
