"""Connections to shards, and the recorded number of shards."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from django_redisqueue import get_job
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import (
    RedisConnection,
    blocking_connection,
    producer_connection,
    worker_connection,
)
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.queries import Queries
from django_redisqueue.broker.redis_url import get_redis_url, redis_address
from django_redisqueue.broker.replies import Outcome
from django_redisqueue.broker.schedules import ScheduleQueries
from django_redisqueue.broker.shards import AllShards, agree_on_shards, all_shards
from django_redisqueue.checks import check_settings
from django_redisqueue.checks.network import check_network
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import NewJob
from django_redisqueue.core.schedules import Source
from django_redisqueue.exceptions import RedisUnavailable, ShardMismatch, WrongKeyType
from django_redisqueue.management.commands import reapqueue
from django_redisqueue.management.commands.redisqueue_shards import HEADINGS
from django_redisqueue.worker.maintenance.schedules import ScheduleDeployment
from tests.support.commands import output_of
from tests.support.servers import RedisServer

from .schedules import definition

NOBODY = "unix:///nonexistent/redis.sock"


@pytest.fixture
def four(settings: Any, queue_settings: dict[str, Any]) -> dict[str, Any]:
    """Four shards on the shared server."""
    settings.REDISQUEUE = {**queue_settings, "SHARDS": 4}
    result: dict[str, Any] = settings.REDISQUEUE
    return result


def socket_of(connection: RedisConnection) -> int:
    found: int = connection.call("CLIENT", "ID")
    return found


def test_objects_created_from_a_connection_work_in_its_shard(
    redis: Redis, four: dict[str, Any]
) -> None:
    connection = worker_connection(3)
    job = NewJob(new_job_id(3), "default", "app.task", "[[],{}]")
    assert Commands(connection).enqueue([job]) == [True]
    assert Queries(connection).job(job.id).task == "app.task"
    connection.close()
    prefix = f"{four['PREFIX']}:{{3fg}}:".encode()
    assert all(key.startswith(prefix) for key in redis.scan_iter())
    assert redis.exists(Keys(four["PREFIX"], 3).job(job.id))


def test_the_shards_of_a_server_share_a_socket(four: dict[str, Any]) -> None:
    connection = worker_connection()
    others = [connection.at(shard) for shard in range(4)]
    assert [one.shard for one in others] == [0, 1, 2, 3]
    assert others[0] is connection
    assert others[2].at(3) is others[3]
    assert len({socket_of(one) for one in others}) == 1
    before = socket_of(connection)
    others[3].close()
    assert socket_of(connection) == socket_of(others[1]) != before
    connection.close_all()


def test_a_thread_has_one_socket_for_all_shards_of_a_server(four: dict[str, Any]) -> None:
    assert [producer_connection(shard).shard for shard in range(4)] == [0, 1, 2, 3]
    assert len({socket_of(producer_connection(shard)) for shard in range(4)}) == 1
    assert producer_connection(2) is producer_connection(2)


def test_every_kind_of_connection_has_a_shard(four: dict[str, Any]) -> None:
    for make in (producer_connection, worker_connection, blocking_connection):
        assert make(2).shard == 2
        assert make().shard == 0


def test_several_servers_have_the_shards_in_turn(settings: Any) -> None:
    urls = ["redis://a:1/0", "redis://:secret@b:2/0"]
    settings.REDISQUEUE = {"CONNECTION": {"URL": urls}, "SHARDS": 5}
    assert [get_redis_url(shard).text for shard in range(5)] == [*urls, *urls, urls[0]]
    assert redis_address() == "redis://a:1/0, redis://:***@b:2/0"
    connection = worker_connection()
    assert connection.at(4)._link is connection._link is not connection.at(1)._link
    assert connection.at(1)._link is connection.at(3)._link


def test_a_wrong_url_among_several_is_named(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": ["redis://a:1/0", "http://b"]}, "SHARDS": 2}
    (message,) = check_settings()
    assert message.id == "django_redisqueue.E002"
    assert message.msg.startswith("""REDISQUEUE["CONNECTION"]["URL"][1] is 'http://b'; it must""")


def test_the_answers_of_all_shards(four: dict[str, Any]) -> None:
    answers = all_shards(lambda one: one.call("ECHO", one.shard))
    assert answers.complete() == ["0", "1", "2", "3"]
    assert answers.problem == ""


def test_an_unavailable_server_is_named_and_asked_once(
    settings: Any, four: dict[str, Any], redis_server: RedisServer
) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}
    asked: list[int] = []

    def read(connection: RedisConnection) -> Any:
        asked.append(connection.shard)
        return connection.call("ECHO", connection.shard)

    answers = all_shards(read)
    assert dict(answers.by_shard) == {0: "0", 2: "2"}
    assert list(answers.missing) == [1, 3]
    assert asked == [0, 1, 2]
    assert answers.problem.startswith("shard 1: Redis at unix:///nonexistent/redis.sock")
    with pytest.raises(RedisUnavailable):
        answers.complete()


def test_no_server_answers(settings: Any, four: dict[str, Any]) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": NOBODY}}
    with pytest.raises(RedisUnavailable, match="nonexistent"):
        all_shards(lambda one: one.call("PING"))


def test_other_errors_do_not_count_as_a_missing_shard(redis: Redis, four: dict[str, Any]) -> None:
    redis.set(Keys(four["PREFIX"], 1).meta, "theirs")
    with pytest.raises(WrongKeyType):
        all_shards(lambda one: one.call("HGET", Keys(four["PREFIX"], one.shard).meta, "x"))


def recorded(redis: Redis, settings: dict[str, Any], shards: int = 4) -> list[bytes | None]:
    return [redis.hget(Keys(settings["PREFIX"], n).meta, "shards") for n in range(shards)]


def test_the_first_worker_records_the_number(redis: Redis, four: dict[str, Any]) -> None:
    agree_on_shards(AllShards(worker_connection().at))
    assert recorded(redis, four) == [b"4"] * 4
    agree_on_shards(AllShards(worker_connection().at))


def test_workers_that_start_at_once_agree_whatever_part_of_the_number_each_finds(
    redis: Redis, four: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards may be on several servers, and a worker may die between any two of its writes."""
    sent: list[Sequence[Any]] = []
    send = RedisConnection.send

    def note(self: RedisConnection, commands: Sequence[Sequence[Any]]) -> None:
        sent.extend(commands)
        send(self, commands)

    with monkeypatch.context() as patch:
        patch.setattr(RedisConnection, "send", note)
        agree_on_shards(AllShards(worker_connection().at))
    writes = [command for command in sent if command[0] == "HSET"]
    assert writes
    for count in range(len(writes)):
        redis.delete(*[Keys(four["PREFIX"], n).meta for n in range(4)])
        for command in writes[:count]:
            redis.execute_command(*command)
        agree_on_shards(AllShards(worker_connection().at))
        assert recorded(redis, four) == [b"4"] * 4


