"""Random verbs and jobs that wait for events, against the model: after every step each job is in
one place."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from django_redisqueue.broker.replies import ClaimedJob, Outcome, WaitReply, WaitState

from .harness import BrokerHarness
from .model import Job, Model
from .test_model import BUDGET, QUEUES, Machine, _pick, picks


class WaitModel(Model):
    """Jobs that are parked until an event; ``waits``: (id, event) -> since when they wait."""

    def __init__(self) -> None:
        super().__init__(QUEUES)
        self.waits: dict[tuple[str, str], int] = {}

    def park(self, child: str, job_id: str, event: str, due: int) -> int:
        job = self.jobs[job_id]
        job.forgiven = job.recoveries  # because the wait was recorded
        self.held[child].remove(job_id)
        if job.is_flagged:
            self._end(job, "cancelled")
            return 3
        self._forget(job_id)
        job.move("scheduled")
        job.due = due
        self.waits[job_id, event] = self.now
        return 1

    def wake(self, event: str) -> int:
        """Returns how many jobs continue."""
        woken = 0
        found = sorted((since, job_id) for (job_id, e), since in self.waits.items() if e == event)
        for _, job_id in found:
            job = self.jobs[job_id]
            job.forgiven = job.recoveries
            del self.waits[job_id, event]
            if job.status == "scheduled":
                job.move("queued")
                job.ready = self.now
                self.queues[job.queue].line(job.priority).append(job_id)
                woken += 1
        return woken

    def run_now(self, job_id: str) -> int:
        job = self.jobs.get(job_id)
        is_parked = any(waiting == job_id for waiting, _ in self.waits)
        if job is not None and job.status == "scheduled" and is_parked:
            return -2
        return super().run_now(job_id)

    def _end(self, job: Job, status: str) -> None:
        super()._end(job, status)
        self._forget(job.id)

    def _forget(self, job_id: str) -> None:
        for found in [found for found in self.waits if found[0] == job_id]:
            del self.waits[found]


def _event(number: int) -> str:
    """Every third event is that of an approval."""
    return f"approval:e{number}" if number % 3 == 0 else f"e{number}"


class WaitMachine(Machine):
    """The state machine of the verbs, with two rules for waits."""

    def __init__(self) -> None:
        super().__init__()
        self.model: WaitModel = WaitModel()
        self.events = 0

    @initialize()
    def begin(self) -> None:
        super().begin()

    @precondition(lambda self: self._held())
    @rule(at=picks, ms=st.sampled_from([5, 5000, None]), is_new=st.booleans())
    def park(self, at: int, ms: int | None, is_new: bool) -> None:
        child, job = _pick(self._held(), at)
        self.events += is_new or not self.events
        event = _event(self.events)
        store = self.broker.store
        reply = store.check_wait(child, job.id, job.lease, event, ms, sleeps=False)
        if reply.state is not WaitState.GOES_ON:  # it has received this event, or missed it
            self.model.jobs[job.id].forgiven = self.model.jobs[job.id].recoveries
            self.model.waits.pop((job.id, event), None)
            return
        self._park(child, job, event, reply)

    @precondition(lambda self: self._held())
    @rule(at=picks, ms=st.sampled_from([5, 5000]))
    def sleep(self, at: int, ms: int) -> None:
        child, job = _pick(self._held(), at)
        self.events += 1
        store = self.broker.store
        reply = store.check_wait(child, job.id, job.lease, f"s{self.events}", ms, sleeps=True)
        self._park(child, job, "", reply)

    def _park(self, child: str, job: ClaimedJob, event: str, reply: WaitReply) -> None:
        assert reply.state is WaitState.GOES_ON
        self._forget_last(child)
        due = int(reply.value) if reply.value else 9 * 10**13
        expected = self.model.park(child, job.id, event, due)
        parked = Outcome(job.id, job.lease, job.call, "parked", event, reply.value)
        assert self.broker.finish(parked, child=child) == [expected]
        with self.broker.unchanged():
            assert self.broker.finish(parked, child=child) == [2]

    @precondition(lambda self: self.events)
    @rule(at=picks)
    def send_event(self, at: int) -> None:
        event = _event(max(1, self.events - at))
        assert self.broker.store.send_event(event, "1", 60_000) == self.model.wake(event)
        self.broker.redis.delete(self.broker.keys.event(event))  # it would expire by the real clock

    park_more, park_yet_more, send_more_events = park, park, send_event


def _machine(broker: BrokerHarness) -> type[WaitMachine]:
    return type("WaitMachine", (WaitMachine,), {"broker": broker})


@pytest.mark.slow
def test_a_waiting_job_is_in_one_place(broker: BrokerHarness) -> None:
    limits = settings(max_examples=15, stateful_step_count=40, **BUDGET)
    run_state_machine_as_test(_machine(broker), settings=limits)
