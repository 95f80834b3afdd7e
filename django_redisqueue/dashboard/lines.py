"""Queues, workers and Redis as lines of the overview."""

from __future__ import annotations

from dataclasses import dataclass

from ..metrics import Sums
from ..states import Status
from ..store.overview import ChildOverview, QueueOverview, Rates, ServerOverview
from ..worker.identity import parse_child
from . import words

SHOWN = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.FAILED, Status.COMPLETED, Status.CANCELLED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue as a row."""

    found: QueueOverview
    rates: Rates | None
    hour: Sums

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def counts(self) -> list[tuple[str, str, bool]]:
        """(status, count, whether it asks for attention)"""
        counts = self.found.counts
        return [
            (
                each.value,
                words.number(counts[each.value]),
                each is Status.FAILED and counts["failed"] > 0,
            )
            for each in SHOWN
        ]

    @property
    def oldest(self) -> str:
        return words.duration(self.found.oldest_ms)

    @property
    def came(self) -> str:
        return words.rate(self.rates.came if self.rates else None)

    @property
    def ended(self) -> str:
        return words.rate(self.rates.ended if self.rates else None)

    @property
    def wait(self) -> tuple[str, str]:
        return words.duration(self.hour.wait_ms(0.5)), words.duration(self.hour.wait_ms(0.95))

    @property
    def run(self) -> tuple[str, str]:
        return words.duration(self.hour.run_ms(0.5)), words.duration(self.hour.run_ms(0.95))

    @property
    def failures(self) -> str:
        return words.number(self.hour.failed)


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A child of a worker as a row."""

    found: ChildOverview

    @property
    def name(self) -> str:
        worker = parse_child(self.found.child)
        return worker.name if worker else self.found.child

    @property
    def place(self) -> str:
        worker = parse_child(self.found.child)
        if worker is None:
            return ""
        return f"pid {worker.pid}, child {self.found.child.rpartition('.')[2]}"

    @property
    def is_alive(self) -> bool:
        return self.found.lease_ms > 0

    @property
    def lease(self) -> str:
        return words.duration(abs(self.found.lease_ms))

    @property
    def since(self) -> str:
        return words.duration(self.found.since_ms)

    @property
    def behind(self) -> int:
        """Jobs it holds besides the one it runs."""
        return max(0, self.found.held - 1)


@dataclass(frozen=True, slots=True)
class ServerLine:
    """Redis as a list of facts."""

    found: ServerOverview

    @property
    def memory(self) -> str:
        used = words.size(self.found.memory)
        return f"{used} of {words.size(self.found.limit)}" if self.found.limit else used

    @property
    def events(self) -> str:
        known = self.found.events
        return "not known" if known is None else words.number(known)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to know before all else."""

    level: str  # "error" or "warning"
    text: str
    remedy: str = ""
