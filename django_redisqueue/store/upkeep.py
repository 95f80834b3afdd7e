"""The verbs that keep the shard in order: what supervisors and the maintenance child call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .replies import Lead, parse_broken
from .verbs import BATCH, Verbs


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat."""

    interrupted: bool  # Redis or the beats had been away: nobody reaps for a lease
    steady_ms: int  # the instant since which it was not so
    lapsed: int  # leases of anybody's children that have run out
    lost: list[str]  # of these jobs, those whose lease is lost
    flagged: list[str]  # of these jobs, those with a pending cancel


@dataclass(frozen=True, slots=True)
class Reaped:
    """The answer to a reap. ``wait_ms`` > 0: leases have lapsed, but it is too early to tell."""

    child: str = ""
    more: bool = False
    stuck: bool = False  # some stay, for a key of their queue is of a wrong type
    jobs: Sequence[tuple[str, str]] = ()  # id, what became of it
    wait_ms: int = 0


class Promoted(NamedTuple):
    """The answer to a promote. ``next_ms``: until the next is due, -1 when nothing is. ``broken``:
    queues that have a key of a wrong type, each with what is wrong."""

    moved: int
    next_ms: int
    broken: Mapping[str, str]


class UpkeepVerbs(Verbs):
    """Leases, what is due, what the dead have left, and what may go."""

    def promote(self, queues: Sequence[str]) -> Promoted:
        """Move due jobs of these and all other known queues into their queues."""
        moved, next_ms, broken = self._run("promote", *queues)
        return Promoted(moved, next_ms, parse_broken(broken))

    def heartbeat(
        self, children: Sequence[str], running: Sequence[tuple[str, str, int]] = ()
    ) -> Beat:
        """Renew the leases of one supervisor's children; ``running``: up to 100 (id, child, lease)
        to ask after."""
        arguments = [part for run in running for part in run]
        interrupted, lapsed, lost, flagged, steady_ms = self._run(
            "heartbeat", self.settings.lease_ms, len(children), *children, *arguments
        )
        return Beat(bool(interrupted), steady_ms, lapsed, lost, flagged)

    def reap(
        self, child: str = "", started: Sequence[str] | None = None, keep: Sequence[str] = ()
    ) -> Reaped:
        """Return a dead child's jobs. Without a name: one whose lease has lapsed.

        ``started``: the ids that had begun; None when nobody knows, and all are blamed. ``keep``:
        ids that stay, for their outcomes are still to be reported.
        """
        mark = "*" if started is None else "="
        reply = self._run(
            "reap", self.settings.lease_ms, self.settings.max_recoveries, child, mark,
            len(keep), *keep, *(started or ()),
        )  # fmt: skip
        if reply[0] < 0:
            return Reaped(wait_ms=reply[1])
        if reply[0] == 0:
            return Reaped()
        _, name, more, *became = reply
        jobs = list(zip(became[::2], became[1::2], strict=True))
        return Reaped(name, more == 1, more == 2, jobs)

    def audit(self, queue: str, position: int) -> tuple[int, list[tuple[str, str, str]]]:
        """Take back jobs whose child does not exist: (where to go on, [(id, child, outcome)])."""
        reply = self._run(
            "audit", self.settings.lease_ms, self.settings.max_recoveries, queue, position
        )
        return reply[0], list(zip(reply[1::3], reply[2::3], reply[3::3], strict=True))

    def prune(
        self, queue: str, status: str, keep: int, ttl_ms: int, jobs: int = BATCH
    ) -> tuple[int, int, bool]:
        """Let old finished jobs go: (gone, of them for the byte cap alone, more to do)."""
        gone, forced, more = self._run(
            "prune", queue, status, keep, ttl_ms, self.settings.resend_window_ms,
            self.settings.finished_max_bytes, jobs, int(self.settings.mirror),
        )  # fmt: skip
        return gone, forced, bool(more)

    def tidy(self, queue: str, allowed: int) -> bool:
        """Drop cancelled ids that linger in a queue's list, if there are more than ``allowed``;
        True when there is more to do."""
        return bool(self._run("tidy", queue, allowed))

    def trim(self, entry: str, keep: int) -> int:
        """Tell Redis that the mirror has read up to this entry; let go of those behind it but for
        the last ``keep`` events. How many entries went; call again while that is not 0."""
        gone: int = self._run("trim", entry, keep)
        return gone

    def lead(self, who: str, lease_ms: int, role: str = "leader") -> Lead:
        """Take or keep a role that exists once a shard for ``lease_ms``, or give it up with 0.

        ``who`` is the id of a child: it takes the role at once from another child of its worker."""
        return Lead(self._run("lead", who, lease_ms, role))
