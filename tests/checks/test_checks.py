"""The system checks: each message with its id and a hint."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning, run_checks
from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.db import connections
from django.urls import include, path

from django_redisqueue import Limit, task
from django_redisqueue.broker.commands import ClaimRequest, Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.broker.redis_url import RedisUrl
from django_redisqueue.checks import check_network, check_settings, check_urls, local
from django_redisqueue.checks.network import (
    REDIS_FIXED,
    VALKEY_FIXED,
    _age,
    _eviction,
    _is_vulnerable,
    _password,
    _persistence,
    _replicas,
    _role,
    _vulnerability,
)
from django_redisqueue.client import registry
from django_redisqueue.core.job_data import NewJob
from tests.support.commands import output_of
from tests.support.postgres import as_database
from tests.support.servers import RedisServer, redis_url

from ..broker.test_connection_errors import answering


def found(number: str, messages: list[CheckMessage]) -> CheckMessage:
    """The only message with this id; it must have a hint."""
    (message,) = [one for one in messages if one.id == f"django_redisqueue.{number}"]
    assert message.hint
    assert isinstance(message, Error if number[0] == "E" else Warning)
    return message


@pytest.fixture(autouse=True)
def registered_by_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tasks of tests.app: other test modules have tasks for queues that do not exist."""
    mine = {
        name: known
        for name, known in registry._tasks.items()
        if not name.startswith(("tests.client", "tests.support"))
    }
    monkeypatch.setattr(registry, "_tasks", mine)


def test_good_settings_have_no_messages(settings: Any) -> None:
    for good in ({}, {"CONNECTION": {"URL": "redis://localhost:6379/0"}, "LEASE": 30}):
        settings.REDISQUEUE = good
        assert check_settings() == []


