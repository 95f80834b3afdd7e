"""What can be done to a workflow: names, permissions, and when each makes sense."""

from __future__ import annotations

from dataclasses import dataclass

from ..states import WorkflowStatus
from .flowsheet import FlowSheet

ENDED = frozenset(status for status in WorkflowStatus if status.is_final)
RUNNING = frozenset(WorkflowStatus) - ENDED


@dataclass(frozen=True, slots=True)
class FlowVerb:
    """``order`` is that of steer.lua, '' for what is done job by job."""

    name: str
    label: str
    done: str  # "The workflow <done>."
    permission: str
    statuses: frozenset[WorkflowStatus]
    order: str
    warning: str = ""  # what to know before it is done; with one, it asks


PAUSE = FlowVerb(
    "pause", "Pause", "is paused: running jobs finish, no other begins", "pause_queue", RUNNING,
    "pause",
)  # fmt: skip
RELEASE = FlowVerb(
    "release", "Release", "goes on", "pause_queue", RUNNING | {WorkflowStatus.FAILED}, "release"
)
RETRY = FlowVerb(
    "retry", "Retry failed jobs", "was taken up again", "retry_job",
    RUNNING | {WorkflowStatus.FAILED}, "",
)  # fmt: skip
CANCEL = FlowVerb(
    "cancel", "Cancel", "was cancelled", "cancel_job", RUNNING | {WorkflowStatus.FAILED}, "cancel",
    "What has not started is cancelled, and what runs is asked to stop. A cancelled workflow "
    "cannot be taken up again.",
)  # fmt: skip
CLEAN = FlowVerb(
    "clean", "Clean up", "is being cleaned up", "clear_queue", ENDED, "clean",
    "Redis forgets it: jobs that had not started are cancelled, none can be retried as part of it "
    "any more. Its record stays.",
)  # fmt: skip
FLOW_VERBS = {verb.name: verb for verb in (PAUSE, RELEASE, RETRY, CANCEL, CLEAN)}


def is_of_use(verb: FlowVerb, sheet: FlowSheet) -> bool:
    """False for a workflow that Redis has let go, and where it would change nothing."""
    if not sheet.is_live or sheet.status not in verb.statuses:
        return False
    if verb in (PAUSE, RELEASE):
        return sheet.is_paused == (verb is RELEASE)
    return verb is not RETRY or sheet.failed > 0
