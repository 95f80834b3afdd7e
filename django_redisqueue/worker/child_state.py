"""What a child process shares with its supervisor: claimed jobs, running jobs, outcomes, messages.

A `ChildState` is created before the fork server starts, and outlives the children that use it one
after another. It has four parts:

- *Tokens*: a pipe with one token for each claimed job that has not started, unless a job is alone
  and so starts at once. The process that reads a token (the child to run the job, or the supervisor
  to release it) is the only one that has the job: the kernel arbitrates.
- *Running jobs*: a table in shared memory of the running jobs, with each job's hard deadline.
- *Outcomes*: logs in shared memory (`OutcomeLog`) of jobs that have ended and may not have been
  reported yet.
- *Messages*: a pipe of lines from the supervisor, announced by SIGUSR1: ``stop``, ``recycle``,
  ``cancel <job> <lease>``, ``abandon <job> <lease>``.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

from ..broker.replies import ClaimedJob, Outcome
from ..broker.wire import AS_READ
from ..core.clock import mono_ms
from ..core.ids import MAX_SHARDS

MAX_BATCH = 100  # jobs that a child may claim at once
# Lease, id: 72 bytes. A whole batch fits into 8 KB, the size of a pipe once its user has very many
# of them; otherwise a child would wait for room forever.
_TOKEN = struct.Struct("q64s")
# Deadline ms (negative while the job commits), token, started ms. The start is written last: if it
# is there, so is the rest.
_RUNNING = struct.Struct(f"q{_TOKEN.size}sq")
_RUNNING_WORDS = _RUNNING.size // 8
_WATCHED, _DONE, _OFFERED, _ALIVE_UNTIL, _CHUNK = 0, 1, 2, 3, 4  # words of the state's header
_WORDS, _TABLES = 8, 5  # of the header: words of the child, then tables with one word per shard
_HEADER_BYTES = 8 * (_WORDS + _TABLES * MAX_SHARDS)
KEEP_ALIVE = 20.0  # s within which a child's main loop completes a pass, whatever Redis does
FILES_PER_CHILD = 4  # both ends of two pipes

LOG_BYTES = 4 * 1024 * 1024  # pages take memory only once they are written
RESERVED_BYTES = LOG_BYTES // 2  # for jobs already running; a child with less room starts no more
_EPOCH, _START, _END, _SINCE, _TAKEN = 0, 1, 2, 3, 4  # words of the log's header
_LOG_HEADER_BYTES = 40
_RING_BYTES = LOG_BYTES - _LOG_HEADER_BYTES


class RoleNote(IntEnum):
    """What the last heartbeat found about a role that one process per shard has (lead.lua)."""

    ASK = 0  # nothing, or no child has it, or not the expected one: ask Redis
    ACTIVE = 1  # unchanged: the child still leads, or still does not; the shard has transitions
    QUIET = 2  # the same, and there has been no transition for a while


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a child is running. Times are monotonic ms; ``deadline_ms`` is 0 for none.

    ``commits``: its function has returned, and its ``exactly_once`` transaction is being committed.
    """

    id: str
    lease: int
    started_ms: int
    deadline_ms: int
    commits: bool = False


