"""Waiting for shards on several servers at once."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_redisqueue.broker import wake
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import blocking_connection, worker_connection
from django_redisqueue.broker.wake import WakeWait, _WakeConnection
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from tests.support.servers import RedisServer

QUEUES = [(0, "default"), (1, "default")]
FD_SETSIZE = 1024  # of select()


@pytest.fixture
def servers(fresh_server: Callable[..., RedisServer], settings: Any) -> list[RedisServer]:
    found = [fresh_server(appendonly=False), fresh_server(appendonly=False)]
    urls = [server.url for server in found]
    settings.REDISQUEUE = {"CONNECTION": {"URL": urls}, "SHARDS": 2, "MIRROR": False}
    return found


@pytest.fixture
def wait(servers: list[RedisServer]) -> Iterator[WakeWait]:
    found = WakeWait([Commands(worker_connection(shard)) for shard in (0, 1)], "w1:c1")
    yield found
    found.close()


def waiting(server: RedisServer) -> set[str]:
    return {one["id"] for one in server.client().client_list() if one["cmd"] == "blpop"}


def own_tokens(servers: list[RedisServer]) -> int:
    """How many of the child's own tokens are left."""
    return sum(len(server.client().keys("*:child:w1:c1:wake")) for server in servers)


def enqueue(shard: int) -> None:
    job = NewJob(new_job_id(shard), "default", "app.task", "[[],{}]")
    Commands(worker_connection(shard)).enqueue([job])


def test_a_wait_that_times_out_keeps_its_connections(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    assert wait.wait(QUEUES, 0.1) == []
    first = [waiting(server) for server in servers]
    assert wait.wait(QUEUES, 0.1) == []
    assert [waiting(server) for server in servers] == first
    assert list(map(len, first)) == [1, 1]


def test_it_waits_in_a_process_with_very_many_open_files(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    """Such as a child with a thousand async jobs: select() cannot watch descriptors above 1023."""
    with ExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2 * FD_SETSIZE:
            pytest.skip("this process may not open so many files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FD_SETSIZE), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(FD_SETSIZE):
            stack.enter_context(open(os.devnull))
        assert wait.wait(QUEUES, 0.1) == []
        enqueue(1)
        assert wait.wait(QUEUES, 30) == [1]


def test_a_long_wait_checks_now_and_then_whether_to_continue(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    answers = [True, True, False]
    assert wait.wait(QUEUES, 30, lambda: answers.pop(0), every=0.05) == []
    assert answers == []
    enqueue(1)  # its token must not go to the wait that has ended
    assert wait.wait(QUEUES, 30) == [1]


def test_a_long_wait_ends_soon_if_a_server_is_not_waiting(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    """Tokens on that server would wake no one."""
    asked = []

    def cut_off() -> bool:
        (pop,) = waiting(servers[0])
        servers[0].client().client_kill_filter(_id=pop)
        asked.append(pop)
        return True

    assert wait.wait(QUEUES, 30, cut_off, every=0.05) == []
    assert len(asked) == 1


def test_a_token_ends_the_pop_on_the_other_server(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    enqueue(1)
    assert wait.wait(QUEUES, 30) == [1]
    enqueue(0)  # its token must not go to the wait that has ended
    assert wait.wait(QUEUES, 30) == [0]
    assert own_tokens(servers) == 0


def test_waits_that_tokens_end_keep_their_connections(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    wait.wait(QUEUES, 0.1)
    first = [waiting(server) for server in servers]
    for shard in (1, 0, 1):
        enqueue(shard)
        assert wait.wait(QUEUES, 30) == [shard]
        Commands(worker_connection(shard)).clear("default", "queued")
    assert [waiting(server) for server in servers] == first


def test_a_token_that_arrives_as_the_wait_ends_is_not_lost(
    servers: list[RedisServer], wait: WakeWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job would otherwise wait until another one arrives."""
    look, shards = wake._wait_for_any, [0]

    def then_enqueue(*arguments: Any) -> Any:
        found = look(*arguments)
        while shards:
            enqueue(shards.pop())
        return found

    enqueue(1)
    monkeypatch.setattr(wake, "_wait_for_any", then_enqueue)
    assert wait.wait(QUEUES, 30) == [1, 0]
    # The pop had ended on its own, so the child's token ends the next one, and is gone.
    assert wait.wait(QUEUES, 30) == []
    assert own_tokens(servers) == 0


def test_a_token_that_ended_no_pop_expires(servers: list[RedisServer], wait: WakeWait) -> None:
    connection = wait._connections[wait._commands[0].connection.redis_url]
    connection.push_own()
    connection.close()
    (key,) = (found for server in servers for found in server.client().scan_iter("*:wake"))
    assert 0 < servers[0].client().pttl(key) <= 10_000


def test_a_pop_that_is_cut_off_as_it_is_ended_leaves_no_reply_for_another_command(
    servers: list[RedisServer], wait: WakeWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = _WakeConnection.push_own

    def cut_off_and_push(connection: _WakeConnection) -> None:
        (pop,) = waiting(servers[0])
        servers[0].client().client_kill_filter(_id=pop)
        push(connection)

    monkeypatch.setattr(_WakeConnection, "push_own", cut_off_and_push)
    enqueue(1)
    assert wait.wait(QUEUES, 30) == [1]
    assert wait._commands[0].connection.call("PING") == "PONG"


def test_a_token_is_not_lost_if_the_connection_that_ends_the_pop_is_cut(
    servers: list[RedisServer], wait: WakeWait, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = _WakeConnection.push_own

    def enqueue_and_push(connection: _WakeConnection) -> None:
        enqueue(0)
        push(connection)
        connection._other.close()

    monkeypatch.setattr(_WakeConnection, "push_own", enqueue_and_push)
    enqueue(1)
    assert wait.wait(QUEUES, 30) == [1, 0]


def test_a_server_whose_writes_are_paused_survives(
    servers: list[RedisServer], wait: WakeWait
) -> None:
    """CLIENT UNBLOCK would crash it."""
    paused = servers[0].client()
    paused.client_pause(600_000, all=False)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(wait.wait(QUEUES, 30)))
    thread.start()
    enqueue(1)
    thread.join(60)
    assert found == [1]
    assert paused.ping()


def test_waits_for_a_timer_send_one_command_per_minute(servers: list[RedisServer]) -> None:
    connection, client = blocking_connection(), servers[0].client(decode_responses=True)
    with client.monitor() as monitor:
        for _ in range(3):
            assert connection.wait(["timer"], 0.05) is None
        client.ping()
        seen = []
        while (command := monitor.next_command()["command"]) != "PING":
            seen.append(command)
    connection.close()
    assert [command for command in seen if "timer" in command] == ["BLPOP timer 60"]
