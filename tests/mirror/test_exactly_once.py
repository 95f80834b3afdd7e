"""Signals in processes that are killed, and in two that tell at once: each event exactly once."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest
from django.db import transaction

from django_redisqueue.models import JobEvent, MirrorState, OutboxJob
from django_redisqueue.worker import relay
from tests.app.models import Counter
from tests.store.flows import Flow
from tests.worker.processes import eventually

from .theatre import Theatre

FAN = {0: (), 1: (0,), 2: (0,), 3: (1, 2)}

RECEIVER = """
import os, signal
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F
from django_redisqueue.mirror.signalling import Signaller
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
MIRRORS = RECEIVER + 'call_command("bridgeevents", "--once")'
TELLS = RECEIVER + 'print("ready", flush=True)\nwhile Signaller().run_once(60): pass'

#: Where it dies: in a receiver that has written its row, between the receivers and the commit, and
#: between the commit and the sending of what was enqueued.
MOMENTS = {
    "inside": "die()",
    "before the commit": "connection.commit = die",
    "after the commit": "transaction.on_commit(die)",
}


def run(theatre: Theatre, victim: str, end: str = "pass") -> int:
    code, said = theatre.ended(theatre.program(MIRRORS.format(victim=victim, end=end)))
    assert code in (0, -signal.SIGKILL), said
    return code


def counted() -> dict[str, int]:
    return dict(Counter.objects.values_list("name", "value"))


def jobs_of_receivers(theatre: Theatre) -> list[str]:
    """What is queued, after the relay has sent what a killed process could not."""
    relay.Relay(theatre.lab.store).run_once()
    assert not OutboxJob.objects.filter(relayed_at=None).exists()
    queue = theatre.lab.keys.queue("told").queued
    return theatre.lab.redis.lrange(queue, 0, -1)  # type: ignore[return-value]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_started_again_each_event_has_been_told_once(
    theatre: Theatre, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "YOUNG", timedelta(0))
    theatre.stage.configure(QUEUES={"default": {}, "told": {}})
    end, has_happened = MOMENTS[moment], moment == "after the commit"
    ids = theatre.live(6)
    assert run(theatre, ids[3], end) == -signal.SIGKILL
    told = dict.fromkeys(ids[:4] if has_happened else ids[:3], 1)
    assert counted() == told
    assert len(jobs_of_receivers(theatre)) == len(told)

    flow = Flow(theatre.lab, FAN, name="1")
    flow.push()
    flow.run_all()
    assert run(theatre, flow.id, end) == -signal.SIGKILL
    # Jobs and workflows do not keep an order among each other: some jobs may still be to come.
    assert (flow.id in counted(), set(counted().values())) == (has_happened, {1})

    assert run(theatre, "nobody") == 0
    names = [*ids, *(flow.job(n) for n in FAN), flow.id]
    assert counted() == dict.fromkeys(names, 1)
    queued = jobs_of_receivers(theatre)
    assert len(queued) == len(set(queued)) == len(names)


def test_two_that_tell_at_once_tell_each_event_once(theatre: Theatre) -> None:
    theatre.stage.configure(QUEUES={"default": {}, "told": {}})
    ids = [job_id for job_id in theatre.live(150) if not job_id.endswith("7")]  # else it has failed
    assert theatre.ended(theatre.once())[0] == 0
    MirrorState.objects.update(signalled=0)
    text = TELLS.format(victim="", end="pass")
    with transaction.atomic():
        MirrorState.objects.update(signalled=0)  # they meet at its row
        tellers = [theatre.program(text) for _ in range(2)]
        for teller in tellers:
            assert teller.stdout is not None
            assert teller.stdout.readline() == "ready\n"
        if theatre.postgres is not None:
            eventually(lambda: _blocked(theatre) == 2)
    ends = [theatre.ended(teller) for teller in tellers]
    assert [code for code, _ in ends] == [0, 0], ends
    assert "raised" not in str(ends)
    told = [[int(line.split()[2]) for line in said.splitlines()] for _, said in ends]
    assert counted() == dict.fromkeys(ids, 1)
    assert all(mine == sorted(mine) for mine in told)
    assert len(told[0]) + len(told[1]) == len(ids)
    if theatre.postgres is not None:
        assert all(told), "they have not raced"
    assert MirrorState.objects.get().signalled == JobEvent.objects.latest("id").id


def _blocked(theatre: Theatre) -> int:
    assert theatre.postgres is not None
    ((waiting,),) = theatre.postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND datname = '{theatre.entry['NAME']}'"
    )
    return int(waiting)
