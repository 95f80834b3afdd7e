"""Metrics for Prometheus: queues, workers, the mirror and the outbox, read at each scrape.

from prometheus_client import REGISTRY
from django_redisqueue.prometheus import Collector

REGISTRY.register(Collector())
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

from django.db import Error as DatabaseError
from django.utils import timezone

from .broker import sums
from .broker.health import PolicyState
from .broker.overview import Leases, QueueOverview
from .broker.schedules import UnreadableSchedule
from .broker.shards import AllShards
from .conf import get_settings
from .core.job_data import WaitKind
from .exceptions import RedisQueueError
from .health.facts import MIRROR_STATE, OUTBOX_OF, Facts
from .health.findings import FindingId
from .health.report import HealthReport, read_health
from .metrics.histograms import percentile
from .metrics.rollups import Span, figures

try:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError as error:
    raise ImportError(
        "django_redisqueue.prometheus needs the library prometheus_client: "
        "pip install 'django-redisqueue[prometheus]'"
    ) from error

logger = logging.getLogger("django_redisqueue")

TOTALS = {
    "enqueued": "Jobs enqueued.",
    "completed": "Jobs completed.",
    "failed": "Jobs failed for good.",
    "cancelled": "Jobs cancelled.",
    "retried": "Attempts that failed and are to be made again.",
    "released": "Jobs handed back unharmed before they ended.",
    "recovered": "Jobs taken back from a worker that died while it ran them.",
    "requeued": "Failed or cancelled jobs sent back by hand.",
}
RECENT = Span("recent", "5 minutes", timedelta(minutes=5), timedelta(minutes=1))
QUANTILES = (0.5, 0.95, 0.99)
MAX_SCHEDULES = 100  # that have series of their own
SCHEDULE_TOTALS = {
    "fired": "Runs of the schedule.",
    "missed": "Due times without a run, because no worker was there.",
    "skipped": "Due times without a run, because the previous one had not finished.",
}


class Collector:
    """Register it once. A scrape costs five round trips to Redis (nine while lanes are parked),
    three queries, and one for each database with an outbox, whatever the number of jobs.

    What cannot be read is left out, and ``redisqueue_up`` of its source is 0: a scrape never fails.
    """

    def describe(self) -> list[Metric]:
        """One name is enough to detect a second registration. Without this method the registry
        would collect everything from Redis and the database."""
        return [_gauge("up", "")]

    def collect(self) -> Iterator[Metric]:
        up = _gauge("up", "1 when the source could be read for this scrape.", "source")
        for source, read in self._sources(read_health()):
            try:
                yield from read()
            except (RedisQueueError, DatabaseError) as error:
                #: A scrape lacks the metrics of Redis or of the database, and redisqueue_up is 0
                #: for that source. Look at the source that does not answer.
                logger.warning("metrics: the source %s cannot be read: %s", source, error)
                up.add_metric([source], 0)
            else:
                up.add_metric([source], 1)
        yield up

    def _sources(
        self, health: HealthReport
    ) -> Iterator[tuple[str, Callable[[], Iterator[Metric]]]]:
        yield "health", partial(_findings, health)
        yield "redis", partial(_redis, health.facts)
        yield "schedules", _schedules
        if get_settings().mirror:
            yield "mirror", partial(_mirror, health.facts)
            yield "rollups", _durations
        yield "outbox", partial(_outbox, health.facts)


def _outbox(facts: Facts) -> Iterator[Metric]:
    rows = _gauge("outbox_jobs", "Jobs in the outbox.", "database", "state")
    oldest = _gauge(
        "outbox_oldest_seconds", "How long the oldest job has waited in the outbox.", "database"
    )
    for outbox in facts.outboxes:
        rows.add_metric([outbox.alias, "waiting"], outbox.waiting)
        rows.add_metric([outbox.alias, "refused"], outbox.refused)
        age = outbox.oldest.total_seconds() if outbox.oldest else 0
        oldest.add_metric([outbox.alias], max(0, age))
    yield rows
    yield oldest
    for source, error in facts.unreadable.items():
        if source.startswith(OUTBOX_OF):
            raise error


def _findings(health: HealthReport) -> Iterator[Metric]:
    """A sample for every id, so that an alert has a 0 to come back to."""
    found = Counter(finding.id for finding in health.problems)
    problems = _gauge("finding", "How often the health has this finding now.", "id")
    for finding_id in FindingId:
        problems.add_metric([finding_id.value], found[finding_id])
    yield problems


def _redis(facts: Facts) -> Iterator[Metric]:
    if facts.redis_error is not None:
        raise facts.redis_error
    assert facts.shard is not None
    if facts.settings.shards > 1:
        yield _shards(facts)
    shards = AllShards()
    shards.missing.update(facts.missing)
    leases = sums.leases(shards)
    yield from _queues(facts.shard.queues, with_totals=not facts.missing)
    yield from _workers(leases)
    yield from _policies(facts.shard.policies)
    yield from _limits(facts)


def _shards(facts: Facts) -> Metric:
    up = _gauge("shard_up", "1 when the shard could be read; the sums are without others.", "shard")
    for shard in range(facts.settings.shards):
        up.add_metric([str(shard)], int(shard not in facts.missing))
    return up


def _queues(queues: Sequence[QueueOverview], *, with_totals: bool) -> Iterator[Metric]:
    """Without totals while a shard is missing: a counter that falls looks like a restart."""
    jobs = _gauge("jobs", "Jobs that Redis holds.", "queue", "status")
    oldest = _gauge(
        "oldest_job_age_seconds", "How long the job next out has waited to run.", "queue"
    )
    paused = _gauge("queue_paused", "1 while the queue is paused.", "queue")
    broken = _gauge("queue_broken", "1 while a key of the wrong type blocks the queue.", "queue")
    totals = {name: _counter(f"jobs_{name}", text, "queue") for name, text in TOTALS.items()}
    for queue in queues:
        for status, count in queue.counts.items():
            jobs.add_metric([queue.name, status], count)
        oldest.add_metric([queue.name], (queue.oldest_ms or 0) / 1000)
        paused.add_metric([queue.name], int(queue.is_paused))
        broken.add_metric([queue.name], int(bool(queue.wrong_keys)))
        for name, counter in totals.items():
            counter.add_metric([queue.name], queue.totals.get(name, 0))
    yield from (jobs, oldest, paused, broken)
    if with_totals:
        yield from totals.values()


def _workers(leases: Leases) -> Iterator[Metric]:
    children = _gauge("worker_children", "Child processes of workers that claim jobs.", "state")
    children.add_metric(["alive"], leases.alive)
    children.add_metric(["lapsed"], leases.total - leases.alive)
    yield children
    shortest = min((ms / 1000 for ms in leases.left.values() if ms >= 0), default=None)
    text = "What is left of the lease renewed least."
    yield _gauge("worker_shortest_lease_seconds", text, value=shortest)


def _policies(policies: PolicyState) -> Iterator[Metric]:
    keys = _gauge("unique_keys", "Unique keys that jobs have.", value=policies.unique_keys)
    schedules = _gauge("schedules", "Schedules.", "state")
    schedules.add_metric(["enabled"], policies.schedules - policies.stopped)
    schedules.add_metric(["paused"], policies.paused)
    schedules.add_metric(["error"], len(policies.errors))
    waits = _gauge("parked_jobs", "Jobs that wait without a process.", "waits_for")
    for kind in WaitKind:
        waits.add_metric([kind], policies.waits.get(kind, 0))
    yield from (keys, schedules, waits)


def _limits(facts: Facts) -> Iterator[Metric]:
    """Of the limits with the most parked lanes only, because a limit may have a key a tenant."""
    count = len(facts.shard.policies.parked) if facts.shard else 0
    waiting = _gauge("limits_waited_for", "Limits with parked lanes.", value=count)
    used = _gauge("limit_used", "Jobs that hold a slot.", "limit")
    most = _gauge("limit_most", "Slots.", "limit")
    parked = _gauge("limit_parked_lanes", "Lanes that wait for the limit.", "limit")
    oldest = _gauge("limit_oldest_seconds", "How long the next of those jobs has waited.", "limit")
    for state in facts.limits:
        kind, _, name = state.key.partition(":")  # encoded, so that no two have the same label
        name = f"{name.rstrip(':')} (rate)" if kind == "r" else name.rstrip(":")
        parked.add_metric([name], state.parked)
        oldest.add_metric([name], (state.oldest_ms or 0) / 1000)
        if not state.is_rate:
            used.add_metric([name], state.used)
        if state.most is not None:
            most.add_metric([name], state.most)
    yield from (waiting, used, most, parked, oldest)


def _schedules() -> Iterator[Metric]:
    """Of the first MAX_SCHEDULES by their due times."""
    found, _ = sums.schedules(AllShards(), "", MAX_SCHEDULES)
    due = _gauge("schedule_next_due_timestamp_seconds", "The next due time.", "schedule")
    last = _gauge("schedule_last_run_timestamp_seconds", "When the last run was made.", "schedule")
    counters = {
        name: _counter(f"schedule_{name}", text, "schedule")
        for name, text in SCHEDULE_TOTALS.items()
    }
    for one in found:
        if isinstance(one, UnreadableSchedule):
            continue
        if one.next_ms is not None and not one.is_stopped:
            due.add_metric([one.name], one.next_ms / 1000)
        if one.last_ms is not None:
            last.add_metric([one.name], one.last_ms / 1000)
        for name, counter in counters.items():
            counter.add_metric([one.name], getattr(one, name))
    yield from (due, last, *counters.values())


def _mirror(facts: Facts) -> Iterator[Metric]:
    if facts.redis_error is not None:
        raise facts.redis_error
    if MIRROR_STATE in facts.unreadable:
        raise facts.unreadable[MIRROR_STATE]
    assert facts.shard is not None
    lag = facts.shard.unread
    text = "Age of the oldest event that is not in the database yet."
    yield _gauge("mirror_lag_seconds", text, value=lag.oldest_ms / 1000)
    text = "Events that are not in the database yet."
    yield _gauge("mirror_lag_events", text, value=lag.events)
    text = "1 while the mirror is stopped and needs a decision."
    yield _gauge("mirror_stopped", text, value=int(any(state.problem for state in facts.mirrors)))
    if facts.missing:  # as for the other counters
        return
    gaps = sum(state.gaps for state in facts.mirrors)
    yield _counter("mirror_gaps", "Gaps found in the stream of events.", value=gaps)
    text = "Events that could not be mirrored, or only in part."
    faults = _counter("mirror_faults", text, "kind")
    faults.add_metric(["left_out"], sum(state.left_out for state in facts.mirrors))
    faults.add_metric(["incomplete"], sum(state.incomplete for state in facts.mirrors))
    yield faults


def _durations() -> Iterator[Metric]:
    """Summaries without sums, because rollups are deleted: a counter of them would fall."""
    wait = _summary("wait_seconds", "From queued to started, last 5 minutes.")
    run = _summary("run_seconds", "From started to ended, last 5 minutes.")
    for queue, of_queue in figures(RECENT, timezone.now()).queues.items():
        for q in QUANTILES:
            for family, counts in ((wait, of_queue.wait), (run, of_queue.run)):
                if (ms := percentile(counts, q)) is not None:
                    labels = {"queue": queue, "quantile": f"{q:g}"}
                    family.add_sample(family.name, labels, ms / 1000)
    yield from (wait, run)


def _gauge(name: str, text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"redisqueue_{name}", text, value, labels or None)


def _counter(name: str, text: str, *labels: str, value: float | None = None) -> CounterMetricFamily:
    return CounterMetricFamily(f"redisqueue_{name}", text, value, labels or None)


def _summary(name: str, text: str) -> Metric:
    return Metric(f"redisqueue_{name}", text, "summary")
