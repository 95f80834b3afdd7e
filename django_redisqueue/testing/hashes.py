"""The hash of a job in memory, as the scripts would have it."""

from __future__ import annotations

from collections.abc import Mapping

from ..clock import real_ms
from ..jobdata import NewJob
from ..states import Status
from ..store.replies import Verdict
from ..worker.verdicts import Ruling

Hash = dict[str, str]  # ``waits`` has the ids, not their number
OF_A_RUN = (
    "attempts", "error", "reason", "cancel_ms", "finished_ms", "started_ms", "first_ms", "ran",
    "due_ms",
)  # fmt: skip


def hash_of(new: NewJob) -> Hash:
    """A new job, as it stands once it is sent."""
    now, found = real_ms(), {"task": new.task, "payload": new.payload, "queue": new.queue}
    due = now + int(new.when) if new.when.startswith("+") else int(new.when or now)
    set_fields(found, priority=new.priority, enqueued_ms=now, status=Status.QUEUED)
    if new.options:
        found["options"] = new.options
    if due > now:
        set_fields(found, status=Status.SCHEDULED, due_ms=due)
    if new.after:
        found["on_parent_failure"], _, parents = new.after.partition(" ")
        let_wait(found, parents)
    return found


def let_wait(found: Hash, parents: str) -> None:
    """Let a new job wait for those whose ids, joined by blanks, are ``parents``."""
    found.update(after=parents, waits=parents, ready=found["status"], status=Status.WAITING)


def callback_job(fields: Mapping[str, str], which: str, job_id: str) -> NewJob | None:
    """What callback.lua makes, if there is something to make."""
    if f"{which}_task" not in fields:
        return None
    return NewJob(
        job_id, fields[f"{which}_queue"], fields[f"{which}_task"], fields[f"{which}_payload"],
        fields.get(f"{which}_options", ""), int(fields[f"{which}_priority"]),
        fields.get(f"{which}_when", ""), fields.get(f"{which}_audit", ""),
    )  # fmt: skip


def set_fields(found: Hash, **fields: object) -> None:
    """As HSET does: values become text."""
    found.update({name: str(value) for name, value in fields.items()})


def settle(found: Hash, ruling: Ruling, attempts: int) -> None:
    """What settle.lua does."""
    verdict = ruling.verdict
    if verdict is Verdict.COMPLETED:
        found.pop("error", None)
        set_fields(found, status=Status.COMPLETED, result=ruling.body, finished_ms=real_ms())
        return
    if ruling.body:
        found["error"] = ruling.body
    if verdict is Verdict.FAILED:
        set_fields(found, status=Status.FAILED, reason=ruling.detail, attempts=attempts + 1)
        set_fields(found, finished_ms=real_ms())
    elif verdict is Verdict.CANCELLED or "cancel_ms" in found:
        set_fields(found, status=Status.CANCELLED, finished_ms=real_ms())
    elif verdict is Verdict.RETRYING:
        found.setdefault("first_ms", found["started_ms"])
        found["ran"] = f"{found.get('ran', '')} {found['child']}".strip()
        set_fields(found, status=Status.RETRYING, attempts=attempts + 1)
        set_fields(found, due_ms=real_ms() + int(ruling.detail))
    else:
        set_fields(found, status=Status.QUEUED)
