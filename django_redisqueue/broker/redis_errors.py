"""Translate every error of redis-py into an exception of the package."""

from __future__ import annotations

import re

from redis import exceptions as redis_errors
from redis.sentinel import MasterNotFoundError

from ..exceptions import (
    RedisCannotSave,
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
    WrongKeyType,
)

_WRONG_KEY = re.compile(r"WRONGKEY (\S+) (\S+) (\S+)")


def wrong_key(text: str) -> str | None:
    """Explain a script's WRONGKEY error (context.lua); None for any other text."""
    wrong = _WRONG_KEY.search(text)
    if wrong is None:
        return None
    key, found, expected = wrong.groups()
    return (
        f"the key {key} holds a {found} where a {expected} belongs: another program writes "
        "under this PREFIX. Nothing was changed; move one of them to another "
        'REDISQUEUE["PREFIX"]'
    )


def translate(error: Exception, address: str) -> RedisQueueError:
    """The package's error for one of redis-py's. ``address`` has its password masked."""
    text = str(error)
    wrong = wrong_key(text)
    if wrong:
        return WrongKeyType(wrong)
    if isinstance(error, MasterNotFoundError):  # first: it quotes the errors of sentinels
        return RedisUnavailable(f"Redis at {address} has no master now: {text}")
    # A long command before the login replies "Protocol error: unauthenticated ...".
    if "Authentication required" in text or "unauthenticated" in text:
        return RedisRefused(f"Redis at {address} wants a password ({text}); put it into the URL")
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return RedisRefused(
            f"Redis at {address} refuses the login ({text}); check the URL's user and password"
        )
    if "cluster support disabled" in text:
        return RedisRefused(f"Redis at {address} is no node of a cluster; use redis:// ({text})")
    code = _code(error, text)
    if code:
        kind, meaning = _MEANINGS[code]
        return kind(f"Redis at {address} {meaning} ({text})")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return RedisUnavailable(f"Redis at {address} does not answer ({text}); check that it runs")
    if "WRONGTYPE" in text:
        return WrongKeyType(f"a key of the queue holds another type than it should ({text})")
    return RedisRefused(f"Redis at {address} answers: {text}")


_MEANINGS: dict[str, tuple[type[RedisQueueError], str]] = {
    "OOM": (RedisFull, "has reached maxmemory; raise it, or let workers drain the queue"),
    "MISCONF": (RedisCannotSave, "cannot save to disk and refuses writes; look at its log"),
    "NOPERM": (RedisRefused, "does not permit this user the command; see docs/operations.md"),
    # Temporary: a failover, a restart or a resharding.
    "READONLY": (
        RedisUnavailable,
        "is a read-only replica; unless a failover is under way, connect to the master "
        "(redis+sentinel://)",
    ),
    "NOREPLICAS": (
        RedisUnavailable,
        "has fewer replicas than its min-replicas-to-write and refuses writes; they may be "
        "reconnecting",
    ),
    "UNBLOCKED": (RedisUnavailable, "has become a replica; try again shortly"),
    "LOADING": (RedisUnavailable, "is loading its data; try again shortly"),
    "MASTERDOWN": (RedisUnavailable, "is a replica without its master; try again shortly"),
    "CLUSTERDOWN": (RedisUnavailable, "belongs to a cluster that is down; try again shortly"),
    "TRYAGAIN": (RedisUnavailable, "is moving the queue's slot; try again shortly"),
    "MOVED": (
        RedisUnavailable,
        "has handed the queue's slot to another node of its cluster, which redis+cluster:// finds",
    ),
    "ASK": (RedisUnavailable, "is handing the queue's slot to another node; try again shortly"),
    "BUSY": (RedisUnavailable, "is busy with another program's script; try again shortly"),
    "UNKILLABLE": (RedisUnavailable, "is busy with another program's script; try again shortly"),
}
# redis-py strips the code from the text of errors that it has a class for. The first match wins.
_STRIPPED: dict[type[Exception], str] = {
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.MovedError: "MOVED",
    redis_errors.AskError: "ASK",
}
# In the errors of scripts, Redis 6.2 puts the code behind the script's name.
_CODE = re.compile(rf"(?:Error running script .*?: -?)?({'|'.join(_MEANINGS)})(?= |$)")
_WITHOUT_CODE = {
    "The user executing the script can't": "NOPERM",  # up to Redis 7.0
    "ACL failure in script": "NOPERM",  # from Redis 7.2, and Valkey
    "cannot be used with replica instances": "READONLY",  # WAIT
    # In scripts, on a cluster: a key is on another node, or on its way there.
    "attempted to access a non local key in a cluster node": "TRYAGAIN",
    "undeclared keys were accessed during rehashing of the slot": "TRYAGAIN",
    "attempted to access a slot not served": "CLUSTERDOWN",
    "while the cluster is down": "CLUSTERDOWN",
}


def _code(error: Exception, text: str) -> str | None:
    """The code of an error reply, if it is one of ``_MEANINGS``."""
    for kind, code in _STRIPPED.items():
        if isinstance(error, kind):
            return code
    for words, code in _WITHOUT_CODE.items():
        if words in text:
            return code
    found = _CODE.match(text) if isinstance(error, redis_errors.ResponseError) else None
    return found[1] if found else None
