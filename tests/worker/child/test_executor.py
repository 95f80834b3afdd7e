"""Preparing a claimed job for its run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_redisqueue.broker.replies import OutcomeKind
from django_redisqueue.conf import load
from django_redisqueue.exceptions import LeaseLost
from django_redisqueue.worker.child import retry_policy
from django_redisqueue.worker.child.executor import Pipeline
from tests.worker.parts import claimed

SETTINGS = load({})


def no_json(_: str) -> Any:
    return json.loads("")


SPOILT = [
    ({"payload": "[1"}, "Expecting"),
    ({"options": "[]"}, "its options are '[]', not a JSON object"),
    ({"options": "{"}, "Expecting"),
    ({"options": '{"timeout_ms":"x"}'}, 'no whole number: {"timeout_ms":"x"}'),
    ({"options": '{"timeout_ms":[1]}'}, "no whole number"),
    ({"options": '{"timeout_ms":1e300}'}, "no whole number"),
    ({"options": '{"timeout_ms":-1}'}, "no whole number"),
    ({"options": '{"max_attempts":null}'}, "no whole number"),
    ({"options": '{"takes_result":true}'}, "Expecting"),
]


@pytest.mark.parametrize(("fields", "words"), SPOILT)
def test_a_job_that_a_hand_has_spoilt_fails_and_ends_no_child(
    fields: dict[str, str], words: str
) -> None:
    job = claimed()._replace(task="tests.app.tasks.noop", **fields)
    resolution = Pipeline(SETTINGS, lambda _: 0, no_json).prepare(job)
    assert isinstance(resolution, retry_policy.Resolution)
    assert (resolution.kind, resolution.detail) == (OutcomeKind.FAILED, "corrupt")
    message = json.loads(resolution.body)["message"]
    assert message.startswith("job job_1 cannot be read: ")
    assert words in message


def test_a_job_that_redis_does_not_know_goes_back() -> None:
    """After a failover, or asked of a master that was replaced: no failure of the job."""

    def unknown(job_id: str) -> Any:
        raise LeaseLost(f"Redis does not know that job {job_id} runs")

    job = claimed()._replace(task="tests.app.tasks.noop", options='{"takes_result":true}')
    resolution = Pipeline(SETTINGS, lambda _: 0, unknown).prepare(job)
    assert isinstance(resolution, retry_policy.Resolution)
    assert resolution.kind == OutcomeKind.QUEUED
