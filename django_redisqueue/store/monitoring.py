"""What a monitor asks Redis: the state of each queue, of the children of workers, and its own."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from ..texts import printable
from .entries import events_from
from .overview import (
    WIDTH,
    ChildOverview,
    Fleet,
    QueueOverview,
    ServerOverview,
    count_commands,
    counts_of,
    queue_commands,
    queue_of,
    server_of,
    waited,
    waiting_command,
)
from .reader import Reader, clock_ms, counters, pairs, score_ms, whole
from .replies import id_in

FLEET = 10_000  # children that are put in order
SHOWN = 100  # children a look, unless it asks for another number


class OverviewReads(Reader):
    """A part of ``Reads``."""

    def stats(self, queues: Sequence[str]) -> dict[str, dict[str, int]]:
        """Counts by status of several queues, in one round trip."""
        if not queues:
            return {}
        commands: list[tuple[str, ...]] = []
        for queue in queues:
            commands += count_commands(self.keys.queue(queue))
        replies = self.link.pipeline(commands)
        width = len(replies) // len(queues)
        return {
            queue: counts_of(replies[at * width : (at + 1) * width])
            for at, queue in enumerate(queues)
        }

    def former_queues(self, queues: Container[str]) -> list[str]:
        """The queues that Redis knows besides these: they were taken out of QUEUES, or another
        project that shares this Redis has them."""
        [names] = self._each([("SMEMBERS", self.keys.queues)])
        return sorted(name for name in names or () if name not in queues)

    def stranded(self, queues: Container[str]) -> dict[str, int]:
        """How many unfinished jobs each of those has, if any."""
        found = self.overview(self.former_queues(queues))
        return {queue.name: queue.unfinished for queue in found if queue.unfinished}

    def meta(self, queue: str) -> dict[str, int]:
        """A queue's counters since it began, and ``paused`` (the instant in ms) if it is."""
        return counters(self.link.call("HGETALL", self.keys.queue(queue).meta))

    def workers(self) -> list[tuple[str, int]]:
        """All children with the instant their lease ends, in ms. Costs as much as there are
        children.
        """
        ends = pairs(self.link.call("ZRANGE", self.keys.workers, 0, -1, "WITHSCORES"))
        return [(printable(child), score_ms(until)) for child, until in ends.items()]

    def held(self, children: Sequence[str]) -> dict[str, list[str]]:
        """The ids each of these children holds."""
        if not children:
            return {}
        replies = self.link.pipeline(
            [("LRANGE", self.keys.held(child), 0, -1) for child in children]
        )
        return {
            child: [id_in(entry) for entry in entries]
            for child, entries in zip(children, replies, strict=True)
        }

    def overview(self, queues: Sequence[str]) -> list[QueueOverview]:
        """What a monitor shows of these queues: counts, counters, paused, oldest age.

        Costs two round trips, of at most 17 commands a queue, each of constant or logarithmic
        time. Two looks give ``rates`` (of ``store.overview``).
        """
        commands = [
            command for queue in queues for command in queue_commands(self.keys.queue(queue))
        ]
        clock, *replies = self._each([("TIME",), *commands])
        now_ms = clock_ms(clock)
        found = [
            queue_of(self.keys.queue(queue), queue, now_ms, replies[at * WIDTH : (at + 1) * WIDTH])
            for at, queue in enumerate(queues)
        ]
        asked = [waiting_command(self.keys, job_id) for _, ids in found for job_id in ids]
        answers = iter(self._each(asked))
        return [
            replace(queue, oldest_ms=waited(now_ms, [next(answers) or () for _ in ids]))
            for queue, ids in found
        ]

    def fleet(self, limit: int = SHOWN, start: int = 0) -> Fleet:
        """``limit`` children from ``start`` on, and what each runs: first those whose lease has
        lapsed, then by name, so that a page stays the same while leases are renewed.

        Costs three round trips, of at most three commands a child shown; the first grows with the
        fleet (0.1 ms for 1,000 children) up to FLEET of them.
        """
        every, total, clock = self.link.pipeline(
            [
                ("ZRANGE", self.keys.workers, 0, FLEET - 1, "WITHSCORES"),
                ("ZCARD", self.keys.workers),
                ("TIME",),
            ]
        )
        now_ms = clock_ms(clock)
        all_leases = {child: score_ms(end) - now_ms for child, end in pairs(every).items()}
        ordered = sorted(all_leases, key=lambda child: (all_leases[child] > 0, child))
        leases = {child: all_leases[child] for child in ordered[start : start + limit]}
        held = self.link.pipeline(
            [
                ("ZCOUNT", self.keys.workers, now_ms, "+inf"),
                *(("LRANGE", self.keys.held(child), 0, 0) for child in leases),
                *(("LLEN", self.keys.held(child)) for child in leases),
            ]
        )
        alive, firsts, counts = held[0], held[1 : 1 + len(leases)], held[1 + len(leases) :]
        jobs = [id_in(first[0]) if first else "" for first in firsts]
        asked = [("HMGET", self.keys.job(job), "task", "started_ms") for job in jobs if job]
        answers = iter(self._each(asked))
        return Fleet(
            total,
            alive,
            [
                _child(now_ms, child, lease_ms, count, job, next(answers) if job else None)
                for (child, lease_ms), count, job in zip(leases.items(), counts, jobs, strict=True)
            ],
        )

    def server(self) -> ServerOverview:
        """What Redis says of itself, and how many events its stream holds. One round trip."""
        info, total, entries = self.link.pipeline(
            [
                ("INFO",),
                ("HGET", self.keys.meta, "events"),
                ("XRANGE", self.keys.events, "-", "+", "COUNT", 1),
            ]
        )
        return server_of(info, events_from(entries, total))


def _child(
    now_ms: int, child: str, lease_ms: int, held: int, job: str, raw: Sequence[str | None] | None
) -> ChildOverview:
    task, started = raw or ("", None)
    started_ms = whole(started)
    since_ms = None if started_ms is None else max(0, now_ms - started_ms)
    return ChildOverview(
        printable(child), lease_ms, held, printable(job), printable(task or ""), since_ms
    )
