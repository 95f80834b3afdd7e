"""Every error of the package. The docstring of a class says what went wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, ClassVar

_SHOWN = 200  # characters of a value in a message


def short_repr(value: object) -> str:
    """The repr of a value for a message, cut if it is long. Never raises, although repr() may: that
    of an int with 5,000 digits does."""
    try:
        text = repr(value)
    except Exception:
        return f"a value of {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def first_line(error: Exception) -> str:
    """The class and the first line of an error, for a message of one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def did_you_mean(word: object, known: Any) -> str:
    """``" (did you mean 'x'?)"`` or an empty string."""
    if not isinstance(word, str):
        return ""
    by_lower = {str(one).lower(): str(one) for one in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


class RedisQueueError(Exception):
    """The base of all errors of django_redisqueue."""


class ConfigurationError(RedisQueueError):
    """A value in ``settings.REDISQUEUE`` is wrong; the message names the key and the remedy."""


class InvalidTask(RedisQueueError, TypeError):
    """The decorated object cannot be a task; the message says why."""


class UnknownTask(RedisQueueError, LookupError):
    """No task of that name is registered."""


class UnknownQueue(RedisQueueError, LookupError):
    """No queue of that name is in ``REDISQUEUE["QUEUES"]``."""


class InvalidName(RedisQueueError, ValueError):
    """A queue name, job id or worker name has characters that are not allowed."""


class InvalidOption(RedisQueueError, ValueError):
    """An option of a task or of one call (priority, run_after, timeout, ...) is out of range."""


class InvalidArguments(RedisQueueError, TypeError):
    """A job's argument or result cannot be encoded as JSON; the message names it."""


class PayloadTooLarge(RedisQueueError, ValueError):
    """A payload or result exceeds its cap; store the data elsewhere and pass its key."""


class JobNotFound(RedisQueueError, LookupError):
    """No job with that id is in Redis: it never existed, or Redis has pruned it."""


class NotIndexed(InvalidOption):
    """Jobs cannot be looked up by this property: it is not indexed, and there is no mirror."""


class ParentNotFound(JobNotFound):
    """A job was to wait for a job that is not in Redis, so it was not created."""


class WorkflowError(RedisQueueError, ValueError):
    """Invalid workflow: empty, cyclic, or with a parent outside it. The message names the jobs."""


class WorkflowNotFound(RedisQueueError, LookupError):
    """No workflow with that id is in Redis: it never existed, its transaction has not committed, or
    it was cleaned up."""


class WorkflowFailed(RedisQueueError):
    """The awaited workflow ended as failed or cancelled."""


class GatherError(RedisQueueError, ValueError):
    """Invalid gather: its topic has no listener, or its threshold cannot be reached. The message
    names them."""


class GatherExists(RedisQueueError):
    """Another gather has this key. Give each gather its own key."""


class GatherNotFound(RedisQueueError, LookupError):
    """No gather has this key: it never existed, its transaction has not committed, or it was
    deleted after its end."""


class GatherFailed(RedisQueueError):
    """The awaited gather did not reach its threshold; the message names the missing listeners."""


class ResultGone(RedisQueueError, LookupError):
    """A result was deleted: the file of a large result, with its gather or job; or a parent's
    result, because of ``FINISHED_MAX_BYTES`` or with its workflow."""


class StepError(RedisQueueError, ValueError):
    """A step, walk or wait of a job is used wrongly: its name occurs twice, or it is called where
    it cannot work. The message says what to change."""


class EventTimeout(RedisQueueError, TimeoutError):
    """The event that a job waits for was not sent within its timeout."""


class ApprovalRejected(RedisQueueError):
    """A person rejected what a job asked for. ``decision`` has ``by`` and ``comment``."""

    def __init__(self, message: str, decision: Any = None) -> None:
        super().__init__(message)
        self.decision = decision


class JobFailed(RedisQueueError):
    """The awaited job ended as failed or cancelled; its error is in the message."""


class WaitTimeout(RedisQueueError, TimeoutError):
    """The job did not finish within the time given to ``wait``."""


class NotCommitted(RedisQueueError):
    """The job's transaction has not committed, so the job is not in Redis. Ask after the commit."""


class WrongState(RedisQueueError):
    """The verb does not apply to the job's current status; the message names both."""


class UniqueConflict(WrongState):
    """Another job has the unique key, so this job can be neither requeued nor part of a new
    workflow. The message names the key and that job."""


class IdempotencyConflict(RedisQueueError):
    """The Idempotency-Key of a request was used before, with another body."""


class LeaseLost(RedisQueueError):
    """This run no longer has the job: the lease expired and another worker has it, or a failover
    of Redis lost the start of the run. Nothing was written."""


class WorkerLost(RedisQueueError):
    """The worker process died repeatedly while it ran this job. Never raised, only recorded as the
    type of the job's error."""


class JobExpired(RedisQueueError):
    """No worker claimed the job before it expired. Never raised, only recorded as the type of the
    job's error."""


class CorruptJob(RedisQueueError):
    """A stored job, workflow or gather cannot be read: a field is missing or invalid, or a newer
    version wrote it. ``known``: the readable part of a job (a JobData), or None."""

    def __init__(self, message: str, known: Any = None) -> None:
        super().__init__(message)
        self.known = known


class RedisUnavailable(RedisQueueError, ConnectionError):
    """Redis did not answer in time, or cannot serve requests now (it is loading its data, or a
    failover is under way). It is unknown whether anything was written; try again."""

    unsent: bool = False  # True if there was no connection, so that nothing was written


class NotReplicated(RedisUnavailable):
    """Fewer than ``WAIT_REPLICAS`` replicas have what was enqueued. It may run, or be lost in a
    failover. It is safe to send the same job again with the same id or Idempotency-Key."""


class RedisRefused(RedisQueueError):
    """Redis answered with an error (NOAUTH, NOPERM, MISCONF, ...)."""


class LoginRefused(RedisRefused):
    """Redis requires a password, or does not accept the one in the URL. A running job waits until
    Redis accepts it, as when a password is changed."""


class RedisCannotSave(RedisRefused):
    """Redis could not save to disk (MISCONF) and refuses writes until it can."""


class RedisFull(RedisRefused):
    """Redis has reached ``maxmemory`` and refuses new jobs. Workers can still finish jobs."""


class WrongKeyType(RedisQueueError):
    """A key of the queue has the wrong type: another program writes under PREFIX."""


class ShardMismatch(RedisQueueError):
    """The data in Redis was written with another number of shards."""


class WrongRedis(RedisQueueError):
    """Redis does not have the data that the mirror reflects: it was emptied, or it is another
    Redis. If that is intended, run ``reapqueue --accept-redis``."""


class EmbeddedServerError(RedisQueueError):
    """The embedded Redis server could not be started; the message says why and what to install."""


class Interrupt(BaseException):
    """The base of what the worker raises inside a job to stop it. A BaseException, so that a task's
    ``except Exception`` does not swallow it."""

    default_message: ClassVar[str] = ""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.default_message)