def test_a_number_that_not_all_shards_have_yet_is_compared_like_any_other(
    settings: Any, redis: Redis, four: dict[str, Any], redis_server: RedisServer
) -> None:
    redis.hset(Keys(four["PREFIX"], 2).meta, "shards", "8?")
    with pytest.raises(ShardMismatch, match="is 4, but the data in Redis has 8"):
        agree_on_shards(AllShards(worker_connection().at))
    assert len(shards_command().splitlines()) == 9
    redis.hset(Keys(four["PREFIX"], 2).meta, "shards", "4?")
    assert shards_command("--set") == "SHARDS is now 4; it was 4\n"


def test_a_number_stays_unconfirmed_while_a_shard_is_unavailable(
    settings: Any, redis: Redis, four: dict[str, Any], redis_server: RedisServer
) -> None:
    for shard in range(4):
        redis.hset(Keys(four["PREFIX"], shard).meta, "shards", "4?")
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}
    agree_on_shards(AllShards(worker_connection().at))
    assert recorded(redis, four) == [b"4?"] * 4


@pytest.mark.parametrize(("now", "then"), [(4, 2), (2, 4), (1, 4), (4, 1)])
def test_another_number_is_refused(
    redis: Redis, settings: Any, four: dict[str, Any], now: int, then: int
) -> None:
    settings.REDISQUEUE = {**four, "SHARDS": then}
    agree_on_shards(AllShards(worker_connection().at))
    before = recorded(redis, four)
    settings.REDISQUEUE = {**four, "SHARDS": now}
    with pytest.raises(ShardMismatch) as refusal:
        agree_on_shards(AllShards(worker_connection().at))
    words = str(refusal.value)
    assert words.startswith(f'REDISQUEUE["SHARDS"] is {now}, but the data in Redis has {then}.')
    assert "run `manage.py redisqueue_shards --set`" in words
    assert "producers" in words
    assert recorded(redis, four) == before


def test_a_shard_that_was_emptied_is_refused(redis: Redis, four: dict[str, Any]) -> None:
    agree_on_shards(AllShards(worker_connection().at))
    redis.delete(Keys(four["PREFIX"], 2).meta)
    with pytest.raises(ShardMismatch, match=r"shard 2 at unix://.* has no data"):
        agree_on_shards(AllShards(worker_connection().at))


def test_an_unavailable_shard_is_not_a_mismatch(
    settings: Any,
    redis: Redis,
    four: dict[str, Any],
    redis_server: RedisServer,
) -> None:
    agree_on_shards(AllShards(worker_connection().at))
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}
    agree_on_shards(AllShards(worker_connection().at))


def test_the_first_worker_waits_for_all_shards(
    settings: Any,
    redis: Redis,
    four: dict[str, Any],
    redis_server: RedisServer,
) -> None:
    """If it recorded the number in only some of them, the next worker would take the others for
    emptied shards."""
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}
    with pytest.raises(RedisUnavailable):
        agree_on_shards(AllShards(worker_connection().at))
    assert recorded(redis, four) == [None] * 4


def shards_command(*arguments: str) -> str:
    return output_of("redisqueue_shards", *arguments)


def enqueue_in(shard: int, queue: str = "default") -> str:
    job = NewJob(new_job_id(shard), queue, "app.task", "[[],{}]")
    Commands(worker_connection(shard)).enqueue([job])
    return job.id


def test_the_command_shows_every_shard(four: dict[str, Any], redis_server: RedisServer) -> None:
    agree_on_shards(AllShards(worker_connection().at))
    enqueue_in(1)
    enqueue_in(1, "of_another_deploy")
    Commands(worker_connection(2)).cancel([enqueue_in(2)])
    Commands(worker_connection(3)).heartbeat(["child"])
    lines = [line.split() for line in shards_command().splitlines()]
    assert tuple(lines[0]) == HEADINGS
    assert [line[:4] for line in lines[1:]] == [
        ["0", "0", "13907", "4"], ["1", "1li", "349", "4"],
        ["2", "2xa", "5810", "4"], ["3", "3fg", "8504", "4"],
    ]  # fmt: skip
    assert [line[4:8] for line in lines[1:]] == [
        ["0", "0", "0", "0"], ["2", "0", "0", "0"], ["0", "1", "0", "0"], ["0", "0", "0", "1"],
    ]  # fmt: skip
    assert {line[8] for line in lines[1:]} == {redis_server.url}


def test_the_command_names_an_unavailable_shard(
    settings: Any, four: dict[str, Any], redis_server: RedisServer
) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}
    with pytest.raises(CommandError, match=r"shard 1: Redis at .*; shard 3: Redis at"):
        shards_command()
    with pytest.raises(CommandError, match="nonexistent"):
        shards_command("--set")


@pytest.mark.parametrize(
    ("arguments", "text"), [(["--dry-run"], "nothing was changed"), (["--once"], "0 orphans")]
)
def test_reapqueue_works_in_the_other_shards_while_one_is_unavailable(
    settings: Any,
    four: dict[str, Any],
    redis_server: RedisServer,
    arguments: list[str],
    text: str,
) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [NOBODY, redis_server.url]}}
    out = StringIO()
    with pytest.raises(CommandError, match="nonexistent"):
        call_command("reapqueue", *arguments, stdout=out)
    assert out.getvalue().count(text) == 2


def test_a_pass_of_reapqueue_asks_an_unavailable_server_once(
    settings: Any, four: dict[str, Any], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [NOBODY, redis_server.url]}}
    monkeypatch.setattr(reapqueue.Command, "_run", lambda self, _: self._pass_everywhere())
    told = StringIO()
    call_command("reapqueue", stderr=told)
    assert told.getvalue().count("trying again") == 1


