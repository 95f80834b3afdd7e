"""The heartbeat threads of a worker: one for each shard, so that a shard that does not answer holds
up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...conf import Settings
from ...core.placement import shard_of_id
from ..probe import HeartbeatFile
from .heartbeat import (
    ExitReport,
    HeartbeatCallbacks,
    HeartbeatThread,
    ReleaseUnstarted,
    WriteRequest,
)


class Heartbeats:
    """Starts and stops the threads, and gives each what concerns its shard."""

    def __init__(
        self, settings: Settings, queues: Sequence[str], callbacks: HeartbeatCallbacks
    ) -> None:
        self._threads = [
            HeartbeatThread(settings, queues, callbacks, shard) for shard in range(settings.shards)
        ]

    def start(self) -> None:
        """Take over from this machine's dead workers, then beat until ``stop``."""
        for thread in self._threads:
            thread.start()

    def submit(self, request: WriteRequest) -> None:
        """Have something written to Redis, as soon as Redis answers."""
        if len(self._threads) == 1:
            self._threads[0].submit(request)
            return
        for shard, thread in enumerate(self._threads):
            part = _part_of(request, shard)
            if part is not None:
                thread.submit(part)

    def may_recover_since(self, since: float) -> bool:
        """Whether jobs of dead children came back to their queues after ``since`` (monotonic), or
        still will: a child that found the queues empty then has to look again."""
        return any(thread.may_recover_since(since) for thread in self._threads)

    def stop(self, timeout: float) -> bool:
        """Write what is left, within ``timeout`` seconds; False if that was too short."""
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.finish()
        stopped = [thread.join(max(0.0, end - time.monotonic())) for thread in self._threads]
        return all(stopped)


def _part_of(request: WriteRequest, shard: int) -> WriteRequest | None:
    """What of a request concerns a shard; None if nothing does. A child's exit concerns them all:
    it may have claimed jobs that nobody else knows of."""
    outcomes = [outcome for outcome in request.outcomes if shard_of_id(outcome.id) == shard]
    if isinstance(request, ExitReport):
        return replace(
            request,
            outcomes=outcomes,
            blamed=[job_id for job_id in request.blamed if shard_of_id(job_id) == shard],
            timed_out=[job for job in request.timed_out if shard_of_id(job[0]) == shard],
        )
    unstarted = [job for job in request.unstarted if shard_of_id(job[0]) == shard]
    if not outcomes and not unstarted:
        return None
    return ReleaseUnstarted(request.child, unstarted, outcomes)


class ShardAnswers:
    """Which shards answered their last heartbeat. For the threads of all shards."""

    def __init__(
        self, shards: int, heartbeat_file: HeartbeatFile, on_change: Callable[[int, bool], None]
    ) -> None:
        self._answered = [True] * shards
        self._heartbeat_file = heartbeat_file
        self._on_change = on_change
        self._guard = threading.Lock()

    def note(self, shard: int, answered: bool) -> None:
        """Note a heartbeat. The file says that Redis answers while any shard does."""
        with self._guard:
            if self._answered[shard] != answered:
                self._answered[shard] = answered
                self._on_change(shard, answered)
            self._heartbeat_file.write(answered or any(self._answered))
