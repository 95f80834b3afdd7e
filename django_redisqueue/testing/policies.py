"""Limits, shares, pauses and unique keys in memory, which work as in the Lua scripts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..conf import get_settings
from ..core.job_data import NewJob
from ..core.policies import STRIDE, Lane, UniqueKey, decode_lane, decode_rate
from ..core.statuses import OnConflict, Status
from .expectations import CapturedJobs
from .hashes import hold, queued_since_ms, release, set_fields
from .index import JobHash
from .runs import InMemorySteps

WHOLE_QUEUE = ""  # in place of a share or a limit key
OTHERS = "\x7f"  # the share of jobs without lanes, after all others with the same pass

LASTING = frozenset({"for", "once"})
REPLACING = frozenset({"replace", "keep_last"})
OF_AN_ATTEMPT = ("attempts", "delays", "error", "first_ms", "started_ms", "ran", "child")


class InMemoryLanes:
    def __init__(self, jobs: CapturedJobs) -> None:
        self._jobs = jobs
        self._numbers: dict[str, str] = {}
        self._own: dict[str, str] = {}  # numbers set by hand, by limit key or share
        self._full_us: dict[str, int] = {}  # when the bucket of a rate is full again
        self._passes: dict[str, float] = {}
        self._pass = 0.0  # of the queue
        self._startable: Counter[str] = Counter()  # by share, when a job was last chosen

    def rivals_of(self, new: NewJob) -> list[str]:
        """The jobs that a new one is in conflict with, as ``_competing`` orders them; none if there
        is room, or if it is not queued yet. The newest numbers of a limit apply."""
        lane = decode_lane(new.lane)
        self._numbers.update(lane.numbers)
        is_queued = self._jobs.hashes[new.id]["status"] == Status.QUEUED
        if lane.on_conflict is OnConflict.WAIT or not is_queued:
            return []
        for key in lane.limits:
            if key.startswith("c:"):
                found = [one for one in self._competing(key, lane) if one != new.id]
                if len(found) >= int(self._number(key)):
                    return found
        return []

    def set_limit(self, key: str, number: str) -> bool:
        """Set the number of a limit key, or the weight of ``s:<share>``, or remove it with ''."""
        before = self._own.pop(key, "")
        if number:
            self._own[key] = number
        return number != before

    def _number(self, key: str) -> str:
        """The number of a limit key, or ''."""
        return self._own.get(key) or self._numbers.get(key.rpartition(":")[0], "")

    def _competing(self, key: str, lane: Lane) -> list[str]:
        """Jobs that run under the limit and are not asked to stop, then those queued in the lane,
        the next to run first."""
        running, queued = [], []
        for job_id, found in self._jobs.hashes.items():
            other = decode_lane(found.get("lane", ""))
            if found["status"] == Status.PROCESSING and key in other.limits:
                if "cancel_ms" not in found or lane.on_conflict is OnConflict.DISCARD:
                    running.append(job_id)
            elif found["status"] == Status.QUEUED and other.name == lane.name:
                queued.append(job_id)
        return running + sorted(queued, key=self._order_in_lane)

    def _order_in_lane(self, job_id: str) -> tuple[int, int]:
        found = self._jobs.hashes[job_id]
        return -int(found["priority"]), queued_since_ms(found)

    def choose(self, ready: Iterable[str], *, by_rate: bool) -> str | None:
        """The next job to run: by priority and aging, then by share, then in the given order, which
        begins with the largest priority.

        ``by_rate``: consider only jobs whose rates allow a start now.
        """
        settings = get_settings()
        ages = any(queue.aging_ms for queue in (settings.retention, *settings.queues.values()))
        if not ages and not self._jobs.hashes.has_lanes:
            return next(iter(ready), None)
        found: defaultdict[int, list[str]] = defaultdict(list)  # by priority
        for job_id in ready:
            job = self._jobs.hashes[job_id]
            if not by_rate or "lane" not in job or self.allows(job_id):
                found[int(job["priority"])].append(job_id)
        if not found:
            return None
        self._startable = Counter(self._share(one) for ids in found.values() for one in ids)
        first = self._first_share(found[max(found)])
        queue = self._jobs.hashes[first]["queue"]
        aging_ms = settings.queues.get(queue, settings.retention).aging_ms
        if aging_ms is None:
            return first
        here = (
            [job_id for job_id in ids if self._jobs.hashes[job_id]["queue"] == queue]
            for ids in found.values()
        )
        firsts = [self._first_share(ids) for ids in here if ids]
        return min(firsts, key=lambda job_id: self._aged_instant(job_id, aging_ms))

    def _aged_instant(self, job_id: str, aging_ms: int) -> tuple[int, int]:
        """Orders the next jobs of different priorities: waiting counts as priority."""
        found = self._jobs.hashes[job_id]
        priority = int(found["priority"])
        return queued_since_ms(found) - priority * aging_ms, -priority

    def _first_share(self, ids: Iterable[str]) -> str:
        """The first job of the share whose turn it is. ``ids``: jobs of one priority, in order."""
        first: dict[str, str] = {}
        for job_id in ids:
            first.setdefault(self._share(job_id), job_id)
        return first[min(first, key=lambda name: (self._pass_of(name), name))]

    def start(self, job_id: str) -> None:
        """The job takes its tokens and its share."""
        if not self._jobs.hashes.has_lanes:
            return
        share = self._share(job_id)
        if share != OTHERS or len(self._startable) > 1:
            self._charge(share)
        self._startable[share] -= 1
        self._forget_passes(job_id)
        for key, interval, _ in self._rates(job_id):
            now_us = self._jobs.now_ms() * 1000
            self._full_us[key] = max(self._full_us.get(key, 0), now_us) + interval

    def _charge(self, share: str) -> None:
        for other in self._startable.keys() - {OTHERS}:
            self._passes.setdefault(other, self._pass)
        begun = self._pass_of(share)
        name = f"s:{share}"
        weight = int(self._own.get(name) or self._numbers.get(name, "1"))
        self._passes[share] = begun + STRIDE / weight
        self._pass = max(self._pass, begun)

    def _forget_passes(self, started: str) -> None:
        """Keep the passes of shares that could start a job, and of those ahead of the queue's."""
        if not any(one != started and "lane" in self._jobs.hashes[one] for one in self._queued()):
            self._passes.clear()
            self._pass = 0.0
        for share in [one for one in self._passes if not self._startable[one]]:
            if self._passes[share] <= self._pass:
                del self._passes[share]

    def _queued(self) -> Iterable[str]:
        return self._jobs.hashes.with_status(Status.QUEUED)

    def allows(self, job_id: str) -> bool:
        return self.allowed_ms(job_id) <= self._jobs.now_ms()

    def allowed_ms(self, job_id: str) -> float:
        """When the job's rates allow it to start."""
        instants = [
            self._full_us.get(key, 0) - (burst - 1) * interval
            for key, interval, burst in self._rates(job_id)
        ]
        return max((math.ceil(instant / 1000) for instant in instants), default=0)

    def most_at_once(self, job_id: str) -> float:
        """How many jobs of the lane may run at a time."""
        keys = decode_lane(self._jobs.hashes[job_id].get("lane", "")).limits
        numbers = [self._number(key) for key in keys if key.startswith("c:")]
        return min((float(number or math.inf) for number in numbers), default=math.inf)

    def postpone(self, job_id: str, until_ms: int) -> None:
        """Let no job of these rates start before this instant."""
        for key, interval, burst in self._rates(job_id):
            least = until_ms * 1000 + (burst - 1) * interval
            self._full_us[key] = max(self._full_us.get(key, 0), least)

    def _rates(self, job_id: str) -> Iterable[tuple[str, int, int]]:
        lane = decode_lane(self._jobs.hashes[job_id].get("lane", ""))
        for key in lane.limits:
            rate = decode_rate(self._number(key) or lane.numbers.get(key.rpartition(":")[0], ""))
            if key.startswith("r:") and rate is not None:
                yield key, rate.interval_us, rate.burst

    def _share(self, job_id: str) -> str:
        lane = self._jobs.hashes[job_id].get("lane")
        return OTHERS if lane is None else decode_lane(lane).share

    def _pass_of(self, share: str) -> float:
        own = self._passes.get(share, self._pass)
        return max(own, self._pass) if share == OTHERS else own