WRONG = [
    ([], "REDISQUEUE must be a dict, not list"),
    ({"LAESE": 15}, "REDISQUEUE has no key 'LAESE' (did you mean 'LEASE'?)"),
    ({"URL": "redis://"}, """REDISQUEUE has no key 'URL'; write "CONNECTION": {"URL": ...}"""),
    ({"LEASE": "15"}, 'REDISQUEUE["LEASE"] must be seconds, a timedelta, or a text'),
    ({"LEASE": -1}, 'REDISQUEUE["LEASE"] must be a duration of zero or more'),
    ({"LEASE": 9, "HEARTBEAT": 4}, 'REDISQUEUE["HEARTBEAT"] must be more than 0 and at most a'),
    ({"HEARTBEAT": 0}, 'REDISQUEUE["HEARTBEAT"] must be more than 0'),
    ({"MAX_RECOVERIES": 0}, 'REDISQUEUE["MAX_RECOVERIES"] must be a whole number from 1'),
    ({"MAX_PAYLOAD_BYTES": 1.5}, 'REDISQUEUE["MAX_PAYLOAD_BYTES"] must be a whole number'),
    ({"EVENTS_CAP": True}, 'REDISQUEUE["EVENTS_CAP"] must be a whole number from 10000'),
    ({"ENQUEUE_ON_COMMIT": "yes"}, 'REDISQUEUE["ENQUEUE_ON_COMMIT"] must be True or False'),
    ({"EVENTS_CAP": 10**5000}, "not a value of int that cannot be shown"),
    ({"TIMEOUT": 3_153_600_001}, 'REDISQUEUE["TIMEOUT"] must be a duration of at most a hundred'),
    ({10**5000: 1}, "REDISQUEUE has no key a value of int that cannot be shown"),
    ({"TASK_MODULES": "shop.jobs"}, "must be a list of dotted paths, not 'shop.jobs'"),
    ({"TASK_MODULES": ["a", 3]}, "must be a list of dotted paths, not ['a', 3]"),
    ({"PREFIX": "a b"}, """REDISQUEUE["PREFIX"] is 'a b'; use 1 to 64 letters, digits"""),
    ({"PREFIX": "{0}"}, """REDISQUEUE["PREFIX"] is '{0}'"""),
    ({"QUEUES": {}}, 'REDISQUEUE["QUEUES"] must be a dict of queue name to its settings'),
    ({"QUEUES": ["default"]}, """such as {"default": {}}, not ['default']"""),
    ({"QUEUES": {"a b": {}}}, """REDISQUEUE["QUEUES"]: 'a b' is not a valid queue name"""),
    ({"QUEUES": {"a": []}}, 'REDISQUEUE["QUEUES"]["a"] must be a dict, not list'),
    ({"QUEUES": {"a": {"KEEP": 1}}}, """REDISQUEUE["QUEUES"]["a"] has no key 'KEEP'"""),
    (
        {"QUEUES": {"a": {"AGING": 0}}},
        'REDISQUEUE["QUEUES"]["a"]["AGING"] must be more than 0, or None for no aging, not 0',
    ),
    ({"QUEUES": {"a": {"AGING": -1}}}, 'REDISQUEUE["QUEUES"]["a"]["AGING"] must be'),
    ({"QUEUES": {"a": {"AGING": "soon"}}}, 'REDISQUEUE["QUEUES"]["a"]["AGING"] must be'),
    ({"AGING": True}, 'REDISQUEUE["AGING"] must be'),
    (
        {"QUEUES": {"a": {"LEASE": 1}}},
        "'LEASE'; a queue accepts KEEP_COMPLETED, KEEP_FAILED, RESULT",
    ),
    ({"QUEUES": {"a": {"RESULT_TTL": "1"}}}, 'REDISQUEUE["QUEUES"]["a"]["RESULT_TTL"] must be'),
    ({"CONNECTION": "redis://"}, 'REDISQUEUE["CONNECTION"] must be {"URL": "redis://..."} or'),
    ({"CONNECTION": "redis://"}, 'or {"CACHE": alias}, not a str'),
    ({"CONNECTION": {"URL": "a", "DB": 1}}, "not a dict of ['URL', 'DB']"),
    ({"CONNECTION": {}}, 'REDISQUEUE["CONNECTION"] must be {"URL"'),
    ({"CONNECTION": {"URL": ""}}, 'REDISQUEUE["CONNECTION"]["URL"] must be a non-empty string'),
    ({"Connection": {}}, "REDISQUEUE has no key 'Connection' (did you mean 'CONNECTION'?)"),
    ({"CONNECTION": {"URL": "a", "CACHE": "b"}}, 'REDISQUEUE["CONNECTION"] must be'),
    ({"CONNECTION": {"URL": []}}, 'REDISQUEUE["CONNECTION"]["URL"] must be a URL or a list of'),
    ({"CONNECTION": {"URL": ["a", 3]}}, 'REDISQUEUE["CONNECTION"]["URL"] must be a URL or a list'),
    ({"CONNECTION": {"URL": ["a", "b", "c"]}, "SHARDS": 2}, "3 servers, more than REDISQUEUE"),
    ({"SHARDS": 0}, 'REDISQUEUE["SHARDS"] must be a whole number from 1 to 64, not 0'),
    ({"SHARDS": 65}, 'REDISQUEUE["SHARDS"] must be a whole number from 1 to 64, not 65'),
    ({"SHARDS": True}, 'REDISQUEUE["SHARDS"] must be a whole number from 1 to 64, not True'),
    ({"QUEUES": {"a": {"SPREAD": 1}}}, '["QUEUES"]["a"]["SPREAD"] must be True or False, not 1'),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_settings(settings: Any, wrong: Any, words: str) -> None:
    settings.REDISQUEUE = wrong
    message = found("E001", check_settings())
    assert words in message.msg
    if "REDISQUEUE has no key" in words:
        assert "it accepts CONNECTION, PREFIX" in message.msg
    assert "docs/operations.md" in (message.hint or "")


COUNTS, DURATIONS = ("KEEP_COMPLETED", "KEEP_FAILED"), ("RESULT_TTL", "FAILED_TTL")
COUNT = "must be a whole number from 0 to 4294967296"
OF_RETENTION = [
    *[(COUNTS, value, COUNT) for value in ("10", None, True, 1.5, -1, 2**33, timedelta(1))],
    *[
        (DURATIONS, value, "must be seconds, a timedelta, or a text")
        for value in ("10", None, True, [1])
    ],
    *[(DURATIONS, value, "must be a duration of zero or more") for value in (-1, float("nan"))],
    *[(DURATIONS, value, "of at most a hundred years") for value in (10**10, float("inf"))],
]


@pytest.mark.parametrize(("keys", "wrong", "words"), OF_RETENTION, ids=str)
def test_an_invalid_retention_is_named_with_its_setting(
    settings: Any, keys: tuple[str, ...], wrong: Any, words: str
) -> None:
    for key in keys:
        own = {"QUEUES": {"a": {key: wrong}}}
        overridden = {key: wrong, "QUEUES": {"a": {key: 5}}}
        for given, where in (({key: wrong}, ""), (overridden, ""), (own, '["QUEUES"]["a"]')):
            settings.REDISQUEUE = given
            message = found("E001", check_settings()).msg
            assert message.startswith(f'REDISQUEUE{where}["{key}"] must be ')
            assert words in message
            assert message.endswith(f", not {wrong!r}.")


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ({"CACHE": "jobs"}, "names 'jobs', which is not in CACHES (default)"),
        ({"URL": "http://:secret@host"}, "is 'http://:***@host'; it must begin with one of redis"),
        ({"URL": "redis+cluster://host/1"}, "a Redis Cluster has only database 0"),
    ],
)
def test_an_invalid_connection(settings: Any, connection: Any, words: str) -> None:
    settings.REDISQUEUE = {"CONNECTION": connection}
    assert words in found("E002", check_settings()).msg


