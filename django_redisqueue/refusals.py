"""What Redis refuses, in the package's own words: every error of redis-py in one function."""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from .exceptions import (
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
    WrongKeyType,
)

_WRONG_KEY = re.compile(r"WRONGKEY (\S+) (\S+) (\S+)")


def translate(error: Exception, address: str) -> RedisQueueError:
    """The package's own error for one of redis-py's. ``address`` has its password masked."""
    text = str(error)
    wrong = _WRONG_KEY.search(text)
    if wrong:
        key, found, expected = wrong.groups()
        return WrongKeyType(
            f"the key {key} holds a {found} where a {expected} belongs: another program writes "
            "under this PREFIX. Nothing was changed; move one of them to another "
            'REDISQUEUE["PREFIX"]'
        )
    # A long command without a login is not even read: "Protocol error: unauthenticated ...".
    if "Authentication required" in text or "unauthenticated" in text:
        return RedisRefused(f"Redis at {address} wants a password ({text}); put it into the URL")
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return RedisRefused(
            f"Redis at {address} refuses the login ({text}); check the URL's user and password"
        )
    if isinstance(error, redis_errors.BusyLoadingError):
        return RedisUnavailable(f"Redis at {address} is loading its data; try again shortly")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return RedisUnavailable(f"Redis at {address} does not answer ({text}); is it running?")
    code = next((code for kind, code in _STRIPPED.items() if isinstance(error, kind)), "")
    if "The user executing the script can't" in text:  # run a command, reach a key, publish
        code = "NOPERM"
    return _refusal(f"{code} {text}".strip(), address)


# redis-py takes the code off the text of the errors that it has a class for.
_STRIPPED: dict[type[Exception], str] = {
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.MasterDownError: "MASTERDOWN",
}
_REFUSALS = (
    ("OOM", RedisFull, "has reached maxmemory; raise it, or let workers drain the queue"),
    ("READONLY", RedisRefused, "is a read-only replica; connect to the master (redis+sentinel://)"),
    ("MISCONF", RedisRefused, "can not save to disk and refuses writes; look at its log"),
    ("NOPERM", RedisRefused, "does not permit this user the command; see docs/operations.md"),
    ("LOADING", RedisUnavailable, "is loading its data; try again shortly"),
    ("MASTERDOWN", RedisUnavailable, "is a replica without its master; try again shortly"),
    ("BUSY", RedisUnavailable, "is busy with another program's script; try again shortly"),
    ("UNKILLABLE", RedisUnavailable, "is busy with another program's script; try again shortly"),
)


def _refusal(text: str, address: str) -> RedisQueueError:
    for code, kind, meaning in _REFUSALS:
        # A script's error reply carries the code behind a prefix on Redis 6.
        if text.startswith(code) or re.search(rf"\B-?{code}\b|: {code} ", text):
            return kind(f"Redis at {address} {meaning} ({text})")
    if "WRONGTYPE" in text:
        return WrongKeyType(f"a key of the queue holds another type than it should ({text})")
    return RedisRefused(f"Redis at {address} answers: {text}")
