"""Periodic jobs in the mirror: ordinary records, which the name of their schedule finds."""

from __future__ import annotations

from django_redisqueue.dashboard.periodic import history
from tests.broker.lab import outcome
from tests.broker.schedules import FIRST, MINUTE, define, definition, fire, job_id

from .mirrored_shard import MirroredShard


def test_runs_have_their_arguments_and_are_found_by_their_schedule(shard: MirroredShard) -> None:
    lab = shard.lab
    define(lab, definition(payload='[["EU"],{}]', options='{"tags":["region","eu"]}'))
    for due_ms in (FIRST, FIRST + MINUTE):
        assert fire(lab, due_ms) == 1
        lab.finish(outcome(lab.take()))
    lab.add("other")
    shard.mirror()
    shard.assert_complete()
    record = shard.record(job_id(FIRST))
    assert (record.args, record.tags) == (("EU",), '{"region":"eu"}')
    assert shard.statuses(record.id) == ["queued", "processing", "completed"]
    assert [run["id"] for run in history("report")] == [job_id(FIRST + MINUTE), job_id(FIRST)]
    assert lab.queries.job(job_id(FIRST + MINUTE)).previous_due_ms == FIRST
