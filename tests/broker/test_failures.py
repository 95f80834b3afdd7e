"""How Redis and Valkey refuse commands, with the error texts of Redis 6.2 to 8 and of Valkey up to
9."""

from __future__ import annotations

import pytest
from redis import exceptions as redis_errors
from redis.connection import DefaultParser

from django_redisqueue.broker.failures import translate
from django_redisqueue.exceptions import (
    LoginRefused,
    RedisCannotSave,
    RedisFull,
    RedisQueueError,
    RedisRefused,
    RedisUnavailable,
    WrongKeyType,
)

SCRIPT_62 = "ERR Error running script (call to f_2bc3): @user_script:5: "
SCRIPT_7 = " script: 2bc3, on @user_script:5."
NO_PERMISSION = "does not allow this user to run the command; see docs/operations.md"
READ_ONLY = "is a read-only replica; unless a failover is under way, connect to the master"


def refusal(reply: str) -> RedisQueueError:
    """What an error reply is translated into."""
    return translate(DefaultParser.parse_error(reply), "redis://shop:***@h/0")


@pytest.mark.parametrize(
    "reply",
    [
        "NOPERM this user has no permissions to run the 'evalsha' command or its subcommand",
        "NOPERM this user has no permissions to access one of the keys used as arguments",
        "NOPERM User shop has no permissions to run the 'evalsha' command",
        "NOPERM No permissions to access a key",
        f"{SCRIPT_62}@user_script: 5: The user executing the script can't run this command or "
        "subcommand",
        f"{SCRIPT_62}The user executing the script can't access at least one of the keys",
        f"ERR The user executing the script can't run this command or subcommand{SCRIPT_7}",
        f"ERR The user executing the script can't publish to the channel{SCRIPT_7}",
        f"ERR ACL failure in script: User shop has no permissions to run the 'lpush' "
        f"command{SCRIPT_7}",
        f"ERR ACL failure in script: No permissions to access a key{SCRIPT_7}",
        f"ERR ACL failure in script: No permissions to access database{SCRIPT_7}",
    ],
)
def test_a_missing_permission(reply: str) -> None:
    error = refusal(reply)
    assert type(error) is RedisRefused
    assert NO_PERMISSION in str(error)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("READONLY You can't write against a read only replica.", READ_ONLY),
        (f"{SCRIPT_62}-READONLY You can't write against a read only replica.", READ_ONLY),
        (f"READONLY You can't write against a read only replica.{SCRIPT_7}", READ_ONLY),
        ("ERR WAIT cannot be used with replica instances. Please also note that", READ_ONLY),
        ("NOREPLICAS Not enough good replicas to write.", "its min-replicas-to-write"),
        (f"{SCRIPT_62}-NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        (f"NOREPLICAS Not enough good replicas to write.{SCRIPT_7}", "its min-replicas-to-write"),
        (
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> "
            "replica?)",
            "has become a replica",
        ),
        ("LOADING Redis is loading the dataset in memory", "is loading its data"),
        ("LOADING Valkey is loading the dataset in memory", "is loading its data"),
        (
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "is a replica without its master",
        ),
        ("CLUSTERDOWN The cluster is down", "a cluster that is down"),
        ("CLUSTERDOWN Hash slot not served", "a cluster that is down"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "is moving the queue's slot"),
        ("MOVED 3999 127.0.0.1:6381", "has handed the queue's slot to another node"),
        ("ASK 3999 127.0.0.1:6381", "is handing the queue's slot to another node"),
        (
            f"{SCRIPT_62}@user_script: 5: Lua script attempted to access a non local key in a "
            "cluster node",
            "is moving the queue's slot",
        ),
        (
            f"ERR Script attempted to access a non local key in a cluster node{SCRIPT_7}",
            "is moving the queue's slot",
        ),
        (  # Valkey 9.1
            "ERR Attempted to access a non local key in a cluster node script: on @user_script:1.",
            "is moving the queue's slot",
        ),
        (
            "ERR Unable to execute command 'exists' in script because undeclared keys were "
            f"accessed during rehashing of the slot{SCRIPT_7}",
            "is moving the queue's slot",
        ),
        (
            f"ERR Script attempted to access a slot not served{SCRIPT_7}",
            "a cluster that is down",
        ),
        (
            "ERR Script attempted to execute a write command while the cluster is down and "
            f"readonly{SCRIPT_7}",
            "a cluster that is down",
        ),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "program's script"),
        ("UNKILLABLE Sorry the script already executed write commands", "program's script"),
        ("ERR max number of clients reached", "raise it, or run fewer processes"),
        ("ERR max number of clients + cluster connections reached", "maxclients allows"),
    ],
)
def test_temporary_errors_are_waited_for(reply: str, words: str) -> None:
    error = refusal(reply)
    assert type(error) is RedisUnavailable
    assert words in str(error)


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", RedisFull, "maxmemory; raise"),
        (f"{SCRIPT_62}-OOM command not allowed when used memory > ", RedisFull, "maxmemory; raise"),
        ("MISCONF Valkey is configured to save RDB snapshots", RedisCannotSave, "cannot save"),
        ("MISCONF Errors writing to the AOF file: No space left", RedisCannotSave, "cannot save"),
        ("NOAUTH Authentication required.", LoginRefused, "requires a password"),
        ("WRONGPASS invalid username-password pair", LoginRefused, "refuses the login"),
        ("WRONGTYPE Operation against a key", WrongKeyType, "has the wrong type"),
        ("BUSYGROUP Consumer Group name already exists", RedisRefused, "answers: BUSYGROUP"),
        ("ERR unknown command 'x', beginning with: ASK", RedisRefused, "it is a sentinel"),
        ("ERR Unknown Redis command called from script", RedisRefused, "configured without it"),
    ],
)
def test_permanent_errors_are_raised(reply: str, kind: type[RedisQueueError], words: str) -> None:
    error = refusal(reply)
    assert type(error) is kind
    assert words in str(error)


def test_an_error_code_in_a_network_error_is_ignored() -> None:
    error = translate(redis_errors.ConnectionError("Error connecting to: OOM refused."), "h")
    assert type(error) is RedisUnavailable