def redis_cache(location: Any, **options: Any) -> dict[str, Any]:
    return {
        "BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options,
    }  # fmt: skip


SAME = [
    ("redis://localhost:6379/0", redis_cache("redis://127.0.0.1:6379/0")),
    ("redis://localhost", redis_cache("redis://localhost:6379")),
    ("redis://:pw@shop:6380/3", redis_cache(["redis://other/0", "redis://shop:6380/3"])),
    ("rediss://shop/3", redis_cache("redis://other/0,redis://shop/3")),
    ("redis://shop/3", redis_cache("redis://shop", db=3)),
    ("redis://shop/3", redis_cache("redis://shop?db=3")),
    ("redis://shop/1?db=3", redis_cache("redis://shop/3", db=1)),  # redis-py prefers the query
    ("unix:///run/redis.sock", redis_cache("unix:///run/redis.sock?db=0")),
]
APART = [
    ("redis://localhost/0", redis_cache("redis://localhost/1")),
    ("redis://localhost/0", redis_cache("redis://shop/0")),
    ("redis://localhost/0", redis_cache("redis://localhost:6380/0")),
    ("redis://localhost/0", redis_cache("redis://localhost/no-number")),
    ("unix:///run/redis.sock", redis_cache("unix:///run/redis.sock?db=1")),
    ("redis://localhost/0", {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}),
    ("redis://localhost/0", {"BACKEND": "...FileBasedCache", "LOCATION": Path("/var/cache/shop")}),
    ("embedded:///tmp/somewhere", redis_cache("redis://localhost/0")),
]


@pytest.mark.parametrize(("url", "cache"), SAME, ids=str)
def test_a_database_shared_with_a_cache(settings: Any, url: str, cache: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    settings.CACHES = {"default": {"BACKEND": "..."}, "pages": cache}
    message = found("E003", check_settings())
    assert "CACHES['pages'], whose clear() deletes everything" in message.msg
    assert "pw@" not in message.msg
    assert "database of its own" in str(message.hint)


@pytest.mark.parametrize(("url", "cache"), APART, ids=str)
def test_separate_databases(settings: Any, url: str, cache: Any) -> None:
    settings.DEBUG = True
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
    settings.CACHES = {"default": cache}
    assert check_settings() == []


def test_a_cache_may_share_its_server_with_the_queue_but_not_the_default_one(settings: Any) -> None:
    settings.CACHES = {
        "default": redis_cache("redis://localhost/0"), "jobs": redis_cache("redis://localhost/1"),
    }  # fmt: skip
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "jobs"}}
    assert check_settings() == []
    settings.REDISQUEUE = {"CONNECTION": {"CACHE": "default"}}
    assert "CACHES['default']" in found("E003", check_settings()).msg


def for_nobody() -> None:
    pass


def test_a_task_for_an_unknown_queue(settings: Any) -> None:
    settings.REDISQUEUE = {}
    task(queue_name="defualt", aliases=["tests.another"])(for_nobody)
    message = found("W004", check_settings())
    assert "is for the queue 'defualt'" in message.msg
    assert message.msg.endswith("(did you mean 'default'?).")


