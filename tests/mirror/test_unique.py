"""Newer arguments of a job that has a unique key, and duplicates, as the mirror sees them."""

from __future__ import annotations

import pytest

from django_redisqueue.core.job_data import NewJob
from django_redisqueue.models import JobRecord

from .mirrored_shard import MirroredShard

LONG = "x" * 2000
REPLACE = "k replace 10000 60000"


def put(shard: MirroredShard, name: str, text: str, options: str = "") -> None:
    payload = f'[["{text}"],{{}}]'
    new = NewJob(name, "default", "app.task", payload, options, when="+10000", unique=REPLACE)
    shard.lab.store.enqueue([new])


@pytest.mark.parametrize("text", ["short", LONG])
@pytest.mark.parametrize("between", [True, False])
def test_newer_arguments(shard: MirroredShard, text: str, between: bool) -> None:
    """Also those that are too large for the event."""
    put(shard, "a", "first", '{"tags":["n","1"]}')
    if between:
        shard.mirror()
    shard.lab.advance(1000)
    put(shard, "b", text, '{"tags":["n","2"]}')
    shard.mirror()
    record = shard.record("a")
    assert record.payload == f'[["{text}"],{{}}]'
    assert record.tags == '{"n":"2"}'
    assert record.status == "scheduled"
    assert record.due_at is not None
    assert record.due_at.timestamp() * 1000 == shard.lab.now + 10_000
    assert not JobRecord.objects.filter(pk="b").exists()
    assert shard.statuses("a") == ["scheduled", "scheduled"]
