"""The verbs of workflows, and what is read of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..codec import loads
from ..exceptions import CorruptJob, ResultGone
from ..flowdata import FLOW_FIELDS, FlowData, FlowJob, FlowNode, decode_flow
from ..parsing import whole
from ..texts import printable
from .reader import Reader
from .verbs import Verbs

STEPS_A_REQUEST = 10  # of 100 jobs that a web request does itself; workers go on
RESULTS_A_ROUND_TRIP = 1_000_000  # bytes
HALF_PUSHED_MS = 86_400_000  # for so long a half-pushed workflow waits for the rest (a day)


class WorkflowVerbs(Verbs):
    """Making, steering and going on with workflows."""

    def push(
        self,
        flow_id: str,
        fields: Sequence[str],
        jobs: Sequence[FlowJob],
        *,
        first: bool,
        last: bool,
        stored: bool = False,
    ) -> int:
        """Make up to 100 jobs of a workflow; codes of push.lua. ``fields``: names and values of the
        workflow itself; ``stored``: it has a row in an outbox. Repeating a call changes nothing."""
        call = self.push_call(flow_id, fields, jobs, first=first, last=last, stored=stored)
        code: int = self._accept(call)
        return code

    def push_call(
        self,
        flow_id: str,
        fields: Sequence[str],
        jobs: Sequence[FlowJob],
        *,
        first: bool,
        last: bool,
        stored: bool = False,
    ) -> tuple[Any, ...]:
        """The arguments of ``push``, for a link that sends several calls."""
        arguments: list[Any] = [
            flow_id, int(first), int(last), HALF_PUSHED_MS, int(stored), len(fields) // 2, *fields,
        ]  # fmt: skip
        for job in jobs:
            arguments += job
        return (*self._head("push"), *arguments)

    def steer(self, flow_id: str, order: str) -> int:
        """Pause, release, cancel or clean a workflow: 1 done, 0 nothing to do, -1 not known."""
        code: int = self._run("steer", flow_id, order)
        return code

    def steer_on(self, flow_id: str, order: str, steps: int) -> int:
        """``steer``, and up to ``steps`` steps of what follows; workers go on with the rest."""
        code = self.steer(flow_id, order)
        for _ in range(steps):
            if not self.advance():
                break
        return code

    def advance(self) -> bool:
        """Go on with what other scripts left for later; True when there is more of it."""
        return bool(self._run("advance"))


class WorkflowReads(Reader):
    """The reads, on one link."""

    def workflow(self, flow_id: str) -> FlowData | None:
        """A workflow and its counts, or None when there is none of that id. Raises CorruptJob."""
        return _flow(flow_id, self.link.call("HMGET", self.keys.workflow(flow_id), *FLOW_FIELDS))

    def workflows(self, flow_ids: Sequence[str]) -> list[FlowData | CorruptJob | None]:
        """Several workflows in one round trip; one that cannot be read comes as its error."""
        commands = [("HMGET", self.keys.workflow(one), *FLOW_FIELDS) for one in flow_ids]
        return [
            _flow_or_error(flow_id, raw)
            for flow_id, raw in zip(flow_ids, self._each(commands), strict=True)
        ]

    def nodes(self, flow_id: str, numbers: Sequence[int]) -> list[FlowNode | None]:
        """The jobs of these numbers, at most 1,000, in one round trip, without their parents; None
        for one that Redis does not have any more."""
        if not numbers:
            return []
        commands = [("HMGET", self.keys.job(f"{flow_id}.{n}"), "status", "task") for n in numbers]
        replies = [reply or (None, None) for reply in self._each(commands)]
        return [
            FlowNode(n, printable(status), printable(task or "")) if status else None
            for n, (status, task) in zip(numbers, replies, strict=True)
        ]

    def parents(
        self, flow_id: str, numbers: Sequence[int], most: int
    ) -> tuple[list[tuple[int, ...]], int] | None:
        """The numbers of these jobs' parents in their workflow, and the bytes that they took; None
        when that would be more than ``most``. Two round trips."""
        if not numbers:
            return [], 0
        keys = [self.keys.job(f"{flow_id}.{n}") for n in numbers]
        size = sum(self.link.pipeline([("HSTRLEN", key, "after") for key in keys]))
        if size > most:
            return None
        replies = self.link.pipeline([("HGET", key, "after") for key in keys])
        return [_numbers(names) for names in replies], size

    def relatives(self, job_id: str) -> tuple[list[str], list[str]]:
        """The ids of a job's parents, and of those that still wait for it (at most 100 of each)."""
        (after, then), listed, followers = self.link.pipeline(
            [
                ("HMGET", self.keys.job(job_id), "after", "then"),
                ("LRANGE", self.keys.dependants(job_id), 0, 99),
                ("ZRANGEBYSCORE", self.keys.followers(job_id), 0, "+inf", "LIMIT", 0, 100),
            ]
        )
        flow_id = job_id.rpartition(".")[0]
        waiting = [*(listed if then == "*" else (then or "").split()), *followers]
        return _full((after or "").split()[:100], flow_id), _full(waiting[:100], flow_id)

    def parent_results(self, job_id: str) -> dict[str, Any]:
        """The results of a job's parents by their ids, None where there is none. Each stands with
        the parent alone; which of them had one, the workflow says, or of others the job itself.
        Raises ResultGone and CorruptJob."""
        flow_id = job_id.rpartition(".")[0]
        names = (self.link.call("HGET", self.keys.job(job_id), "after") or "").split()
        if not names:
            return {}
        if names[0].startswith("."):
            marks = [self.keys.workflow(flow_id), "status", *(f"r:{name[1:]}" for name in names)]
        else:
            marks = [self.keys.job(job_id), "status", *(f"from:{name}" for name in names)]
        status, *had_one = self.link.call("HMGET", *marks)
        if status is None:
            raise ResultGone(f"what job {job_id} was to read went with its workflow, {flow_id}")
        parents = _full(names, flow_id)
        results: dict[str, Any] = dict.fromkeys(parents)
        wanted = [name for name, mark in zip(parents, had_one, strict=True) if mark is not None]
        for parent, text in self._results(wanted):
            if text is None:
                raise ResultGone(
                    f"the result of job {parent} was let go before job {job_id} had read it, "
                    "because finished jobs took more than FINISHED_MAX_BYTES"
                )
            results[parent] = _result(parent, text)
        return results

    def _results(self, ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
        """The results of jobs as JSON, about a megabyte a round trip."""
        if not ids:
            return
        keys = [self.keys.job(job_id) for job_id in ids]
        sizes = self.link.pipeline([("HSTRLEN", key, "result") for key in keys])
        for part in _batches(sizes):
            texts = self.link.pipeline([("HGET", key, "result") for key in keys[part]])
            yield from zip(ids[part], texts, strict=True)


def _batches(sizes: Sequence[int]) -> Iterator[slice]:
    """Cut a row of sizes into parts of RESULTS_A_ROUND_TRIP bytes, or of one that is larger."""
    start = size = 0
    for at, one in enumerate(sizes):
        if at > start and size + one > RESULTS_A_ROUND_TRIP:
            yield slice(start, at)
            start, size = at, 0
        size += one
    yield slice(start, len(sizes))


def _result(parent: str, text: str) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        raise CorruptJob(f"the result of job {parent} cannot be read: {error}") from None


def _flow_or_error(flow_id: str, raw: Sequence[str | None] | None) -> FlowData | CorruptJob | None:
    if raw is None:
        return CorruptJob(f"the key of workflow {flow_id} holds no workflow")
    try:
        return _flow(flow_id, raw)
    except CorruptJob as error:
        return error


def _flow(flow_id: str, raw: Sequence[str | None]) -> FlowData | None:
    pairs = zip(FLOW_FIELDS, raw, strict=True)
    fields = {name: text for name, text in pairs if text is not None}
    return decode_flow(flow_id, fields) if "status" in fields else None


def _numbers(names: str | None) -> tuple[int, ...]:
    found = [name[1:] for name in (names or "").split() if name.startswith(".")]
    return tuple(number for name in found if (number := whole(name)) is not None)


def _full(names: Sequence[str], flow_id: str) -> list[str]:
    """Ids from names: ".4" is a sibling in the workflow."""
    return [flow_id + name if name.startswith(".") else name for name in names]
