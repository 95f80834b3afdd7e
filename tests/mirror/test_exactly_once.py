"""Each signal is sent exactly once, by processes that are killed and by two simultaneous ones."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from django.db import transaction

from django_redisqueue.models import JobEvent, MirrorState, OutboxJob
from django_redisqueue.outbox import relay
from tests.app.models import Counter
from tests.broker.workflows import BrokerWorkflow
from tests.support import shards
from tests.worker.processes import eventually

from .mirror_processes import MirrorProcesses

FAN = {0: (), 1: (0,), 2: (0,), 3: (1, 2)}

RECEIVER = """
import os, signal
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F
from django_redisqueue.mirror.signal_delivery import SignalDelivery
from django_redisqueue.signals import job_completed, workflow_completed
from tests.app.models import Counter
from tests.app.tasks import noop

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def receiver(record, event, **_):
    Counter.objects.get_or_create(name=record.pk)
    Counter.objects.filter(name=record.pk).update(value=F("value") + 1)
    print("told", record.pk, event.pk, flush=True)
    if record.pk == {victim!r}:
        {end}
    noop.using(queue_name="told").enqueue()

job_completed.connect(receiver)
workflow_completed.connect(receiver)
"""
MIRROR_SCRIPT = RECEIVER + 'call_command("bridgeevents", "--once")'
SIGNAL_SCRIPT = RECEIVER + 'print("ready", flush=True)\nwhile SignalDelivery().run_once(60): pass'

#: Where it dies: in a receiver that has written its row, between the receivers and the commit, and
#: between the commit and the sending of enqueued jobs.
MOMENTS = {
    "inside": "die()",
    "before the commit": "connection.commit = die",
    "after the commit": "transaction.on_commit(die)",
}


def run(processes: MirrorProcesses, victim: str, end: str = "pass") -> int:
    code, said = processes.ended(processes.script(MIRROR_SCRIPT.format(victim=victim, end=end)))
    assert code in (0, -signal.SIGKILL), said
    return code


def counted() -> dict[str, int]:
    return dict(Counter.objects.values_list("name", "value"))


def jobs_of_receivers(processes: MirrorProcesses) -> list[str]:
    """The queued jobs, after the relay has sent those of a killed process."""
    shards.relay()
    assert not OutboxJob.objects.filter(relayed_at=None).exists()
    queue = shards.keys_of("told").queue("told").queued
    return processes.broker.redis.lrange(queue, 0, -1)  # type: ignore[return-value]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_and_restarted_bridge_sends_each_signal_once(
    processes: MirrorProcesses, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "GRACE", timedelta(0))
    processes.harness.configure(QUEUES={"default": {}, "told": {}})
    end, has_happened = MOMENTS[moment], moment == "after the commit"
    ids = processes.run_jobs(6)
    assert run(processes, ids[3], end) == -signal.SIGKILL
    told = dict.fromkeys(ids[:4] if has_happened else ids[:3], 1)
    assert counted() == told
    assert len(jobs_of_receivers(processes)) == len(told)

    workflow = BrokerWorkflow(processes.broker, FAN, name="1")
    workflow.push()
    workflow.run_all()
    assert run(processes, workflow.id, end) == -signal.SIGKILL
    # Jobs and workflows are not ordered relative to each other: some jobs may still be missing.
    assert (workflow.id in counted(), set(counted().values())) == (has_happened, {1})

    assert run(processes, "nobody") == 0
    names = [*ids, *(workflow.job(n) for n in FAN), workflow.id]
    assert counted() == dict.fromkeys(names, 1)
    queued = jobs_of_receivers(processes)
    assert len(queued) == len(set(queued)) == len(names)


def test_two_simultaneous_bridges_send_each_signal_once(processes: MirrorProcesses) -> None:
    processes.harness.configure(QUEUES={"default": {}, "told": {}})
    ids = [
        job_id for job_id in processes.run_jobs(150) if not job_id.endswith("7")
    ]  # otherwise it has failed
    assert processes.ended(processes.once())[0] == 0
    MirrorState.objects.update(signalled=0)
    text = SIGNAL_SCRIPT.format(victim="", end="pass")
    with transaction.atomic():
        MirrorState.objects.update(signalled=0)  # they meet at its row
        senders = [processes.script(text) for _ in range(2)]
        eventually(lambda: [sender.output for sender in senders] == ["ready\n"] * 2)
        if processes.postgres is not None:
            eventually(lambda: _blocked(processes) == 2)
    ends = [processes.ended(sender) for sender in senders]
    assert [code for code, _ in ends] == [0, 0], ends
    assert "raised" not in str(ends)
    told = [[int(line.split()[2]) for line in said.splitlines()[1:]] for _, said in ends]
    assert counted() == dict.fromkeys(ids, 1)
    assert all(mine == sorted(mine) for mine in told)
    assert len(told[0]) + len(told[1]) == len(ids)
    if processes.postgres is not None:
        assert all(told), "they have not raced"
    assert MirrorState.objects.get(shard=0).signalled == JobEvent.objects.latest("id").id


def _blocked(processes: MirrorProcesses) -> int:
    assert processes.postgres is not None
    ((waiting,),) = processes.postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND datname = '{processes.entry['NAME']}'"
    )
    return int(waiting)
