"""Reporting outcomes and claiming jobs, in one shard or in several; how many to claim at once.

One round trip reports a batch to its shard and claims the next batch there. A child stays in a
shard while that has jobs, but now and then it looks into another, so that none is neglected. A wake
token shows where else there are jobs: see ``IdleWait``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...broker.commands import ClaimRequest, Commands
from ...broker.connection import HUNG, RedisConnection, blocking_connection, child_connection
from ...broker.failures import (
    BlockedQueues,
    RetryBackoff,
    log_outage,
    log_recovery,
    retry_until_answered,
)
from ...broker.replies import ClaimedJob, ClaimReply, FinishCode, FinishReply, Outcome, OutcomeKind
from ...conf import Settings
from ...core.ids import shard_of_id, shard_of_key
from ...exceptions import RedisQueueError, RedisUnavailable
from ..child_state import MAX_BATCH, RESERVED_BYTES, ChildState, OutcomeLog
from ..identity import shard_label
from .retry_policy import corrupt

logger = logging.getLogger("django_redisqueue")

STAY = 0.1  # s that a child works in one shard before it looks into the next
LOOK = 0.05  # s between two checks of whether a shard answers again
NEAR_BATCHES = {1: 64, 2: 48}  # jobs, by the number of a worker's children
NEAR_BATCH = 36  # jobs, with more children; a smaller limit would cost throughput
FAR_ROUND_TRIP = 0.0005  # s; a Redis that takes longer to answer is far away


def largest_batch(ping: Callable[[], object], siblings: int) -> int:
    """How many jobs a call may claim. ``siblings``: the children of the worker.

    If Redis is far away, larger batches save round trips. If it is near, smaller batches cost
    little, and other clients wait less for the calls of all siblings, which follow one another.
    """
    times = []
    for _ in range(3):
        begun = time.monotonic()
        ping()
        times.append(time.monotonic() - begun)
    if min(times) > FAR_ROUND_TRIP:
        return MAX_BATCH
    return NEAR_BATCHES.get(siblings, NEAR_BATCH)


class BatchSize:
    """How many jobs to claim at once, from an estimate of their run time.

    The first batch is one job. The estimate rises at once when jobs turn out to be slow, and falls
    slowly, by a quarter of the difference per batch, because a batch that is too small costs a
    round trip, while one that is too large makes jobs wait. After a batch that was not run to its
    end, the size restarts at the number of jobs that ran, and doubles from there.
    """

    def __init__(self, window_ms: int) -> None:
        self.limit = NEAR_BATCH
        self._window = window_ms / 1000
        self._estimate = self._window
        self._most = MAX_BATCH

    def jobs(self) -> int:
        """As many as will probably start within the window, at least 1."""
        if not self._window:
            return 1
        return min(self.limit, self._most, math.ceil(self._window / self._estimate))

    def learn(self, jobs: int, seconds: float, *, of: int) -> None:
        """Note that ``jobs`` ran in ``seconds``, from a batch ``of`` that many."""
        self._most = jobs if jobs < of else min(MAX_BATCH, 2 * self._most)
        mean = max(seconds / jobs, 1e-6)
        self._estimate = mean if mean > self._estimate else self._estimate * 0.75 + mean * 0.25


def releases(jobs: Sequence[ClaimedJob]) -> list[Outcome]:
    """The outcomes of jobs that go back to the head of their queue, in the same order."""
    return [Outcome(job.id, job.lease, job.call, OutcomeKind.QUEUED) for job in reversed(jobs)]


class ShardClaims:
    """One shard: the outcomes to report to it, and numbered calls that report and claim.

    A call that is sent again after a lost reply returns the same jobs and accepts its outcomes once
    more. Outcomes that cannot be written, because a key of their queue has the wrong type, are sent
    with every call until they are.
    """

    def __init__(
        self,
        connection: RedisConnection,
        request: ClaimRequest,
        settings: Settings,
        log: OutcomeLog,
    ) -> None:
        self.shard = connection.shard
        self.commands = Commands(connection, settings)
        self.outcomes: list[Outcome] = []  #: not accepted yet
        self.retry_at = 0.0  #: when (monotonic) to call again; 0.0 while the shard answers
        self.is_unanswered = False  #: whether the last call was not answered
        self._id_end = f"_{connection.shard}"  # of jobs' ids, except those in workflows
        self._request = request
        self._settings = settings
        self._log = log
        self._who = shard_label(request.child, self.shard, settings)
        self._blocked = BlockedQueues(self._who)
        self._call = 0
        self._asked = 0  # jobs that the last call wanted; a chunk may be larger
        self._blocking = blocking_connection(connection.shard)
        self._reply: FinishReply | None = None  # to the last call, if it was sent by `wait`
        self._backoff = RetryBackoff()

    def exchange(self, wanted: int) -> ClaimReply:
        """Report outcomes and claim up to ``wanted`` jobs. Raises RedisQueueError; the next call
        then repeats the request.

        A job whose id belongs to another shard fails: a lookup by its id goes to that shard, so the
        job could be neither run nor reported.
        """
        while True:
            reply = self._exchange(wanted)
            misplaced = [
                job
                for job in reply.jobs
                if not job.id.endswith(self._id_end) and shard_of_id(job.id) != self.shard
            ]
            if not misplaced:
                return reply
            self.outcomes += map(self._refuse, misplaced)
            jobs = [job for job in reply.jobs if job not in misplaced]
            if jobs or not wanted:
                return reply._replace(jobs=jobs)

    def _refuse(self, job: ClaimedJob) -> Outcome:
        problem = (
            f"the id {job.id} belongs to shard {shard_of_id(job.id)}, but the job is in shard "
            f"{self.shard}: enqueue it again with an id of this shard, or without one"
        )
        #: A program enqueued a job under an id of another shard, so it fails with the reason
        #: corrupt. Enqueue it again without an id.
        logger.error("%s: %s", self._who, problem)
        return Outcome(job.id, job.lease, job.call, *corrupt(problem, self._settings))

    def wait(self, queues: Sequence[str], timeout: float, wanted: int) -> None:
        """Block until one of these queues has a wake token, or for ``timeout`` seconds, and report
        and claim in the same round trip; the next ``exchange`` returns what was claimed. Raises
        RedisQueueError.

        An interrupt may end this at any point. The next ``exchange`` then sends the call again.
        """
        keys = [self.commands.keys.queue(queue).wake for queue in queues]
        self._call += 1
        self._asked = wanted
        self.is_unanswered = True
        self._reply = self.commands.finish_after_pop(
            self._blocking, keys, timeout,
            self._request, self._call, self.outcomes[:MAX_BATCH], wanted,
        )  # fmt: skip

    @property
    def has_reply(self) -> bool:
        """Whether ``wait`` got a reply for the next ``exchange`` to return."""
        return self._reply is not None

    def close_wait(self) -> None:
        """Close the connection of ``wait``, even while it waits."""
        self._blocking.close()

    def _exchange(self, wanted: int) -> ClaimReply:
        reply, self._reply = self._reply, None
        try:
            codes, claim = reply or self._send(wanted)
        except RedisQueueError as error:
            log_outage(self._who, error)
            self.retry_at = time.monotonic() + self._backoff.next_pause()
            raise
        self.is_unanswered = False
        if self._backoff.failures:
            self._backoff.reset()
            self.retry_at = 0.0
            log_recovery(self._who)
        if codes:
            self._drop_reported(codes)
        if wanted:
            self._blocked.note(claim.broken)
        if claim.lost:
            #: A queue had ids whose jobs no longer exist; they were discarded. No action is needed,
            #: unless keys in Redis are being deleted by hand.
            logger.error(
                "ids without a job were in the queue (deleted, or cancelled and pruned): %s",
                ", ".join(claim.lost),
            )
        if self._asked > wanted:  # an unanswered call wanted these; now there is no room
            self.outcomes += releases(claim.jobs[wanted:])
            return claim._replace(jobs=claim.jobs[:wanted])
        return claim

    def _drop_reported(self, codes: Sequence[int]) -> None:
        """Keep only the outcomes that the last call did not report, or that were not written."""
        outcomes = self.outcomes[: len(codes)]
        self.outcomes = self.outcomes[len(codes) :]  # after a chunk there may be more
        if FinishCode.UNWRITTEN in codes:
            pairs = zip(outcomes, codes, strict=True)
            self.outcomes += [one for one, code in pairs if code == FinishCode.UNWRITTEN]
        if FinishCode.LEASE_LOST in codes:
            log_refused(self._request.child, outcomes, codes, self._log)

    def _send(self, wanted: int) -> FinishReply:
        is_resent, self.is_unanswered = self.is_unanswered, True
        if not is_resent:
            self._call += 1
            self._asked = wanted
        return self.commands.finish(
            self._request, self._call, self.outcomes[:MAX_BATCH], wanted, resent=is_resent
        )


class Claims:
    """What a child reports and claims in all shards.

    With one shard, calls are repeated until Redis answers. With several, the child leaves out those
    that do not answer, and keeps the outcomes to report to them until they do.
    """

    def __init__(
        self,
        request: ClaimRequest,
        state: ChildState,
        settings: Settings,
        is_stopping: Callable[[], bool],
    ) -> None:
        connection = child_connection()
        self.request = request
        self.shards = [
            ShardClaims(connection.at(shard), request, settings, state.log)
            for shard in range(settings.shards)
        ]
        self._state = state
        self._is_stopping = is_stopping
        home = shard_of_key(request.child, settings.shards)
        self.current = self.shards[home]  #: the shard of the last claim
        self._turn = home
        self._stay_until = 0.0
        self._dry: set[int] = set()  # shards that had no jobs when last asked
        if not self._is_available(self.current):
            self.go_to(None)

    @property
    def is_dry(self) -> bool:
        """Whether every shard had no jobs when last asked."""
        return len(self._dry) == len(self.shards)

    @property
    def is_dry_where_answered(self) -> bool:
        """The same for the shards that answer."""
        return self._dry.issuperset(self.available())

    @property
    def is_made(self) -> bool:
        """Whether a wait has made the next claim."""
        return self.current.has_reply

    @property
    def unreported(self) -> int:
        return sum(len(one.outcomes) for one in self.shards)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Report these with the next call to their shard."""
        if len(self.shards) == 1:
            self.current.outcomes += outcomes
            return
        for outcome in outcomes:
            self.shards[shard_of_id(outcome.id)].outcomes.append(outcome)

    def go_to(self, shard: int | None) -> None:
        """Claim from this shard next; None for the next in turn."""
        if shard is None:
            shard = next(iter(self.available()), self.current.shard)
            self._turn = shard
        self.current = self.shards[shard]
        self._stay_until = time.monotonic() + STAY

    def claim(self, wanted: int) -> ClaimReply:
        """Report outcomes and claim jobs. Raises RedisQueueError if it is time to stop instead."""
        while True:
            self._state.keep_alive()
            try:
                return self._claim(wanted)
            except RedisQueueError:
                if self._is_stopping() and not self.unreported:
                    raise
                self._pause()

    def put_back(self, shards: Sequence[int]) -> None:
        """Put back what a wait may have taken from these shards: jobs whose claim was not answered,
        which are reported next, or a wake token."""
        for one in (self.shards[shard] for shard in shards):
            with suppress(RedisQueueError):
                if one.is_unanswered:
                    self._exchange(one, 0)
                else:  # an empty claim leaves a token if there is work
                    one.commands.claim(self.request, 0, 0)

    def give_back(self) -> None:
        """Have the next report release jobs that a call has claimed whose reply was lost or not
        processed: the child has no room for them now."""
        self.put_back([shard for shard in self.available() if self.shards[shard].is_unanswered])

    def flush(self, *, wait: bool = False) -> None:
        """Report all outcomes. With ``wait``, or with one shard, this takes until Redis answers;
        shards that do not answer come last. Otherwise they are left out."""
        unreported = [one for one in self.shards if one.outcomes]
        for one in sorted(unreported, key=self._is_available, reverse=True):
            for _ in range(0, len(one.outcomes), MAX_BATCH):
                if not self._report(one, wait):
                    break

    def _report(self, one: ShardClaims, wait: bool) -> bool:
        while wait or self._is_available(one):
            self._state.keep_alive()
            try:
                self._exchange(one, 0)
            except RedisQueueError:  # which is logged
                self._pause()
            else:
                return True
        return False

    def _claim(self, wanted: int) -> ClaimReply:
        if len(self.shards) == 1:
            return self._exchange(self.current, wanted)
        if self._state.log.free_bytes < RESERVED_BYTES:
            self.flush(wait=True)  # another job's outcome might have no room
        here, reply = self.current, None
        if time.monotonic() >= self._stay_until or not self._is_available(here):
            self._stay_until = time.monotonic() + STAY
            available = self.available()
            if not available:
                raise RedisUnavailable("no shard answers")
            self._turn = available[0]
            there = self.shards[self._turn]
            reply = self._exchange(there, wanted)
            if reply.jobs or not self._is_available(here):
                self.current = there
            else:
                reply = None
        if reply is None:
            reply = self._exchange(here, wanted)
        self.flush()
        return reply

    def available(self) -> list[int]:
        """The shards that answer, beginning with the next in turn; if there is only one, always
        that one. Those whose last call was not answered come first: it may have claimed jobs."""
        number = len(self.shards)
        in_turn = (turn % number for turn in range(self._turn + 1, self._turn + 1 + number))
        found = [shard for shard in in_turn if self._is_available(self.shards[shard])]
        return sorted(found, key=lambda shard: not self.shards[shard].is_unanswered)

    def resend_in(self) -> float:
        """Seconds until a call that was not answered can be sent again; inf if there is none."""
        unanswered = (one for one in self.shards if one.is_unanswered)
        times = [one.retry_at for one in unanswered if self._state.answers(one.shard)]
        return max(0.0, min(times) - time.monotonic()) if times else math.inf

    def are_available(self, shards: Sequence[int]) -> bool:
        """Whether the same shards answer. Also tells the watchdog that the child is alive."""
        self._state.keep_alive()
        return self.available() == shards

    def _is_available(self, one: ShardClaims) -> bool:
        is_only = len(self.shards) == 1
        return is_only or (self._state.answers(one.shard) and time.monotonic() >= one.retry_at)

    def _exchange(self, one: ShardClaims, wanted: int) -> ClaimReply:
        if one.is_unanswered:
            self._state.note_unanswered(one.shard, False)
        began = time.monotonic()
        try:
            reply = one.exchange(wanted)
        except RedisQueueError:
            self._state.note_unanswered(one.shard, True)
            if time.monotonic() - began > HUNG:
                self.note_silent(one.shard)
            raise
        unreported = [outcome for each in self.shards for outcome in each.outcomes]
        self._state.log.keep_only(unreported)
        if reply.jobs:
            self._dry.clear()
        elif wanted:
            self._dry.add(one.shard)
        return reply

    def note_silent(self, shard: int) -> None:
        """Note that the child has waited in vain for this shard's server."""
        note_silent(self._state, [one.commands for one in self.shards], shard)

    def _pause(self) -> None:
        now = time.monotonic()
        time.sleep(min(max(one.retry_at - now, 0.0) for one in self.shards) or LOOK)


