"""What a running job has stored: results of its finished steps, by name, and what it waits for.

A job that runs again (after a failure, a crash or a deploy) calls the same code from its first
line. A step that is already done returns its stored result without being called.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.db import router

from ...broker.replies import ClaimedJob, WaitReply, WaitState
from ...conf import get_settings
from ...core.codec import encode_result, loads
from ...core.ids import STEP_NAME
from ...exceptions import (
    ApprovalRejected,
    EventTimeout,
    InvalidOption,
    JobAbandoned,
    JobSuspended,
    PayloadTooLarge,
    StepError,
    short_repr,
)
from ...models import Approval
from ...models.approvals import check_permission, event_of, expiry_of
from ...outbox.receipts import current_unit, run_step

_current: ContextVar[str] = ContextVar("redisqueue_step", default="")

Step = Callable[..., Any]
P = ParamSpec("P")
Answer = TypeVar("Answer")
DECIDE = "django_redisqueue.change_approval"  # the permission, unless the job names another
MAX_QUESTION = 10_000  # characters
_PERMISSION = re.compile(r"\w+\.\w+", re.ASCII)


class Kind(StrEnum):
    """The first part of a field: the kind of value that it stores."""

    STEP = "step"
    CURSOR = "cursor"
    WAIT = "wait"
    SLEEP = "sleep"
    APPROVAL = "approval"


class StepStore(Protocol):
    """Where a job's steps are kept until it ends: Redis, or the memory of a test."""

    def load(self, job: ClaimedJob) -> dict[str, str]:
        """All fields, ``<kind>:<name>``, in a run that is not the first. Raises JobAbandoned."""

    def save(self, job: ClaimedJob, field: str, value: str) -> int:
        """Codes of step.lua."""

    def check_wait(self, job: ClaimedJob, event: str, ms: int | None, *, sleeps: bool) -> WaitReply:
        """The state of a wait, as check_wait.lua replies."""


def check_step_name(name: object, what: str = "a step") -> str:
    """Return ``name``. Raises StepError unless it can name a step, or ``what`` it is to name."""
    if isinstance(name, str) and STEP_NAME.fullmatch(name):
        return name
    raise StepError(
        f"the name of {what} must be text of 1 to 100 letters, digits, spaces and . : @ / + = "
        f"_ -, not {short_repr(name)}"
    )


class Steps:
    """The steps of one run."""

    def __init__(self, job: ClaimedJob, store: StepStore) -> None:
        self._job = job
        self._store = store
        self._fields: dict[str, str] | None = None
        self._used: set[str] = set()
        self._sleeps = 0

    def use(self, kind: Kind, name: object) -> str:
        """The field of this step in this run. Raises StepError for a name that was used before."""
        field = f"{kind}:{check_step_name(name)}"
        if field in self._used:
            raise StepError(
                f"the {kind} {name!r} occurs twice in one run of {self._job.task}; a name "
                "identifies finished work, so give each its own"
            )
        self._used.add(field)
        return field

    def get(self, field: str) -> str | None:
        """The value that the job has stored in this field. The first call reads all fields."""
        if self._fields is None:
            # No earlier run, no steps.
            self._fields = self._store.load(self._job) if self._job.lease > 1 else {}
        return self._fields.get(field)

    def save(self, field: str, value: str) -> None:
        """Store ``value``. Raises JobAbandoned or PayloadTooLarge."""
        code = self._store.save(self._job, field, value)
        if code == 0:
            raise JobAbandoned(f"job {self._job.id} was taken over by another worker")
        if code < 0:
            raise self._too_large(field)
        if self._fields is not None:
            self._fields[field] = value

    def _too_large(self, field: str) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the {field.replace(':', ' ', 1)} of {self._job.task} is too large: a job may "
            "store REDISQUEUE['MAX_RESULT_BYTES'] "
            f"({get_settings().max_result_bytes}) in all its steps. Store the data elsewhere "
            "(a row, a file) and return its key"
        )

    def sleep_name(self) -> str:
        """The name of an unnamed sleep: its position among them."""
        self._sleeps += 1
        return str(self._sleeps)

    def wait(self, kind: Kind, name: str, ms: int | None) -> Any:
        """The payload of an event; None after a sleep. Raises EventTimeout or JobSuspended."""
        sleeps = kind is Kind.SLEEP
        reply = self._store.check_wait(self._job, name, ms, sleeps=sleeps)
        state = reply.state
        if state is WaitState.OVER:
            return loads(reply.value)
        if state is WaitState.LATE:
            raise EventTimeout(f"event {name!r} did not come in time for {self._job.task}")
        if state is WaitState.TOO_LARGE:
            raise self._too_large(f"{kind}:{name}")
        if state is WaitState.LEASE_LOST:
            raise JobAbandoned(f"job {self._job.id} was taken over by another worker")
        event = "" if sleeps else name
        raise JobSuspended(f"it waits: {kind} {name}", "parked", reply.value, event)

    def key(self, name: str) -> str:
        """A key for the step that is the same in every run of the job."""
        return f"{self._job.id}:{check_step_name(name)}"

    def current_key(self) -> str:
        """The key of the step that is running. Raises StepError outside a step."""
        name = _current.get()
        if not name:
            raise StepError(
                "step_key is the key of the step that is running, and none is; outside a step use "
                'step_key_for("name")'
            )
        return self.key(name)

    def encode(self, name: str, value: object) -> str:
        """The result of a step as JSON. Raises InvalidArguments or PayloadTooLarge."""
        limit = get_settings().max_result_bytes
        return encode_result(value, limit, f"step {name!r} of {self._job.task}")

    def run(self, name: str, func: Step, atomic: bool, using: str) -> Any:
        """The result of the step: stored, or of ``func``."""
        field = self.use(Kind.STEP, name)
        text, unit = self.get(field), current_unit()
        if unit is not None:
            unit.has_steps = True
        if text is None:
            with _running(name):
                if atomic or unit is not None:
                    text = run_step(self._job.id, field, using, lambda: self.encode(name, func()))
                else:
                    text = self.encode(name, func())
            self.save(field, text)
        return loads(text)

    async def arun(self, name: str, func: Step) -> Any:
        """``run`` of an async function."""
        field = self.use(Kind.STEP, name)
        text = await in_thread(self.get)(field)
        if text is None:
            with _running(name):
                text = self.encode(name, await func())
            await in_thread(self.save)(field, text)
        return loads(text)


