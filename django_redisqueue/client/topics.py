"""Topics: ``@listener`` subscribes tasks to one, ``publish`` queues a job for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.ids import check_listener_name, check_topic
from ..exceptions import InvalidArguments, InvalidTask
from .enqueue import delivery_mode, submit
from .jobs import Job
from .tasks import Signature, Task, as_task, check_single, job_of, task

_topics: dict[str, dict[str, Task]] = {}


def listener(
    topic: str, *, listens_as: str | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Task]:
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
                f"{known.name} is a task already; give its options ({', '.join(options)}) to its "
                "@task"
            )
        made = known if isinstance(known, Task) else task(**options)(what)
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
    if other is not None and other.origin != made.origin:  # else a reload
        raise InvalidTask(
            f"the topic {topic!r} has a listener {name!r} already, {other.origin}; give this one "
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

    All are sent together, and after the commit like ``enqueue``. Without listeners it does nothing.

    Raises InvalidName, InvalidArguments, PayloadTooLarge, and what ``enqueue`` raises.
    """
    found = listeners_of(topic)
    keywords = check_payload(payload)
    if not found:
        return []
    stored = True if any(task.outbox for task in found.values()) else None
    new = [Signature(task, (), keywords).new_job() for task in found.values()]
    deferred = submit(new, delivery_mode(on_commit, stored))
    return [job_of(job, deferred) for job in new]


def check_payload(payload: object) -> Mapping[str, Any]:
    """The payload as keyword arguments. Raises InvalidArguments unless its keys are strings."""
    if payload is None:
        return {}
    if isinstance(payload, Mapping) and all(isinstance(name, str) for name in payload):
        return payload
    raise InvalidArguments(
        "a payload must be a dict with string keys, because its items become keyword arguments, "
        f"not {payload!r}"
    )