class InMemoryPauses:
    """What is paused in a test, until it is resumed."""

    def __init__(self) -> None:
        self._paused: defaultdict[str, dict[str, str]] = defaultdict(dict)  # with who paused it

    def pause(self, queue: str, key: str, paused: bool, by: str) -> bool:
        """Pause or resume a queue, or one of its limit keys or ``s:<share>``. True when that
        changed anything."""
        found = self._paused[queue]
        changes = paused != (key in found)
        if paused:
            found.setdefault(key, by)
        else:
            found.pop(key, None)
        return changes

    def is_paused(self, queue: str) -> bool:
        return WHOLE_QUEUE in self._paused[queue]

    def pauses(self, queue: str) -> Mapping[str, str]:
        """Limit keys and shares, and who paused them."""
        return {key: by for key, by in self._paused[queue].items() if key != WHOLE_QUEUE}

    @property
    def are_any(self) -> bool:
        """Whether anything is paused."""
        return any(self._paused.values())

    def hold(self, job: JobHash) -> bool:
        """Whether a job may not start because its queue, its share or a limit is paused."""
        found = self._paused[job["queue"]]
        if not found or WHOLE_QUEUE in found or "lane" not in job:
            return WHOLE_QUEUE in found
        lane = decode_lane(job["lane"])
        return not found.keys().isdisjoint({f"s:{lane.share}", *lane.limits})


class _Spec(NamedTuple):
    """One key of a job, as core/policies.py encodes it. ``first`` and ``second``: for how many ms
    a key of ``for`` or ``once`` lasts, and of which body ``once`` is; or the wait of ``replace``
    and its longest wait, in ms."""

    key: str
    mode: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class _Owner:
    job_id: str
    taken_ms: int
    mark: str = ""  # of the body sent with an Idempotency-Key
    until_ms: int | None = None


class InMemoryUnique:
    def __init__(self, jobs: CapturedJobs, steps: InMemorySteps) -> None:
        self._jobs = jobs
        self._steps = steps
        self._owners: dict[str, _Owner] = {}
        self._aliases: dict[str, str] = {}

    def resolve(self, job_id: str) -> str:
        """The job that an id leads to: its own, or the one that it duplicates."""
        return self._aliases.get(job_id, job_id)

    def admit(self, new: NewJob) -> bool:
        """Whether to create the job; otherwise its ``owner`` is the job that has its key."""
        if new.id in self._aliases:
            new.owner = self._aliases[new.id]
            return False
        found = self.conflict(new.id, new.unique)
        if found is None:
            return True
        spec, owner = found
        if spec.mode in REPLACING:
            job = self._jobs.hashes[owner.job_id]
            if self._is_under_way(job):
                if spec.mode == "replace":
                    job["newer"] = new.id
                return True
            self._replace(job, spec, new)
        for other in _specs(new.unique):
            if other.mode == "once" and other.key != spec.key:
                self._give(other, owner.job_id)
        self._aliases[new.id] = new.owner = owner.job_id
        new.differs = spec.mode == "once" and owner.mark != spec.second
        return False

    def take(self, job_id: str, unique: str) -> None:
        """Give a job its keys; with keep_last it may have to wait."""
        for spec in _specs(unique):
            before = self._holder(spec.key)
            if spec.mode == "keep_last" and before is not None and before.job_id != job_id:
                job = self._jobs.hashes[job_id]
                job["before"] = before.job_id
                hold(job)
            self._give(spec, job_id)

    def conflict(self, job_id: str, unique: str) -> tuple[_Spec, _Owner] | None:
        """The first key that another job has, and its owner."""
        for spec in _specs(unique):
            owner = self._holder(spec.key)
            if owner is None or owner.job_id == job_id:
                continue
            is_over = Status(self._jobs.hashes[owner.job_id]["status"]).is_final
            if not (spec.mode in REPLACING and is_over):
                return spec, owner
        return None

    def page(self, start: int, count: int) -> list[UniqueKey]:
        """A page of the keys that are taken, oldest first."""
        held = [(key, owner) for key in self._owners if (owner := self._holder(key)) is not None]
        held.sort(key=lambda pair: (pair[1].taken_ms, pair[0]))
        jobs = self._jobs.hashes
        return [
            UniqueKey(
                key, owner.job_id, jobs[owner.job_id]["status"], jobs[owner.job_id]["task"],
                owner.taken_ms, owner.until_ms,
            )
            for key, owner in held[start : start + count]
        ]  # fmt: skip

    def release(self, key: str) -> str:
        """Free a key; returns the job that had it, or ''."""
        owner = self._holder(key)
        self._owners.pop(key, None)
        return "" if owner is None else owner.job_id

    def ended(self, job_id: str) -> None:
        """Free the keys of a job that has ended, and release the jobs that wait for its end."""
        job = self._jobs.hashes[job_id]
        for spec in _specs(job.get("unique", "")):
            owner = self._owners.get(spec.key)
            lasts = spec.mode in LASTING and not _is_given_up(job, {spec.mode})
            if owner is not None and owner.job_id == job_id and not lasts:
                before = self._jobs.hashes.get(job.get("before", ""))
                if before is not None and not Status(before["status"]).is_final:
                    self._owners[spec.key] = _Owner(job["before"], owner.taken_ms)
                else:
                    del self._owners[spec.key]
        for waiting in self._jobs.hashes.with_status(Status.WAITING):
            other = self._jobs.hashes[waiting]
            if other.get("before") == job_id and not other.get("waits"):
                release(other, self._jobs.now_ms())

    def is_superseded(self, job_id: str) -> bool:
        """Whether a newer job has the key of a job that would run again, or has run meanwhile."""
        job = self._jobs.hashes[job_id]
        for spec in _specs(job.get("unique", "")):
            owner = self._holder(spec.key) if spec.mode == "replace" else None
            if owner is not None and owner.job_id != job_id:
                return True
        while newer := self._jobs.hashes.get(job.get("newer", "")):
            if newer["status"] != Status.CANCELLED:
                return True
            job = newer
        return False

    def _is_under_way(self, job: JobHash) -> bool:
        """Whether the job is running, or has stored steps of a run that it will continue."""
        if job["status"] == Status.RETRYING:
            return False
        return job["status"] == Status.PROCESSING or self._steps.has_any(job.job_id)

    def _holder(self, key: str) -> _Owner | None:
        owner = self._owners.get(key)
        if owner is None:
            return None
        job = self._jobs.hashes[owner.job_id]
        modes = {spec.mode for spec in _specs(job.get("unique", "")) if spec.key == key}
        if owner.until_ms is not None:
            is_over = owner.until_ms <= self._jobs.now_ms()
            return None if is_over or _is_given_up(job, modes) else owner
        if Status(job["status"]).is_final:
            return None
        has_steps = self._steps.has_any(owner.job_id)
        has_started = (
            job["status"] == Status.PROCESSING or has_steps or int(job.get("attempts", 0)) > 0
        )
        return None if has_started and "until_started" in modes else owner

    def _give(self, spec: _Spec, job_id: str) -> None:
        now_ms = self._jobs.now_ms()
        until_ms = now_ms + int(spec.first) if spec.mode in LASTING else None
        self._owners[spec.key] = _Owner(job_id, now_ms, spec.second, until_ms)

    def _replace(self, job: JobHash, spec: _Spec, new: NewJob) -> None:
        now_ms, due_ms = self._jobs.now_ms(), int(job.get("due_ms", 0))
        job["payload"] = new.payload
        job.pop("options", None)
        if new.options:
            set_fields(job, options=new.options, renewed_ms=now_ms)
        if job["status"] != Status.QUEUED and "lane" in job and new.lane:
            job["lane"] = new.lane
        if job["status"] == Status.RETRYING:
            for name in OF_AN_ATTEMPT:
                job.pop(name, None)
            set_fields(job, window_ms=now_ms, status=Status.SCHEDULED)
            self._steps.forget(self._owners[spec.key].job_id)
        if job["status"] == Status.SCHEDULED:
            if spec.mode == "replace":
                begun_ms = int(job.get("window_ms", job["enqueued_ms"]))
                due_ms = min(now_ms + int(spec.first), begun_ms + int(spec.second))
            set_fields(job, due_ms=due_ms)


def _is_given_up(job: JobHash, modes: Collection[str]) -> bool:
    """Whether the job was cancelled, and has its key by ``For``."""
    return "for" in modes and job["status"] == Status.CANCELLED


def _specs(unique: str) -> Iterator[_Spec]:
    words = unique.split()
    return (_Spec(*words[at : at + 4]) for at in range(0, len(words), 4))
