"""The tables of queues and workers as rows of text, for the live screen and for ``--once``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..broker.overview import ChildOverview
from ..core import formatting
from ..core.parsing import int_or_none
from ..core.statuses import Status
from ..core.text import sanitize
from ..health.policies import policy_lines
from .snapshot import Snapshot, worker_of

COUNTS = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.COMPLETED, Status.FAILED, Status.CANCELLED,
)  # fmt: skip
MAX_FINDING = 500  # characters
NARROW_NAME = 16  # characters of a name in a narrow table, with "…" one more
MISSING = "-"  # in place of what is not known: terminals without UTF-8 show it too


@dataclass(frozen=True, slots=True)
class Table:
    """Headings and rows; ``numbers`` are the columns that are aligned to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: range

    def lines(self) -> Iterator[str]:
        """The table as plain text."""
        for row in [self.headings, *self.rows]:
            cells = (
                cell.rjust(width) if column in self.numbers else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, self._widths, strict=True))
            )
            yield "  ".join(cells).rstrip()

    @property
    def width(self) -> int:
        """Of a line, with one blank between two columns."""
        return sum(self._widths) + len(self.headings) - 1

    @property
    def _widths(self) -> list[int]:
        columns = zip(self.headings, *self.rows, strict=True)
        return [max(map(len, column)) for column in columns]


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


def narrow_queue_table(snapshot: Snapshot) -> Table:
    """The same in 80 columns. ``later``: scheduled, waiting and retrying."""
    later = (Status.SCHEDULED, Status.WAITING, Status.RETRYING)
    rows = []
    for queue, speed in zip(snapshot.queues, snapshot.rates, strict=True):
        counts, paused = queue.counts, " (paused)" if queue.is_paused else ""
        rows.append(
            [
                sanitize(queue.name, NARROW_NAME - len(paused)) + paused,
                f"{counts[Status.QUEUED]:,}",
                f"{counts[Status.PROCESSING]:,}",
                f"{sum(counts[status] for status in later):,}",
                f"{counts[Status.COMPLETED]:,}",
                f"{counts[Status.FAILED]:,}",
                rate(speed.arrived if speed else None),
                rate(speed.ended if speed else None),
                duration(queue.oldest_ms),
            ]
        )
    headings = ["queue", "queued", "running", "later", "done", "failed", "in/s", "out/s", "oldest"]
    return Table(headings, rows, range(1, len(headings)))


def worker_table(snapshot: Snapshot) -> Table:
    """A row for each child that claims jobs, dead ones first."""
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


def narrow_worker_table(snapshot: Snapshot) -> Table:
    """The same in 80 columns."""
    rows = []
    for child in sorted(snapshot.fleet.children, key=_sort_key):
        task = sanitize(child.task.rpartition(".")[2], NARROW_NAME) or "unknown"
        runs = task if child.job else "idle"
        number = sanitize(child.child.rpartition(".")[2], 4)
        rows.append(
            [
                f"{sanitize(worker_of(child), NARROW_NAME - 5)} {number}",
                runs if child.lease_ms >= 0 else f"lapsed: {runs}"[: NARROW_NAME + 1],
                sanitize(child.job),
                duration(child.since_ms) if child.job else "",
            ]
        )
    return Table(["worker", "runs", "job", "for"], rows, range(0))


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
