"""Checks of the Redis server. They are deploy checks, and run whenever a worker starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.core.checks import CheckMessage

from ..broker.connection import RedisConnection, worker_connection
from ..broker.overview import eviction_policy, info_fields
from ..broker.queries import Queries
from ..broker.redis_url import RedisUrl, redis_urls
from ..broker.shards import AllShards, number_problem
from ..conf import get_settings
from ..exceptions import ConfigurationError, RedisQueueError, RedisRefused
from ..health.findings import evicts, unknown_queue
from .local import LOCAL_NAMES, make_error, make_warning

Version = tuple[int, ...]
Info = Mapping[str, str]
OLDEST: Version = (6, 2)
COVERAGE = "cluster-require-full-coverage"
# The first fixed release of each line for CVE-2025-49844, code execution by Lua. The recommended
# workaround, to forbid EVAL, is not possible here: this package needs scripts.
REDIS_FIXED: tuple[Version, ...] = ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2))
VALKEY_FIXED: tuple[Version, ...] = ((7, 2, 11), (8, 0, 6), (8, 1, 4))


def check_network(**_: Any) -> list[CheckMessage]:
    """The deploy check. ``check_settings`` reports invalid settings."""
    try:
        connection = worker_connection()
        redis_urls()
    except ConfigurationError:
        return []
    try:
        return check_servers(AllShards(connection.at))
    finally:
        connection.close_all()


def check_servers(shards: AllShards) -> list[CheckMessage]:
    """Check the servers of these shards. Does not ask those of missing shards."""
    answers: dict[RedisUrl, Info | RedisRefused] = {}

    def ask(one: RedisConnection) -> None:
        if one.redis_url not in answers:
            answers[one.redis_url] = _ask(one)

    with suppress(RedisQueueError):  # no shard is left: all are missing
        shards.each(ask)
    found = [_no_answer(error) for error in shards.missing.values()]
    for url, answer in answers.items():
        found += _check_server(url, answer)
    if not all(isinstance(answer, RedisRefused) for answer in answers.values()):
        found += _check_shards(shards)
    # Shards may have a server or a node in common: each message once.
    return list({str(message): message for message in found}.values())


def _ask(connection: RedisConnection) -> Info | RedisRefused:
    """INFO, and the setting COVERAGE if it may be read; or why Redis refuses. Raises
    RedisUnavailable."""
    try:
        info = info_fields(connection.call("INFO"))
    except RedisRefused as error:
        return error
    with suppress(RedisRefused):  # a managed service, or an ACL without +config|get
        found = connection.call("CONFIG", "GET", COVERAGE)
        info.update(zip(found[::2], found[1::2], strict=True))
    return info


def _no_answer(error: RedisQueueError) -> CheckMessage:
    remedy = 'Start it, or correct REDISQUEUE["CONNECTION"] (for TLS, rediss://).'
    return make_error(10, f"{error}.", remedy)


def _check_server(redis_url: RedisUrl, answer: Info | RedisRefused) -> Iterator[CheckMessage]:
    if isinstance(answer, RedisRefused):
        yield _no_answer(answer)
        return
    for check in (
        _role, _eviction, _age, _vulnerability, _password, _persistence, _split, _replicas, _node,
        _coverage,
    ):  # fmt: skip
        yield from check(answer, redis_url)


def _check_shards(shards: AllShards) -> Iterator[CheckMessage]:
    try:
        problem = number_problem(shards)
        found = shards.each(lambda one: Queries(one).stranded(get_settings().queues))
    except RedisQueueError as error:
        yield _no_answer(error)
        return
    if problem:
        yield make_error(27, f"{problem}.", "docs/scale.md explains how to change the number.")
    for queue, jobs in sum(map(Counter, found.by_shard.values()), Counter[str]()).items():
        stranded = unknown_queue(queue, jobs)
        yield make_warning(19, stranded.text, stranded.remedy)


def _role(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    if redis_url.is_fixed and info.get("role", "master") != "master":
        yield make_error(
            11,
            f"Redis at {redis_url.address} is a replica, which accepts no jobs.",
            "Name its master, or let Sentinel find it: redis+sentinel://host:26379/<service>.",
        )


def _eviction(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    policy = eviction_policy(info)
    if policy != "noeviction":
        found = evicts(policy)
        yield make_error(12, found.text, found.remedy)


def _age(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    name, version = _server(info)
    if version[:2] < OLDEST:
        yield make_error(
            13,
            f"{name} {_dotted(version)} at {redis_url.address} is too old.",
            f"Use Redis {_dotted(OLDEST)} or newer, or Valkey 7.2 or newer.",
        )


def _vulnerability(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    name, version = _server(info)
    fixed = VALKEY_FIXED if name == "Valkey" else REDIS_FIXED
    if redis_url.text.startswith("embedded://") or not _is_vulnerable(version, fixed):
        return  # only the owner of an embedded server can open its socket
    yield make_warning(
        14,
        f"{name} {_dotted(version)} at {redis_url.address} has a known vulnerability "
        "(CVE-2025-49844: anyone who can log in can run code).",
        f"Upgrade to one of {', '.join(map(_dotted, fixed))} or newer. If your distribution has "
        "backported the fix to this version, silence this check (SILENCED_SYSTEM_CHECKS).",
    )


def _is_vulnerable(version: Version, fixed: tuple[Version, ...]) -> bool:
    for first in fixed:
        if version[:2] == first[:2]:
            return version < first
    return version < fixed[-1]  # a line without a fixed release, or newer than the fix


def _password(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    if not redis_url.text.startswith(("redis://", "rediss://")):
        return
    parts = urlsplit(redis_url.text)
    if parts.password is not None or "password" in parse_qs(parts.query):
        return
    if parts.hostname not in LOCAL_NAMES and not str(parts.hostname).startswith("127."):
        yield make_warning(
            15,
            f"Redis at {redis_url.address} requires no password, and is not on this machine.",
            "Set requirepass or an ACL user, put the password in the URL, and use rediss:// on "
            "networks where others may listen.",
        )


def _persistence(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    if info.get("aof_enabled") == "0":
        yield make_warning(
            16,
            f"Redis at {redis_url.address} keeps no append-only file: a crash loses everything "
            "since the last snapshot.",
            "Set appendonly yes (with appendfsync everysec a crash loses at most a second or two).",
        )


def _split(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    """INFO has the number of good replicas only if min-replicas-to-write is set."""
    if not redis_url.is_fixed and "min_slaves_good_slaves" not in info:
        yield make_warning(
            18,
            f"The master at {redis_url.address} has min-replicas-to-write 0: when it is cut off "
            "from its replicas, it keeps accepting jobs, which are lost when it is reconnected.",
            "Set min-replicas-to-write 1 (and min-replicas-max-lag 10) on all servers. A master "
            "without replicas then refuses jobs, and workers wait.",
        )


def _replicas(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    wanted, there = get_settings().wait_replicas, info.get("connected_slaves", "")
    if there.isdigit() and int(there) < wanted:
        yield make_warning(
            31,
            f"The master at {redis_url.address} has {there} of the {wanted} replicas of "
            'REDISQUEUE["WAIT_REPLICAS"]: enqueues raise NotReplicated, and the mirror waits.',
            "Bring the replicas back, or lower WAIT_REPLICAS.",
        )


def _node(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    if info.get("cluster_enabled") == "1" and not redis_url.is_cluster:
        yield make_error(
            24,
            f"Redis at {redis_url.address} is a single node of a Redis Cluster: it does not have "
            "all slots, and when it dies or a slot moves, the new owner is not found.",
            "Name the cluster: redis+cluster://host:port,host:port.",
        )


def _coverage(info: Info, redis_url: RedisUrl) -> Iterator[CheckMessage]:
    if redis_url.is_cluster and info.get(COVERAGE) == "yes":
        yield make_warning(
            25,
            f"The cluster at {redis_url.address} has {COVERAGE} yes: if one "
            "master and its replicas are down, all others refuse every command as well.",
            f"Set {COVERAGE} no on all nodes.",
        )


def _server(info: Info) -> tuple[str, Version]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = info.get("valkey_version") or info.get("redis_version", "0")
    return name, tuple(int(part) for part in text.split(".") if part.isdigit())


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
