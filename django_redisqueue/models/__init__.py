"""The models: the mirror, the outbox, receipts, the API's tokens, and filters saved in the admin.

The mirror's tables (JobRecord, JobEvent, ErrorGroup, WorkflowRecord, WorkflowEvent, MirrorState,
Rollup) belong on one alias, which a database router may choose. OutboxJob and Receipt are written
in the application's transactions, so they belong on every alias that enqueues with ``outbox`` or
runs ``exactly_once`` tasks.
"""

from .approvals import Approval
from .mirror import (
    Dashboard,
    ErrorGroup,
    JobEvent,
    JobRecord,
    MirrorState,
    Rollup,
    WorkflowEvent,
    WorkflowRecord,
)
from .outbox import OutboxJob, Receipt, StepReceipt
from .periodic import PeriodicJob
from .users import ApiToken, SavedFilter

__all__ = [
    "ApiToken",
    "Approval",
    "Dashboard",
    "ErrorGroup",
    "JobEvent",
    "JobRecord",
    "MirrorState",
    "OutboxJob",
    "PeriodicJob",
    "Receipt",
    "Rollup",
    "SavedFilter",
    "StepReceipt",
    "WorkflowEvent",
    "WorkflowRecord",
]