@pytest.mark.parametrize("name", ["REDIS_QUEUE", "REDISQUEUES", "DJANGO_REDISQUEUE"])
def test_a_misspelt_setting(settings: Any, name: str) -> None:
    del settings.REDISQUEUE
    setattr(settings, name, {})
    message = found("W030", check_settings())
    assert f"has {name}, but not REDISQUEUE" in message.msg


API = include("django_redisqueue.api.urls")


@pytest.mark.parametrize(
    ("patterns", "prefix"),
    [
        ([path("jobs/", API)], "jobs/"),
        ([path("a/", include([path("jobs/", API)]))], "a/jobs/"),
        ([path("jobs", API)], None),
        ([], None),
    ],
)
def test_the_api_with_a_slash_too_many(settings: Any, patterns: Any, prefix: str | None) -> None:
    settings.ROOT_URLCONF = tuple(patterns)
    messages = check_urls()
    if prefix is None:
        assert messages == []
        return
    message = found("W029", messages)
    assert f"included under '{prefix}'" in message.msg
    assert f'path("{prefix[:-1]}", include(' in str(message.hint)


def test_urls_that_cannot_be_imported_are_left_to_django(settings: Any) -> None:
    settings.ROOT_URLCONF = "no.such.urls"
    assert check_urls() == []


def for_a_limit() -> None:
    pass


def test_a_task_with_an_unknown_limit(settings: Any) -> None:
    settings.REDISQUEUE = {"LIMITS": {"stripe": {"concurrency": 5}}}
    task(concurrency=Limit("stirpe"), name="tests.for_a_limit")(for_a_limit)
    message = found("W028", check_settings())
    assert "The task tests.for_a_limit uses a named limit" in message.msg
    assert message.msg.endswith("has no limit 'stirpe' (did you mean 'stripe'?).")
    settings.REDISQUEUE = {"LIMITS": {"stirpe": {"rate": (5, "1s")}}}
    assert "has no 'concurrency'" in found("W028", check_settings()).msg


def test_tasks_of_this_package_need_no_queue_named_default(settings: Any) -> None:
    settings.REDISQUEUE = {"QUEUES": {"other": {}}}
    unserved = [message.msg for message in check_settings() if message.id.endswith("W004")]
    assert not any("django_redisqueue." in text for text in unserved)


