"""Scans all jobs and workflows of a Redis, for the mirror."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ..core.job_data import seq_of
from ..core.parsing import MAX_EXACT, MAX_INT16, MAX_INT32, Fields, text_or_none
from ..core.statuses import WorkflowStatus
from ..exceptions import short_repr
from .base import QueryBase
from .events import (
    MAX_ID,
    MAX_NAME,
    MAX_QUEUE,
    MAX_REASON,
    MAX_STATUS,
    MAX_TASK,
    MAX_WORKER,
    MAX_WORKFLOW_ID,
    STATUSES,
    WorkflowCounts,
)

KEYS_A_PAGE = 200  # keys per SCAN, which takes Redis about 0.1 ms
SCAN_START = "0"  # also the cursor at the end
MAX_INCARNATION = 64  # the length of its column
WORKFLOW_STATUSES = frozenset(WorkflowStatus)


class JobSnapshot(NamedTuple):
    id: str
    status: str
    queue: str
    task: str
    seq: int
    audit: str
    child: str
    attempts: int
    priority: int
    generation: int
    reason: str
    enqueued_ms: int
    started_ms: int | None
    finished_ms: int | None
    due_ms: int | None


class WorkflowSnapshot(NamedTuple):
    id: str
    status: WorkflowStatus
    name: str
    counts: WorkflowCounts
    made_ms: int
    ended_ms: int | None
    is_paused: bool


JOB_FIELDS = (*JobSnapshot._fields[1:], "lease")
WORKFLOW_FIELDS = ("status", "name", *WorkflowCounts._fields, "made_ms", "ended_ms", "paused_ms")
Seen = TypeVar("Seen", JobSnapshot, WorkflowSnapshot)


class ScanPage(NamedTuple, Generic[Seen]):
    """One step of a SCAN: the next cursor, what was found, and what could not be read."""

    following: str
    found: list[Seen]
    problems: list[str]


class Scanner(QueryBase):
    def mirrored(self) -> tuple[str, str]:
        """The id that the mirror gave to the data of this Redis, and the id of the last entry that
        it read; each may be ''."""
        fields = self.connection.call("HMGET", self.keys.meta, "incarnation", "mirror_position")
        incarnation, entry = (text_or_none(field, MAX_INCARNATION) or "" for field in fields)
        return incarnation, entry

    def name(self, known: str = "") -> str:
        """Give this Redis's data an id if it has none: ``known``, or a new one. Returns its id.
        Raises NotReplicated: the mirror would take a new master without it for another Redis."""
        key = self.keys.meta
        named = ("HSETNX", key, "incarnation", known or secrets.token_hex(16))
        _, incarnation = self.connection.pipeline([named, ("HGET", key, "incarnation")])
        self._wait_for_replicas("the mirror begins once they have it")
        return text_or_none(incarnation, MAX_INCARNATION) or ""

    def page(self, cursor: str) -> ScanPage[JobSnapshot]:
        """The jobs of one step of a SCAN, which starts and ends with SCAN_START. Every job that
        exists throughout the scan is found at least once."""
        return self._scan(cursor, "job", self.keys.job(""), JOB_FIELDS, _job_snapshot)

    def workflow_page(self, cursor: str) -> ScanPage[WorkflowSnapshot]:
        """The same for workflows."""
        prefix = self.keys.workflow("")
        return self._scan(cursor, "workflow", prefix, WORKFLOW_FIELDS, _workflow_snapshot)

    def _scan(
        self,
        cursor: str,
        kind: str,
        prefix: str,
        names: Sequence[str],
        read: Callable[[str, Fields], Seen | None],
    ) -> ScanPage[Seen]:
        scan = ("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", KEYS_A_PAGE, "TYPE", "hash")
        # On a node that the shard has left or is leaving, the second command fails.
        (following, keys), _ = self.connection.pipeline([scan, ("EXISTS", self.keys.nothing)])
        replies = self._each([("HMGET", key, *names) for key in keys])
        page = ScanPage[Seen](following, [], [])
        for key, values in zip(keys, replies, strict=True):
            if not values or not values[0]:
                continue  # a tombstone, or deleted since
            some_id = key.removeprefix(prefix)
            fields = Fields(dict(zip(names, values, strict=True)))
            seen = read(some_id, fields)
            if seen is None:
                page.problems.append(
                    f"{kind} {short_repr(some_id)} cannot be reconciled: its status is "
                    f"{short_repr(fields['status'])}"
                )
                continue
            page.found.append(seen)
            if fields.faults:
                page.problems.append(f"in the hash of {kind} {some_id}, {'; '.join(fields.faults)}")
        return page

    def knows(self, ids: Sequence[str]) -> list[bool]:
        return self._exist([self.keys.job(one) for one in ids])

    def knows_workflows(self, ids: Sequence[str]) -> list[bool]:
        return self._exist([self.keys.workflow(one) for one in ids])

    def _exist(self, keys: Sequence[str]) -> list[bool]:
        return [bool(reply) for reply in self._each([("HEXISTS", key, "status") for key in keys])]


def _job_snapshot(job_id: str, raw: Fields) -> JobSnapshot | None:
    """The snapshot of a job; None without a readable id or status."""
    status = raw.text("status", MAX_STATUS)
    if status not in STATUSES or text_or_none(job_id, MAX_ID) != job_id:
        return None
    has_lease = raw.integer("lease", MAX_EXACT) > 0
    seq = seq_of(status, raw.integer("seq", MAX_EXACT) or None, has_lease)
    return JobSnapshot(
        job_id, status, raw.text("queue", MAX_QUEUE) or "default", raw.text("task", MAX_TASK),
        seq, raw.text("audit", MAX_STATUS),
        raw.text("child", MAX_WORKER), raw.integer("attempts", MAX_INT32 - 1),
        raw.integer("priority", MAX_INT16, low=-MAX_INT16), raw.integer("generation", MAX_INT32),
        raw.text("reason", MAX_REASON), raw.instant_ms("enqueued_ms") or 0,
        raw.instant_ms("started_ms"), raw.instant_ms("finished_ms"),
        raw.instant_ms("due_ms"),
    )  # fmt: skip


def _workflow_snapshot(workflow_id: str, raw: Fields) -> WorkflowSnapshot | None:
    """The snapshot of a workflow; None without a readable id or status."""
    status = raw.text("status", MAX_STATUS)
    if status not in WORKFLOW_STATUSES or text_or_none(workflow_id, MAX_WORKFLOW_ID) != workflow_id:
        return None
    counts = WorkflowCounts(*(raw.integer(name, MAX_INT32) for name in WorkflowCounts._fields))
    return WorkflowSnapshot(
        workflow_id, WorkflowStatus(status), raw.text("name", MAX_NAME), counts,
        raw.instant_ms("made_ms") or 0, raw.instant_ms("ended_ms"), "paused_ms" in raw,
    )  # fmt: skip
