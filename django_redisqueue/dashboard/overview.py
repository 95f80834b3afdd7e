"""The overview: queues, workers, Redis and the mirror at one moment, whole or as live parts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import Error as DatabaseError
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from ..broker import sums
from ..broker.overview import QueueOverview, Rates, ServerOverview, rates
from ..broker.shards import AllShards
from ..broker.sums import FleetSummary, read_workers, summarize
from ..client.registry import task_names
from ..core import formatting
from ..core.statuses import Status
from ..exceptions import RedisQueueError
from ..health.facts import Facts, savepoint
from ..health.findings import Finding, redis_away, unreadable
from ..health.policies import policy_lines
from ..health.report import HealthReport, read_health
from ..metrics.histograms import Sums
from ..metrics.rollups import SPANS, figures
from ..models import Rollup
from . import pages
from .charts import chart_context, chart_options, parse_choice
from .pages import Page

PARTS = ("notices", "queues", "policies", "workers", "server")

STATUSES = (
    Status.QUEUED, Status.PROCESSING, Status.SCHEDULED, Status.WAITING, Status.RETRYING,
    Status.FAILED, Status.COMPLETED, Status.CANCELLED,
)  # fmt: skip
RATE_WINDOW = 10.0  # s
SAMPLE_TTL = 60.0  # s after which a sample is too old to give a rate
LEAST_RATE = 0.01  # jobs per second; below it, a queue counts as not emptying
UP_TO_DATE = 1000  # ms of mirror lag that count as up to date


def overview(page: Page) -> HttpResponse:
    """The whole page, complete without JavaScript."""
    data = read_overview(None)
    choice = parse_choice(page)
    return page.render(
        "overview",
        "Queues and jobs",
        **_context(page, data),
        **chart_context(page, ["overview"], choice),
        chart_queues=sorted(data.health.facts.settings.queues),
        chart_tasks=task_names(),
        live={
            **page.live_options("overview_live", stream="overview_stream"),
            **chart_options(page, choice),
        },
    )


def live(page: Page) -> JsonResponse:
    before = parse_sample(page.request.GET.get("look", ""))
    return JsonResponse(_parts(page, read_overview(before)))


def stream(page: Page) -> HttpResponseBase:
    return page.stream(lambda: _parts(page, _shared.get(pages.POLL / 2000)))


def _parts(page: Page, data: OverviewData) -> dict[str, Any]:
    return {**page.live_parts(PARTS, **_context(page, data)), "look": str(data.sample or "")}


def _context(page: Page, data: OverviewData) -> dict[str, Any]:
    page.start_over(data.health)
    page.notices.extend(data.notices)
    policies = [  # label, state, URL of the page
        (label, text, page.url(label.lower().replace(" ", "_")))
        for label, text in policy_lines(data.health.facts)
    ]
    return {"overview": data, "policies": policies, "mirror": _mirror(data.health.facts)}


@dataclass(slots=True)
class OverviewData:
    """The whole overview. Without Redis, it has what is in the database."""

    health: HealthReport
    queues: list[QueueRow] = field(default_factory=list)
    recorded: list[tuple[str, Sums]] = field(default_factory=list)  # shown if Redis is down
    fleet: FleetSummary | None = None
    servers: Sequence[ServerOverview] = ()
    notices: list[Finding] = field(default_factory=list)  # in addition to the health strip
    sample: Sample | None = None


@dataclass(frozen=True, slots=True)
class QueueRow:
    queue: QueueOverview
    rates: Rates | None
    hour: Sums
    workers: int | None = None  # that take its jobs; None if unknown

    @property
    def counts(self) -> list[tuple[str, str]]:
        """(status, count)"""
        counts = self.queue.counts
        return [(status.value, formatting.number(counts[status])) for status in STATUSES]

    @property
    def net(self) -> str:
        """By how many jobs per second the queue grows (+) or shrinks."""
        if self.rates is None:
            return formatting.NOTHING
        net = self.rates.arrived - self.rates.ended
        text = formatting.rate(abs(net))
        return text if text == "0" else f"{'+' if net > 0 else '−'}{text}"

    @property
    def drained(self) -> str:
        """When the queue will be empty at this rate: ``empty in 5 m``; or ''."""
        queued = self.queue.counts["queued"]
        if self.rates is None or not queued:
            return ""
        shrinks = self.rates.ended - self.rates.arrived
        if self.queue.is_paused or shrinks < LEAST_RATE:
            return "not emptying"
        return f"empty in {formatting.duration(queued / shrinks * 1000)}"


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of the queues at one moment; two samples give the rates.

    The page's script keeps it and sends it back, so any process can answer the next request.
    """

    now_ms: int
    shards: tuple[int, ...]  # whose jobs were counted
    queues: Mapping[str, tuple[int, int]]  # arrived, finished

    def __str__(self) -> str:
        parts = [f"{name}:{came}:{done}" for name, (came, done) in self.queues.items()]
        return "~".join([".".join(map(str, (self.now_ms, *self.shards))), *parts])


