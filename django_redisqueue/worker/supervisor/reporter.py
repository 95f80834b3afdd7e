"""What a worker says of itself with every heartbeat."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from importlib.metadata import version

from ...core.worker_data import WorkerReport
from ..child.loop import ChildOptions
from .child_handle import ChildHandle
from .supervisor import Supervisor
from .watchdog import resident_bytes


class WorkerReporter:
    """Describes a supervisor and its children. For any thread."""

    def __init__(
        self, supervisor: Supervisor, handles: Sequence[ChildHandle], options: ChildOptions
    ) -> None:
        self._supervisor = supervisor
        self._handles = handles
        self._options = options
        self._started_ms = int(time.time() * 1000)
        self._version = version("django-redisqueue")

    def text(self) -> str:
        """The report as JSON."""
        processes = [handle for handle in self._handles if handle.role == "jobs"]
        return WorkerReport(
            platform.node(), self._version, self._started_ms, self._supervisor.state.value,
            self._options.queues, len(processes), self._options.threads, self._children(),
        ).text()  # fmt: skip

    def _children(self) -> dict[str, int]:
        found = {}
        for handle in self._handles:
            child, pid = handle.child, handle.pid  # the main thread may change them meanwhile
            if child:
                found[child.rpartition(".")[2]] = resident_bytes(pid) if pid else 0
        return found
