"""Steps, waits and events in memory, kept as the Lua scripts keep them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..broker.replies import ClaimedJob, WaitReply, WaitState
from ..conf import get_settings
from ..core.statuses import FINAL, Status
from .hashes import InMemoryClock, JobHash


@dataclass(frozen=True, slots=True)
class _Event:
    """An event that has come, and until when it is kept."""

    payload: str
    until_ms: int


class InMemorySteps:
    """What the jobs of a test remember, and what they wait for: a ``StepStore``."""

    def __init__(self, jobs: Mapping[str, JobHash], clock: InMemoryClock) -> None:
        self._jobs = jobs
        self._clock = clock
        self._fields: dict[str, dict[str, str]] = {}
        self._events: dict[str, _Event] = {}

    def load(self, job: ClaimedJob) -> dict[str, str]:
        return dict(self._fields.get(job.id, {}))

    def save(self, job: ClaimedJob, field: str, value: str) -> int:
        fields = {**self._fields.get(job.id, {}), field: value}
        size = sum(len(name) + len(text.encode()) for name, text in fields.items())
        if size > get_settings().max_result_bytes:
            return -1
        self._fields[job.id] = fields
        return 1

    def forget(self, job_id: str) -> None:
        """Forget the steps of a job."""
        self._fields.pop(job_id, None)

    def check_wait(self, job: ClaimedJob, event: str, ms: int | None, *, sleeps: bool) -> WaitReply:
        """What check_wait.lua does."""
        field, now_ms = f"{'sleep' if sleeps else 'wait'}:{event}", self._clock.now_ms()
        kind, _, known = self._fields.get(job.id, {}).get(field, "").partition(" ")
        generation = self._jobs[job.id].get("generation", "0")
        if kind == "event":
            return WaitReply(WaitState.OVER, known)
        if kind == "late" and known == generation:
            return WaitReply(WaitState.LATE)
        payload = None if sleeps else self._payload(event)
        if payload is not None:
            return self._note(job, field, f"event {payload}", WaitReply(WaitState.OVER, payload))
        due = known if kind == "until" else "" if ms is None else str(now_ms + ms)
        if due and int(due) <= now_ms:
            if sleeps:
                return WaitReply(WaitState.OVER, "null")
            return self._note(job, field, f"late {generation}", WaitReply(WaitState.LATE))
        return self._note(job, field, f"until {due}", WaitReply(WaitState.GOES_ON, due))

    def _note(self, job: ClaimedJob, field: str, value: str, reply: WaitReply) -> WaitReply:
        return reply if self.save(job, field, value) == 1 else WaitReply(WaitState.TOO_LARGE)

    def _payload(self, event: str) -> str | None:
        found = self._events.get(event)
        return found.payload if found and found.until_ms > self._clock.now_ms() else None

    def send_event(self, event: str, payload: str) -> None:
        """What send_event.lua does."""
        until_ms = self._clock.now_ms() + get_settings().event_ttl_ms
        self._events[event] = _Event(payload, until_ms)
        for job_id, found in self._waiting_for(event):
            self._wake(job_id, found, event, payload)

    def parked(self, job_id: str) -> None:
        """Wake a job that has just been parked if its event has come."""
        event = self._jobs[job_id]["waits_for"]
        payload = self._payload(event) if event else None
        if payload is not None:
            self._wake(job_id, self._jobs[job_id], event, payload)

    def end_sleep(self, job_id: str) -> None:
        """Let a job go on that a test runs before its time."""
        fields = self._fields.get(job_id, {})
        for name in [name for name in fields if name.startswith("sleep:")]:
            fields[name] = f"until {self._clock.now_ms()}"

    def _waiting_for(self, event: str) -> Iterator[tuple[str, JobHash]]:
        return (
            (job_id, found)
            for job_id, found in self._jobs.items()
            if found.get("waits_for") == event and found["status"] not in FINAL
        )

    def _wake(self, job_id: str, found: JobHash, event: str, payload: str) -> None:
        self._fields.setdefault(job_id, {})[f"wait:{event}"] = f"event {payload}"
        if found["status"] == Status.SCHEDULED:
            found["status"] = Status.QUEUED
            found.pop("due_ms", None)
