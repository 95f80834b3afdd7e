"""A log of outcomes in shared memory: written by a child, read by its supervisor.

Append-only between two clears; the epoch tells a reader that it was cleared meanwhile (a seqlock,
as in the Linux kernel's Documentation/locking/seqlock.rst). A record ends with a NUL, which no JSON
has in it, and exists once the end moves past it.
"""

from __future__ import annotations

import mmap

from ..store.replies import Outcome

LOG_BYTES = 4 * 1024 * 1024  # pages are only taken when they are written
_EPOCH, _END = 0, 1
_HEADER_BYTES = 16


class OutcomeLog:
    """The log at ``at`` of a shared memory, ``LOG_BYTES`` long."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._header = memoryview(memory)[at : at + _HEADER_BYTES].cast("q")
        self._first = at + _HEADER_BYTES
        self._end = self._first
        self.room = LOG_BYTES - _HEADER_BYTES

    def record(self, outcome: Outcome) -> None:
        """Log an outcome before it is reported.

        One that does not fit is left out: should the child die before it has reported it, the job
        runs again.
        """
        o = outcome
        # !s: an enum's own formatting takes longer
        text = f"{o.id} {o.lease} {o.call} {o.verdict!s} {o.detail} {o.body}\0".encode()
        size = len(text)
        if size > self.room:
            return
        end = self._end + size
        self._memory[self._end : end] = text
        self._header[_END] = end - self._first
        self._end = end
        self.room -= size

    def clear(self) -> None:
        """Forget what has been reported."""
        self._header[_END] = 0  # first: a reader in between finds nothing
        self._header[_EPOCH] += 1
        self._end, self.room = self._first, LOG_BYTES - _HEADER_BYTES

    def read(self) -> list[Outcome]:
        """What has ended and may not be reported yet; [] when it is being cleared just now."""
        epoch, end = self._header
        log = self._memory[self._first : self._first + end]
        if self._header[_EPOCH] != epoch:
            return []
        return [_outcome(text.decode()) for text in log.split(b"\0")[:-1]]

    @property
    def is_empty(self) -> bool:
        """True when all was reported."""
        return not self._header[_END]


def _outcome(text: str) -> Outcome:
    job_id, lease, call, verdict, detail, body = text.split(" ", 5)
    return Outcome(job_id, int(lease), int(call), verdict, body, detail)
