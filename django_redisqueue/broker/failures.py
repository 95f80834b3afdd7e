"""What happens when Redis fails: each error of redis-py becomes one of the package's exceptions,
calls are retried until they succeed, and a failure is logged once, not on every retry."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from redis import exceptions as redis_errors
from redis.sentinel import MasterNotFoundError

from ..exceptions import (
    LoginRefused,
    RedisCannotSave,
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
    WrongKeyType,
)

_WRONG_KEY = re.compile(r"WRONGKEY (\S+) (\S+) (\S+)")

logger = logging.getLogger("django_redisqueue")

Answer = TypeVar("Answer")
FIRST, CAP = 0.05, 2.0  # s
LASTING = 10.0  # s after which the reason why an outage lasts is logged


def wrong_key(text: str) -> str | None:
    """Explain a script's WRONGKEY error (context.lua); None for any other text."""
    wrong = _WRONG_KEY.search(text)
    return explain_type(*wrong.groups()) if wrong else None


def explain_type(key: str, found: str, expected: str) -> str:
    """Explain that a key holds another type than it should."""
    return (
        f"the key {key} holds a {found} where a {expected} belongs: another program writes "
        "under this PREFIX. Nothing was changed; move one of the two to another "
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
        return LoginRefused(f"Redis at {address} requires a password ({text}); put it into the URL")
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return LoginRefused(
            f"Redis at {address} refuses the login ({text}); check the URL's user and password"
        )
    if "cluster support disabled" in text:
        return RedisRefused(f"Redis at {address} is not a cluster node; use redis:// ({text})")
    if text.startswith("unknown command") or "Unknown Redis command" in text:  # in a script
        return RedisRefused(
            f"Redis at {address} lacks a command: it is a sentinel (use redis+sentinel://), is too "
            f"old, or is configured without it ({text})"
        )
    code = _code(error, text)
    if code:
        kind, meaning = _MEANINGS[code]
        return kind(f"Redis at {address} {meaning} ({text})")
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return RedisUnavailable(f"Redis at {address} does not answer ({text}); check that it runs")
    if "WRONGTYPE" in text:
        return WrongKeyType(f"a key of the queue has the wrong type ({text})")
    return RedisRefused(f"Redis at {address} answers: {text}")


_MEANINGS: dict[str, tuple[type[RedisQueueError], str]] = {
    "OOM": (RedisFull, "has reached maxmemory; raise it, or let workers drain the queue"),
    "MISCONF": (RedisCannotSave, "cannot save to disk and refuses writes; look at its log"),
    "NOPERM": (RedisRefused, "does not allow this user to run the command; see docs/operations.md"),
    "MAXCLIENTS": (
        RedisUnavailable,
        "has as many connections as its maxclients allows; raise it, or run fewer processes",
    ),
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
# In the errors of scripts, Redis 6.2 puts the code after the script's name.
_CODE = re.compile(rf"(?:Error running script .*?: -?)?({'|'.join(_MEANINGS)})(?= |$)")
# Texts of errors that have no code, in lower case: servers differ in it.
_WITHOUT_CODE = {
    "the user executing the script can't": "NOPERM",  # up to Redis 7.0
    "acl failure in script": "NOPERM",  # from Redis 7.2, and Valkey
    "cannot be used with replica instances": "READONLY",  # WAIT
    "max number of clients": "MAXCLIENTS",
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
    lowered = text.lower()
    for words, code in _WITHOUT_CODE.items():
        if words in lowered:
            return code
    found = _CODE.match(text) if isinstance(error, redis_errors.ResponseError) else None
    return found[1] if found else None


@dataclass(slots=True)
class Outage:
    """When an outage began (monotonic), and what was logged about it so far."""

    since: float = field(default_factory=time.monotonic)
    _logged: set[object] = field(default_factory=set)

    def is_news(self, error: Exception, text: str) -> bool:
        """Whether to log this error, which then counts as logged: it begins the outage, or is a new
        cause.

        While Redis is unavailable the texts vary, so only the first one is news, and another one
        after LASTING seconds: the first often only says that the connection was cut.
        """
        cause: object = text
        if isinstance(error, RedisUnavailable):
            cause = (RedisUnavailable, time.monotonic() - self.since >= LASTING)
        if not self._logged.isdisjoint((cause, text)):
            return False
        self._logged |= {cause, text}
        return True


_outages: dict[str, Outage] = {}  # of this process, by the part that met them


class RetryBackoff:
    """Counts failures in a row, and pauses after each: for 0.05 s, doubling to 2 s, with jitter."""

    def __init__(self) -> None:
        self.failures = 0

    def next_pause(self) -> float:
        """Note a failure; return the seconds to wait before the next try."""
        longest: float = min(CAP, FIRST * 2 ** min(self.failures, 10))
        self.failures += 1
        return longest * random.uniform(0.5, 1)

    def pause(self) -> None:
        """Note a failure and sleep before the next try."""
        time.sleep(self.next_pause())

    def reset(self) -> None:
        self.failures = 0


def retry_until_answered(
    ask: Callable[[bool], Answer],
    *,
    who: str,
    give_up: Callable[[RedisQueueError], bool] = lambda _: False,
) -> Answer:
    """Call ``ask(resent)`` until Redis answers; ``resent`` is True from the second call on. Raises
    an error for which ``give_up(error)`` is True."""
    backoff = RetryBackoff()
    while True:
        try:
            answer = ask(backoff.failures > 0)
        except RedisQueueError as error:
            if give_up(error):
                raise
            log_outage(who, error)
            backoff.pause()
        else:
            if backoff.failures:
                log_recovery(who)
            return answer


def retry_while_unavailable(ask: Callable[[], Answer]) -> Answer:
    """Call ``ask`` until Redis is available and accepts the login. Used by jobs, whose timeout is
    the limit."""
    backoff = RetryBackoff()
    while True:
        try:
            return ask()
        except (RedisUnavailable, LoginRefused):
            backoff.pause()


def log_outage(who: str, error: RedisQueueError) -> None:
    """Log the error if it begins an outage, or is a new cause of the current one."""
    if _outages.setdefault(who, Outage()).is_news(error, str(error)):
        #: Redis does not answer, or refuses commands, and the part named in the line waits for it.
        #: No job is lost. Bring Redis back.
        logger.error("%s: %s; trying again until it answers", who, error)


def log_recovery(who: str) -> None:
    """Log the end of the outage, if there was one."""
    outage = _outages.pop(who, None)
    if outage is not None:
        seconds = time.monotonic() - outage.since
        #: The outage is over; the line says how long it lasted. No action is needed.
        logger.warning("%s: Redis answers again after %.1f s", who, seconds)


class BlockedQueues:
    """Logs once when a key of the wrong type blocks a queue, and once when the queue resumes."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._known: dict[str, str] = {}

    @property
    def is_blocked(self) -> bool:
        return bool(self._known)

    def note(self, blocked: Mapping[str, str]) -> None:
        """Compare with the queues that are blocked now: queue -> what is wrong."""
        if not blocked and not self._known:
            return
        for queue, problem in blocked.items():
            if self._known.get(queue) != problem:
                #: Another program has written a key of this queue with the wrong type, so the
                #: queue's jobs neither start nor become due. Nothing was changed. Rename or delete
                #: the key named in the line.
                logger.error("%s: queue %s is blocked: %s", self._who, queue, problem)
        for queue in self._known.keys() - blocked.keys():
            #: The keys of the blocked queue are in order again, and the queue continues. No action
            #: is needed.
            logger.warning("%s: queue %s continues: its keys are in order", self._who, queue)
        self._known = dict(blocked)
