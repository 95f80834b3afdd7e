"""Runs a chunk: one call of a task gets many jobs, each of which has its own outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from django.db import DEFAULT_DB_ALIAS

from ...broker.replies import ClaimedJob, OutcomeKind
from ...client.options import Chunk, ChunkItem
from ...core.clock import Duration
from ...core.parsing import is_int
from ...exceptions import InvalidArguments, ItemFailed, Retry, short_repr
from ..current import current_run
from . import retry_policy
from .executor import CallFunction, Execution, Pipeline, encode
from .retry_policy import Resolution, UnstorableResult
from .steps import Steps, check_callable

StepsOf = Callable[[ClaimedJob], Steps]


class ChunkContext:
    """The first argument of a chunk task with ``takes_context=True``.

    Jobs that the function does not mention complete when it returns, or share its exception.
    """

    def __init__(self, items: Sequence[ChunkItem], steps: Sequence[Steps]) -> None:
        self.items = items  #: the list that the function gets
        self._steps = steps
        self.errors: dict[int, Exception] = {}  # by position
        self.failed: set[int] = set()  # positions of jobs that are not retried
        self._positions = {item.id: at for at, item in enumerate(items)}

    def fail(self, item: int | ChunkItem, error: Exception | str = "") -> None:
        """Fail one job (an item, or its position from 0) permanently, with an exception or text.
        Raises InvalidArguments for an item of another chunk."""
        if not isinstance(error, Exception):
            error = ItemFailed(error or "failed by its chunk")
        position = self._position(item)
        self.errors[position] = error
        self.failed.add(position)

    def retry(self, item: int | ChunkItem, delay: Duration | None = None) -> None:
        """Retry one job later; this spends an attempt, and fails the job if none is left.
        ``delay``: a duration; None uses the task's backoff."""
        position = self._position(item)
        self.errors[position] = Retry(delay=delay)
        self.failed.discard(position)

    def step(
        self,
        item: int | ChunkItem,
        name: str,
        func: Callable[..., Any],
        /,
        *args: Any,
        atomic: bool = False,
        using: str = DEFAULT_DB_ALIAS,
        **kwargs: Any,
    ) -> Any:
        """A step of one job, like ``JobContext.step``, whatever chunks the job runs in."""
        call = partial(check_callable(func, name), *args, **kwargs)
        return self._steps[self._position(item)].run(name, call, atomic, using)

    def step_key_for(self, item: int | ChunkItem, name: str) -> str:
        """The idempotency key of a step of one job, the same in every run."""
        return self._steps[self._position(item)].key(name)

    if not TYPE_CHECKING:  # an unknown attribute remains an error for type checkers

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"the context of a chunk has no {name!r}, only items, fail, retry, step and "
                "step_key_for: its jobs share one call, so none of them can wait, iterate or "
                "report progress in it. Enqueue a plain task for that"
            )

    def _position(self, item: int | ChunkItem) -> int:
        if isinstance(item, ChunkItem) and item.id in self._positions:
            return self._positions[item.id]
        if is_int(item, 0, len(self.items) - 1):
            return item
        raise InvalidArguments(
            f"a chunk of {len(self.items)} has the items 0 to {len(self.items) - 1}, not "
            f"{short_repr(item)}"
        )


@dataclass(frozen=True, slots=True)
class _CurrentChunk:
    """What ``current_run`` is in a chunk."""

    job: ClaimedJob  # the first
    is_running = True

    def get_context(self) -> None:
        """A JobContext has one job."""


def shares_chunk(first: Execution, other: Execution) -> bool:
    """Whether two jobs may share a call."""
    chunk = first.task.options.chunk
    return chunk is not None and first.task is other.task and _key(first) == _key(other) != ""


def _key(execution: Execution) -> str:
    """The key of the job's chunk; "" if its arguments were changed manually."""
    chunk: Chunk | None = execution.task.options.chunk
    assert chunk is not None
    try:
        return "=" + chunk.key(execution.task.name, execution.args, execution.kwargs)
    except Exception:
        return ""


def perform_chunk(
    pipeline: Pipeline, chunk: Sequence[Execution], steps_of: StepsOf, call: CallFunction
) -> list[Resolution]:
    """Call the task once for all these jobs; returns the resolution of each."""
    token = current_run.set(_CurrentChunk(chunk[0].job))
    try:
        return _perform(pipeline, chunk, steps_of, call)
    finally:
        current_run.reset(token)


def _perform(
    pipeline: Pipeline, chunk: Sequence[Execution], steps_of: StepsOf, call: CallFunction
) -> list[Resolution]:
    items = [
        ChunkItem(one.job.id, tuple(one.args), one.kwargs, one.job.attempts + 1) for one in chunk
    ]
    context = ChunkContext(items, [steps_of(one.job) for one in chunk])
    args = [context, items] if chunk[0].task.options.takes_context else [items]
    pipeline.begin(*chunk)
    try:
        results: Sequence[object] = _results(call(args), len(items))
    except BaseException as error:
        pipeline.resolve(chunk[0], error)  # the end of the call, whatever becomes of its first job
        return [
            _chosen_resolution(pipeline, one, context, at) or pipeline.resolve(one, error)
            for at, one in enumerate(chunk)
        ]
    pipeline.complete(chunk[0])
    return [
        _chosen_resolution(pipeline, one, context, at) or _complete(pipeline, one, results[at])
        for at, one in enumerate(chunk)
    ]


def _chosen_resolution(
    pipeline: Pipeline, execution: Execution, context: ChunkContext, position: int
) -> Resolution | None:
    """The resolution that the function chose for this job, or None."""
    error = context.errors.get(position)
    if error is None:
        return None
    if position not in context.failed:
        return pipeline.resolve(execution, error)
    text = retry_policy.describe(error, pipeline.settings.max_error_bytes)
    return Resolution(OutcomeKind.FAILED, text)


def _results(returned: object, size: int) -> Sequence[object]:
    if returned is None:
        return [None] * size
    if isinstance(returned, list | tuple) and len(returned) == size:
        return returned
    raise UnstorableResult(
        InvalidArguments(
            f"a chunk task must return None, or a list with one result for each of its {size} "
            f"items, not {short_repr(returned)}"
        )
    )


def _complete(pipeline: Pipeline, execution: Execution, result: object) -> Resolution:
    try:
        return Resolution(OutcomeKind.COMPLETED, encode(result, execution.job, pipeline.settings))
    except BaseException as error:  # raised by a method of the result
        return pipeline.resolve(execution, error)