class OutcomeLog:
    """A log of outcomes at offset ``at`` of a shared memory, ``LOG_BYTES`` long. The child writes
    it, its supervisor reads it.

    It is a ring buffer. New records are added at the end and accepted ones leave at the start, and
    each of these moves is a single write of one word. A record is therefore in the log from the
    moment it is recorded until it is accepted, wherever the child is killed in between, and the log
    never holds more than what is not yet accepted. Start and end only grow; modulo the ring's size
    they are offsets.

    A reader copies the records and then reads the start again: records that have left in the
    meantime may have been overwritten, the others have not. The epoch tells the reader that both
    restarted at 0 (a seqlock: see Documentation/locking/seqlock.rst of the Linux kernel). A record
    ends with a NUL, which JSON never contains, and exists once the end moves past it.
    """

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._first = at + _LOG_HEADER_BYTES
        self._header = memoryview(memory)[at : at + _LOG_HEADER_BYTES].cast("q")
        self._ring = memoryview(memory)[at + _LOG_HEADER_BYTES : at + LOG_BYTES]
        self._end = 0
        self.free_bytes = _RING_BYTES

    # The child's side

    def record(self, outcome: Outcome) -> int:
        """Log an outcome before it is reported; returns the log's end, for `discard_before`.

        An outcome that does not fit is left out: if the child dies before reporting it, the job
        runs again.
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
        """Discard everything up to ``end``, which `record` returned: it was accepted."""
        self._header[_START] = end
        self._header[_SINCE] = mono_ms()
        self.free_bytes = _RING_BYTES - (self._end - end)

    def clear(self) -> None:
        """Discard everything: it was accepted. Restart in the pages that are already in memory. The
        supervisor calls this for a dead child, which may have died in here."""
        self._header[_END] = 0  # first: a reader in between finds nothing
        self._header[_START] = 0
        self._header[_TAKEN] = 0
        self._header[_EPOCH] += 1
        self._end, self.free_bytes = 0, _RING_BYTES

    def keep_only(self, outcomes: Sequence[Outcome]) -> None:
        """Discard all but these outcomes, which the log already has: the rest was accepted. The
        rest stays if there is no room to move these: reporting it again changes nothing."""
        if not outcomes:
            self.clear()
            return
        parts = chain.from_iterable(outcomes)  # each is followed by a space or a NUL
        if sum(len(str(part).encode(*AS_READ)) + 1 for part in parts) > self.free_bytes:
            return
        end, was_taken = self._end, self.was_taken
        for outcome in outcomes:
            self.record(outcome)  # again at the end, before the previous contents leave
        self.discard_before(end)
        if was_taken:
            self.note_taken()

    @property
    def was_taken(self) -> bool:
        """Whether the supervisor reports some of the outcomes that are still in the log."""
        return self._header[_TAKEN] > self._header[_START]

    # The supervisor's side

    def note_taken(self) -> None:
        """Tell the child that the supervisor reports what the log holds now."""
        self._header[_TAKEN] = self._header[_END]

    def read(self) -> list[Outcome]:
        """The outcomes that may not have been reported yet; [] if the log is being cleared."""
        epoch, start, end, *_ = self._header
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


class ChildState:
    """The shared state of child slot ``number``; its child may run ``slots`` jobs at a time."""

    def __init__(self, number: int, slots: int) -> None:
        self.number = number
        self.slots = slots
        self._last_word = (_HEADER_BYTES + _RUNNING.size) // 8 - 1  # of the first running job
        first = _HEADER_BYTES + (slots + MAX_BATCH) * _RUNNING.size
        self._memory = mmap.mmap(-1, first + 2 * LOG_BYTES)
        words = self._words = memoryview(self._memory).cast("q")
        tables = (words[_WORDS + MAX_SHARDS * n :][:MAX_SHARDS] for n in range(_TABLES))
        # When (monotonic ms) each shard last answered a heartbeat, -1 if it did not answer the last
        # one; for the others see the methods that set them.
        self._answered, self._silent, self._role_notes, self._sleeps, self._unanswered = tables
        self.log = OutcomeLog(self._memory, first)  #: for jobs in the main thread
        self.concurrent_log = OutcomeLog(self._memory, first + LOG_BYTES)  #: for all others
        self._tokens, self._token_end = _pipe()
        self._messages, self._message_end = _pipe()
        os.set_blocking(self._message_end, False)
        self._pipe = os.fstat(self._tokens).st_ino
        self._files = select.poll()  # one system call for all of them
        for file in (0, 1, 2, self._tokens):
            with suppress(OSError):  # it was closed from the start
                os.fstat(file)
                self._files.register(file, 0)

    # The child's side

    def has_lost_files(self) -> bool:
        """Whether a job has closed file descriptors of its process.

        These are the pipes, and standard input and output, whose numbers a connection would get.
        """
        if any(event & select.POLLNVAL for _, event in self._files.poll(0)):
            return True
        try:
            return os.fstat(self._tokens).st_ino != self._pipe
        except OSError:  # a job on the event loop or in a thread has just closed it
            return True

    def is_out_of_files(self) -> bool:
        """Whether this process can open no more files."""
        try:
            os.close(os.dup(self._tokens))
        except OSError:
            return True
        return False

    def offer(self, jobs: Sequence[ClaimedJob]) -> None:
        """Offer claimed jobs, in order, to `take` and `take_unstarted`."""
        self._words[_OFFERED] = mono_ms()
        pack = _TOKEN.pack
        tokens = [pack(job.lease, job.id.encode(*AS_READ)) for job in jobs]
        os.write(self._token_end, b"".join(tokens))

    @staticmethod
    def token_of(job: ClaimedJob) -> bytes:
        """The token of a job that starts at once, without being offered."""
        return _TOKEN.pack(job.lease, job.id.encode(*AS_READ))

    def take(self) -> bytes | None:
        """Take the next offered job and return its token; None if the supervisor took the rest."""
        try:
            return os.read(self._tokens, _TOKEN.size)
        except BlockingIOError:
            return None

    def take_several(self, jobs: int) -> list[bytes]:
        """Take the next offered jobs in one system call, fewer if the supervisor took the rest."""
        tokens = _read(self._tokens, _TOKEN.size * jobs)
        return [tokens[at : at + _TOKEN.size] for at in range(0, len(tokens), _TOKEN.size)]

    def begin(self, slot: int, token: bytes, started_ms: int, deadline_ms: int) -> None:
        """Enter the job of this token into the table of running jobs."""
        at = _HEADER_BYTES + slot * _RUNNING.size
        _RUNNING.pack_into(self._memory, at, deadline_ms, token, started_ms)

    def end(self, slot: int) -> None:
        """Remove the job in this slot from the table of running jobs."""
        self._words[self._last_word + slot * _RUNNING_WORDS] = 0

    def note_commit(self, slot: int) -> None:
        """Note that the job in this slot has returned, and its work is being committed."""
        at = self._last_word + (slot - 1) * _RUNNING_WORDS + 1
        self._words[at] = -self._words[at]

    def begin_chunk(self, tokens: Sequence[bytes], started_ms: int, deadline_ms: int) -> None:
        """Enter the jobs of a chunk, which run in one call in the main thread. The first is in slot
        0; the others have slots after those of all other jobs."""
        for at, token in enumerate(tokens[1:]):
            self.begin(self.slots + at, token, started_ms, deadline_ms)
        self._words[_CHUNK] = len(tokens) - 1
        self.begin(0, tokens[0], started_ms, deadline_ms)

    def end_chunk(self) -> None:
        others, self._words[_CHUNK] = self._words[_CHUNK], 0
        for slot in (0, *range(self.slots, self.slots + others)):
            self.end(slot)

    @property
    def is_watched(self) -> bool:
        """True while the supervisor checks often; otherwise the child wakes it for a new batch."""
        return bool(self._words[_WATCHED])

    def add_done(self, jobs: int) -> None:
        """Count finished jobs, which show the supervisor that the child is working."""
        self._words[_DONE] += jobs

    def keep_alive(self, seconds: float = KEEP_ALIVE) -> None:
        """Promise the watchdog to call this again within ``seconds``; 0 makes no promise."""
        self._words[_ALIVE_UNTIL] = mono_ms() + int(seconds * 1000) if seconds else 0

    def answers(self, shard: int) -> bool:
        """Whether the shard answered the supervisor's last heartbeat, and has answered one since
        the child last waited for it in vain."""
        return self._answered[shard] >= self._silent[shard]

    def note_silent(self, shard: int) -> None:
        """Note that the child has waited in vain for a shard. From then on the shard is left to the
        heartbeats, so that it holds up the child only once."""
        self._silent[shard] = mono_ms()

    def role_note(self, shard: int) -> RoleNote:
        """What the supervisor's last heartbeat found about the child's role in a shard."""
        return RoleNote(self._role_notes[shard])

    def note_sleep(self, shard: int, sleeps: bool) -> None:
        """Tell the supervisor whether the child leads a shard and does nothing but wait."""
        self._sleeps[shard] = sleeps

    def note_unanswered(self, shard: int, unanswered: bool) -> None:
        """Tell the supervisor whether the last call, which may have claimed jobs, got no reply."""
        self._unanswered[shard] = mono_ms() if unanswered else 0

    def read_messages(self) -> list[str]:
        """The messages that have arrived since the last call."""
        return _read(self._messages, 65536).decode(*AS_READ).splitlines()

    def close(self) -> None:
        """Close the pipes, in a child that uses another slot."""
        for end in (self._tokens, self._token_end, self._messages, self._message_end):
            os.close(end)

    # The supervisor's side

    def take_unstarted(self) -> list[tuple[str, int]]:
        """Take every job that has not started: (id, lease), oldest first."""
        tokens = _read(self._tokens, _TOKEN.size * MAX_BATCH)
        return [(_text(name), lease) for lease, name in _TOKEN.iter_unpack(tokens)]

    def has_unstarted(self) -> bool:
        """Whether `take_unstarted` would take any jobs."""
        return any(fcntl.ioctl(self._tokens, termios.FIONREAD, bytes(4)))

    def running(self) -> list[RunningJob]:
        slots = range(self.slots + self._words[_CHUNK])
        return [job for job in map(self._running, slots) if job is not None]

    def running_sync(self) -> RunningJob | None:
        """The job running in the main thread, ahead of the unstarted ones."""
        return self._running(0)

    def _running(self, slot: int) -> RunningJob | None:
        at = _HEADER_BYTES + slot * _RUNNING.size
        deadline_ms, token, started_ms = _RUNNING.unpack_from(self._memory, at)
        if not started_ms:
            return None
        commits, deadline_ms = deadline_ms < 0, abs(deadline_ms)
        if deadline_ms < started_ms:  # read during a write: the deadline is another job's
            deadline_ms = 0
        lease, name = _TOKEN.unpack(token)
        return RunningJob(_text(name), lease, started_ms, deadline_ms, commits)

    def unstarted_since(self) -> int:
        """When (monotonic ms) the unstarted jobs were offered; 0 if there are none."""
        return self._words[_OFFERED] if self.has_unstarted() else 0

    def ended_since(self) -> int:
        """Since when (monotonic ms) outcomes may have waited for a report; 0 if none do."""
        return min(filter(None, (self.log.since_ms, self.concurrent_log.since_ms)), default=0)

    def outcomes(self) -> list[Outcome]:
        """The outcomes that may not have been reported yet."""
        return self.log.read() + self.concurrent_log.read()

    def take_outcomes(self) -> list[Outcome]:
        """``outcomes``, for the supervisor to report before the child does. It is told so."""
        for log in (self.log, self.concurrent_log):
            log.note_taken()
        return self.outcomes()

    @property
    def done(self) -> int:
        """How many jobs the current child has finished."""
        return self._words[_DONE]

    @property
    def alive_until_ms(self) -> int:
        """By when (monotonic ms) the child has promised a sign of life; 0 if it has not."""
        return self._words[_ALIVE_UNTIL]

    def set_watched(self, watched: bool) -> None:
        """Tell the child whether the supervisor checks often."""
        self._words[_WATCHED] = watched

    def note_shard(self, shard: int, answers: bool) -> None:
        """Tell the child whether a shard answers. For any thread."""
        self._answered[shard] = mono_ms() if answers else -1

    def note_role(self, shard: int, note: RoleNote) -> None:
        """Tell the child what a heartbeat found about its role. For any thread."""
        self._role_notes[shard] = note

    def sleeps(self, shard: int) -> bool:
        """Whether the child leads a shard and does nothing but wait. For any thread."""
        return bool(self._sleeps[shard])

    def unanswered_since(self, shard: int) -> int:
        """When (monotonic ms) the child's last call to a shard failed; 0 if it got a reply."""
        return self._unanswered[shard]

    def send(self, message: str) -> None:
        """Write a message for the child; the caller then sends the signal."""
        # The pipe is full if the child has not read for an hour. Heartbeats repeat what matters.
        with suppress(BlockingIOError):
            os.write(self._message_end, f"{message}\n".encode(*AS_READ))

    def reset(self) -> None:
        """Prepare the slot for its next child: the last one is dead, and its state was read."""
        self.take_unstarted()
        self.read_messages()
        for slot in range(self.slots + MAX_BATCH):
            self.end(slot)
        self.log.clear()
        self.concurrent_log.clear()
        self._memory[: 8 * _WORDS] = bytes(8 * _WORDS)
        for shard in range(MAX_SHARDS):
            self._sleeps[shard] = self._unanswered[shard] = 0


def _outcome(text: str) -> Outcome:
    job_id, lease, call, kind, detail, body = text.split(" ", 5)
    return Outcome(job_id, int(lease), int(call), kind, body, detail)


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode(*AS_READ)


def _read(pipe: int, size: int) -> bytes:
    """The contents of the pipe, up to ``size`` bytes."""
    try:
        return os.read(pipe, size)
    except BlockingIOError:
        return b""


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing
