"""Schedules: who defines them, the leader that fires them, and what happens to its calls."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.replies import FireReply
from django_redisqueue.broker.schedules import FireCall
from django_redisqueue.core.ids import periodic_job_id
from django_redisqueue.core.schedules import Every, ScheduleData
from django_redisqueue.core.statuses import Overlap
from django_redisqueue.exceptions import RedisQueueError, RedisUnavailable
from django_redisqueue.worker.maintenance.schedules import Scheduler

from ..broker.harness import FINISHED
from ..broker.schedules import SET, define, definition, read
from ..broker.test_lane_model import LANES
from .history import Step
from .shard import Shard
from .verbs import Idle, verb

NAMES = ("s0", "s1")
RUNS = [{}, {}, {"lane": LANES[0]}, {"unique": "last9 until_finished - -"}, {"when": "+1500"}]


class _Model:
    """A schedule, as calls of ``fire`` have to change it."""

    def __init__(self, shard: Shard, found: ScheduleData) -> None:
        self.broker = shard.broker
        self.digest, self.is_stopped = found.digest, found.is_stopped
        self.is_unique = bool(found.job.unique)
        self.overlap = found.schedule.overlap
        self.next_ms = found.next_ms
        self.counts = [found.fired, found.skipped, found.missed]
        self.runs = [found.last_job]

    def expected(self, call: FireCall, is_old: bool) -> set[FireReply]:
        """The replies that are right. ``is_old``: the run's job existed before."""
        state = (self.next_ms, self.digest, self.is_stopped)
        if state != (call.cursor_ms, call.schedule.digest, False):
            return {FireReply.MOVED_ON}
        if call.due_ms is None or is_old:
            return {FireReply.NO_JOB}
        if self.overlap == Overlap.SKIP and self._status(-1) not in ("", *FINISHED):
            return {FireReply.SKIPPED}
        return {FireReply.CREATED, FireReply.SKIPPED} if self.is_unique else {FireReply.CREATED}

    def note(self, call: FireCall, job_id: str, reply: FireReply) -> None:
        self.next_ms = call.next_ms
        self.counts[0] += reply is FireReply.CREATED
        self.counts[1] += reply is FireReply.SKIPPED
        self.counts[2] += call.missed
        if reply is FireReply.CREATED:
            self.runs.append(job_id)

    def check(self, found: ScheduleData) -> None:
        assert found.next_ms == self.next_ms
        assert [found.fired, found.skipped, found.missed] == self.counts
        assert found.last_job == self.runs[-1]
        assert len(self.runs) == 1 or self._status(-1)
        if self.overlap == Overlap.CANCEL:
            for at in range(len(self.runs) - 1):
                assert self._status(at) in ("", *FINISHED, "cancelling"), f"{self.runs[at]} goes on"

    def _status(self, at: int) -> str:
        """The status of a run: "cancelling" if it was asked to stop, and "" if it is not there."""
        job = self.broker.job(self.runs[at]) if self.runs[at] else {}
        status = job.get("status", "")
        return "cancelling" if "cancel_ms" in job and status not in FINISHED else status


@verb(3)
def define_schedule(shard: Shard, step: Step) -> str:
    """A new one, or a change of one that may be due."""
    every = Every(
        step.pick(1, ["5s", "1m"]), overlap=step.pick(2, ["skip", "queue", "cancel"]),
        misfire=step.pick(3, ["once", "skip", "all"]),
    )  # fmt: skip
    one = definition(step.pick(0, NAMES), every, **step.pick(4, RUNS))
    return f"defines {one.name}, {every}: {define(shard.broker, one)}"


@verb(1)
def pause_schedule(shard: Shard, step: Step) -> str:
    name, pauses = step.pick(0, NAMES), step.pick(1, [True, False])
    if shard.broker.keys.schedule(name) not in shard.dump:
        return Idle(f"no {name}")
    next_ms = read(shard.broker, name).schedule.after(shard.broker.now)
    changed = shard.store.pause_schedule(name, pauses, next_ms)
    return f"{'pauses' if pauses else 'resumes'} {name}: {changed}"


@verb(1)
def remove_schedule(shard: Shard, step: Step) -> str:
    name = step.pick(0, NAMES)
    return f"removes {name}: {shard.store.remove_schedules(SET, [name])}"


@verb(6)
def fire(shard: Shard, step: Step) -> str:
    """The leader waits until a schedule is due, or longer, and fires what is due, up to 25 calls in
    a round trip. Its connection may break: the calls after some of them do not arrive, or arrive
    late. Or all are sent a second time."""
    wait_ms = shard.promote().schedule_ms
    if wait_ms < 0:
        return define_schedule(shard, step)
    shard.broker.advance(wait_ms + step.pick(2, [0, 0, 6_000, 200_000]))
    fate = step.pick(0, ["", "", "", "lost", "late", "doubled"])
    told: list[str] = []

    def send(calls: Sequence[FireCall]) -> list[FireReply]:
        arrives = step.pick(1, range(len(calls) + 1)) if fate in ("lost", "late") else len(calls)
        replies = _fire(shard, calls[:arrives])
        told.extend(reply.name for reply in replies)
        if fate == "late":
            shard.late_fires += calls[arrives:]
        if fate in ("lost", "late"):
            raise RedisUnavailable("the connection is cut")
        if fate == "doubled":
            assert set(_fire(shard, calls)) == {FireReply.MOVED_ON}
        return replies

    with patch.object(shard.store, "fire", send):
        try:
            Scheduler(shard.store).run_once()
        except RedisUnavailable:
            pass
    return f"{', '.join(told)} {fate}"


@verb(2)
def late_fires_arrive(shard: Shard, step: Step) -> str:
    """Calls of a leader whose connection was cut, or that was suspended."""
    if not shard.late_fires:
        return Idle("none is under way")
    calls, shard.late_fires = shard.late_fires, []
    return ", ".join(reply.name for reply in _fire(shard, calls))


def _fire(shard: Shard, calls: Sequence[FireCall]) -> list[FireReply]:
    """Make the calls, and compare their replies and effects with what a model expects."""
    known = [name for name in NAMES if shard.broker.redis.exists(shard.broker.keys.schedule(name))]
    models = {name: _Model(shard, read(shard.broker, name)) for name in known}
    ids = [
        periodic_job_id(call.schedule.name, call.due_ms, shard.broker.connection.shard)
        for call in calls
    ]
    has_job = [bool(shard.broker.redis.exists(shard.broker.keys.job(one))) for one in ids]
    replies = []
    for call, job_id, is_old, reply in zip(
        calls, ids, has_job, Commands.fire(shard.store, calls) if calls else [], strict=True
    ):
        assert not isinstance(reply, RedisQueueError), reply
        model = models.get(call.schedule.name)
        expected = model.expected(call, is_old) if model else {FireReply.MOVED_ON}
        assert reply in expected, f"{call}: {reply!r}, not {expected}"
        if model and reply is not FireReply.MOVED_ON:
            model.note(call, job_id, reply)
        replies.append(reply)
    for name, model in models.items():
        model.check(read(shard.broker, name))
    return replies