def parse_sample(text: str) -> Sample | None:
    """The inverse of ``str``; None for anything else."""
    first, *rest = text[:50_000].split("~")
    try:
        queues = {}
        for part in rest:
            name, came, done = part.split(":")
            queues[name] = (int(came), int(done))
        now_ms, *shards = map(int, first.split("."))
        return Sample(now_ms, tuple(shards), queues)
    except ValueError:
        return None


class SharedOverview:
    """The overview for all open streams of this process, cached briefly. Not thread-safe."""

    def __init__(self) -> None:
        self._cached: tuple[float, OverviewData] | None = None
        self._samples: deque[tuple[float, Sample]] = deque()

    def get(self, max_age: float) -> OverviewData:
        """Data that is at most ``max_age`` seconds old, with rates over the last ten seconds."""
        now = time.monotonic()
        if self._cached and now - self._cached[0] < max_age:
            return self._cached[1]
        while len(self._samples) > 1 and now - self._samples[0][0] > RATE_WINDOW:
            self._samples.popleft()
        before = self._samples[0][1] if self._samples else None
        data = read_overview(before)
        if data.sample is not None:
            self._samples.append((now, data.sample))
        self._cached = now, data
        return data


_shared = SharedOverview()  # only used by the thread that serves all streams


def read_overview(before: Sample | None) -> OverviewData:
    """Read the overview: three round trips to Redis and one query, in addition to those of the
    health report, however many queues, workers and jobs there are."""
    health = read_health()
    data = OverviewData(health)
    data.notices = [each for each in health.findings if each not in health.problems]
    shard, settings = health.facts.shard, health.facts.settings
    if shard is None:
        if settings.mirror:
            hour = _last_hour(data)
            data.recorded = [(name, hour.get(name, Sums())) for name in settings.queues]
        return data
    _read_servers(data)
    hour = _last_hour(data)
    for queue in shard.queues:
        workers = data.fleet.serving.get(queue.name, 0) if data.fleet else None
        last_hour = hour.get(queue.name, Sums())
        data.queues.append(QueueRow(queue, _rates(queue, before), last_hour, workers))
    counters = {queue.name: (queue.arrived, queue.finished) for queue in shard.queues}
    data.sample = Sample(shard.queues[0].now_ms, shard.queues[0].shards, counters)
    return data


def _read_servers(data: OverviewData) -> None:
    shards = AllShards()
    shards.missing.update(data.health.facts.missing)
    try:
        data.servers = sums.servers(shards)
        data.fleet = summarize(read_workers(shards))
    except RedisQueueError as error:  # Redis went down between two reads
        data.notices.append(redis_away(error))


def _last_hour(data: OverviewData) -> Mapping[str, Sums]:
    try:
        with savepoint(Rollup):
            return figures(SPANS["1h"], data.health.facts.now).queues
    except DatabaseError as error:
        data.notices.append(unreadable("last hour's figures", error))
        return {}


def _rates(queue: QueueOverview, before: Sample | None) -> Rates | None:
    counters = before.queues.get(queue.name) if before else None
    if before is None or counters is None or queue.now_ms - before.now_ms > SAMPLE_TTL * 1000:
        return None
    came, done = counters
    totals = {"enqueued": came, "completed": done}
    earlier = QueueOverview(queue.name, before.now_ms, {}, totals, None, shards=before.shards)
    return rates(earlier, queue)


def _mirror(facts: Facts) -> str:
    """How up to date the mirror is, in a few words."""
    if not facts.settings.mirror:
        return "off"
    if not facts.mirrors or facts.shard is None:
        return "unknown"
    if any(one.problem for one in facts.mirrors):
        return "stopped"
    lag = facts.shard.unread.oldest_ms
    return "up to date" if lag < UP_TO_DATE else f"{formatting.duration(lag)} behind"
