"""A log of outcomes in shared memory: written by a child, read by its supervisor.

A ring: new records go to the end, accepted ones leave at the start, and each of the two moves by
one write of one word. So a record is in the log from the moment it is recorded until it is
accepted, wherever in between the child is killed, and the log is never longer than what is not
yet accepted. Start and end only grow; a place in the memory is their remainder.

A reader copies and then looks again where the start is: what has left meanwhile may have been
overwritten, the rest has not. The epoch tells it that both began anew at 0 (a seqlock, as in the
Linux kernel's Documentation/locking/seqlock.rst). A record ends with a NUL, which no JSON has in
it, and exists once the end moves past it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from ..clock import mono_ms
from ..link import AS_READ
from ..store.replies import Outcome

LOG_BYTES = 4 * 1024 * 1024  # pages are only taken when they are written
KEPT_ROOM = LOG_BYTES // 2  # for what runs while no more is begun
_EPOCH, _START, _END, _SINCE = 0, 1, 2, 3
_HEADER_BYTES = 32
_RING_BYTES = LOG_BYTES - _HEADER_BYTES


class OutcomeLog:
    """The log at ``at`` of a shared memory, ``LOG_BYTES`` long."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._first = at + _HEADER_BYTES
        self._header = memoryview(memory)[at : at + _HEADER_BYTES].cast("q")
        self._ring = memoryview(memory)[at + _HEADER_BYTES : at + LOG_BYTES]
        self._end = 0
        self.room = _RING_BYTES

    def record(self, outcome: Outcome) -> int:
        """Log an outcome before it is reported; where the log ends then, for ``forget``.

        One that does not fit is left out: should the child die before it has reported it, the job
        runs again.
        """
        o = outcome
        # !s: an enum's own formatting takes longer
        text = f"{o.id} {o.lease} {o.call} {o.verdict!s} {o.detail} {o.body}\0".encode(*AS_READ)
        size = len(text)
        if size > self.room:
            return self._end
        if self.room == _RING_BYTES:
            self._header[_SINCE] = mono_ms()
        at, end = self._end % _RING_BYTES, self._end + size
        if at + size <= _RING_BYTES:
            at += self._first
            self._memory[at : at + size] = text  # faster than a slice of the ring
        else:
            self._write_round(at, text)
        self._header[_END] = self._end = end
        self.room -= size
        return end

    def _write_round(self, at: int, text: bytes) -> None:
        first = _RING_BYTES - at
        self._ring[at:] = text[:first]
        self._ring[: len(text) - first] = text[first:]

    def forget(self, end: int) -> None:
        """Everything up to ``end``, which ``record`` returned, was accepted; the rest stays."""
        self._header[_START] = end
        self._header[_SINCE] = mono_ms()
        self.room = _RING_BYTES - (self._end - end)

    def clear(self) -> None:
        """Everything was accepted: begin anew, in the pages that are there already."""
        self._header[_END] = 0  # first: a reader in between finds nothing
        self._header[_START] = 0
        self._header[_EPOCH] += 1
        self._end, self.room = 0, _RING_BYTES

    def keep(self, outcomes: Sequence[Outcome]) -> None:
        """Everything was accepted but these, which the log has already."""
        if not outcomes:
            self.clear()
            return
        end = self._end
        for outcome in outcomes:
            self.record(outcome)  # again, at the end, before all that was there leaves
        self.forget(end)

    def read(self) -> list[Outcome]:
        """What has ended and may not be reported yet; [] when it is being cleared just now."""
        epoch, start, end, _ = self._header
        log = self._copy(start, end)
        left = self._header[_START] - start
        if self._header[_EPOCH] != epoch or left < 0:
            return []
        return [_outcome(text.decode(*AS_READ)) for text in log[left:].split(b"\0")[:-1]]

    def _copy(self, start: int, end: int) -> bytes:
        """The bytes from start to end; none when the end is the lower, while it is cleared."""
        size, at = max(end - start, 0), start % _RING_BYTES
        first = self._ring[at : at + size].tobytes()
        return first + self._ring[: size - len(first)].tobytes()

    @property
    def is_empty(self) -> bool:
        """True when all was reported."""
        return self._header[_END] <= self._header[_START]

    @property
    def since_ms(self) -> int:
        """When (monotonic) what is in it began to wait, at the earliest; 0 when it is empty."""
        return 0 if self.is_empty else self._header[_SINCE]


def _outcome(text: str) -> Outcome:
    job_id, lease, call, verdict, detail, body = text.split(" ", 5)
    return Outcome(job_id, int(lease), int(call), verdict, body, detail)
