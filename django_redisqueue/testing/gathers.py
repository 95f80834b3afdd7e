"""Gathers in memory, changed as the Lua scripts change them; polls never come due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..core.gather_data import GatherData, GatherListener, GatherPlan, decode_gather
from ..core.job_data import NewJob
from ..core.statuses import GatherReason, GatherStatus, Status
from .hashes import InMemoryClock, callback_job

StatusOf = Callable[[str], str]
LOST = (Status.FAILED, Status.CANCELLED)


@dataclass(slots=True)
class _Gather:
    """A plan, its changing fields and its results."""

    plan: GatherPlan
    fields: dict[str, str]
    listeners: list[GatherListener]
    results: dict[str, str] = field(default_factory=dict)

    def data(self) -> GatherData:
        done = str(len(self.results))
        return decode_gather(self.plan.key, self.fields, list(self.results), done)


class InMemoryGathers:
    """The gathers of a test. ``put`` enqueues a job; ``status_of`` returns a job's status."""

    def __init__(
        self, put: Callable[[NewJob], None], status_of: StatusOf, clock: InMemoryClock
    ) -> None:
        self._put = put
        self._clock = clock
        self._status_of = status_of
        self._gathers: dict[str, _Gather] = {}

    def start(self, plan: GatherPlan) -> int:
        """Codes of start_gather.lua."""
        known = self._gathers.get(plan.key)
        if known is not None:
            return 0 if known.plan.id == plan.id else -1
        listeners = [GatherListener(*parts) for parts in plan.listeners]
        fields = dict(zip(plan.fields[::2], plan.fields[1::2], strict=True))
        fields |= {
            "id": plan.id,
            "payload": plan.payload,
            "status": GatherStatus.COLLECTING.value,
            "listeners": " ".join(listener.name for listener in listeners),
            "made_ms": str(self._clock.now_ms()),
        }
        self._gathers[plan.key] = _Gather(plan, fields, listeners)
        for n, one in enumerate(listeners):
            self._put(
                NewJob(
                    f"{plan.id}.{n}", one.queue, one.task, plan.payload, one.options, one.priority,
                    "", one.audit, unique=one.unique, lane=one.lane,
                )
            )  # fmt: skip
        return 1

    def data(self, key: str) -> GatherData | None:
        """A gather, or None."""
        found = self._gathers.get(key)
        return None if found is None else found.data()

    def results(self, key: str) -> Mapping[str, str]:
        """The results as JSON, by listener."""
        found = self._gathers.get(key)
        return {} if found is None else found.results

    def key_of(self, job_id: str) -> str | None:
        """The key of the gather that a job belongs to, or None."""
        found = self._of(job_id)
        return None if found is None else found.plan.key

    def _of(self, job_id: str) -> _Gather | None:
        gather_id = job_id.rpartition(".")[0]
        matching = (found for found in self._gathers.values() if found.plan.id == gather_id)
        return next(matching, None)

    def job_ended(self, job_id: str, status: str, result: str) -> None:
        """What gather.lua does."""
        found, number = self._of(job_id), job_id.rpartition(".")[2]
        if found is None or not number.isdigit():
            return
        if status == Status.COMPLETED:
            found.results.setdefault(found.listeners[int(number)].name, result)
        data = found.data()
        if data.status is not GatherStatus.COLLECTING:
            return
        if data.done_count >= data.threshold:
            self._end(found, GatherStatus.RELEASED)
        elif data.done_count + self._can_still_return(found) < data.threshold:
            found.fields["missing"] = " ".join(data.missing)
            found.fields["reason"] = GatherReason.UNREACHABLE.value
            self._end(found, GatherStatus.FAILED)

    def _can_still_return(self, found: _Gather) -> int:
        """The number of listeners that may still return."""
        return sum(
            1
            for n, listener in enumerate(found.listeners)
            if listener.name not in found.results
            and self._status_of(f"{found.plan.id}.{n}") not in LOST
        )

    def _end(self, found: _Gather, status: GatherStatus) -> None:
        fields = found.fields
        fields |= {"status": status.value, "ended_ms": str(self._clock.now_ms())}
        which = "then" if status is GatherStatus.RELEASED else "failure"
        job = callback_job(fields, which, f"{found.plan.id}.{which}")
        if job is not None:
            self._put(job)
