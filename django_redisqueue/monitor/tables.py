"""The tables of queues and workers as rows of text, for the live screen and for ``--once``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..broker.overview import ChildOverview
from ..core import formatting
from ..core.parsing import int_or_none
from ..core.statuses import Status
from ..core.text import sanitize
from ..health.summary import policy_lines
from .snapshot import Snapshot, worker_of

COUNTS = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.COMPLETED, Status.FAILED, Status.CANCELLED,
)  # fmt: skip
MAX_FINDING = 500  # characters
MISSING = "-"  # in place of what is not known: terminals without UTF-8 show it too


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows; ``numbers`` are the columns that are aligned to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: range

    def lines(self) -> Iterator[str]:
        """The table as plain text."""
        table = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = (
                cell.rjust(width) if column in self.numbers else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  ".join(cells).rstrip()


def queue_table(snapshot: Snapshot) -> Table:
    rows = [
        [
            sanitize(queue.name) + (" (paused)" if queue.is_paused else ""),
            *(f"{queue.counts[status]:,}" for status in COUNTS),
            rate(speed.arrived if speed else None),
            rate(speed.ended if speed else None),
            duration(queue.oldest_ms),
        ]
        for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True)
    ]
    headings = ["queue", *COUNTS, "in/s", "out/s", "oldest"]
    return Table(headings, rows, range(1, len(headings)))


def worker_table(snapshot: Snapshot) -> Table:
    """A row for each child, dead ones first. Maintenance children hold no jobs."""
    rows = []
    for child in sorted(snapshot.fleet.children, key=_sort_key):
        more = f" and {child.held - 1:,} more" if child.held > 1 else ""
        rows.append(
            [
                sanitize(worker_of(child)),
                sanitize(child.child.rpartition(".")[2]),
                duration(child.lease_ms) if child.lease_ms >= 0 else "lapsed",
                (sanitize(child.task) or "unknown") if child.job else "idle",
                sanitize(child.job) + more,
                duration(child.since_ms) if child.job else "",
            ]
        )
    return Table(["worker", "child", "lease", "runs", "job", "for"], rows, range(1, 3))


def _sort_key(child: ChildOverview) -> tuple[bool, str, int, str]:
    """Dead children first, then by worker and number, so that rows keep their places."""
    number = child.child.rpartition(".")[2]
    return child.lease_ms >= 0, worker_of(child), int_or_none(number) or 0, child.child


def summary(snapshot: Snapshot) -> str:
    """How many children there are, and how many the table leaves out."""
    fleet = snapshot.fleet
    if not fleet.total:
        return "no worker: start one with manage.py runworker"
    dead = fleet.total - fleet.alive
    hidden = fleet.total - len(fleet.children)
    return (
        f"{fleet.alive:,} children of workers alive"
        + (f", {dead:,} with a lapsed lease" if dead else "")
        + (f"; {hidden:,} not shown" if hidden else "")
    )


def health_lines(snapshot: Snapshot) -> list[str]:
    """A line for each problem."""
    return [
        f"{finding.level.upper()}: {sanitize(f'{finding.text} {finding.remedy}', MAX_FINDING)}"
        for finding in snapshot.health.problems
    ]


def policy_texts(snapshot: Snapshot) -> list[str]:
    """A line each for limits, unique keys and schedules, as far as there are any."""
    lines = policy_lines(snapshot.health.facts)
    return [f"{label.lower()}: {sanitize(text, MAX_FINDING)}" for label, text in lines]


def duration(ms: float | None) -> str:
    return formatting.duration(ms, MISSING)


def rate(per_second: float | None) -> str:
    return formatting.rate(per_second, MISSING)
