"""The signals of the package."""

from __future__ import annotations

from collections.abc import Mapping

from django.dispatch import Signal

from .core.statuses import Status, WorkflowTransition

#: Sent in every child process after the fork and before its first job, with the child's class as
#: ``sender`` and its id as ``child``. Re-initialise telemetry and connection pools here.
child_started = Signal()

#: Sent in a child before it exits, unless it is killed; ``child`` is its id.
child_stopping = Signal()

# The bridge sends the signals of jobs in its own process, after the rows have committed, in the
# order of the stream: ``sender`` is JobRecord, ``record`` the job's current JobRecord (which may be
# newer than the event), ``event`` the JobEvent. Progress reports, events that a task's ``audit``
# level leaves out, and events of deleted records send no signal. docs/mirror.md says what happens
# exactly once, and what after an error.

job_scheduled = Signal()  #: Accepted, and due later.
job_waiting = Signal()  #: Waits for its parents, or because its workflow is paused.
job_queued = Signal()  #: Entered its queue: enqueued, due, released, recovered or requeued.
job_processing = Signal()  #: A child started it.
job_retrying = Signal()  #: An attempt failed, and the next one is due later.
job_completed = Signal()
job_failed = Signal()  #: Failed for good; ``record.reason`` says why, if the task did not raise.
job_cancelled = Signal()

#: The signal of each status.
JOB_SIGNALS: Mapping[Status, Signal] = {
    Status.SCHEDULED: job_scheduled,
    Status.WAITING: job_waiting,
    Status.QUEUED: job_queued,
    Status.PROCESSING: job_processing,
    Status.RETRYING: job_retrying,
    Status.COMPLETED: job_completed,
    Status.FAILED: job_failed,
    Status.CANCELLED: job_cancelled,
}

# The same for workflows, with WorkflowRecord and WorkflowEvent. They are in order among each other,
# but not relative to the signals of jobs.

workflow_running = Signal()  #: Pushed, released, or resumed by a retry (``generation``).
workflow_paused = Signal()
workflow_completed = Signal()
workflow_failed = Signal()  #: Also when Redis lost it; ``record.reason`` is "lost" then.
workflow_cancelled = Signal()

#: The signal of each step that has one.
WORKFLOW_SIGNALS: Mapping[WorkflowTransition, Signal] = {
    WorkflowTransition.RUNNING: workflow_running,
    WorkflowTransition.PAUSED: workflow_paused,
    WorkflowTransition.COMPLETED: workflow_completed,
    WorkflowTransition.FAILED: workflow_failed,
    WorkflowTransition.CANCELLED: workflow_cancelled,
}