def test_growing(redis: Redis, settings: Any, four: dict[str, Any]) -> None:
    settings.REDISQUEUE = {**four, "SHARDS": 2}
    agree_on_shards(AllShards(worker_connection().at))
    settings.REDISQUEUE = four
    assert shards_command("--set") == "SHARDS is now 4; it was 2\n"
    assert recorded(redis, four) == [b"4"] * 4
    agree_on_shards(AllShards(worker_connection().at))


def test_shrinking_waits_until_the_other_shards_are_empty(
    redis: Redis, settings: Any, four: dict[str, Any]
) -> None:
    assert shards_command("--set") == "SHARDS is now 4; it was not recorded\n"
    job_id = enqueue_in(3)
    settings.REDISQUEUE = {**four, "SHARDS": 2}
    assert len(shards_command().splitlines()) == 5
    with pytest.raises(CommandError) as refusal:
        shards_command("--set")
    assert str(refusal.value) == (
        "shard 3 has 1 unfinished jobs, and workers with SHARDS 2 would not serve it. "
        "Set SHARDS 2 for producers first, and keep workers with SHARDS 4 running until it has none"
    )
    assert recorded(redis, four) == [b"4"] * 4
    settings.REDISQUEUE = four
    (claimed,) = Commands(worker_connection(3)).claim(ClaimRequest("c", ("default",)), 1, 1).jobs
    outcome = Outcome(claimed.id, claimed.lease, claimed.call, "completed", "null", "")
    Commands(worker_connection(3)).finish(ClaimRequest("c", ()), 0, [outcome], 0)
    settings.REDISQUEUE = {**four, "SHARDS": 2}
    assert shards_command("--set") == "SHARDS is now 2; it was 4\n"
    agree_on_shards(AllShards(worker_connection().at))
    assert get_job(job_id).status == "completed"  # an id still leads to its shard


def test_shrinking_removes_the_schedules_of_the_other_shards(
    redis: Redis, settings: Any, four: dict[str, Any]
) -> None:
    """Workers with the former number, which would define them forever, now have old code."""
    agree_on_shards(AllShards(worker_connection().at))
    commands = Commands(worker_connection(3))
    former = ScheduleDeployment(commands, [definition("of_code", source=Source.CODE)])
    former.run_once()
    commands.define_schedules("", [(definition("of_admin", source=Source.ADMIN), 10**14)])
    queries = ScheduleQueries(commands.connection)
    assert sorted(queries.names()) == ["of_admin", "of_code"]
    settings.REDISQUEUE = {**four, "SHARDS": 2}
    assert shards_command("--set") == "SHARDS is now 2; it was 4\n"
    former.run_once()
    assert queries.names() == []


def test_a_worker_does_not_start_with_another_number(settings: Any, four: dict[str, Any]) -> None:
    agree_on_shards(AllShards(worker_connection().at))
    settings.REDISQUEUE = {**four, "SHARDS": 1}
    with pytest.raises(CommandError, match="is 1, but the data in Redis has 4"):
        output_of("runworker", "--burst")


def test_the_deploy_check_compares_the_number(settings: Any, four: dict[str, Any]) -> None:
    def of_shards() -> list[str]:
        return [one.msg for one in check_network() if one.id == "django_redisqueue.E027"]

    assert of_shards() == []
    agree_on_shards(AllShards(worker_connection().at))
    assert of_shards() == []
    settings.REDISQUEUE = {**four, "SHARDS": 3}
    (message,) = of_shards()
    assert message.startswith('REDISQUEUE["SHARDS"] is 3, but the data in Redis has 4.')


def test_the_deploy_check_asks_every_server(
    settings: Any, four: dict[str, Any], redis_server: RedisServer
) -> None:
    settings.REDISQUEUE = {**four, "CONNECTION": {"URL": [redis_server.url, NOBODY]}}
    enqueue_in(0, "of_another_deploy")
    enqueue_in(2, "of_another_deploy")
    found = {one.id: one.msg for one in check_network()}
    assert "nonexistent" in found["django_redisqueue.E010"]
    assert "unfinished jobs in Redis (2)" in found["django_redisqueue.W019"]