def test_an_embedded_server_in_production(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": f"embedded://{tmp_path}"}}
    settings.DEBUG = True
    assert check_settings() == []
    settings.DEBUG = False
    assert check_settings() == [], "tests turn it off"
    monkeypatch.setattr(local, "is_in_test_run", lambda: False)
    assert "embedded Redis" in found("W006", check_settings()).msg
    assert list(tmp_path.iterdir()) == []  # checking started nothing


def test_another_runworker(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REDISQUEUE = {}
    commands = tmp_path / "management" / "commands"
    commands.mkdir(parents=True)
    (commands / "runworker.py").touch()
    monkeypatch.setattr(apps.get_app_config("contenttypes"), "path", str(tmp_path))
    message = found("W007", check_settings())
    assert "django.contrib.contenttypes also has a command runworker" in message.msg
    assert "redisqueue_worker" in str(message.hint)


@pytest.mark.parametrize(
    ("on", "words", "off"),
    [
        (("MIRROR",), "REDISQUEUE has MIRROR on", '{"MIRROR": False, ...}'),
        (("OUTBOX",), "REDISQUEUE has OUTBOX on", '{"OUTBOX": False, ...}'),
        (("MIRROR", "OUTBOX"), "has MIRROR and OUTBOX on", '{"MIRROR": False, "OUTBOX": False'),
    ],
    ids=str,
)
def test_aware_times_without_use_tz(settings: Any, on: Any, words: str, off: str) -> None:
    both = {"MIRROR": False, "OUTBOX": False}
    settings.REDISQUEUE = {**both, **dict.fromkeys(on, True)}
    assert check_settings() == []
    settings.USE_TZ = False
    message = found("E008", check_settings())
    assert "USE_TZ is False" in message.msg
    assert words in message.msg
    assert "USE_TZ = True" in str(message.hint)
    assert off in str(message.hint)
    settings.REDISQUEUE = both
    assert check_settings() == []


def test_a_database_without_autocommit(settings: Any) -> None:
    entry = {**connections.databases["default"], "AUTOCOMMIT": False}
    for on in ("MIRROR", "OUTBOX"):
        settings.REDISQUEUE = {"MIRROR": False, "OUTBOX": False, on: True}
        assert check_settings() == []
        with as_database("default", entry):
            message = found("E032", check_settings())
        assert message.msg.startswith("DATABASES['default'] has AUTOCOMMIT off")


@pytest.mark.django_db(databases=["default", "other"])
def test_the_checks_are_registered(settings: Any) -> None:
    settings.REDISQUEUE = {"LAESE": 1}
    found("E001", run_checks())
    found("E001", run_checks(tags=["redisqueue"]))
    named = r"\n.*django_redisqueue.E001\) REDISQUEUE has no key"
    with pytest.raises(SystemCheckError, match=named):
        call_command("check", stderr=StringIO())
    with pytest.raises(SystemCheckError, match=named):
        call_command("reapqueue", skip_checks=False)


def test_only_deploy_checks_need_redis(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})  # a task may need a database
    settings.REDISQUEUE = {
        "CONNECTION": {"URL": "unix:///nonexistent.sock"}, "MIRROR": False,
    }  # fmt: skip
    assert run_checks(tags=["redisqueue"]) == []
    found("E010", run_checks(tags=["redisqueue"], include_deployment_checks=True))


# --- Redis itself ---------------------------------------------------------------------------------


def ids(messages: list[CheckMessage]) -> set[str]:
    return {str(message.id).rpartition(".")[2] for message in messages}


@pytest.fixture
def ask(settings: Any) -> Callable[[str], list[CheckMessage]]:
    """What the network checks say about the Redis at this URL."""

    def check(url: str) -> list[CheckMessage]:
        settings.REDISQUEUE = {"CONNECTION": {"URL": url}}
        return check_network()

    return check


def test_a_good_redis(
    ask: Callable[[str], list[CheckMessage]], fresh_server: Callable[..., RedisServer]
) -> None:
    messages = ask(fresh_server().url)
    assert ids(messages) <= {"W014"}  # this machine may have an old server


def test_a_queue_with_jobs_that_was_removed_from_the_settings(
    ask: Callable[[str], list[CheckMessage]],
    fresh_server: Callable[..., RedisServer],
    settings: Any,
) -> None:
    server = fresh_server()
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}}
    store = Commands(worker_connection())
    store.enqueue([NewJob("job_1", "former", "a.task", "[[],{}]")])
    message = found("W019", ask(server.url))
    assert "Queue former has unfinished jobs in Redis (1)" in message.msg
    store.cancel(["job_1"])
    store.claim(ClaimRequest("c1", ("former",)), 1, 1)  # which drops the cancelled id
    store.connection.close()
    assert "W019" not in ids(ask(server.url))


def test_a_misconfigured_redis(
    ask: Callable[[str], list[CheckMessage]],
    fresh_server: Callable[..., RedisServer],
    settings: Any,
) -> None:
    server = fresh_server(appendonly=False, maxmemory="100mb", maxmemory_policy="allkeys-lru")
    server.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    messages = ask(server.url)
    assert "maxmemory-policy allkeys-lru" in found("E012", messages).msg
    assert "noeviction" in str(found("E012", messages).hint)
    assert "is a replica" in found("E011", messages).msg
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}}
    with pytest.raises(CommandError, match="is a replica, which accepts no jobs"):
        output_of("runworker", "--burst")
    assert "no append-only file" in found("W016", messages).msg


def test_a_redis_that_is_down_or_refuses(
    ask: Callable[[str], list[CheckMessage]], fresh_server: Callable[..., RedisServer]
) -> None:
    (message,) = ask("unix:///nonexistent.sock")
    assert "does not answer" in found("E010", [message]).msg
    server = fresh_server(requirepass="secret")
    (message,) = ask(redis_url(server.address))
    assert "requires a password" in found("E010", [message]).msg
    with answering(b"-LOADING Redis is loading\r\n") as url:
        (message,) = ask(url)
        assert "is loading its data" in found("E010", [message]).msg


def test_invalid_settings_are_reported_once(settings: Any) -> None:
    settings.REDISQUEUE = {"LAESE": 1}
    assert check_network() == []
    assert ids(run_checks(tags=["redisqueue"], include_deployment_checks=True)) == {"E001"}


