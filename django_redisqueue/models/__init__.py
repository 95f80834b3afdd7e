"""The ORM side: the mirror of the jobs, its bookkeeping, the outbox, and tokens of the HTTP API.

The mirror's tables (JobRecord, JobEvent, WorkflowRecord, WorkflowEvent, MirrorState, Rollup) belong
on one alias, which a database router may choose. OutboxJob and Receipt are written in an
application's own transactions, so they belong on every alias that enqueues with ``outbox`` or runs
``exactly_once`` tasks.
"""

from .mirrorstate import MirrorState, Rollup
from .outbox import OutboxJob, Receipt
from .records import JobEvent, JobRecord
from .tokens import ApiToken
from .workflows import WorkflowEvent, WorkflowRecord

__all__ = [
    "ApiToken",
    "JobEvent",
    "JobRecord",
    "MirrorState",
    "OutboxJob",
    "Receipt",
    "Rollup",
    "WorkflowEvent",
    "WorkflowRecord",
]
