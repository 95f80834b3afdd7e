"""The two tables, as rows of plain text: the live screen and ``--once`` show the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..parsing import whole
from ..states import Status
from ..store.overview import ChildOverview
from ..texts import harmless
from .snapshot import Snapshot, worker_of
from .words import duration, rate

COUNTS = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.COMPLETED, Status.FAILED, Status.CANCELLED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows; ``numbers`` are the columns that stand to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: range

    def lines(self) -> Iterator[str]:
        """The table in plain text."""
        table = [self.headings, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = (
                cell.rjust(width) if place in self.numbers else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  ".join(cells).rstrip()


def queue_table(snapshot: Snapshot) -> Table:
    """A row a queue."""
    rows = [
        [
            harmless(queue.name) + (" (paused)" if queue.is_paused else ""),
            *(f"{queue.counts[status]:,}" for status in COUNTS),
            rate(speed.came if speed else None),
            rate(speed.ended if speed else None),
            duration(queue.oldest_ms),
        ]
        for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True)
    ]
    headings = ["queue", *COUNTS, "in/s", "out/s", "oldest"]
    return Table(headings, rows, range(1, len(headings)))


def worker_table(snapshot: Snapshot) -> Table:
    """A row a child, the dead first; maintenance children hold no jobs."""
    rows = []
    for child in sorted(snapshot.fleet.children, key=_place):
        more = f" and {child.held - 1:,} more" if child.held > 1 else ""
        rows.append(
            [
                harmless(worker_of(child)),
                harmless(child.child.rpartition(".")[2]),
                duration(child.lease_ms) if child.lease_ms >= 0 else "lapsed",
                (harmless(child.task) or "unknown") if child.job else "idle",
                harmless(child.job) + more,
                duration(child.since_ms) if child.job else "",
            ]
        )
    return Table(["worker", "child", "lease", "runs", "job", "for"], rows, range(1, 3))


def _place(child: ChildOverview) -> tuple[bool, str, int, str]:
    """The dead first, then by worker and number, so that rows stay where they are."""
    number = child.child.rpartition(".")[2]
    return (
        child.lease_ms >= 0,
        worker_of(child),
        whole(number) or 0,
        child.child,
    )


def summary(snapshot: Snapshot) -> str:
    """How many children there are, and how many of them the table leaves out."""
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
