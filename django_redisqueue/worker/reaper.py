"""Returns what dead children held to the queues: in every heartbeat, and in reapqueue."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..exceptions import WrongKeyType
from ..states import JobReason
from ..store.reads import Reads
from ..store.transitions import Transitions
from ..store.upkeep import Reaped
from .identity import machine, parse_child

logger = logging.getLogger("django_redisqueue")


@dataclass(slots=True)
class Report:
    """What a pass did."""

    children: list[str] = field(default_factory=list)
    jobs: list[tuple[str, str]] = field(default_factory=list)  # id, what became of it
    stuck: bool = False  # jobs stay with a child, for a key of their queue is of a wrong type
    wait_ms: int = 0  # leases have lapsed, but Redis has not been steady for long enough

    def add(self, reaped: Reaped) -> None:
        if reaped.child and reaped.child not in self.children:
            self.children.append(reaped.child)
        self.jobs.extend(reaped.jobs)
        self.stuck = self.stuck or reaped.stuck
        self.wait_ms = max(self.wait_ms, reaped.wait_ms)

    def count(self, outcome: str) -> int:
        """How many jobs were recovered, released, cancelled, or failed as poison."""
        return sum(1 for _, became in self.jobs if became == outcome)


class Reaper:
    """One-pass recovery; bounded, atomic in each step, and safe to run anywhere at any time."""

    def __init__(self, store: Transitions, queues: Sequence[str]) -> None:
        self._store = store
        self._queues = queues
        self._audited: dict[str, int] = {}

    def run_once(self, until: float = math.inf) -> Report:
        """Reap every child whose lease has lapsed, or go on ``until`` (monotonic).

        Each step is a script of its own, of at most 100 jobs, so other clients come in between.
        """
        report = Report()
        while True:
            reaped = self._store.reap()
            report.add(reaped)
            if not reaped.child or time.monotonic() >= until:
                break
        self._log(report)
        return report

    def reap_dead(
        self, child: str, started: Sequence[str] | None, keep: Sequence[str] = ()
    ) -> Report:
        """Reap a child whose process is known to be dead, but for jobs whose outcomes are still to
        be reported."""
        report = Report()
        while True:
            reaped = self._store.reap(child, started, keep)
            report.add(reaped)
            if not reaped.more:
                break
        self._log(report)
        return report

    def take_over(self) -> Report:
        """Reap at once what processes of this very machine held that are no longer there."""
        report = Report()
        for child, _ in Reads(self._store.link, self._store.settings).workers():
            worker = parse_child(child)
            if worker is not None and worker.machine == machine() and worker.is_gone:
                found = self.reap_dead(child, None)
                report.children.append(child)
                report.jobs.extend(found.jobs)
        return report

    def audit(self) -> list[tuple[str, str, str]]:
        """Take back jobs whose child is not known at all; a page of each queue a pass, also of
        those that only Redis knows."""
        found = []
        former = Reads(self._store.link, self._store.settings).former_queues(self._queues)
        for queue in (*self._queues, *former):
            with suppress(WrongKeyType):  # that it stands still is for the timer to say
                after, jobs = self._store.audit(queue, self._audited.get(queue, 0))
                self._audited[queue] = after
                found.extend(jobs)
        for job_id, child, outcome in found:
            logger.warning(
                "job %s was held by %s, which does not exist: %s", job_id, child, outcome
            )
        return found

    def _log(self, report: Report) -> None:
        for job_id, outcome in report.jobs:
            if outcome == JobReason.POISON:
                logger.error(
                    "job %s failed: its worker died too often while it ran (poison)", job_id
                )
            else:
                logger.warning("job %s taken back from a dead child: %s", job_id, outcome)
