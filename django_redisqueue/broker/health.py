"""What Redis knows of the health of queues and workers, in two round trips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.parsing import clock_ms, pairs, score_ms
from ..core.text import printable
from .base import QueryBase
from .events import Position
from .overview import (
    COUNTS,
    WIDTH,
    Command,
    QueueOverview,
    count_commands,
    counts_of,
    queue_commands,
    queue_of,
    unfinished,
    waited,
    waiting_command,
)
from .policies import (
    POLICY_COMMANDS,
    PolicyState,
    add_policies,
    detail_commands,
    policies_of,
    policy_commands,
)
from .reads import Read, query
from .scan import UnreadEvents, unread_commands, unread_events
from .sums import add_counts, add_queues

LAPSED = 100  # children with a lapsed lease that are named
SERVED = 1000  # queues that workers announce, the latest first
FORMER = 100  # queues that have left the settings
NO_POLICIES = PolicyState()
NOTHING_UNREAD = UnreadEvents(None, 0)
_HEAD = 8  # replies before those of the policies and queues


@dataclass(frozen=True, slots=True)
class ShardState:
    """The queues, and who serves them, at one moment by Redis's clock."""

    now_ms: int
    queues: Sequence[QueueOverview] = ()
    former: Mapping[str, int] = field(default_factory=dict)  # queue -> unfinished jobs
    served: frozenset[str] = frozenset()  # by workers that announce their queues
    has_workers: bool = False  # whether any child's lease is valid
    lapsed: Sequence[str] = ()  # children, at most LAPSED
    eviction: str = "noeviction"  # the maxmemory-policy
    unread: UnreadEvents = NOTHING_UNREAD
    policies: PolicyState = NO_POLICIES
    deserted: Mapping[int, int] = field(default_factory=dict)  # shards without a worker -> jobs


def add_states(found: Mapping[int, ShardState]) -> ShardState:
    """The state of several shards together. A queue is served if it is served in all of them."""
    if len(found) == 1:
        [state] = found.values()
        return state
    states = list(found.values())
    unread = [state.unread for state in states]
    counts = [one.events for one in unread]
    known = [count for count in counts if count is not None]
    manned = [state for state in states if state.has_workers or state.served]
    return ShardState(
        max(state.now_ms for state in states),
        add_queues({shard: state.queues for shard, state in found.items()}),
        add_counts(state.former for state in states),
        frozenset.intersection(*(state.served for state in manned)) if manned else frozenset(),
        bool(manned),
        sorted({child for state in states for child in state.lapsed})[:LAPSED],
        next((one.eviction for one in states if one.eviction != "noeviction"), "noeviction"),
        UnreadEvents(
            sum(known) if len(known) == len(counts) else None, max(one.oldest_ms for one in unread)
        ),
        add_policies([state.policies for state in states]),
        {
            shard: sum(queue.unfinished for queue in state.queues)
            for shard, state in found.items()
            if manned and state not in manned
        },
    )


class HealthQueries(QueryBase):
    """Reads the state of a shard, on one connection."""

    @query
    def shard_state(self, queues: Sequence[str], mirrored: Position) -> Read[ShardState]:
        """The state, with what the mirror has not read after ``mirrored``.

        Costs two round trips, whatever the number of queues, workers and jobs: of WIDTH commands a
        queue and 14 more, then of at most 4 a queue, a count of each list of up to FORMER queues
        that have left the settings, and 200 for schedules and limits, all of constant or
        logarithmic time.
        """
        head, of_policies, of_queues = yield from self._first_trip(queues, mirrored)
        clock, names, served, first, last, info, entries, total = head
        now_ms = clock_ms(clock)
        former = sorted(set(names or ()) - set(queues))[:FORMER]
        asked = detail_commands(self.keys, of_policies)
        found, waits, details = yield from self._second_trip(
            queues, of_queues, former, now_ms, asked
        )
        leases = {child: score_ms(end) for child, end in pairs(first or ()).items()}
        latest = [score_ms(end) for end in pairs(last or ()).values()]
        return ShardState(
            now_ms,
            found,
            waits,
            frozenset(q for q, end in pairs(served or ()).items() if score_ms(end) >= now_ms),
            any(end >= now_ms for end in latest),
            [printable(child) for child, end in leases.items() if end < now_ms],
            _policy(info or ""),
            unread_events(now_ms, entries or (), total),
            policies_of(of_policies, details),
        )

    def _first_trip(
        self, queues: Sequence[str], mirrored: Position
    ) -> Read[tuple[list[Any], list[Any], list[Any]]]:
        keys = self.keys
        replies = yield [
            ("TIME",),
            ("SMEMBERS", keys.queues),
            ("ZRANGE", keys.serving, 0, SERVED - 1, "REV", "WITHSCORES"),
            ("ZRANGE", keys.workers, 0, LAPSED - 1, "WITHSCORES"),
            ("ZRANGE", keys.workers, 0, 0, "REV", "WITHSCORES"),
            ("INFO", "memory"),
            *unread_commands(keys, mirrored),
            *policy_commands(keys),
            *(command for queue in queues for command in queue_commands(keys.queue(queue))),
        ]
        of_policies = replies[_HEAD : _HEAD + POLICY_COMMANDS]
        return replies[:_HEAD], of_policies, replies[_HEAD + POLICY_COMMANDS :]

    def _second_trip(
        self,
        queues: Sequence[str],
        replies: Sequence[Any],
        former: Sequence[str],
        now_ms: int,
        more: Sequence[Command],
    ) -> Read[tuple[list[QueueOverview], dict[str, int], list[Any]]]:
        """The queues with the age of their oldest jobs, the jobs left in former ones, and the
        replies to ``more``."""
        found = [
            queue_of(self.keys.queue(queue), queue, now_ms, replies[at * WIDTH : (at + 1) * WIDTH])
            for at, queue in enumerate(queues)
        ]
        waits = [waiting_command(self.keys, job_id) for _, ids in found for job_id in ids]
        counts = [command for queue in former for command in count_commands(self.keys.queue(queue))]
        answers = iter((yield [*waits, *counts, *more]))
        aged = [
            replace(queue, oldest_ms=waited(now_ms, [next(answers) or () for _ in ids]))
            for queue, ids in found
        ]
        left = {q: unfinished(counts_of([next(answers) for _ in range(COUNTS)])) for q in former}
        by_queue = {printable(queue): jobs for queue, jobs in left.items() if jobs}
        return aged, by_queue, list(answers)


def _policy(info: str) -> str:
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    return fields.get("maxmemory_policy", "noeviction")
