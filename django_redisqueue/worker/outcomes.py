"""A log of outcomes in shared memory: written by a child, read by its supervisor.

Append-only between two clears; ``epoch`` tells a reader that it was cleared meanwhile (a seqlock,
as in the Linux kernel's Documentation/locking/seqlock.rst). A record exists once the end moves past
it.
"""

from __future__ import annotations

import mmap
import struct

from ..store.replies import Outcome

LOG_BYTES = 4 * 1024 * 1024  # pages are only taken when they are written
_HEADER = struct.Struct("<qq")  # epoch, end
_INT = struct.Struct("<q")
_SIZE = struct.Struct("<I")


class OutcomeLog:
    """The log at ``at`` of a shared memory, ``LOG_BYTES`` long."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at
        self._first = at + _HEADER.size
        self._end = self._first
        self.room = LOG_BYTES - _HEADER.size

    def record(self, outcome: Outcome) -> None:
        """Log an outcome before it is reported.

        One that does not fit is left out: should the child die before it has reported it, the job
        runs again.
        """
        o = outcome
        body = f"{o.id} {o.lease} {o.call} {o.verdict} {o.detail} {o.body}".encode()
        if 4 + len(body) > self.room:
            return
        end = self._end + 4 + len(body)
        self._memory[self._end : end] = _SIZE.pack(len(body)) + body
        _INT.pack_into(self._memory, self._at + 8, end - self._first)
        self._end = end
        self.room -= 4 + len(body)

    def clear(self) -> None:
        """Forget what has been reported."""
        _INT.pack_into(self._memory, self._at + 8, 0)  # first: a reader in between finds nothing
        _INT.pack_into(self._memory, self._at, self._epoch() + 1)
        self._end, self.room = self._first, LOG_BYTES - _HEADER.size

    def read(self) -> list[Outcome]:
        """What has ended and may not be reported yet; [] when it is being cleared just now."""
        epoch, end = _HEADER.unpack_from(self._memory, self._at)
        log = bytes(self._memory[self._first : self._first + end])
        if self._epoch() != epoch:
            return []
        found, at = [], 0
        while at < len(log):
            size = _SIZE.unpack_from(log, at)[0]
            record = log[at + 4 : at + 4 + size].decode()
            job_id, lease, call, verdict, detail, body = record.split(" ", 5)
            found.append(Outcome(job_id, int(lease), int(call), verdict, body, detail))
            at += 4 + size
        return found

    @property
    def is_empty(self) -> bool:
        """True when all was reported."""
        return not _INT.unpack_from(self._memory, self._at + 8)[0]

    def _epoch(self) -> int:
        return int(_INT.unpack_from(self._memory, self._at)[0])
