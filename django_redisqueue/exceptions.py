"""Every error of the package. The docstring of a class says what went wrong and what to do."""

from __future__ import annotations

from typing import Any

_SHOWN = 200  # characters of a value in a message


def shown(value: object) -> str:
    """A value as a message shows it: its repr, cut where that is long. An error must not raise one
    of its own, and a repr may: that of an int with 5,000 digits does."""
    try:
        text = repr(value)
    except Exception:
        return f"a value of {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class RedisQueueError(Exception):
    """Base of all errors of django_redisqueue."""


class ConfigurationError(RedisQueueError):
    """A value in ``settings.REDISQUEUE`` is wrong; the message names the key and the remedy."""


# What an application passed in.


class InvalidTask(RedisQueueError, TypeError):
    """The decorated object cannot be a task; the message says why."""


class UnknownTask(RedisQueueError, LookupError):
    """No task of that name is registered."""


class UnknownQueue(RedisQueueError, LookupError):
    """No queue of that name is in ``REDISQUEUE["QUEUES"]``."""


class InvalidName(RedisQueueError, ValueError):
    """A queue name, job id or worker name has characters outside its set."""


class InvalidOption(RedisQueueError, ValueError):
    """An option of a task or of one call (priority, run_after, timeout, ...) is out of range."""


class InvalidArguments(RedisQueueError, TypeError):
    """A job's argument or result cannot travel as JSON; the message names it."""


class PayloadTooLarge(RedisQueueError, ValueError):
    """A payload or result is over its cap; store the data elsewhere and pass its key."""


# The life of a job.


class JobNotFound(RedisQueueError, LookupError):
    """No job of that id is in Redis: it never was, or retention has let it go."""


class NotIndexed(InvalidOption):
    """Jobs cannot be looked up by this property: nothing indexes it, and there is no mirror."""


class ParentNotFound(JobNotFound):
    """A job was to wait for one that is not in Redis; it was not made."""


class WorkflowError(RedisQueueError, ValueError):
    """A workflow cannot be: it is empty, has a circle or a foreign parent; the message names the
    jobs."""


class WorkflowNotFound(RedisQueueError, LookupError):
    """No workflow of that id is in Redis: it never was, its transaction has not committed, or it
    has been cleaned up."""


class WorkflowFailed(RedisQueueError):
    """The awaited workflow ended as failed or cancelled."""


class GatherError(RedisQueueError, ValueError):
    """A gather cannot be: its topic has no listener, or its threshold cannot be reached; the
    message names them."""


class GatherExists(RedisQueueError):
    """Another gather has this key, and is not forgotten yet. Give each its own key."""


class GatherNotFound(RedisQueueError, LookupError):
    """No gather has this key: it never was, its transaction has not committed, or it was
    forgotten after its end."""


class GatherFailed(RedisQueueError):
    """The awaited gather did not reach its threshold; the message says who was missing."""


class ResultGone(RedisQueueError, LookupError):
    """A result is not there any more: the file of a large one went with its gather; or a job that
    follows another asks for its result, and that was let go for ``FINISHED_MAX_BYTES``, or went
    with its workflow."""


class JobFailed(RedisQueueError):
    """The awaited job ended as failed or cancelled; its error is in the message."""


class WaitTimeout(RedisQueueError, TimeoutError):
    """The job did not finish within the time given to ``wait``."""


class NotCommitted(RedisQueueError):
    """The job's transaction has not committed, so Redis does not know it. Ask after the commit."""


class WrongState(RedisQueueError):
    """The verb does not apply to the job's present status; the message names both."""


class LeaseLost(RedisQueueError):
    """Somebody else holds this job now (the lease lapsed and the job was recovered). Nothing
    written.
    """


class WorkerLost(RedisQueueError):
    """The worker process died again and again while it ran this job. Only named in errors."""


class CorruptJob(RedisQueueError):
    """What is stored of a job, a workflow or a gather cannot be read: a field is missing or wrong,
    or a newer version wrote it. ``known``: the rest of a job (a JobData), or None."""

    def __init__(self, message: str, known: Any = None) -> None:
        super().__init__(message)
        self.known = known


# Redis.


class RedisUnavailable(RedisQueueError, ConnectionError):
    """Redis could not be reached in time, or cannot serve for now (it is loading its data, or a
    failover is under way). Nothing is known to be written; try again."""


class NotReplicated(RedisUnavailable):
    """Fewer replicas than ``WAIT_REPLICAS`` have what was enqueued. It may run, or be lost in a
    failover; sending the same job again is safe.
    """


class RedisRefused(RedisQueueError):
    """Redis answered but refuses to serve (NOAUTH, NOPERM, MISCONF, ...)."""


class RedisFull(RedisRefused):
    """Redis has reached ``maxmemory`` and refuses new jobs. Finishes still go through."""


class WrongKeyType(RedisQueueError):
    """A key of the queue holds another type than it should: another program writes under PREFIX."""


class ShardMismatch(RedisQueueError):
    """The data in Redis was written with another number of shards."""


class WrongRedis(RedisQueueError):
    """Redis does not hold the data that the mirror mirrors: it was emptied, or is another one. If
    it is right, run ``reapqueue --accept-redis``.
    """


class EmbeddedServerError(RedisQueueError):
    """The embedded Redis server could not be started; the message says why and what to install."""


# Raised inside a running job. BaseException, so that ``except Exception`` does not swallow them.


class Interrupt(BaseException):
    """Base of what the worker raises inside a job to stop it."""


class JobTimeout(Interrupt):
    """The job ran longer than its ``timeout``."""


class JobCancelled(Interrupt):
    """The job was cancelled while it ran."""


class JobAbandoned(Interrupt):
    """The job's lease is lost: another worker has the job, and this run counts for nothing."""


class Retry(Exception):
    """Raise inside a task to try again later; spends an attempt.

    ``delay``: seconds (int, float) or ``timedelta``; ``None`` uses the task's backoff.
    """

    def __init__(self, message: str = "", *, delay: object = None) -> None:
        super().__init__(message or "retry asked for by the task")
        self.delay = delay
