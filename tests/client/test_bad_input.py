"""Bad input gets an error that says what is wrong and what to do, and nothing is written."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from redis import Redis

from django_redisqueue import Backoff, JobQueue, get_job, task
from django_redisqueue.broker.keys import Keys
from django_redisqueue.broker.queries import UnreadableJob
from django_redisqueue.client import limits
from django_redisqueue.core.codec import encode_result
from django_redisqueue.exceptions import (
    CorruptJob,
    InvalidArguments,
    InvalidName,
    InvalidOption,
    InvalidTask,
    PayloadTooLarge,
    RedisQueueError,
    UnknownQueue,
    UnknownTask,
    WrongKeyType,
)
from tests.app import tasks
from tests.app.models import Counter
from tests.support.shards import keys_of

from ..support.manual_worker import low

pytestmark = pytest.mark.usefixtures("queue_settings")


@contextmanager
def refused(kind: type[RedisQueueError], *words: str) -> Iterator[None]:
    """The block raises ``kind`` with a message that contains all the words."""
    with pytest.raises(kind) as caught:
        yield
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.fixture(autouse=True)
def nothing_is_written(redis: Redis, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "keys" not in request.fixturenames:  # those tests write invalid values by hand
        assert redis.keys() == []


@dataclass
class Point:
    x: int


class Colour(Enum):
    RED = "red"


# --- arguments ------------------------------------------------------------------------------------

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

UNSERIALISABLE = [
    (Counter(name="a", pk=1), "tests.app.models.Counter", "use its primary key (.pk)"),
    (object(), "builtins.object", "use str(value) or an id"),
    (b"\x00", "builtins.bytes", "use text, such as its base64"),
    ({1, 2}, "builtins.set", "use a list of its items"),
    (datetime(2025, 1, 1), "datetime.datetime", "isoformat()"),
    (date(2025, 1, 1), "datetime.date", "isoformat()"),
    (timedelta(days=1), "datetime.timedelta", "use value.total_seconds()"),
    (Colour.RED, "Colour", "use value.value"),
    (Point(1), "Point", "use dataclasses.asdict(value)"),
    (Decimal("1.5"), "decimal.Decimal", "use str(value)"),
    (uuid.uuid4(), "uuid.UUID", "use str(value)"),
    (float("nan"), "is nan, which JSON cannot carry", "None"),
    (float("inf"), "is inf, which JSON cannot carry", "None"),
    ("a\ud800", "lone surrogate", "argument "),
    (ENDLESS, "contains itself", "nested too deeply"),
    (10**5000, "cannot be written as JSON", "4300"),
]
IDS = [repr(type(value).__name__) for value, *_ in UNSERIALISABLE]


@pytest.mark.parametrize(("value", "what", "remedy"), UNSERIALISABLE, ids=IDS)
def test_an_argument_that_cannot_travel(value: Any, what: str, remedy: str) -> None:
    with refused(InvalidArguments, "tests.app.tasks.noop", what, remedy):
        tasks.noop.enqueue(value)
    with refused(InvalidArguments, "tests.app.tasks.noop", what, remedy):
        tasks.noop.enqueue(x=value)
    with refused(InvalidArguments, "tests.app.tasks.noop", what, remedy):
        tasks.noop.enqueue([{"a": value}])


def test_the_argument_is_named() -> None:
    with refused(InvalidArguments, "argument 2 of tests.app.tasks.add is a builtins.object"):
        tasks.add.enqueue(1, object())
    with refused(InvalidArguments, "argument 'b' of tests.app.tasks.add is a builtins.object"):
        tasks.add.enqueue(1, b=object())
    with refused(InvalidArguments, "argument 2 of tests.app.tasks.add has a lone surr"):
        tasks.add.enqueue(1, {"a": ["fine", "\udc00"]})
    with refused(InvalidArguments, "argument 'b' of tests.app.tasks.add has a lone surr"):
        tasks.add.enqueue(1, b={"\udc00": 1})
    with refused(InvalidArguments, "argument 1 of tests.app.tasks.noop['a'][1] is nan"):
        tasks.noop.enqueue({"a": [1, float("nan")]})


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1,)], ids=repr)
def test_a_dict_key_that_is_not_a_string(key: Any) -> None:
    with refused(InvalidArguments, f"has the key {key!r}", "JSON keys are strings", repr(str(key))):
        tasks.noop.enqueue({"a": {key: 1}})


def test_a_dict_key_that_cannot_be_shown() -> None:
    with refused(InvalidArguments, "has the key a value of int that cannot be shown"):
        tasks.noop.enqueue({10**5000: 1})


def test_a_queryset_as_an_argument() -> None:
    with refused(InvalidArguments, "argument 1", "QuerySet"):
        tasks.noop.enqueue(Counter.objects.all())


def test_one_bad_call_of_many_sends_none() -> None:
    with refused(InvalidArguments, "argument 1 of tests.app.tasks.noop"):
        tasks.noop.enqueue_many([(1,), (2,), (object(),)])
    with refused(InvalidArguments, "call 2 is 'text'", "('text',)"):
        tasks.noop.enqueue_many([(1,), "text"])
    with refused(InvalidArguments, "call 1 is 5", "[(5,)]"):
        tasks.noop.enqueue_many(5)  # type: ignore[arg-type]


def test_an_error_notes_which_call_of_many_is_wrong() -> None:
    with pytest.raises(InvalidArguments) as caught:
        tasks.noop.enqueue_many([(1,), (2,), (object(),), (4,)])
    assert caught.value.__notes__ == ["call 3 of enqueue_many"]


def test_a_payload_over_the_cap(settings: Any, queue_settings: dict[str, Any]) -> None:
    settings.REDISQUEUE = {**queue_settings, "MAX_PAYLOAD_BYTES": 100}
    with refused(
        PayloadTooLarge, "the arguments of tests.app.tasks.noop", "109 bytes",
        "REDISQUEUE['MAX_PAYLOAD_BYTES'] allows 100", "pass its key",
    ):  # fmt: skip
        tasks.noop.enqueue("x" * 100)
    with refused(PayloadTooLarge, "209 bytes"):
        tasks.noop.enqueue("é" * 100)  # bytes, not characters


def test_a_result_over_the_cap_or_unserialisable() -> None:
    assert encode_result("x" * 8, 10, "a.b") == '"xxxxxxxx"'
    with refused(PayloadTooLarge, "the result of a.b would be 11 bytes", "MAX_RESULT_BYTES"):
        encode_result("x" * 9, 10, "a.b")
    with refused(InvalidArguments, "the result of a.b is a builtins.object"):
        encode_result(object(), 10, "a.b")
    with refused(InvalidArguments, "the result of a.b['n'] is nan"):
        encode_result({"n": float("nan")}, 100, "a.b")


# --- names and options ----------------------------------------------------------------------------


def test_an_unknown_queue() -> None:
    with refused(UnknownQueue, "'defualt'", "did you mean 'default'?", 'REDISQUEUE["QUEUES"] has'):
        JobQueue("defualt")
    with refused(UnknownQueue, "'nowhere'", "has: default"):
        tasks.noop.using(queue_name="nowhere")
    with refused(UnknownQueue, "'low'"):
        low.enqueue()  # its decorator names a queue that is missing from these settings
    with refused(UnknownQueue, "'low'"):
        low.enqueue_many([(1,)])


def test_an_unknown_task_name() -> None:
    with refused(
        UnknownTask, "'tests.app.tasks.nop'", "did you mean 'tests.app.tasks.noop'?", "TASK_MODULES"
    ):
        JobQueue().add_job("tests.app.tasks.nop")


@pytest.mark.parametrize("thing", [print, None, 3, tasks.bump])
def test_add_job_with_something_other_than_a_task(thing: Any) -> None:
    with refused(InvalidTask, "a registered name or a function decorated with @task"):
        JobQueue().add_job(thing)


@pytest.mark.parametrize("value", [101, -101, 1.5, 5.0, "5", True, float("nan")], ids=repr)
def test_an_invalid_priority(value: Any) -> None:
    with refused(InvalidOption, "a whole number from -100 to 100", "larger first", repr(value)):
        tasks.noop.using(priority=value)
    with refused(InvalidOption, "priority must be"):
        task(priority=value)(outside)


def test_a_naive_datetime_under_use_tz() -> None:
    with refused(InvalidOption, "naive datetime", "USE_TZ is on", "timezone.now()"):
        tasks.noop.using(run_after=datetime(2030, 1, 1))


@pytest.mark.parametrize("value", ["soon", -1, timedelta(seconds=-1), float("inf"), True, object()])
def test_a_run_after_that_is_not_a_time(value: Any) -> None:
    with refused(InvalidOption, "run_after, unless a datetime, must be"):
        tasks.noop.using(run_after=value)


CHICAGO = ZoneInfo("America/Chicago")


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=CHICAGO),
        datetime.min.replace(tzinfo=UTC), datetime.now(UTC) + timedelta(days=36_501),
        36_501 * 86_400, 10**10_000, timedelta.max,
    ],
    ids=["last", "zone", "first", "instant", "delay", "digits", "timedelta"],
)  # fmt: skip
def test_a_run_after_at_the_end_of_the_calendar(value: Any) -> None:
    with refused(InvalidOption, "run_after", "a hundred years"):
        tasks.noop.using(run_after=value)


def test_a_naive_run_after_at_the_end_of_the_calendar(settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/Chicago"
    for value in (datetime.max, datetime.min):
        with refused(InvalidOption, "run_after must be within a hundred years"):
            tasks.noop.using(run_after=value)


def test_an_option_that_does_not_exist() -> None:
    with refused(InvalidOption, "using() has no option 'prioritty' (did you mean 'priority'?)"):
        tasks.noop.using(prioritty=1)
    with refused(InvalidOption, "@task has no option 'retries'", "it accepts queue_name, priority"):
        task(retries=3)(outside)
    with refused(InvalidOption, "@task has no option 'alias' (did you mean 'aliases'?)"):
        task(alias="tasks.old")(outside)


def test_an_option_in_the_wrong_place() -> None:
    with refused(InvalidOption, "'run_after' is an option of using(), for one call, not of @task"):
        task(run_after=5)(outside)
    for option in ({"retry_on": OSError}, {"name": "tasks.other"}):
        with refused(InvalidOption, "is an option of @task, for every call, not of using()"):
            tasks.noop.using(**option)
    with refused(
        InvalidArguments,
        "argument 'priority'; it takes (x=None); pass options",
        "using(priority=...)",
    ):
        tasks.noop.enqueue(priority=5)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("timeout", -1, "timeout (0 for none) must be a duration of zero or more"),
        ("timeout", "5", "timeout (0 for none) must be seconds, a timedelta, or a text"),
        ("timeout", None, "timeout (0 for none) must be seconds, a timedelta, or a text"),
        (
            "timeout",
            3_153_600_001,
            "must be a duration of at most a hundred years, not 3153600001",
        ),
        ("max_attempts", 0, "max_attempts must be a whole number from 1 to 10000"),
        ("max_attempts", 2.5, "max_attempts must be a whole number"),
        ("backoff", "2", "backoff, unless a Backoff or a list of delays, must be seconds"),
        ("backoff", [], "backoff, unless a Backoff or a list of delays, must be seconds"),
        ("backoff", True, "backoff, unless a Backoff or a list of delays, must be seconds"),
        ("backoff", {1: 2}, "backoff, unless a Backoff or a list of delays, must be seconds"),
        (
            "backoff",
            -1,
            "backoff, unless a Backoff or a list of delays, must be a duration of zero",
        ),
        ("backoff", [1, -1], "delay 2 of backoff must be a duration of zero or more, not -1"),
        ("backoff", ["1"], "delay 1 of backoff must be seconds, a timedelta, or a text such as"),
        ("backoff", [1, 2, True], "delay 3 of backoff must be seconds, a timedelta, or a text"),
        ("backoff", [float("nan")], "delay 1 of backoff must be a duration of zero or more"),
        ("retry_on", "OSError", "retry_on must be subclasses of Exception"),
        ("retry_on", (KeyboardInterrupt,), "retry_on must be subclasses of Exception"),
        ("no_retry_on", [ValueError("a")], "no_retry_on must be subclasses of Exception"),
        ("takes_context", "no", "takes_context must be True or False"),
        ("audit", "some", "audit must be one of all, final, failed, none"),
        ("queue_name", "a b", "'a b' is not a valid queue name"),
        ("aliases", "oldname", "aliases must be a list of the task's old names, such as"),
        ("aliases", ["shop.a", 3], "aliases must be a list of the task's old names"),
        ("aliases", {"shop.a": 1}, "aliases must be a list of the task's old names"),
        ("aliases", None, "aliases must be a list of the task's old names"),
        ("aliases", ["1.x"], "'1.x' is not a valid task name"),
        ("name", "a b", "'a b' is not a valid task name: use a dotted Python path"),
    ],
)
def test_an_option_out_of_range(option: str, value: Any, words: str) -> None:
    with refused(RedisQueueError, words):
        task(**{option: value})(outside)


DURATION = 'must be seconds, a timedelta, or a text such as "90s", "5m" or "1h30m", not '
NAN, ENDLESSLY = float("nan"), float("inf")


@pytest.mark.parametrize("name", ["base", "maximum"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", DURATION + "'x'"),
        (None, DURATION + "None"),
        (True, DURATION + "True"),
        (Decimal(2), DURATION + "Decimal('2')"),
        (-1, "must be a duration of zero or more, not -1"),
        (timedelta(-1), "must be a duration of zero or more, not datetime.timedelta(days=-1)"),
        (NAN, "must be a duration of zero or more, not nan"),
        (ENDLESSLY, "must be a duration of at most a hundred years, not inf"),
        (10**10, "must be a duration of at most a hundred years, not 10000000000"),
    ],
)
def test_a_backoff_without_a_valid_duration(name: str, value: Any, words: str) -> None:
    with refused(InvalidOption, f"Backoff({name}=...) {words}"):
        Backoff(**{name: value})


@pytest.mark.parametrize(
    "value", ["2", None, True, -1, 1e7, NAN, ENDLESSLY, timedelta(1)], ids=repr
)
@pytest.mark.parametrize(("name", "bounds"), [("factor", "1 to 1000000"), ("jitter", "0 to 1")])
def test_a_backoff_that_is_not_a_number(name: str, bounds: str, value: Any) -> None:
    words = f"Backoff({name}=...) must be a number from {bounds}, not {value!r}"
    with refused(InvalidOption, words):
        Backoff(**{name: value})


@pytest.mark.parametrize("value", ["", "a b", "a:b", "{0}", "-a", "ü", "x" * 65, "a\n", None, 3])
def test_a_bad_queue_name_or_id(value: Any) -> None:
    with refused(InvalidName, "is not a valid queue name", "letters, digits"):
        JobQueue(value)
    with refused(InvalidName, "is not a valid job id", "letters, digits"):
        get_job(value)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda value: tasks.noop.using(timeout=value),
        lambda value: tasks.noop.using(max_attempts=value),
        lambda value: tasks.noop.using(priority=value),
        lambda value: tasks.noop.using(outbox=value),
        lambda value: tasks.noop.using(on_parent_failure=value),
        lambda value: tasks.noop.using(after=value),
        lambda value: tasks.noop.using(tags=value),
        lambda value: JobQueue().get_jobs("queued", value),
        lambda value: JobQueue().add_job(value),
        get_job,
    ],
)
def test_a_value_that_cannot_be_shown_or_is_very_long(refuse: Callable[[Any], Any]) -> None:
    with refused(RedisQueueError, "a value of int that cannot be shown"):
        refuse(10**5000)
    with pytest.raises(RedisQueueError) as caught:
        refuse(["x" * 1000])
    assert "xxx…" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 5), (5, 4), (0, 100), ("0", 5), (0, None), (True, 5), (10**30, 10**30)]
)
def test_a_page_out_of_range(start: Any, stop: Any) -> None:
    with refused(InvalidOption, "a page has 1 to 100 jobs"):
        JobQueue().get_jobs("queued", start, stop)


@pytest.mark.parametrize("limit", ["3", True, 1.5, -1, float("nan"), [1]], ids=repr)
def test_a_limit_that_is_not_a_number(limit: Any) -> None:
    with refused(InvalidOption, "limit must be a whole number from 0 to", repr(limit)):
        JobQueue().clear("failed", limit=limit)


@pytest.mark.parametrize("value", [None, "3", True, 1.5, -1, float("nan"), [1], 10**30], ids=repr)
def test_a_page_of_unique_keys_that_is_no_number(value: Any) -> None:
    with refused(InvalidOption, "start must be a whole number from 0 to", repr(value)):
        limits.unique_keys(value)
    with refused(InvalidOption, "count must be a whole number from 1 to", repr(value)):
        limits.unique_keys(0, value)


@pytest.mark.parametrize("value", [None, 3, [1], b"stripe"], ids=repr)
def test_a_unique_key_that_is_no_text(value: Any) -> None:
    with refused(InvalidOption, "key must be a text, as unique_keys() returns it", repr(value)):
        limits.release_unique_key(value)


@pytest.mark.parametrize("value", [None, 3, [1], {"a": 1}, b"stripe"], ids=repr)
def test_a_limit_whose_name_is_no_text(value: Any) -> None:
    with refused(InvalidOption, f"no task has a Limit {value!r}; name a task that has one"):
        limits.set_limit(value, 1)
    if value is not None:
        with refused(InvalidOption, f"no task has a Limit or Rate {value!r}; name a task"):
            JobQueue().pause(limit=value)


def test_an_unknown_or_unsuitable_status() -> None:
    queue = JobQueue()
    with refused(InvalidOption, "'done' is not a status", "completed"):
        queue.get_jobs("done")
    with refused(InvalidOption, "processing jobs cannot be cleared", "cancel them"):
        queue.clear("processing")
    with refused(InvalidOption, "only failed or cancelled jobs can be requeued, not completed"):
        queue.requeue_all("completed")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runworker", "--queues", "a b"], "--queues: 'a b' is not a valid queue name"),
        (["runworker", "--queues", "defualt"], "unknown queue 'defualt' (did you mean 'default'?)"),
        (["runworker", "--queues", ","], "--queues: name at least one queue"),
        (["runworker", "--name", "a:b"], "--name: 'a:b' is not a valid worker name"),
        (
            ["runworker", "--min-priority", "101"],
            "--min-priority: must be a whole number from -100",
        ),
        (["runworker", "--processes", "0"], "--processes: must be a whole number from 1"),
        (["runworker", "--grace", "-1"], "--grace: must be zero or more seconds"),
        (["redisqueue_worker", "--queues", "a:b"], "--queues: 'a:b' is not a valid queue name"),
        (["reapqueue", "--interval", "-1"], "--interval: must be zero or more seconds"),
        (["reapqueue", "--interval", "0"], "--interval: must be 0.1 seconds or more, not '0'"),
        (["queuemonitor", "--interval", "0"], "--interval: must be 0.1 seconds or more, not '0'"),
        (["uniquekeys", "--count", "0"], "--count: must be a whole number from 1 to 100, not '0'"),
        (["uniquekeys", "--start", "-1"], "--start: must be a whole number from 0"),
    ],
)
def test_bad_input_on_the_command_line(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        call_command(*arguments)
    assert words in str(caught.value)


# --- functions that cannot be tasks --------------------------------------------------------------


def outside() -> None:
    pass


class Holder:
    def method(self) -> None:
        pass


def test_a_task_not_at_module_level() -> None:
    def inner() -> None:
        pass

    for func in (inner, Holder.method):
        with refused(InvalidTask, "is not at module level", "move the function out to its module"):
            task(func)


def test_a_lambda() -> None:
    with refused(InvalidTask, "a lambda cannot be a task", "use def"):
        task(lambda: None)


def test_a_task_of_the_started_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "__module__", "__main__")
    with refused(InvalidTask, "outside is in the program that was started", "move it to a module"):
        task(outside)


@pytest.mark.parametrize("thing", [print, Holder, Holder(), 3, tasks.noop])
def test_a_task_that_is_not_a_function(thing: Any) -> None:
    with refused(InvalidTask, "@task must decorate a function, not"):
        task(thing)


def test_a_context_without_its_argument() -> None:
    expected = "first argument must be named 'context'; it takes ()"
    with refused(InvalidTask, "takes_context=True", expected):
        task(takes_context=True)(outside)


def generate() -> Iterator[int]:
    yield 1


async def agenerate() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generate, agenerate])
def test_a_generator_would_run_nothing(function: Any) -> None:
    with refused(InvalidTask, function.__name__, "is a generator function", "return a list"):
        task(function)


# --- invalid data in Redis ------------------------------------------------------------------------


@pytest.fixture
def keys(queue_settings: dict[str, Any]) -> Keys:
    return keys_of()


@pytest.mark.parametrize("name", ["queued", "wake"])
def test_a_queue_key_of_the_wrong_type(redis: Redis, keys: Keys, name: str) -> None:
    key = getattr(keys.queue("default"), name)
    redis.set(key, "mine")
    with refused(WrongKeyType, key, "holds a string where a list belongs", "PREFIX"):
        tasks.noop.enqueue()
    with refused(WrongKeyType, key, "Nothing was changed"):
        tasks.noop.enqueue_many([(1,), (2,)])
    assert list(redis.scan_iter()) == [key.encode()]


def test_the_event_stream_of_the_wrong_type(redis: Redis, keys: Keys) -> None:
    redis.rpush(keys.events, "mine")
    with refused(WrongKeyType, keys.events, "holds a list where a stream belongs"):
        tasks.noop.enqueue()
    assert list(redis.scan_iter()) == [keys.events.encode()]


@pytest.mark.parametrize("option", [{"priority": 3}, {"run_after": 60}], ids=str)
def test_a_sorted_set_of_the_wrong_type(redis: Redis, keys: Keys, option: dict[str, int]) -> None:
    name = "priority" if "priority" in option else "scheduled"
    key = getattr(keys.queue("default"), name)
    redis.set(key, "mine")
    with refused(WrongKeyType, key, "holds a string where a zset belongs"):
        tasks.noop.using(**option).enqueue()
    assert list(redis.scan_iter()) == [key.encode()]


CORRUPT = [
    ({"payload": "[1"}, "cannot be read"),
    ({"payload": "{}"}, "the payload is not [args, kwargs]"),
    ({"payload": "[{},[]]"}, "the payload is not [args, kwargs]"),
    ({"payload": "[" * 100_000}, "cannot be read"),
    ({"payload": None}, "has no field 'payload'"),
    ({"task": None}, "has no field 'task'"),
    ({"status": "dancing"}, "'dancing' is not a valid Status"),
    ({"status": None}, "has no field 'status'"),
    ({"attempts": "many"}, "invalid literal for int()"),
    ({"enqueued_ms": "1.5e9"}, "invalid literal for int()"),
    ({"options": "[]"}, "is not a JSON object"),
    ({"error": '"text"'}, "is not a JSON object"),
    ({"error": "{}"}, "its error has no 'type'"),
    ({"progress": '{"far": 1}'}, "unexpected keyword argument 'far'"),
    ({"result": "{"}, "cannot be read"),
    ({"v": "2"}, "written by a newer version", "upgrade this process"),
    ({"v": "next"}, "invalid literal for int()"),
]


@pytest.mark.parametrize("case", CORRUPT, ids=lambda case: str(case[0])[:40])
def test_a_corrupt_hash_is_named_and_hides_no_other_job(
    redis: Redis, keys: Keys, case: tuple[Any, ...]
) -> None:
    fields, *words = case
    jobs = tasks.noop.enqueue_many([(1,), (2,), (3,)])
    for name, value in fields.items():
        if value is None:
            redis.hdel(keys.job(jobs[1].id), name)
        else:
            redis.hset(keys.job(jobs[1].id), name, value)

    with refused(CorruptJob, jobs[1].id, *words):
        get_job(jobs[1].id)
    first, broken, third = JobQueue().get_jobs("queued")
    assert (first, third) == (jobs[0], jobs[2])
    assert isinstance(broken, UnreadableJob)
    assert broken.id == jobs[1].id
    for word in words:
        assert word in broken.problem


def test_a_job_key_that_is_not_a_hash(redis: Redis, keys: Keys) -> None:
    jobs = tasks.noop.enqueue_many([(1,), (2,)])
    redis.set(keys.job(jobs[0].id), "mine")
    with refused(CorruptJob, jobs[0].id, "does not hold a job"):
        get_job(jobs[0].id)
    broken, second = JobQueue().get_jobs("queued")
    assert isinstance(broken, UnreadableJob)
    assert "does not hold a job" in broken.problem
    assert second == jobs[1]


def test_a_hash_that_is_gone_is_shown(redis: Redis, keys: Keys) -> None:
    job = tasks.noop.enqueue()
    redis.delete(keys.job(job.id))
    (broken,) = JobQueue().get_jobs("queued")
    assert broken == UnreadableJob(job.id, "its hash is gone")


def test_bytes_that_are_not_text_do_not_break_a_page(redis: Redis, keys: Keys) -> None:
    job = tasks.noop.enqueue(1)
    redis.hset(keys.job(job.id), "payload", b'[["\xff"],{}]')
    (shown,) = JobQueue().get_jobs("queued")
    assert re.match("job_", shown.id)
