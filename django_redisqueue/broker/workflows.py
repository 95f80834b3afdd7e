"""Commands and queries for workflows and gathers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Any

from ..core.codec import loads
from ..core.parsing import int_or_none, pairs, parse_int, present
from ..core.records import (
    WORKFLOW_FIELDS,
    GatherData,
    GatherListener,
    GatherPlan,
    WorkflowData,
    WorkflowNode,
    WorkflowPart,
    decode_gather,
    decode_workflow,
)
from ..core.text import printable
from ..exceptions import CorruptJob, ResultGone
from .base import CommandBase, QueryBase, Read, Strict, query, together

STEPS_A_REQUEST = 10  # of 100 jobs, in a web request; workers continue
RESULTS_A_ROUND_TRIP = 1_000_000  # bytes
HALF_PUSHED_MS = 86_400_000  # how long an incomplete workflow waits for its other jobs (a day)

DONE_COUNT = "queryDoneCount"
_FILE = "file:"
_OUTLINE = (
    "id", "status", "reason", "threshold", "listeners", "missing", "polls", "made_ms", "ended_ms",
)  # fmt: skip


class WorkflowCommands(CommandBase):
    def enqueue_workflow(self, parts: Iterable[WorkflowPart]) -> tuple[Any, ...]:
        """The arguments of one script call that creates several workflows, or a part of one: up to
        100 jobs. The reply is a list of their codes. Repeating a call changes nothing.

        Whatever the jobs have in common, all but id and payload, is sent once."""
        kinds: dict[tuple[Any, ...], int] = {}
        arguments: list[Any] = []
        for workflow_id, fields, jobs, first, last, stored in parts:
            arguments += (
                workflow_id, int(first), int(last), int(stored), len(fields) // 2, len(jobs),
                *fields,
            )  # fmt: skip
            at = len(workflow_id)
            for job in jobs:
                kind = kinds.setdefault(job[1:3] + job[4:], len(kinds))
                arguments += (job.id[at:], kind, job.payload)
        head = self._head("enqueue_workflow")
        return (*head, HALF_PUSHED_MS, len(kinds), *chain.from_iterable(kinds), *arguments)

    def control_workflow(self, workflow_id: str, order: str) -> int:
        """Pause, release, cancel or clean a workflow: 1 done, 0 nothing to do, -1 unknown."""
        return self._run("control_workflow", workflow_id, order)

    def control_workflow_and_advance(self, workflow_id: str, order: str, steps: int) -> int:
        """Control a workflow and run up to ``steps`` of its steps; workers run the rest."""
        code = self.control_workflow(workflow_id, order)
        for _ in range(steps):
            if not self.advance():
                break
        return code

    def advance(self) -> bool:
        """Continue the work that other scripts left for later; True if more is left."""
        return bool(self._run("advance"))


class WorkflowQueries(QueryBase):
    def workflow(self, workflow_id: str) -> WorkflowData | None:
        """A workflow and its counts, or None. Raises CorruptJob."""
        return _workflow(
            workflow_id,
            self.connection.call("HMGET", self.keys.workflow(workflow_id), *WORKFLOW_FIELDS),
        )

    @query
    def workflows(
        self, workflow_ids: Sequence[str]
    ) -> Read[list[WorkflowData | CorruptJob | None]]:
        """Several workflows in one round trip, with the error for an unreadable one."""
        replies = yield [
            ("HMGET", self.keys.workflow(one), *WORKFLOW_FIELDS) for one in workflow_ids
        ]
        return list(map(_workflow_or_error, workflow_ids, replies))

    def nodes(self, workflow_id: str, numbers: Sequence[int]) -> list[WorkflowNode | None]:
        """The jobs with these numbers (at most 1,000) in one round trip, without their parents;
        None for a job that Redis no longer has."""
        keys = [self.keys.job(f"{workflow_id}.{number}") for number in numbers]
        replies = self._each([("HMGET", key, "status", "task") for key in keys])
        found = zip(numbers, [reply or (None, None) for reply in replies], strict=True)
        return [
            WorkflowNode(number, printable(status), printable(task or "")) if status else None
            for number, (status, task) in found
        ]

    def parents(
        self, workflow_id: str, numbers: Sequence[int], most: int
    ) -> tuple[list[tuple[int, ...]], int] | None:
        """The numbers of these jobs' parents in their workflow, and their size in bytes; None if it
        exceeds ``most``. Two round trips."""
        if not numbers:
            return [], 0
        keys = [self.keys.job(f"{workflow_id}.{n}") for n in numbers]
        size = sum(self.connection.pipeline([("HSTRLEN", key, "after") for key in keys]))
        if size > most:
            return None
        replies = self.connection.pipeline([("HGET", key, "after") for key in keys])
        return [_numbers(names) for names in replies], size

    def relatives(self, job_id: str) -> tuple[list[str], list[str]]:
        """The ids of a job's parents, and of the jobs that wait for it (at most 100 of each)."""
        (after, then), listed, followers = self.connection.pipeline(
            [
                ("HMGET", self.keys.job(job_id), "after", "then"),
                ("LRANGE", self.keys.dependants(job_id), 0, 99),
                ("ZRANGEBYSCORE", self.keys.followers(job_id), 0, "+inf", "LIMIT", 0, 100),
            ]
        )
        workflow_id = job_id.rpartition(".")[0]
        waiting = [*(listed if then == "*" else (then or "").split()), *followers]
        return _full((after or "").split()[:100], workflow_id), _full(waiting[:100], workflow_id)

    def parent_results(self, job_id: str, decode: Callable[[str], Any] = loads) -> dict[str, Any]:
        """The results of a job's parents by their ids, None for a parent without one. ``decode``
        reads a result's JSON, which may name a file. Raises ResultGone, LeaseLost, CorruptJob, and
        whatever ``decode`` raises.

        Which parents had a result is recorded in the workflow, or else in the job itself.
        """
        workflow_id = job_id.rpartition(".")[0]
        after, status = self.connection.call("HMGET", self.keys.job(job_id), "after", "status")
        self._check_runs(job_id, status)
        names = (after or "").split()
        if not names:
            return {}
        if names[0].startswith("."):
            key, marks = self.keys.workflow(workflow_id), [f"r:{name[1:]}" for name in names]
        else:
            key, marks = self.keys.job(job_id), [f"from:{name}" for name in names]
        status, *had_one = self.connection.call("HMGET", key, "status", *marks)
        if status is None:
            raise ResultGone(
                f"the results that job {job_id} needs were deleted with its workflow, {workflow_id}"
            )
        parents = _full(names, workflow_id)
        results: dict[str, Any] = dict.fromkeys(parents)
        wanted = [name for name, mark in zip(parents, had_one, strict=True) if mark is not None]
        for parent, text in self._results(wanted):
            if text is None:
                raise ResultGone(
                    f"the result of job {parent} was deleted before job {job_id} read it, "
                    "because finished jobs took more than FINISHED_MAX_BYTES"
                )
            results[parent] = _result(parent, text, decode)
        return results

    def waited_since(self, job_id: str) -> tuple[int, int] | None:
        """The time from which a job's ``expires`` counts (its enqueue, the end of its last parent,
        or the call that replaced its arguments), and the time at which the job was claimed. None if
        it has run before or was requeued. Raises ValueError."""
        ran, generation, claimed, after, *since = self.connection.call(
            "HMGET", self.keys.job(job_id), "ran", "generation", "started_ms", "after",
            "enqueued_ms", "renewed_ms",
        )  # fmt: skip
        if ran or generation or not claimed:
            return None
        parents = _full((after or "").split(), job_id.rpartition(".")[0])
        if parents:
            ends = [("HGET", self.keys.job(parent), "finished_ms") for parent in parents]
            since += self.connection.pipeline(ends)
        return max((parse_int(one) for one in since if one), default=0), parse_int(claimed)

    def _results(self, ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
        """The results of jobs as JSON, about a megabyte per round trip."""
        if not ids:
            return
        keys = [self.keys.job(job_id) for job_id in ids]
        sizes = self.connection.pipeline([("HSTRLEN", key, "result") for key in keys])
        for part in _batches(sizes):
            texts = self.connection.pipeline([("HGET", key, "result") for key in keys[part]])
            yield from zip(ids[part], texts, strict=True)


def _batches(sizes: Sequence[int]) -> Iterator[slice]:
    """Split sizes into parts of up to RESULTS_A_ROUND_TRIP bytes, or with a single larger size."""
    start = size = 0
    for at, one in enumerate(sizes):
        if at > start and size + one > RESULTS_A_ROUND_TRIP:
            yield slice(start, at)
            start, size = at, 0
        size += one
    yield slice(start, len(sizes))


def _result(parent: str, text: str, decode: Callable[[str], Any]) -> Any:
    try:
        return decode(text)
    except ValueError as error:
        raise CorruptJob(f"the result of job {parent} cannot be read: {error}") from None


def _workflow_or_error(
    workflow_id: str, raw: Sequence[str | None] | None
) -> WorkflowData | CorruptJob | None:
    if raw is None:
        return CorruptJob(f"the key of workflow {workflow_id} does not hold a workflow")
    try:
        return _workflow(workflow_id, raw)
    except CorruptJob as error:
        return error


def _workflow(workflow_id: str, raw: Sequence[str | None]) -> WorkflowData | None:
    fields = present(WORKFLOW_FIELDS, raw)
    return decode_workflow(workflow_id, fields) if "status" in fields else None


def _numbers(names: str | None) -> tuple[int, ...]:
    found = [name[1:] for name in (names or "").split() if name.startswith(".")]
    return tuple(number for name in found if (number := int_or_none(name)) is not None)


def _full(names: Sequence[str], workflow_id: str) -> list[str]:
    """Full ids from names: ".4" is a sibling in the workflow."""
    return [workflow_id + name if name.startswith(".") else name for name in names]


class GatherCommands(CommandBase):
    def start_gather(self, plan: GatherPlan) -> int:
        """Start a gather: 1 started, 0 already started, -1 another gather has its key."""
        arguments: list[Any] = [plan.key, plan.id, plan.ttl_ms, plan.poll_delay_ms, plan.payload]
        arguments += [len(plan.fields) // 2, *plan.fields]
        for listener in plan.listeners:
            arguments += GatherListener(*listener)
        return self._accept((*self._head("start_gather"), *arguments))

    def delete_gather(self, key: str, gather_id: str) -> bool:
        """Forget a gather whose files are deleted; False if it was already gone."""
        return bool(self._run("delete_gather", key, gather_id))


class GatherQueries(QueryBase):
    @query
    def gather(self, key: str) -> Read[GatherData | None]:
        """A gather without its results, or None when no gather has this key."""
        raw, there, done = yield Strict(
            ("HGETALL", self.keys.gather_plan(key)),
            ("HKEYS", self.keys.gather(key)),
            ("HGET", self.keys.gather(key), DONE_COUNT),
        )
        fields = pairs(raw)
        return decode_gather(key, fields, there, done) if "id" in fields else None

    @query
    def newest(self, count: int) -> Read[list[tuple[str, float]]]:
        """The keys of the gathers started last, latest first, with their start times."""
        (found,) = yield Strict(("ZREVRANGE", self.keys.newest_gathers, 0, count - 1, "WITHSCORES"))
        return [(key, float(at)) for key, at in pairs(found).items()]

    @query
    def matching(self, text: str, count: int) -> Read[list[tuple[str, float]]]:
        """As ``newest``, but only keys that contain ``text``; and the key ``text`` itself, with
        infinity as its time."""
        known, newest = yield Strict(
            ("HEXISTS", self.keys.gather_plan(text), "id"),
            ("ZREVRANGE", self.keys.newest_gathers, 0, count - 1, "WITHSCORES"),
        )
        part, exact = text.casefold(), {text: inf} if known else {}
        found = {key: float(at) for key, at in pairs(newest).items() if part in key.casefold()}
        return list({**found, **exact}.items())

    @query
    def statuses(self, keys: Sequence[str]) -> Read[list[str | None]]:
        """The statuses of gathers; None for one that is gone. One round trip."""
        return (yield [("HGET", self.keys.gather_plan(key), "status") for key in keys])

    @query
    def outlines(self, keys: Sequence[str]) -> Read[list[GatherData | CorruptJob | None]]:
        """Several gathers without payloads, in one round trip; None for those that are gone."""
        return (yield from together(map(self._outline, keys)))

    def _outline(self, key: str) -> Read[GatherData | CorruptJob | None]:
        plan, results = self.keys.gather_plan(key), self.keys.gather(key)
        raw, there, done = yield [
            ("HMGET", plan, *_OUTLINE), ("HKEYS", results), ("HGET", results, DONE_COUNT),
        ]  # fmt: skip
        known = present(_OUTLINE, raw or ())
        if not known:
            return None
        try:
            return decode_gather(key, {**known, "payload": "[[],{}]"}, there or (), done)
        except CorruptJob as error:
            return error

    def results(self, key: str) -> dict[str, str]:
        """The results as JSON, by listener. The cost grows with their size."""
        found = pairs(self.connection.call("HGETALL", self.keys.gather(key)))
        found.pop(DONE_COUNT, None)
        return found

    def key_of(self, job_id: str) -> str | None:
        return self.connection.call("HGET", self.keys.job(job_id), "gather")

    def key_of_run(self, job_id: str) -> str | None:
        """``key_of`` for a job that runs. Raises LeaseLost if Redis has no record of that."""
        key, status = self.connection.call("HMGET", self.keys.job(job_id), "gather", "status")
        self._check_runs(job_id, status)
        return key

    def closed(self, count: int) -> list[str]:
        """Some of the ended gathers whose files are to be deleted."""
        return self.connection.call("SRANDMEMBER", self.keys.closed_gathers, count)

    def files(self, key: str) -> tuple[str, list[str]]:
        """A gather's id ('' if it is gone), and the files recorded for its results."""
        plan = self.keys.gather_plan(key)
        gather_id, names = self.connection.pipeline([("HGET", plan, "id"), ("HKEYS", plan)])
        files = [name.removeprefix(_FILE) for name in names if name.startswith(_FILE)]
        return gather_id or "", files
