"""Topics and gathers: ``@listener`` subscribes tasks to a topic, ``publish`` queues a job for each
of them, and ``Gather`` also collects their results in one Redis hash."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async

from ..broker.base import BATCH, MAX_CALL_BYTES
from ..conf import get_settings
from ..core.clock import Deadline, Duration, to_period_ms
from ..core.codec import encode_payload
from ..core.ids import (
    check_gather_key,
    check_listener_name,
    check_topic,
    new_gather_id,
    shard_of_key,
)
from ..core.parsing import is_int
from ..core.records import GatherData, GatherListener, GatherPlan
from ..core.redaction import without_frames
from ..core.statuses import GatherReason, GatherStatus
from ..exceptions import (
    CorruptJob,
    GatherError,
    GatherExists,
    GatherFailed,
    GatherNotFound,
    InvalidArguments,
    InvalidTask,
    JobNotFound,
    WaitTimeout,
    did_you_mean,
    short_repr,
)
from .decorator import task
from .enqueue import call_after_commit, delivery_mode, submit
from .jobs import Job
from .large_results import decode_result
from .options import DjangoTask, TaskKeywords, check_integer
from .placement import check_same_shard
from .tasks import (
    ContextTask,
    Signature,
    Task,
    as_task,
    callback_fields,
    check_callback,
    check_single,
    job_of,
)
from .transport import transport, transport_of_jobs

MAX_POLLS = 10_000

# How Redis is called: a running job waits during an outage of Redis.
Caller = Callable[[Callable[[], Any]], Any]

P = ParamSpec("P")
R = TypeVar("R")
Known = TypeVar("Known", bound=Task | DjangoTask)

_topics: dict[str, dict[str, Task]] = {}


class Subscribe(Protocol):
    """A decorator that makes a function a task, and leaves a task as it is."""

    @overload  # a task is also callable
    def __call__(self, what: Known, /) -> Known: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, what: Callable[P, R], /) -> Task[P, R]: ...


@overload
def listener(
    topic: str,
    *,
    listens_as: str | None = None,
    takes_context: Literal[True],
    **options: Unpack[TaskKeywords],
) -> Callable[[Callable[Concatenate[Any, P], R]], ContextTask[P, R]]: ...
@overload
def listener(
    topic: str,
    *,
    listens_as: str | None = None,
    takes_context: Literal[False] = False,
    **options: Unpack[TaskKeywords],
) -> Subscribe: ...
def listener(topic: str, *, listens_as: str | None = None, **options: Any) -> Any:
    """Subscribe a function to a topic as a task with these options of ``@task``, or an existing
    task (also one of Django's own) without options.

    ``listens_as``: the name of the listener's result in a gather, by default the function's. Raises
    InvalidName, InvalidTask (the topic has another listener of that name), and what ``@task``
    raises.
    """
    check_topic(topic)
    if listens_as is not None:
        check_listener_name(listens_as)

    def decorate(what: Callable[..., Any]) -> Any:
        known = as_task(what)
        if isinstance(known, Task) and options:
            raise InvalidTask(
                f"{known.name} is already a task; pass its options ({', '.join(options)}) to its "
                "@task"
            )
        to_task: Callable[..., Task] = task(**options)
        made = known if isinstance(known, Task) else to_task(what)
        own = made.func.__name__ if listens_as is None else listens_as
        _subscribe(topic, check_listener_name(own), made)
        return made if known is what else what  # a task of Django's own stays one

    return decorate


def _subscribe(topic: str, name: str, made: Task) -> None:
    check_single(made)
    if made.when or made.after:
        raise InvalidTask(
            f"{made.name} has run_after= or after= from using(), but a listener's job is queued "
            "as soon as something is published; remove them"
        )
    known = _topics.setdefault(topic, {})
    other = known.get(name)
    if other is not None and other.origin != made.origin:  # else it is a reload
        raise InvalidTask(
            f"the topic {topic!r} already has a listener {name!r}, {other.origin}; give this one "
            "another name with listens_as="
        )
    known[name] = made


def listeners_of(topic: str) -> dict[str, Task]:
    """The listeners of a topic by their names, sorted; empty when it has none."""
    return dict(sorted(_topics.get(check_topic(topic), {}).items()))


def topics() -> list[str]:
    """All topics that have a listener, sorted."""
    return sorted(_topics)


def publish(
    topic: str, payload: Mapping[str, Any] | None = None, *, on_commit: bool | None = None
) -> list[Job]:
    """Queue one job for every listener of a topic, with the payload as keyword arguments.

    All are sent together, after the commit as with ``enqueue``. Without listeners, nothing is sent.

    Raises InvalidName, InvalidArguments, PayloadTooLarge, and what ``enqueue`` raises.
    """
    found = listeners_of(topic)
    keywords = check_payload(payload)
    if not found:
        return []
    stored = True if any(task.outbox for task in found.values()) else None
    try:
        new = [Signature(task, (), keywords).new_job() for task in found.values()]
        deferred = submit(new, delivery_mode(on_commit, stored))
    except Exception as error:
        if any(task.redaction for task in found.values()):
            without_frames(error)
        raise
    return [job_of(job, deferred) for job in new]


def check_payload(payload: object) -> Mapping[str, Any]:
    """The payload as keyword arguments. Raises InvalidArguments unless its keys are strings."""
    if payload is None:
        return {}
    if isinstance(payload, Mapping) and all(isinstance(name, str) for name in payload):
        return payload
    raise InvalidArguments(
        "a payload must be a dict with string keys, because its items become keyword arguments, "
        f"not {short_repr(payload)}"
    )


class Gather:
    """The handle of a gather. Each attribute reads Redis, and raises GatherNotFound when no gather
    has the key, or another one now has it."""

    __slots__ = ("_call", "_job_id", "_starter", "id", "key")

    def __init__(
        self,
        key: str,
        gather_id: str,
        call: Caller = operator.call,
        job_id: str = "",
        starter: Job | None = None,
    ) -> None:
        self.key = key
        self.id = gather_id
        self._call = call
        self._job_id = job_id  # of the running job that asks
        self._starter = starter  # the job that starts it, with the outbox

    def __repr__(self) -> str:
        return f"<Gather {self.key!r} {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gather) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @classmethod
    def start(
        cls,
        key: str,
        *,
        topic: str,
        payload: Mapping[str, Any] | None = None,
        threshold: int | None = None,
        ttl: Duration = 600,
        polls: int = 6,
        poll_delay: Duration = 60,
        then: Task | Signature | DjangoTask,
        on_failure: Task | Signature | DjangoTask | None = None,
        on_commit: bool | None = None,
    ) -> Gather:
        """Queue a job for every listener of the topic, and ``then`` once ``threshold`` of them (all
        by default) have returned; after the commit inside ``atomic()``.

        ``payload``: the keyword arguments of the listeners, and of ``then`` and ``on_failure`` when
        they are given as tasks. ``ttl``: how long the results are kept. The gather fails after
        ``polls`` checks, ``poll_delay`` apart (seconds or timedeltas). Raises InvalidName,
        GatherError, InvalidOption, InvalidArguments or PayloadTooLarge before anything is written,
        GatherExists, RedisUnavailable or RedisRefused.
        """
        check_gather_key(key)
        found, keywords = listeners_of(topic), check_payload(payload)
        _check_listeners(topic, found)
        numbers = {
            "threshold": _check_threshold(threshold, topic, len(found)),
            "ttl_ms": to_period_ms(ttl, "ttl"),
            "poll_delay_ms": to_period_ms(poll_delay, "poll_delay"),
            "polls": check_integer(polls, "polls", 1, MAX_POLLS),
        }
        callbacks: dict[str, object] = {"then": then}
        if on_failure is not None:
            callbacks["on_failure"] = on_failure
        try:
            plan = _new_plan(key, topic, keywords, numbers, callbacks)
            sent = call_after_commit(
                partial(start_gather, plan),
                lambda: start_gather.using(queue_name=get_settings().own_queue).s(plan).new_job(),
                on_commit,
            )
        except Exception as error:
            if any(task.redaction for task in found.values()):
                without_frames(error)
            raise
        return cls(key, plan.id, starter=job_of(*sent) if sent else None)

    @property
    def data(self) -> GatherData:
        """Everything but the results, read in one round trip."""
        found: GatherData | None = self._call(partial(transport_of_jobs(self.id).gather, self.key))
        if found is None or found.id != self.id:
            if self._job_id:  # perhaps Redis has forgotten the run as well
                self._call(partial(transport().gather_key, self._job_id))
            raise _not_found(f"no gather {self.id} under the key {self.key!r}")
        return found

    @property
    def status(self) -> GatherStatus:
        return self.data.status

    @property
    def reason(self) -> GatherReason:
        """Why it failed, if it did."""
        return self.data.reason

    @property
    def done_count(self) -> int:
        """How many listeners have a result."""
        return self.data.done_count

    @property
    def missing(self) -> tuple[str, ...]:
        """The listeners without a result; in a failed gather, those without one when it failed."""
        return self.data.missing

    @property
    def payload(self) -> Mapping[str, Any]:
        """The keyword arguments of the listeners, unredacted."""
        return self.data.payload

    @property
    def results(self) -> dict[str, Any]:
        """The results by the listeners' names. Large ones are files: raises ResultGone when
        one was deleted."""
        data = self.data
        texts = self._call(partial(transport_of_jobs(self.id).gather_results, self.key))
        return {name: _value(texts[name]) for name in data.listeners if name in texts}

    async def aresults(self) -> dict[str, Any]:
        """``results`` for async code."""
        return await sync_to_async(lambda: self.results)()

    @property
    def follow_up(self) -> Job | None:
        """The job of ``then`` or ``on_failure``; None if neither was enqueued."""
        job_id = self.data.follow_up_id
        return Job(job_id) if job_id else None

    def jobs(self) -> list[Job]:
        """The listeners' jobs, in the order of ``data.listeners``."""
        return [Job(f"{self.id}.{n}") for n in range(len(self.data.listeners))]

    def wait(self, timeout: Duration | None = None) -> GatherData:
        """Wait until the threshold is reached. Raises WaitTimeout, or GatherFailed, which names the
        missing listeners; with the outbox also JobFailed, if the gather could not be started. A
        message from Redis ends the wait; there is no polling."""
        deadline = Deadline(timeout, lambda _: self._timeout_message())
        if self._starter is not None:
            with suppress(JobNotFound):  # pruned: it has started the gather long ago
                self._starter.wait(timeout)
        transport_of_jobs(self.id).wait_until(lambda: self.status.is_final, self.id, deadline)
        data = self.data
        if data.status is GatherStatus.COLLECTING:
            raise WaitTimeout(self._timeout_message())
        if data.status is GatherStatus.FAILED:
            raise GatherFailed(f"{self!r} failed ({data.reason}): {_summary(data)}")
        return data

    def _timeout_message(self) -> str:
        return f"{self!r} did not end in time: {_summary(self.data)}"


def get_gather(key: str) -> Gather:
    """The gather that has this key now. Raises InvalidName or GatherNotFound."""
    found = transport().gather(check_gather_key(key))
    if found is None:
        raise _not_found(f"no gather has the key {key!r}")
    return Gather(key, found.id)


def _not_found(what: str) -> GatherNotFound:
    return GatherNotFound(
        f"{what}: it never existed, its transaction has not committed, the job that starts it "
        "with the outbox has not run, or it was deleted after its end"
    )


def gather_of(job_id: str, call: Caller = operator.call) -> Gather | None:
    """The gather of a running job, or None. Raises LeaseLost if Redis has no such run."""
    gather_id, _, name = job_id.rpartition(".")
    if not (name and gather_id.startswith("gather_")):
        return None
    key = call(partial(transport().gather_key, job_id))
    return Gather(key, gather_id, call, job_id) if key else None


def _value(text: str) -> Any:
    try:
        return decode_result(text)
    except (ValueError, KeyError) as error:
        raise CorruptJob(f"a result of the gather cannot be read: {error}") from None


def _summary(data: GatherData) -> str:
    return (
        f"{data.done_count} of {len(data.listeners)} listeners have a result, {data.threshold} are "
        f"needed; missing: {', '.join(data.missing) or 'none'}"
    )


@task(
    name="django_redisqueue.start_gather",
    max_attempts=100,
    no_retry_on=(GatherExists,),
    redact=("plan",),
)
def start_gather(plan: Sequence[Any]) -> None:
    """Start a gather; starting it again changes nothing. Raises GatherExists.

    A task, because a gather that Redis refused after a commit is a job in the outbox.
    """
    made = GatherPlan(*plan)
    if transport().start_gather(made) < 0:
        raise GatherExists(
            f"the key {made.key!r} belongs to a gather that still exists (it is deleted about one "
            "ttl after its end); give each gather its own key"
        )


def _new_plan(
    key: str,
    topic: str,
    keywords: Mapping[str, Any],
    numbers: Mapping[str, int],
    callbacks: Mapping[str, object],
) -> GatherPlan:
    """The plan of a new gather. ``callbacks``: by the options that name them."""
    found, settings = listeners_of(topic), get_settings()
    limit = min(settings.max_payload_bytes, MAX_CALL_BYTES // len(found))
    text = encode_payload((), keywords, limit, f"the listeners of {topic!r}")
    gather_id = new_gather_id(shard_of_key(key, settings.shards))
    # As long as failed jobs, so that the callback can be requeued.
    keep_ms = max(queue.failed_ttl_ms for queue in settings.queues.values())
    fields = ["keep_ms", str(keep_ms)]
    for name, number in numbers.items():
        fields += [name, str(number)]
    for option, what in callbacks.items():
        name, signature = option.removeprefix("on_"), check_callback(what, option, keywords)
        fields += callback_fields(name, signature, f"{gather_id}.{name}")
    listeners = [_new_listener(name, found[name], keywords, gather_id) for name in found]
    ttl_ms, poll_delay_ms = numbers["ttl_ms"], numbers["poll_delay_ms"]
    return GatherPlan(key, gather_id, ttl_ms, poll_delay_ms, text, fields, listeners)


def _new_listener(
    name: str, listening: Task, keywords: Mapping[str, Any], gather_id: str
) -> GatherListener:
    job = Signature(listening, (), keywords).new_job(f"{gather_id}.{name}")
    job.unique = ""  # because each gather needs a result of its own
    check_same_shard(job, f"the listener {name}")
    return GatherListener(
        name, job.queue, job.task, job.options, job.priority, job.audit, lane=job.lane
    )


def _check_listeners(topic: str, found: Mapping[str, Task]) -> None:
    if not found:
        raise GatherError(
            f"the topic {topic!r} has no listener{did_you_mean(topic, topics())}; subscribe a "
            f"function with @listener({topic!r}) in a module named tasks of an installed app"
        )
    if len(found) > BATCH:
        raise GatherError(
            f"the topic {topic!r} has {len(found)} listeners, but a gather allows {BATCH} at most; "
            "let each of them start further jobs, or use a workflow"
        )


def _check_threshold(value: object, topic: str, listeners: int) -> int:
    if value is None:
        return listeners
    if is_int(value, 1, listeners):
        return value
    raise GatherError(
        f"threshold must be a whole number from 1 to {listeners}, the number of listeners of the "
        f"topic {topic!r}, or None for all of them, not {short_repr(value)}"
    )