def in_thread(func: Callable[P, Answer]) -> Callable[P, Awaitable[Answer]]:
    """Wrap ``func``, which waits for Redis, for an event loop. It needs no database connection."""
    return sync_to_async(func, thread_sensitive=False)


@contextmanager
def _running(name: str) -> Iterator[None]:
    token = _current.set(name)
    try:
        yield
    finally:
        _current.reset(token)


def check_callable(func: object, name: object, *, takes_async: bool = False) -> Any:
    """Return ``func``. Raises StepError unless ``step`` can call it."""
    if not callable(func):
        raise StepError(
            f"step {name!r} needs a function and its arguments, not {short_repr(func)}; write "
            "context.step(name, func, *args)"
        )
    if not takes_async and inspect.iscoroutinefunction(getattr(func, "func", func)):
        raise StepError(f"step {name!r} has an async function; use await context.astep(...)")
    return func


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision. It is always an approval, because a rejection is raised."""

    approved: bool
    by: str
    comment: str


@dataclass(frozen=True, slots=True)
class Question:
    """What a job asks, and who may answer."""

    job: ClaimedJob
    name: str
    text: str
    permission: str

    def get(self, steps: Steps, timeout_ms: int | None) -> Decision:
        """The decision. Raises ApprovalRejected or EventTimeout.

        While it is pending, raises JobSuspended, whose ``prepare`` stores the question.
        """
        try:
            payload = steps.wait(Kind.WAIT, event_of(self.job.id, self.name), timeout_ms)
        except EventTimeout:
            payload = self.late_decision()
            if payload is None:
                raise EventTimeout(
                    f"approval {self.name!r} was not decided in time for {self.job.task}"
                ) from None
        except JobSuspended as suspended:
            suspended.prepare = partial(self.ask, suspended.detail)
            raise
        return _decision(self.name, payload)

    def ask(self, due: str) -> None:
        """Store the question, once. ``due``: when it expires, in ms, or ''. Raises InvalidOption
        for a permission that does not exist."""
        check_permission(self.permission)
        expires_at = expiry_of(due)
        row, is_new = Approval._base_manager.get_or_create(
            job_id=self.job.id,
            name=self.name,
            defaults={
                "task": self.job.task,
                "queue": self.job.queue,
                "question": self.text,
                "permission": self.permission,
                "expires_at": expires_at,
            },
        )
        if is_new:
            return
        if row.is_decided:
            row.announce()  # the event was lost, with Redis or because it expired
        else:
            row.reopen(expires_at)

    def late_decision(self) -> Mapping[str, Any] | None:
        """Let the question expire. Returns the decision if one was made just before."""
        rows = Approval._base_manager.using(router.db_for_write(Approval))
        row = rows.filter(job_id=self.job.id, name=self.name).first()
        return None if row is None or row.expire() else row.decision()


def _decision(name: str, payload: Mapping[str, Any]) -> Decision:
    decision = Decision(payload["approved"], payload["by"], payload["comment"])
    if not decision.approved:
        comment = f": {decision.comment}" if decision.comment else ""
        raise ApprovalRejected(
            f"approval {name!r} was rejected by {decision.by}{comment}", decision
        )
    return decision


def check_question(job: ClaimedJob, name: object, text: object, permission: object) -> Question:
    """The Question for these arguments. Raises StepError or InvalidOption."""
    if permission is not None and not (
        isinstance(permission, str) and _PERMISSION.fullmatch(permission)
    ):
        raise InvalidOption(
            'permission must be a user permission, such as "shop.approve_refund", not '
            f"{short_repr(permission)}"
        )
    if not isinstance(text, str) or len(text) > MAX_QUESTION:
        raise InvalidOption(
            f"question must be text of at most {MAX_QUESTION} characters, not {short_repr(text)}"
        )
    return Question(job, check_step_name(name, "an approval"), text, permission or DECIDE)
