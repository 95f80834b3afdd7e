"""A log of outcomes in shared memory: a child writes it, its supervisor reads it.

It is a ring buffer. New records are added at the end and accepted ones leave at the start, and each
of these moves is one write of one word. A record is therefore in the log from the moment it is
recorded until it is accepted, wherever the child is killed in between, and the log never holds more
than what is not yet accepted. Start and end only grow; modulo the ring's size they are offsets.

A reader copies the records and then reads the start again: what has left meanwhile may have been
overwritten, the rest has not. The epoch tells the reader that both restarted at 0 (a seqlock: see
Documentation/locking/seqlock.rst of the Linux kernel). A record ends with a NUL, which JSON never
contains, and exists once the end moves past it.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from ..broker.replies import Outcome
from ..broker.wire import AS_READ
from ..core.clock import mono_ms

LOG_BYTES = 4 * 1024 * 1024  # pages take memory only once they are written
RESERVED_BYTES = LOG_BYTES // 2  # for jobs that run already; a child with less room starts no more
_EPOCH, _START, _END, _SINCE = 0, 1, 2, 3  # words of the header
_HEADER_BYTES = 32
_RING_BYTES = LOG_BYTES - _HEADER_BYTES


class OutcomeLog:
    """The log at offset ``at`` of a shared memory, ``LOG_BYTES`` long."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._first = at + _HEADER_BYTES
        self._header = memoryview(memory)[at : at + _HEADER_BYTES].cast("q")
        self._ring = memoryview(memory)[at + _HEADER_BYTES : at + LOG_BYTES]
        self._end = 0
        self.free_bytes = _RING_BYTES

    # The child's side

    def record(self, outcome: Outcome) -> int:
        """Log an outcome before it is reported; returns the log's end, for `discard_before`.

        An outcome that does not fit is left out: if the child dies before it has reported it, the
        job runs again.
        """
        o = outcome
        # !s: formatting an enum directly is slower
        text = f"{o.id} {o.lease} {o.call} {o.kind!s} {o.detail} {o.body}\0".encode(*AS_READ)
        size = len(text)
        if size > self.free_bytes:
            return self._end
        if self.free_bytes == _RING_BYTES:
            self._header[_SINCE] = mono_ms()
        at, end = self._end % _RING_BYTES, self._end + size
        if at + size <= _RING_BYTES:
            at += self._first
            self._memory[at : at + size] = text  # faster than a slice of the ring
        else:
            first = _RING_BYTES - at
            self._ring[at:] = text[:first]
            self._ring[: size - first] = text[first:]
        self._header[_END] = self._end = end
        self.free_bytes -= size
        return end

    def discard_before(self, end: int) -> None:
        """Everything up to ``end``, which `record` returned, was accepted; the rest stays."""
        self._header[_START] = end
        self._header[_SINCE] = mono_ms()
        self.free_bytes = _RING_BYTES - (self._end - end)

    def clear(self) -> None:
        """Everything was accepted: restart, in the pages that are in memory already."""
        self._header[_END] = 0  # first: a reader in between finds nothing
        self._header[_START] = 0
        self._header[_EPOCH] += 1
        self._end, self.free_bytes = 0, _RING_BYTES

    def keep_only(self, outcomes: Sequence[Outcome]) -> None:
        """Everything was accepted except for these outcomes, which the log already has."""
        if not outcomes:
            self.clear()
            return
        end = self._end
        for outcome in outcomes:
            self.record(outcome)  # again at the end, before everything that was there leaves
        self.discard_before(end)

    # The supervisor's side

    def read(self) -> list[Outcome]:
        """What has ended and may not be reported yet; [] if it is being cleared just now."""
        epoch, start, end, _ = self._header
        log = self._copy(start, end)
        left = self._header[_START] - start
        if self._header[_EPOCH] != epoch or left < 0:
            return []
        return [_outcome(text.decode(*AS_READ)) for text in log[left:].split(b"\0")[:-1]]

    def _copy(self, start: int, end: int) -> bytes:
        """The bytes from start to end; none if the end is lower, while the log is cleared."""
        size, at = max(end - start, 0), start % _RING_BYTES
        first = self._ring[at : at + size].tobytes()
        return first + self._ring[: size - len(first)].tobytes()

    @property
    def is_empty(self) -> bool:
        return self._header[_END] <= self._header[_START]

    @property
    def since_ms(self) -> int:
        """When (monotonic) the oldest record was written, at the earliest; 0 if empty."""
        return 0 if self.is_empty else self._header[_SINCE]


def _outcome(text: str) -> Outcome:
    job_id, lease, call, kind, detail, body = text.split(" ", 5)
    return Outcome(job_id, int(lease), int(call), kind, body, detail)
