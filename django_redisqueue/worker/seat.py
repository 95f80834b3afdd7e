"""What a child shares with its supervisor: claimed jobs, running jobs, outcomes, orders.

A seat is made before the zygote forks and outlives the children that sit in it one after another.

- *Tokens*: a pipe with one for each claimed job that has not started. Whoever reads a token, the
  child to run the job or the supervisor to hand it back, has it alone: the kernel arbitrates.
- *Running*: a table in shared memory of what runs now, with its hard deadline.
- *Outcomes*: logs in shared memory of what has ended and is not yet known to be reported.
- *Orders*: a pipe of lines from the supervisor, announced by SIGUSR1.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import termios
from collections.abc import Sequence
from dataclasses import dataclass

from ..clock import mono_ms
from ..link import AS_READ
from ..store.replies import Claimed, Outcome
from .batch import MAX_BATCH
from .outcomes import LOG_BYTES, OutcomeLog

# Lease, id: 72 bytes. A batch fits into the 8 KB that a pipe has when its user has very many
# of them; else a child would wait for ever for room.
_TOKEN = struct.Struct("q64s")
# Deadline ms, token, started ms: written last, so that who sees it finds the rest there.
_RUNNING = struct.Struct(f"q{_TOKEN.size}sq")
_RUNNING_WORDS = _RUNNING.size // 8
_WATCHED, _DONE, _OFFERED, _ALIVE_UNTIL = 0, 1, 2, 3  # words of the header
HEADER_BYTES = 64
KEEP_ALIVE = 20.0  # s within which a child's main loop comes round, whatever Redis does
FILES = 4  # that a seat holds open: both ends of two pipes


@dataclass(frozen=True, slots=True)
class Running:
    """One job that a child runs now; instants are monotonic ms, ``deadline_ms`` 0 for none."""

    id: str
    lease: int
    started_ms: int
    deadline_ms: int


class Seat:
    """The shared state of one place for a child; ``slots`` jobs may run in it at a time."""

    def __init__(self, number: int, slots: int) -> None:
        self.number = number
        self.slots = slots
        self._table = HEADER_BYTES
        self._last_word = (self._table + _RUNNING.size) // 8 - 1  # of the first that runs
        first = HEADER_BYTES + slots * _RUNNING.size
        self._memory = mmap.mmap(-1, first + 2 * LOG_BYTES)
        self._words = memoryview(self._memory).cast("q")
        self.log = OutcomeLog(self._memory, first)  #: of the main thread
        self.lane_log = OutcomeLog(self._memory, first + LOG_BYTES)
        self._tokens, self._token_end = _pipe()
        self._orders, self._order_end = _pipe()
        os.set_blocking(self._order_end, False)
        self._pipe = os.fstat(self._tokens).st_ino
        self._files = select.poll()  # one system call for them all
        for number in (0, 1, 2, self._tokens):
            if _is_open(number):
                self._files.register(number, 0)

    # -- the child's side

    def has_lost_files(self) -> bool:
        """True when a job has closed the files of its process: these pipes, or those that it prints
        to, whose numbers a connection would get next."""
        if any(event & select.POLLNVAL for _, event in self._files.poll(0)):
            return True
        return os.fstat(self._tokens).st_ino != self._pipe

    def offer(self, jobs: Sequence[Claimed]) -> None:
        """Put claimed jobs up for being taken, in order."""
        self._words[_OFFERED] = mono_ms()
        pack = _TOKEN.pack
        tokens = [pack(job.lease, job.id.encode(*AS_READ)) for job in jobs]
        os.write(self._token_end, b"".join(tokens))

    def take(self) -> bytes | None:
        """Take the next offered job: its token; None when the supervisor has handed the rest
        back."""
        try:
            return os.read(self._tokens, _TOKEN.size)
        except BlockingIOError:
            return None

    def begin(self, slot: int, token: bytes, started_ms: int, deadline_ms: int) -> None:
        """Show that the job of this token runs now in this slot."""
        at = self._table + slot * _RUNNING.size
        _RUNNING.pack_into(self._memory, at, deadline_ms, token, started_ms)

    def end(self, slot: int) -> None:
        """Show that nothing runs in this slot."""
        self._words[self._last_word + slot * _RUNNING_WORDS] = 0

    @property
    def is_watched(self) -> bool:
        """True while the supervisor looks at this seat often; else the child rings for it."""
        return bool(self._words[_WATCHED])

    def add_done(self, jobs: int) -> None:
        """Count finished jobs, for the supervisor to see that the child is of use."""
        self._words[_DONE] += jobs

    def keep_alive(self, seconds: float = KEEP_ALIVE) -> None:
        """Promise the watchdog to call this again within so many seconds; 0: promise nothing."""
        self._words[_ALIVE_UNTIL] = mono_ms() + int(seconds * 1000) if seconds else 0

    def read_orders(self) -> list[str]:
        """The orders that have come since the last look."""
        try:
            return os.read(self._orders, 65536).decode(*AS_READ).splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Close its pipes, in a child that sits elsewhere."""
        for end in (self._tokens, self._token_end, self._orders, self._order_end):
            os.close(end)

    # -- the supervisor's side

    def steal(self) -> list[tuple[str, int]]:
        """Take every job that has not started: (id, lease), oldest first."""
        try:
            tokens = os.read(self._tokens, _TOKEN.size * MAX_BATCH)
        except BlockingIOError:
            return []
        return [(_text(name), lease) for lease, name in _TOKEN.iter_unpack(tokens)]

    def has_unstarted(self) -> bool:
        """True when there are jobs that ``steal`` would take."""
        return _waiting_bytes(self._tokens) > 0

    def running(self) -> list[Running]:
        """What runs now."""
        return [job for job in map(self._running, range(self.slots)) if job is not None]

    def in_front(self) -> Running | None:
        """What runs now in the main thread, in front of whatever has not started."""
        return self._running(0)

    def _running(self, slot: int) -> Running | None:
        deadline_ms, token, started_ms = _RUNNING.unpack_from(
            self._memory, self._table + slot * _RUNNING.size
        )
        if not started_ms:
            return None
        if deadline_ms < started_ms:  # read while it was written: it is the job's before
            deadline_ms = 0
        lease, name = _TOKEN.unpack(token)
        return Running(_text(name), lease, started_ms, deadline_ms)

    def unstarted_since(self) -> int:
        """When (monotonic ms) jobs were offered that have not started; 0 when there are none."""
        return self._words[_OFFERED] if self.has_unstarted() else 0

    def ended_since(self) -> int:
        """Since when (monotonic ms) outcomes may wait to be reported; 0 when none does."""
        found = [since for since in (self.log.since_ms, self.lane_log.since_ms) if since]
        return min(found, default=0)

    def outcomes(self) -> list[Outcome]:
        """What has ended and may not be reported yet."""
        return self.log.read() + self.lane_log.read()

    @property
    def done(self) -> int:
        """How many jobs the present child has finished."""
        return self._words[_DONE]

    @property
    def alive_until_ms(self) -> int:
        """By when (monotonic ms) the child has promised a sign of life; 0: it has promised none."""
        return self._words[_ALIVE_UNTIL]

    def watch(self, watched: bool) -> None:
        """Tell the child whether it must ring when it offers jobs."""
        self._words[_WATCHED] = watched

    def order(self, line: str) -> None:
        """Leave an order for the child; the caller signals it."""
        try:
            os.write(self._order_end, f"{line}\n".encode(*AS_READ))
        except BlockingIOError:
            return  # it has not read for an hour: what was said is said again by every heartbeat

    def reset(self) -> None:
        """Make the seat as new for the next child, once the last is dead and its state was read."""
        self.steal()
        self.read_orders()
        for slot in range(self.slots):
            self.end(slot)
        self.log.clear()
        self.lane_log.clear()
        self._memory[:HEADER_BYTES] = bytes(HEADER_BYTES)


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(*AS_READ)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _waiting_bytes(pipe: int) -> int:
    """Bytes that wait in a pipe."""
    raw = fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0")
    return int.from_bytes(raw, "little")


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing
