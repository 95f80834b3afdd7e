"""Commands and queries for schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.ids import periodic_job_id
from ..core.parsing import pairs
from ..core.schedules import ScheduleData, ScheduleDefinition, decode_schedule
from ..exceptions import CorruptJob, RedisQueueError
from .base import CommandBase, Entry, QueryBase, Read, Strict, query, slices
from .replies import AnnounceReply, DefineReply, FireReply, RemoveReply


@dataclass(frozen=True, slots=True)
class UnreadableSchedule:
    """A schedule whose hash cannot be read, and why."""

    name: str
    problem: str


class FireCall(NamedTuple):
    """One call of ``ScheduleCommands.fire``."""

    schedule: ScheduleData
    cursor_ms: int
    next_ms: int | None
    due_ms: int | None
    missed: int = 0


class ScheduleCommands(CommandBase):
    def announce_schedules(
        self, set_digest: str, ttl_ms: int, *, is_defined: bool = False
    ) -> AnnounceReply:
        """Announce a running worker with this set of schedules, and ask whether the set is the
        current one. ``is_defined``: all its schedules have been defined."""
        return AnnounceReply(self._run("announce_schedules", set_digest, ttl_ms, int(is_defined)))

    def define_schedules(
        self, set_digest: str, definitions: Sequence[tuple[ScheduleDefinition, int | None]]
    ) -> list[DefineReply]:
        """Create or change up to 100 schedules, each with its next due time. ``set_digest``: ''
        for those of the admin."""
        arguments: list[Any] = []
        for definition, next_ms in definitions:
            fields = definition.fields()
            arguments += (definition.name, "" if next_ms is None else next_ms, len(fields))
            arguments += (part for pair in fields.items() for part in pair)
        return [DefineReply(code) for code in self._run("define_schedules", set_digest, *arguments)]

    def remove_schedules(self, set_digest: str, names: Sequence[str]) -> list[RemoveReply]:
        """Remove up to 100 schedules of this set, or with '' of the admin."""
        return [RemoveReply(code) for code in self._run("remove_schedules", set_digest, *names)]

    def pause_schedule(self, name: str, paused: bool, next_ms: int | None = None) -> int:
        """Pause a schedule, or resume it at ``next_ms``: 1 changed, 0 no change, -1 unknown."""
        return self._run("pause_schedule", name, int(paused), "" if next_ms is None else next_ms)

    def fire(self, calls: Sequence[FireCall]) -> list[FireReply | RedisQueueError]:
        """Make each call, in their order and in one round trip: advance a schedule from
        ``cursor_ms`` to ``next_ms``, and create the job for ``due_ms`` (None: no job). A second
        call for the same cursor does nothing. Returns errors in place of the replies of failed
        calls. Raises RedisUnavailable, and then any of them may have run."""
        replies = self._run_each("fire", [self._fire_arguments(call) for call in calls])
        return [one if isinstance(one, RedisQueueError) else FireReply(one) for one in replies]

    def _fire_arguments(self, call: FireCall) -> tuple[Any, ...]:
        schedule, cursor_ms, next_ms, due_ms, missed = call
        run: tuple[Any, ...] = ("", "")
        if due_ms is not None:
            run = (due_ms, periodic_job_id(schedule.name, due_ms, self.connection.shard))
        next_due = "" if next_ms is None else next_ms
        return (schedule.name, cursor_ms, schedule.digest, next_due, missed, *run)


class ScheduleQueries(QueryBase):
    def schedule(self, name: str) -> ScheduleData | UnreadableSchedule | None:
        return self.schedules([name])[0]

    @query
    def schedules(
        self, names: Sequence[str]
    ) -> Read[list[ScheduleData | UnreadableSchedule | None]]:
        """Several schedules in one round trip; None for one that Redis does not have."""
        replies = yield [("HGETALL", self.keys.schedule(name)) for name in names]
        return [_decode(name, reply) for name, reply in zip(names, replies, strict=True)]

    def due(self, now_ms: int, count: int) -> list[str]:
        """The names of schedules whose next due time has passed, oldest first."""
        return self.connection.call(
            "ZRANGEBYSCORE", self.keys.schedules, "-inf", now_ms, "LIMIT", 0, count
        )

    def names(self) -> list[str]:
        """All names by their next due times; stopped ones come last."""
        return self.connection.call("ZRANGE", self.keys.schedules, 0, -1)

    @query
    def described(
        self, page: Sequence[Entry]
    ) -> Read[dict[Entry, ScheduleData | UnreadableSchedule]]:
        """The schedules of a page. One round trip."""
        found = yield from self.schedules.read([name for name, _ in page])
        return {entry: one for entry, one in zip(page, found, strict=True) if one is not None}

    @query
    def count(self) -> Read[int]:
        return (yield Strict(("ZCARD", self.keys.schedules)))[0]

    def defined_set(self) -> str | None:
        """The digest of the set of schedules that is currently defined."""
        return self.connection.call("HGET", self.keys.meta, "schedule_set")

    def of_source(self, source: str) -> list[str]:
        """The names of all schedules that ``source`` (the code or the admin) defines."""
        names = self.names()
        found: list[str] = []
        for part in slices(names):
            replies = self._each([("HGET", self.keys.schedule(name), "source") for name in part])
            found += (name for name, reply in zip(part, replies, strict=True) if reply == source)
        return found


def _decode(name: str, reply: Any) -> ScheduleData | UnreadableSchedule | None:
    if reply is None:
        return UnreadableSchedule(name, f"the key of schedule {name} does not hold a schedule")
    if not reply:
        return None
    try:
        return decode_schedule(name, pairs(reply))
    except CorruptJob as error:
        return UnreadableSchedule(name, str(error))
