"""Django signals of the package."""

from __future__ import annotations

from collections.abc import Mapping

from django.dispatch import Signal

from .states import Status, WorkflowStep

#: Sent in every child process after the fork, before its first job; ``sender`` is the child's
#: class, ``child`` its id. Telemetry and connection pools re-initialise here.
child_started = Signal()

#: Sent in a child before it ends in order (not when it is killed); ``child`` is its id.
child_stopping = Signal()

# What happened to jobs. The mirror's bridge sends these after the rows are committed, in its own
# process, in the order of the stream: ``sender`` is JobRecord, ``record`` the job's JobRecord as it
# is by then (it may be further on already), ``event`` the JobEvent that is told of.
#
# Exactly once: the receivers of an event are called in one transaction, on the mirror's database,
# with the move of the cursor that says how far is told. So what they write there, and the jobs that
# they enqueue, are there once, whatever is killed when; what they do elsewhere (a mail) may be
# repeated. A receiver that raises is logged and harms nobody, but a database error that it lets out
# of ``transaction.atomic()`` has the event told again, outside of a transaction. A slow one delays
# later signals, not the mirror. No signal is sent for a mere progress report, nor for what a task's
# ``audit`` level leaves out, nor for a record that has been deleted meanwhile.

job_scheduled = Signal()  #: Accepted, due later.
job_waiting = Signal()  #: Waits for its parents, or is held by a paused workflow.
job_queued = Signal()  #: In its queue: enqueued, due, handed back, recovered, or requeued.
job_processing = Signal()  #: A child has begun with it.
job_retrying = Signal()  #: An attempt failed, and the next one is due later.
job_completed = Signal()
job_failed = Signal()  #: For good; ``record.reason`` says why, if it was not the task's own error.
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

# The same for workflows: ``sender`` is WorkflowRecord, ``record`` its WorkflowRecord, ``event`` the
# WorkflowEvent. They keep the order among themselves, but not with the signals of jobs.

workflow_running = Signal()  #: Pushed, released, or taken up again by a retry (``generation``).
workflow_paused = Signal()
workflow_completed = Signal()
workflow_failed = Signal()  #: Also when Redis lost it; ``record.reason`` is "lost" then.
workflow_cancelled = Signal()

#: The signal of each step that has one.
WORKFLOW_SIGNALS: Mapping[WorkflowStep, Signal] = {
    WorkflowStep.RUNNING: workflow_running,
    WorkflowStep.PAUSED: workflow_paused,
    WorkflowStep.COMPLETED: workflow_completed,
    WorkflowStep.FAILED: workflow_failed,
    WorkflowStep.CANCELLED: workflow_cancelled,
}