HERE, FAR = RedisUrl("redis://localhost/0", "here"), RedisUrl("redis://shop/0", "far")


@pytest.mark.parametrize(("version", "old"), [("6.0.20", True), ("5.0.7", True), ("6.2.0", False)])
def test_an_old_redis(version: str, old: bool) -> None:
    messages = list(_age({"redis_version": version}, HERE))
    assert ids(messages) == ({"E013"} if old else set())
    if old:
        assert f"Redis {version} at here is too old" in found("E013", messages).msg


@pytest.mark.parametrize(
    ("version", "fixed", "vulnerable"),
    [
        ((6, 2, 19), REDIS_FIXED, True), ((6, 2, 20), REDIS_FIXED, False),
        ((7, 0, 15), REDIS_FIXED, True), ((7, 2, 11), REDIS_FIXED, False),
        ((7, 4, 5), REDIS_FIXED, True), ((8, 0, 4), REDIS_FIXED, False),
        ((8, 2, 1), REDIS_FIXED, True), ((8, 4, 0), REDIS_FIXED, False),
        ((7, 2, 10), VALKEY_FIXED, True), ((8, 1, 4), VALKEY_FIXED, False),
        ((8, 1, 3), VALKEY_FIXED, True), ((9, 0, 0), VALKEY_FIXED, False),
    ],
)  # fmt: skip
def test_known_vulnerabilities(version: Any, fixed: Any, vulnerable: bool) -> None:
    assert _is_vulnerable(version, fixed) is vulnerable


def test_a_vulnerable_version_is_named() -> None:
    info = {"redis_version": "7.2.4", "valkey_version": "8.0.1", "server_name": "valkey"}
    message = found("W014", list(_vulnerability(info, FAR)))
    assert "Valkey 8.0.1 at far has a known vulnerability (CVE-2025-49844" in message.msg
    assert "7.2.11, 8.0.6, 8.1.4 or newer" in str(message.hint)
    assert not list(_age(info, FAR))
    assert not list(_vulnerability(info, RedisUrl("embedded:///a", "a")))


@pytest.mark.parametrize(
    ("url", "open_door"),
    [
        ("redis://shop:6379/0", True),
        ("redis://10.0.0.1/0", True),
        ("rediss://user@shop/0", True),
        ("redis://:pw@shop/0", False),
        ("rediss://user:pw@shop/0", False),
        ("redis://shop/0?password=pw", False),
        ("redis://localhost/0", False),
        ("redis://127.0.0.1:6379", False),
        ("redis://127.1.2.3:6379", False),
        ("redis://[::1]:6379/0", False),
        ("redis:///0", False),
        ("unix:///run/redis.sock", False),
        ("embedded:///tmp/a", False),
    ],
)
def test_no_password_on_another_machine(url: str, open_door: bool) -> None:
    assert ids(list(_password({}, RedisUrl(url, url)))) == ({"W015"} if open_door else set())


@pytest.mark.parametrize(("there", "too_few"), [("0", True), ("1", True), ("2", False)])
def test_fewer_replicas_than_an_enqueue_waits_for(settings: Any, there: str, too_few: bool) -> None:
    info = {"connected_slaves": there}
    assert list(_replicas(info, HERE)) == []
    settings.REDISQUEUE = {"WAIT_REPLICAS": 2}
    messages = list(_replicas(info, HERE))
    assert ids(messages) == ({"W031"} if too_few else set())
    if too_few:
        message = found("W031", messages)
        assert f'{there} of the 2 replicas of REDISQUEUE["WAIT_REPLICAS"]' in message.msg


def test_missing_fields_of_info_are_not_a_problem() -> None:
    for check in (_role, _eviction, _persistence, _replicas):
        assert list(check({}, HERE)) == []


def limited(tenant: str, user: str) -> None: ...


def test_a_task_with_conditions_in_several_shards(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    settings.REDISQUEUE = {"LIMITS": {"stripe": {"concurrency": 3}}, "SHARDS": 1}
    task(concurrency=[Limit(2, key="tenant"), Limit("stripe", key="user")])(limited)
    assert check_settings() == []
    settings.REDISQUEUE = {**settings.REDISQUEUE, "SHARDS": 2}
    message = found("E026", check_settings())
    assert "Limit by tenant and Limit by user" in message.msg