class Reports:
    """Reports outcomes of jobs in flight. For the reporter thread, on connections of its own."""

    def __init__(self, request: ClaimRequest, state: ChildState, settings: Settings) -> None:
        self._request = request
        self._state = state
        self._settings = settings
        connection = child_connection()
        self._by_shard = [
            Commands(connection.at(shard), settings) for shard in range(settings.shards)
        ]

    def send(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """Report outcomes; return for each whether it was written. With one shard this takes until
        Redis answers. With several, an outcome is not written while its shard does not answer."""
        if len(self._by_shard) == 1:
            return retry_until_answered(lambda _: self._send(0, outcomes), who=self._request.child)
        written = [False] * len(outcomes)
        for shard in {shard_of_id(outcome.id) for outcome in outcomes}:
            places = [at for at, one in enumerate(outcomes) if shard_of_id(one.id) == shard]
            found = self._try(shard, [outcomes[at] for at in places])
            for at, is_written in zip(places, found, strict=True):
                written[at] = is_written
        return written

    def _try(self, shard: int, outcomes: Sequence[Outcome]) -> list[bool]:
        unwritten = [False] * len(outcomes)
        if not self._state.answers(shard):
            return unwritten
        who = shard_label(self._request.child, shard, self._settings)
        began = time.monotonic()
        try:
            written = self._send(shard, outcomes)
        except RedisQueueError as error:
            log_outage(who, error)
            if time.monotonic() - began > HUNG:
                note_silent(self._state, self._by_shard, shard)
            return unwritten
        log_recovery(who)
        return written

    def _send(self, shard: int, outcomes: Sequence[Outcome]) -> list[bool]:
        # Never marked as resent: the call claims nothing, and outcomes may be repeated.
        codes, _ = self._by_shard[shard].finish(self._request, 0, outcomes, 0)
        log_refused(self._request.child, outcomes, codes, self._state.concurrent_log)
        return [code != FinishCode.UNWRITTEN for code in codes]


def note_silent(state: ChildState, by_shard: Sequence[Commands], shard: int) -> None:
    """Note that a child has waited in vain for the server of a shard; a server may have several
    shards. A lone server gets another call: perhaps only the connection is dead."""
    servers = [commands.connection.server for commands in by_shard]
    silent = [at for at, server in enumerate(servers) if server == servers[shard]]
    if len(silent) < len(servers):
        for each in silent:
            state.note_silent(each)


def log_refused(
    child: str, outcomes: Sequence[Outcome], codes: Sequence[int], log: OutcomeLog
) -> None:
    """Log the outcomes that were refused because their leases are lost.

    If the supervisor has reported some of them, their jobs may just have started again.
    """
    if log.was_taken:
        return
    for outcome, code in zip(outcomes, codes, strict=True):
        if code == FinishCode.LEASE_LOST and outcome.kind != OutcomeKind.QUEUED:
            #: A worker was stopped or cut off for longer than LEASE, and another one has taken its
            #: job, so this one's report is refused. Nothing is stored twice. If this repeats, look
            #: for overloaded or suspended machines.
            logger.warning(
                "job %s: '%s' of child %s refused, its lease %d is lost",
                outcome.id, outcome.kind, child, outcome.lease,
            )  # fmt: skip