class JobTimeout(Interrupt):
    """The job ran longer than its ``timeout``."""

    default_message = (
        "the job ran longer than its timeout; raise its task's timeout or the setting TIMEOUT, or "
        "set timeouts for what the task calls"
    )


class JobCancelled(Interrupt):
    """The job was cancelled while it ran."""

    default_message = "the job was cancelled while it ran"


class JobAbandoned(Interrupt):
    """The job's lease is lost: another worker has the job, and this run is ignored."""

    default_message = "the job's lease is lost; another worker has it"


class JobSuspended(Interrupt):
    """The job stops here and continues later, from its steps. Not an error: do not catch it.

    ``kind``, ``detail`` and ``body`` are those of the run's outcome.
    """

    def __init__(
        self, message: str, kind: str = "queued", detail: str = "head", body: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.detail = detail
        self.body = body
        #: Called once the run's transactions have ended, before the outcome is recorded.
        self.prepare: Callable[[], object] = lambda: None


class ItemFailed(Exception):
    """A chunk task failed one of its jobs with ``context.fail(item, "text")``."""


class RateLimited(Exception):
    """Raise this inside a task when a service refuses calls for a while: the job runs again after
    ``retry_after`` (seconds, a timedelta, or "90s") and spends no attempt. Until then no other job
    starts under the same rates."""

    def __init__(self, message: str = "", *, retry_after: float | timedelta | str) -> None:
        after = f"{retry_after} s" if isinstance(retry_after, int | float) else retry_after
        super().__init__(message or f"refused; retry after {after}")
        self.retry_after = retry_after

    def __reduce__(self) -> Any:
        """A process pool pickles what its workers raise; without the keyword that would fail."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class Retry(Exception):
    """Raise this inside a task to try again later; spends an attempt.

    ``delay``: seconds, a timedelta, or "90s"; None uses the task's backoff.
    """

    def __init__(self, message: str = "", *, delay: float | timedelta | str | None = None) -> None:
        given: object = message  # a caller may have no type checker
        if isinstance(given, int | float | timedelta):
            raise TypeError(f"Retry: write delay={given!r}, after the message if there is one")
        super().__init__(message or "the task asked for a retry")
        self.delay = delay
