"""One run: load, faults by the plan, and an orderly end after which nothing changes any more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from django.db import connection
from redis import Redis

from django_redisqueue import Job, JobQueue
from django_redisqueue.broker.connection import RedisConnection, worker_connection
from django_redisqueue.client import schedules
from django_redisqueue.conf import get_settings
from django_redisqueue.exceptions import RedisQueueError
from django_redisqueue.health.facts import read_facts
from django_redisqueue.models import OutboxJob, PeriodicJob
from tests.support.history import FINAL
from tests.worker.processes import eventually

from . import ledger, tasks
from .deployment import Deployment
from .fault_runner import RECOVERY, FaultRunner, Length, plans
from .feed import send_its_event
from .ledger import Tail

WARM_UP = 50  # runs before the first fault
REST = 120.0  # s within which everything accepted must have ended
UNFINISHED = ("queued", "processing", "waiting", "scheduled", "retrying")
QUEUE = "default"


@dataclass(slots=True)
class RunResult:
    """What happened. ``problem``: why the run could not continue."""

    fired: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def missing(self, chosen: list[str]) -> list[str]:
        """The faults that never took effect: they make a run void."""
        return [name for name in chosen if not self.fired[name]]


class Gauntlet:
    """``run`` takes a deployment through a plan."""

    def __init__(
        self, deployment: Deployment, chosen: list[str], say: Callable[[str], None]
    ) -> None:
        self._deployment = deployment
        self._chosen = chosen
        self._say = say
        self._tail = Tail(deployment.ledger)
        self._runner = FaultRunner(deployment, self._tail, say, self._logs)

    def run(self, length: Length, *, side_by_side: bool = False) -> RunResult:
        get_settings()  # the workers' own settings: if they are wrong, they fail here and now
        result = RunResult(self._runner.fired)
        made = plans(self._deployment.seed, self._chosen, side_by_side=side_by_side)
        self._deployment.start()
        try:
            eventually(lambda: self._ended() >= WARM_UP, RECOVERY, why=self._logs)
            self._runner.run(list(made.values()), length)
            self._come_to_rest()
            self._deployment.stop_workers()
        except (AssertionError, RuntimeError) as error:  # from a wait that took too long
            result.problem = str(error)
        return result

    def _logs(self) -> str:
        return "\n".join(process.output[-3000:] for process in self._deployment.all_workers())

    def _ended(self) -> int:
        self._tail.poll()
        return self._tail.ended

    # -- the end

    def _come_to_rest(self) -> None:
        """Stop producing, and wait until everything has ended and is mirrored."""
        self._say("faults are over; waiting until all jobs have ended")
        self._deployment.stop_producers()
        for call in ledger.read_file(self._deployment.ledger).calls.values():
            if call.kind == "steps":
                eventually(lambda call=call: send_its_event(call.id), RECOVERY)
        with closing(worker_connection()) as link:
            eventually(
                lambda: unfinished_work(link) == "",
                REST,
                every=0.5,
                why=lambda: unfinished_work(link),
            )
            link.close_all()
        connection.close()


def unfinished_work(link: RedisConnection) -> str:
    """What has not ended yet; "" if everything has."""
    try:
        pause_the_schedule()
        cancel_the_abandoned()
        stats, facts = JobQueue(QUEUE).get_stats(), read_facts(link)
    except RedisQueueError as error:
        return str(error)
    if facts.shard is None or facts.missing or facts.unreadable:
        return str(facts.redis_error or facts.missing or facts.unreadable)
    found = {name: stats[name] for name in UNFINISHED}
    found |= {"rows in the outbox": OutboxJob.objects.count()}
    found |= {"not mirrored": facts.shard.unread.events or 0}
    found |= {"to be reconciled": sum(one.unreconciled for one in facts.mirrors)}
    told = [f"{count} {what}" for what, count in found.items() if count]
    return ", ".join([*told, *(one.problem for one in facts.mirrors if one.problem)])


def pause_the_schedule() -> None:
    """Pause it as the admin does: through the row, which is authoritative once maintenance has
    created it."""
    PeriodicJob.objects.filter(name=tasks.due.name).update(is_enabled=False)
    schedules.pause(tasks.due.name, True)


def cancel_the_abandoned() -> None:
    """Cancel the jobs delayed by an hour whose producer was killed before it could cancel them."""
    for job in JobQueue(QUEUE).get_jobs("scheduled", 0, 99):
        due = job.run_after if isinstance(job, Job) else None
        if due is not None and due.timestamp() > time.time() + 600:
            job.cancel()


# Keys that grow with the work but are bounded: the stream keeps its last 10,000 events, the ids of
# rows are remembered for an hour, and a gather's results for their TTL.
PASSING = ("events", "outbox", "gather")


def delete_finished(deployment: Deployment, servers: Sequence[Redis]) -> dict[str, int]:
    """Delete all finished jobs, give maintenance time to clean up, and stop it. Returns what is
    left, as bytes by key, except PASSING and keys that expire."""
    for status in FINAL:
        JobQueue(QUEUE).clear(status)
    worker, shards = deployment.start_worker(), deployment.place.keys

    def is_tidy() -> bool:
        starts = [start for keys in shards for start in (keys.job("*"), keys.workflow("*"))]
        return all(
            redis.pttl(key) >= 0
            for redis in servers
            for start in starts
            for key in redis.scan_iter(start)
        )

    eventually(is_tidy, REST, every=0.5)
    worker.term()
    worker.wait(60)
    return {
        key: int(redis.memory_usage(key, samples=0) or 0)
        for redis in servers
        for key in redis.scan_iter("*")
        if redis.pttl(key) == -1 and not key.partition("}:")[2].startswith(PASSING)
    }
