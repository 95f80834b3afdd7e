"""No field of a new job is lost on any way into Redis: at once, through the outbox, as a part of a
workflow, from a schedule, as a callback, or as a listener of a gather. Inside Redis, the
tests of the verbs see to it."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.client.tasks import callback_fields
from django_redisqueue.client.workflow_graph import Node, encode_jobs
from django_redisqueue.core.ids import new_job_id
from django_redisqueue.core.job_data import SIGNATURE_FIELDS, NewJob
from django_redisqueue.core.parsing import pairs
from django_redisqueue.core.records import GatherListener
from django_redisqueue.core.schedules import decode_schedule
from django_redisqueue.outbox.rows import DatabaseOutbox
from django_redisqueue.testing.hashes import callback_job
from tests.broker.schedules import definition

REQUIRED: dict[str, Any] = {"queue": "default", "task": "app.task", "payload": '[["a"],{}]'}
OPTIONAL: dict[str, Any] = {
    "options": '{"timeout_ms":7}', "priority": 7, "when": "1790000000000", "audit": "failures",
    "unique": "the key", "lane": "the lane",
}  # fmt: skip
SIGNATURE = {**REQUIRED, **OPTIONAL}
WITH_PARENTS = {**OPTIONAL, "after": "fail job_parent"}
NOT_SENT = {"is_known", "is_spread", "owner", "differs"}  # for the sending process


def job(**fields: Any) -> NewJob:
    return NewJob(new_job_id(), **REQUIRED, **fields)


def of_signature(found: Any) -> dict[str, Any]:
    return {name: getattr(found, name) for name in SIGNATURE}


def test_these_are_all_fields() -> None:
    names = {field.name for field in fields(NewJob)}
    known = {"id", "stored", *REQUIRED, *WITH_PARENTS} | NOT_SENT
    assert names == known, f"give OPTIONAL, above, a value of {names - known}, or NOT_SENT its name"
    assert {*SIGNATURE_FIELDS} == SIGNATURE.keys()


@pytest.mark.parametrize("name", WITH_PARENTS)
def test_only_a_job_without_any_is_sent_as_a_plain_one(name: str) -> None:
    assert job().is_plain
    assert not job(**{name: WITH_PARENTS[name]}).is_plain


@pytest.mark.usefixtures("queue_settings")
def test_at_once() -> None:
    commands = Commands(producer_connection(0))
    sent = commands.enqueue_with_conditions([job(**WITH_PARENTS)], allow_missing_parents=False)
    assert {*REQUIRED.values(), *WITH_PARENTS.values()} <= {*sent}


@pytest.mark.django_db(databases=["default", "other"])
def test_through_the_outbox() -> None:
    stored = job(**WITH_PARENTS)
    DatabaseOutbox().store([replace(stored)], ["default"])
    assert DatabaseOutbox().find(stored.id) == replace(stored, stored=True)


def test_in_a_workflow() -> None:
    [found] = encode_jobs([Node(job(**OPTIONAL))])
    assert of_signature(found) == SIGNATURE


def test_from_a_schedule() -> None:
    defined = definition(**SIGNATURE)
    assert of_signature(decode_schedule("report", defined.fields()).job) == SIGNATURE


def test_as_a_callback() -> None:
    signature: Any = SimpleNamespace(new_job=lambda job_id: replace(job(**OPTIONAL), id=job_id))
    sent = pairs([*callback_fields("then", signature, "flow_1_0.then")])
    assert of_signature(callback_job(sent, "then", "flow_1_0.then")) == SIGNATURE


def test_as_a_listener_of_a_gather() -> None:
    """The plan has the arguments of all listeners, and they start at once."""
    assert SIGNATURE.keys() - {"payload", "when"} == {*GatherListener._fields} - {"name"}
