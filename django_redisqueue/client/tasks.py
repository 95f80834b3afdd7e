"""``Task`` and ``Signature``, which enqueue jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Self, Unpack, cast, overload

from asgiref.sync import async_to_sync, sync_to_async

from ..conf import get_settings
from ..core import tags
from ..core.clock import real_ms
from ..core.codec import dumps, encode_payload, loads
from ..core.ids import new_job_id
from ..core.instruments import is_watched, producing, with_headers
from ..core.job_data import EXPIRES, SIGNATURE_FIELDS, NewJob, instant_ms
from ..core.ports import ports
from ..core.redaction import OPTION, REDACTED, Hidden, Redaction, without_frames
from ..core.statuses import OnParentFailure
from ..exceptions import (
    IdempotencyConflict,
    InvalidArguments,
    InvalidOption,
    WorkflowError,
    short_repr,
)
from .enqueue import Deferred, delivery_mode, submit
from .jobs import Job
from .options import (
    CALL_CHECKS,
    CallKeywords,
    Takes0,
    Takes1,
    Takes2,
    Takes3,
    Takes4,
    TakesMore,
    TaskOptions,
    check_option,
)
from .placement import check_placement, check_same_shard, place
from .policies import LaneRule, Uniqueness, uniqueness_of
from .registry import ANY_ARGUMENTS, Parameters, dotted_path, load_task

if TYPE_CHECKING:  # their defaults, which Python 3.13 has, let annotations say plain Task
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co")

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Rest = ParamSpec("Rest")  # the arguments after the first
Value = TypeVar("Value")
WORKER_OPTIONS = ("timeout_ms", "max_attempts")  # options of a call that workers need
OF_CELERY = ("delay", "delay_on_commit", "apply_async")  # other names for enqueue
FIELD_OPTIONS = ("queue_name", "priority", "expires", "on_commit", "outbox")  # and fields of Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[P, R_co]):
    """A registered function with its options; ``using`` makes a copy with options of one call.

    For type checkers, ``P`` are the arguments of a job, and ``R_co`` is what the function returns.
    """

    func: Callable[..., Any]
    name: str
    options: TaskOptions
    queue_name: str
    priority: int
    when: str = ""
    expires: str = ""  # the latest start of a job, in the form of ``when``
    on_commit: bool | None = None
    outbox: bool | None = None
    encoded_options: str = ""
    after: str = ""  # as in NewJob
    audit: str = ""
    uniqueness: Uniqueness | None = None
    is_async: bool = False  # an ``async def`` task
    parameters: Parameters = ANY_ARGUMENTS
    redaction: Redaction | None = None
    lane_rule: LaneRule | None = None
    call_options: Mapping[str, Any] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)  # further options for workers

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __hash__(self) -> int:
        return hash(self.name)  # some options cannot be hashed

    def __reduce__(self) -> tuple[Any, ...]:
        return load_task, (self.name, self.func.__module__, self.call_options, self.marks)

    if not TYPE_CHECKING:  # an unknown attribute remains an error for type checkers

        def __getattr__(self, name: str) -> Any:
            if name not in OF_CELERY:
                return object.__getattribute__(self, name)  # raises what Python says
            raise AttributeError(
                f"the task {self.name} has no {name}(): call enqueue(), with options as in "
                "using(run_after=60).enqueue()"
            )

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function here."""
        return self.func(*args, **kwargs)  # type: ignore[no-any-return]

    @property
    def origin(self) -> str:
        """Where the function was defined."""
        return dotted_path(self.func)

    @overload
    def call(self: Task[P, Awaitable[Value]], /, *args: P.args, **kwargs: P.kwargs) -> Value: ...
    @overload
    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function here, and wait for it if it is async."""
        func: Callable[..., Any] = async_to_sync(self.func) if self.is_async else self.func
        return func(*args, **kwargs)

    @overload
    async def acall(
        self: Task[P, Awaitable[Value]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Value: ...
    @overload
    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    async def acall(self, /, *args: Any, **kwargs: Any) -> Any:
        """``call`` for async code."""
        if self.is_async:
            return await self.func(*args, **kwargs)
        return await sync_to_async(self.func)(*args, **kwargs)

    def using(self, **options: Unpack[CallKeywords]) -> Self:
        """A copy with options for one call: queue_name, priority, run_after, expires, timeout,
        max_attempts, on_commit, outbox, tags, after, on_parent_failure, on_conflict, unique,
        unique_by. As in Django's own Tasks, None leaves an option as it is; ``unique=False`` turns
        the task's own off. ``expires``: the time by which the job must start, or a duration from
        when it is enqueued.

        ``tags``: up to 10 names with strings to find the job by, such as ``{"tenant": "42"}``.

        ``after``: existing jobs (or their ids) that must complete first. ``on_parent_failure``:
        when one of them fails, ``wait`` for its retry (the default), ``skip`` (the job is
        cancelled) or ``go_on`` (it runs without that result).
        Raises InvalidOption, InvalidName or UnknownQueue.
        """
        checked = {
            name: check_option(CALL_CHECKS, name, value, "using()")
            for name, value in options.items()
            if value is not None
        }
        if "timeout" in checked:
            checked["timeout_ms"] = checked.pop("timeout")
        merged = {**self.call_options, **checked}
        if merged.get("outbox") and merged.get("on_commit") is False:
            raise InvalidOption(
                "outbox=True stores the job in the transaction, but on_commit=False sends it "
                "before the transaction ends: use one of the two"
            )
        return self.with_options(merged)

    def with_options(self, merged: Mapping[str, Any]) -> Self:
        """A copy with ``call_options``."""
        encoded_options = {name: merged[name] for name in WORKER_OPTIONS if name in merged}
        encoded_options.update(self.marks)
        if merged.get("tags"):
            encoded_options[tags.OPTION] = tags.flatten_tags(merged["tags"])
        policy = merged.get("on_parent_failure", OnParentFailure.WAIT)
        made = replace(
            self,
            **{name: merged[name] for name in FIELD_OPTIONS if name in merged},
            when=merged.get("run_after", self.when),
            encoded_options=dumps(encoded_options) if encoded_options else "",
            after=" ".join((policy, *merged["after"])) if merged.get("after") else "",
            uniqueness=self._uniqueness(merged),
            call_options=merged,
        )
        check_expiry(made)
        return made

    def _uniqueness(self, merged: Mapping[str, Any]) -> Uniqueness | None:
        found = uniqueness_of(
            self.name,
            self.parameters,
            merged.get("unique", self.options.unique),
            merged.get("unique_by", None if "unique" in merged else self.options.unique_by),
        )
        if found is not None and found.delay and merged.get("run_after"):
            raise InvalidOption(
                f"unique=Replace(...) of {self.name} determines when the job runs; remove run_after"
            )
        return found

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Queue one run with these arguments and return its Job; it is sent after the commit inside
        ``atomic()``.

        Raises InvalidArguments, PayloadTooLarge or UnknownQueue, and, without a transaction or the
        outbox, RedisUnavailable or RedisRefused.
        """
        try:
            if not is_watched():
                return self._enqueue(args, kwargs)
            with producing(self.name, self.queue_name, 1):
                return self._enqueue(args, kwargs)
        except Exception as error:
            if self.redaction is not None:
                del args, kwargs  # error pages show locals
                without_frames(error)
            raise

    def _enqueue(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Job:
        new = self._new_job(args, kwargs)
        return job_of(new, submit((new,), delivery_mode(self.on_commit, self.outbox)))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """``enqueue`` for async code; sees the transaction of ``sync_to_async`` code."""
        try:
            return await sync_to_async(partial(self.enqueue, *args, **kwargs))()
        except Exception as error:
            if self.redaction is not None:
                del args, kwargs  # error pages show locals
                without_frames(error)
            raise

    @overload  # for type checkers, which know the arguments of calls with up to four
    def enqueue_many(self: Takes0, calls: Iterable[tuple[()]]) -> list[Job]: ...
    @overload
    def enqueue_many(self: Takes1[A], calls: Iterable[tuple[A]]) -> list[Job]: ...
    @overload
    def enqueue_many(self: Takes2[A, B], calls: Iterable[tuple[A, B]]) -> list[Job]: ...
    @overload
    def enqueue_many(self: Takes3[A, B, C], calls: Iterable[tuple[A, B, C]]) -> list[Job]: ...
    @overload
    def enqueue_many(self: Takes4[A, B, C, D], calls: Iterable[tuple[A, B, C, D]]) -> list[Job]: ...
    @overload
    def enqueue_many(self: TakesMore[Rest], calls: Iterable[tuple[Any, ...]]) -> list[Job]: ...
    @overload
    def enqueue_many(self, calls: Iterable[list[Any]]) -> list[Job]: ...
    def enqueue_many(self, calls: Iterable[Sequence[Any]]) -> list[Job]:
        """Queue one run for each sequence of positional arguments, in scripts of up to 100 jobs.

        All arguments are checked before the first job is sent. A note on the error (``__notes__``)
        says which call is wrong.
        """
        new: list[NewJob] = []
        try:
            is_list = isinstance(calls, Iterable)  # a caller may have no type checker
            calls = list(calls) if is_list else [cast(Any, calls)]
            with producing(self.name, self.queue_name, len(calls)):
                for at, args in enumerate(calls):
                    new.append(self._new_job(self._arguments(args, at), {}, at=at))
                deferred = submit(new, delivery_mode(self.on_commit, self.outbox)) if new else None
        except Exception as error:
            if isinstance(calls, list) and len(new) < len(calls):
                error.add_note(f"call {len(new) + 1} of enqueue_many")
            if self.redaction is not None:
                calls = ((REDACTED,),)
                without_frames(error)
            raise
        return [job_of(job, deferred) for job in new]

    def template(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """A job without an id, from which a schedule makes its jobs. Raises as ``enqueue`` does."""
        try:
            return replace(self._new_job(args, kwargs, is_template=True), id="")
        except Exception as error:
            if self.redaction is not None:
                args, kwargs = (REDACTED,), {}
                without_frames(error)
            raise

    @overload
    def s(self, /, *args: P.args, **kwargs: P.kwargs) -> Signature: ...
    @overload  # in a chain, the first argument is the result of the job before
    def s(
        self: Task[Concatenate[Any, Rest], Any], /, *args: Rest.args, **kwargs: Rest.kwargs
    ) -> Signature: ...
    def s(self, /, *args: Any, **kwargs: Any) -> Signature:
        """This task with these arguments, for a workflow or a chain to enqueue."""
        check_single(self)
        return Signature(self, args, kwargs)

    def _arguments(self, args: object, at: int) -> Sequence[Any]:
        if isinstance(args, tuple | list):
            return args
        text = "..." if self.redaction else repr(args)
        raise InvalidArguments(
            f"enqueue_many of {self.name}: call {at + 1} is {text}; pass a list with a tuple of "
            f"arguments for each call, such as [({text},)]"
        )

    def _new_job(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        job_id: str = "",
        before: int = 0,
        at: int = 0,
        is_template: bool = False,
    ) -> NewJob:
        settings = get_settings()
        self.parameters.check(self.name, args, kwargs, before)
        if self.queue_name not in settings.queues:
            settings.check_queue(self.queue_name)
        payload = encode_payload(args, kwargs, settings.max_payload_bytes, self.name)
        shards, encoded_options = settings.shards, self.encoded_options
        if self.expires:
            encoded_options = _add_option(encoded_options, EXPIRES, self.expires)
        if self.redaction is not None:
            payload = Hidden(payload)
            marks = self.redaction.marks(args, kwargs, before)
            encoded_options = _add_option(encoded_options, OPTION, marks)
        if settings.indexed:
            own = self.call_options.get("tags", {})
            index = tags.index_of(settings.indexed, self.name, job_id, own)
            if index:
                encoded_options = _add_option(encoded_options, tags.INDEX, index)
        new = NewJob(
            job_id or ("" if shards > 1 else new_job_id()), self.queue_name, self.name, payload,
            encoded_options, self.priority, self.when, self.audit, self.after,
        )  # fmt: skip
        if self.lane_rule is not None:
            on_conflict = self.call_options.get("on_conflict")
            new.lane = self.lane_rule.lane(args, kwargs, before, on_conflict)
        if self.uniqueness is not None:
            new.when = self.uniqueness.delay or self.when
            is_secret = self.redaction is not None
            new.unique = self.uniqueness.encode(args, kwargs, before, is_secret=is_secret)
        if shards > 1:
            check_placement(self.lane_rule, self.uniqueness)
            new.id = new.id or new_job_id(place(new, settings, at))
        if not is_template:
            new.options = with_headers(new.options, new.id)
        return new


if TYPE_CHECKING:

    class ContextTask(Task[P, R_co]):
        """A task with ``takes_context=True``: only calls of its function have the context."""

        def __call__(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...  # type: ignore[override]
        def call(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...  # type: ignore[override]
        async def acall(self, context: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any: ...  # type: ignore[override]

else:
    ContextTask = Task

    def _refuse_change(task: Task, name: str, value: object = None) -> None:
        raise AttributeError(
            f"{name} of the task {task.name} cannot be replaced: in tests use capture_jobs() or "
            "run_inline(), or replace the task itself in the module that calls it"
        )

    Task.__setattr__ = Task.__delattr__ = _refuse_change  # dataclass's own fails obscurely


def job_of(new: NewJob, deferred: Deferred | None) -> Job:
    """The handle of a job that was sent or waits for a commit; for a duplicate, the handle of the
    job that has its unique key. Raises IdempotencyConflict."""
    if new.differs:
        raise IdempotencyConflict(
            f"the Idempotency-Key was sent before with another body, which created job "
            f"{new.owner}; send the same body again, or use another key"
        )
    if new.owner:
        return Job(new.owner, deferred=deferred, is_duplicate=True)
    return Job(new.id, deferred=deferred)


def once_per_request(task: Task, key: str, fingerprint: str) -> Task:
    """A copy whose calls with this Idempotency-Key create one job, if their bodies are equal."""
    uniqueness = task.uniqueness or Uniqueness(task.name, task.parameters, None)
    return replace(task, uniqueness=uniqueness.once_per_request(key, fingerprint))


def check_single(task: Task) -> None:
    """Raise WorkflowError for a chunk task where one job has to be one call."""
    if task.options.chunk is not None:
        raise WorkflowError(
            f"{task.name} is a chunk task: one call runs many of its jobs, so it cannot be a part "
            "of a workflow, a callback or a listener; use a plain task there, which may enqueue "
            "this one"
        )


def check_expiry(task: Task) -> None:
    """Raise InvalidOption for a task whose jobs would expire before they are due."""
    when, now_ms = (task.uniqueness and task.uniqueness.delay) or task.when, real_ms()
    if task.expires and when and instant_ms(task.expires, now_ms) <= instant_ms(when, now_ms):
        raise InvalidOption(
            f"jobs of {task.name} would expire before they are due: expires counts from when they "
            "are enqueued, so make it later than run_after or the wait of Replace"
        )


def _add_option(encoded_options: str, option: str, value: object) -> str:
    return dumps({option: value, **(loads(encoded_options) if encoded_options else {})})


def as_task(what: object) -> object:
    """The ``Task`` for a task of Django's own; other objects as they are. Raises InvalidTask."""
    if ports.adapter is None or isinstance(what, Task | Signature):
        return what
    adapt_task: Task | None = ports.adapter(what)
    return what if adapt_task is None else adapt_task


@dataclass(frozen=True, slots=True)
class Signature:
    """A task with its arguments, not enqueued. With ``takes_result`` the result of its only parent
    is prepended to the arguments when it runs."""

    task: Task
    args: Sequence[Any] = field(default=(), repr=False)  # the task may redact them
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    takes_result: bool = False

    def taking_result(self) -> Signature:
        """A copy whose first argument will be its parent's result."""
        return replace(self, takes_result=True)

    def with_defaults(self, options: Mapping[str, Any]) -> Signature:
        """A copy with these options of ``using``, except those already set."""
        fixed, task = self.task.options, self.task
        missing = {
            name: value
            for name, value in options.items()
            if getattr(fixed, name) == getattr(_DEFAULTS, name) and name not in task.call_options
        }
        return replace(self, task=task.using(**missing)) if missing else self

    def new_job(self, job_id: str = "") -> NewJob:
        """The job to enqueue. Raises what ``enqueue`` raises for wrong arguments, and WorkflowError
        when it has parents outside the workflow."""
        try:
            job = self.task._new_job(self.args, self.kwargs, job_id, before=int(self.takes_result))
        except Exception as error:
            if self.task.redaction is not None:
                without_frames(error)
            raise
        if job.after:
            raise WorkflowError(
                f"{job.task} has after= from using(), which is for jobs outside a workflow; inside "
                "one, pass its parents to add(..., after=...)"
            )
        if self.takes_result:
            job.options = _add_option(job.options, "takes_result", True)
        return job


_DEFAULTS = TaskOptions()


def check_callback(
    what: object, option: str, keywords: Mapping[str, Any] | None = None
) -> Signature:
    """The signature of a task with these keyword arguments, or a signature as it is."""
    task = as_task(what)
    signature = Signature(task, (), keywords or {}) if isinstance(task, Task) else task
    if not isinstance(signature, Signature):
        raise InvalidOption(
            f"{option} must be a task, or a signature (task.s(...)) with its arguments, "
            f"not {short_repr(what)}"
        )
    check_single(signature.task)
    if signature.task.after:
        raise InvalidOption(
            f"{signature.task.name} has after= from using(), but as {option} it is enqueued at the "
            "end anyway; remove after="
        )
    return signature


def callback_fields(name: str, signature: Signature, job_id: str) -> Iterator[str]:
    """Names and values of the fields from which Redis makes the job; ``job_id`` is an example of
    its id. Raises InvalidOption."""
    job = signature.new_job(job_id)
    check_same_shard(job, f"the {name} callback")
    for key in SIGNATURE_FIELDS:
        if value := str(getattr(job, key)):
            yield from (f"{name}_{key}", value)
