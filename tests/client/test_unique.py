"""``unique`` and ``unique_by``, as an application sees them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import transaction
from django.utils import timezone
from redis import Redis

from django_redisqueue import (
    For,
    JobQueue,
    Replace,
    UniqueConflict,
    Workflow,
    WorkflowError,
    chain,
    get_job,
    push_many,
    release_unique_key,
    task,
    unique_keys,
)
from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.client.transport import RedisTransport
from django_redisqueue.core.ids import shard_of_id
from django_redisqueue.exceptions import (
    InvalidArguments,
    InvalidOption,
    RedisQueueError,
    RedisUnavailable,
)
from django_redisqueue.models import OutboxJob
from tests.support.commands import output_of

from ..app import tasks
from ..support.manual_worker import ManualWorker
from ..support.shards import keys_with, mirror, relay

in_transactions = pytest.mark.django_db(transaction=True, databases=["default", "other"])
MODES = ["until_started", "until_finished", "keep_last", For("1h"), Replace(wait=10, max_wait=60)]
once = tasks.noop.using(unique="until_finished")


def age() -> None:
    OutboxJob.objects.update(created_at=timezone.now() - timedelta(minutes=1))


@pytest.mark.parametrize("mode", MODES)
def test_a_second_enqueue_returns_the_first_job(manual_worker: ManualWorker, mode: Any) -> None:
    send = tasks.noop.using(unique=mode).enqueue
    first, second, other = send(1), send(1), send(2)
    assert (first.is_duplicate, second.is_duplicate, other.is_duplicate) == (False, True, False)
    assert second.id == first.id != other.id
    assert second == first
    assert get_job(second.id).args == (1,)


def test_double_click(manual_worker: ManualWorker) -> None:
    jobs = once.enqueue_many([(1,), (2,), (1,), (1,)])
    assert [job.is_duplicate for job in jobs] == [False, False, True, True]
    assert jobs[2] == jobs[3] == jobs[0]
    assert [manual_worker.complete_one(), manual_worker.complete_one()] == [jobs[0].id, jobs[1].id]
    assert not once.enqueue(1).is_duplicate


# -- the key


@pytest.mark.parametrize(
    ("by", "same", "other"),
    [
        ("arguments", [((1,), {"b": 2}), ((), {"b": 2, "a": 1})], ((1, 3), {})),
        ("a", [((1, 2), {}), ((1, 3), {})], ((2, 2), {})),
        (["a"], [((1, 2), {}), ((), {"b": 5, "a": 1})], ((2, 2), {})),
        (("b", "a"), [((1, 2), {}), ((1,), {"b": 2})], ((2, 1), {})),
        (lambda a, b: f"{a} {b % 2}", [((1, 2), {}), ((1, 4), {})], ((1, 3), {})),
    ],
)
def test_the_parts_of_the_key(
    manual_worker: ManualWorker, by: Any, same: list[Any], other: Any
) -> None:
    unique = tasks.add.using(unique="until_finished", unique_by=by)
    first, second = (unique.enqueue(*args, **kwargs) for args, kwargs in same)
    assert second.is_duplicate
    assert second == first
    args, kwargs = other
    assert not unique.enqueue(*args, **kwargs).is_duplicate


def test_defaults_count_as_arguments_and_tasks_have_separate_keys(
    manual_worker: ManualWorker,
) -> None:
    assert once.enqueue() == once.enqueue(None) == once.enqueue(x=None)
    assert not tasks.fail.using(unique="until_finished").enqueue(None).is_duplicate


def test_a_text_of_any_kind_becomes_one_word(manual_worker: ManualWorker) -> None:
    made = tasks.noop.using(unique="until_finished", unique_by=lambda x: x)
    made.enqueue("ü b\n|c")
    (key,) = unique_keys()
    assert key.key == "tests.app.tasks.noop:%C3%BC%20b%0A%7Cc"
    assert made.enqueue("ü b\n|c").is_duplicate


@task(unique="until_finished", redact=("card",))
def charge(customer: int, card: str) -> None:
    """Its card is secret."""


def test_a_key_does_not_reveal_redacted_arguments(manual_worker: ManualWorker) -> None:
    """An attacker cannot find a short secret by hashing all candidates."""
    job = charge.enqueue(1, "4711")
    plain = charge.uniqueness
    assert plain is not None
    guess = plain.encode((1, "4711"), {}, 0, is_secret=False)
    assert unique_keys()[0].key != guess.split()[0]
    assert charge.enqueue(1, "4711") == job
    assert not charge.enqueue(1, "4712").is_duplicate


def test_the_text_of_a_callable_does_not_reveal_them_either(manual_worker: ManualWorker) -> None:
    by_card = charge.using(unique="until_finished", unique_by=lambda customer, card: card)
    job = by_card.enqueue(1, "4711")
    (key,) = unique_keys()
    assert "4711" not in key.key
    assert by_card.enqueue(2, "4711") == job
    assert release_unique_key(key.key) == job.id
    with pytest.raises(InvalidOption, match="raised KeyError") as raised:
        charge.using(unique="until_finished", unique_by=lambda customer, card: {}[card]).enqueue(
            1, "4711"
        )
    assert "4711" not in str(raised.value)


def test_a_call_can_turn_it_off(manual_worker: ManualWorker) -> None:
    first = once.enqueue(1)
    assert once.using(unique=False).enqueue(1).id != first.id
    assert once.using(priority=3).enqueue(1) == first


# -- bad input


def build(**options: Any) -> Any:
    def sample(a: int, b: int = 1, *rest: int) -> None: ...

    sample.__qualname__ = "sample"
    return task(name="tests.sample_of_unique", **options)(sample)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: build(unique="forever"), "unique must be one of until_started, .*not 'forever'"),
        (lambda: build(unique=3600), "unique must be one of .*For.*Replace.*not 3600"),
        (lambda: build(unique=For), "unique must be one of"),
        (lambda: For("1 hour"), "For: its duration must be seconds.*\"5m\".*not '1 hour'"),
        (lambda: For(0), "For: its duration must be more than 0"),
        (lambda: For(-1), "For: its duration must be a duration of zero or more"),
        (lambda: Replace(wait="x"), "Replace: wait must be seconds"),
        (lambda: Replace(wait=10, max_wait=5), r"wait \(10\) must not be longer than max_wait \(5"),
        (lambda: build(unique_by="a"), "tests.sample_of_unique has unique_by without unique"),
        (
            lambda: build(unique="keep_last", unique_by="bb"),
            r"unique_by of tests.sample_of_unique names 'bb', which is not a parameter of the task "
            r"\(did you mean 'b'\?\); it takes \(a, b=1, \*rest\)",
        ),
        (lambda: build(unique="keep_last", unique_by=()), r"unique_by must be .*, not \(\)"),
        (lambda: build(unique="keep_last", unique_by=[1]), r"unique_by must be .*, not \[1\]"),
        (lambda: tasks.noop.using(unique="x"), "unique must be one of"),
        (lambda: tasks.noop.using(unique_by="x"), "noop has unique_by without unique"),
        (lambda: once.using(unique_by="y"), r"names 'y', which is not a parameter.*\(x=None\)"),
        (
            lambda: tasks.noop.using(unique=Replace(5), run_after=60),
            "unique=Replace.* of tests.app.tasks.noop determines when the job runs; remove run",
        ),
    ],
)
def test_options_that_make_no_sense(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        wrong()


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (lambda x: 1 / x, "unique_by of tests.app.tasks.noop raised ZeroDivisionError: division"),
        (lambda: "x", "unique_by of tests.app.tasks.noop raised TypeError"),
        (lambda x: x, "must return a string of 1 to 200 characters: it is 0"),
        (lambda x: "", "must return a string of 1 to 200 characters: it has 0 char"),
        (lambda x: "ü" * 50, "must return a string of 1 to 200 characters: it has 300"),
        (lambda x: "\ud800", "must return a string of 1 to 200 characters"),
    ],
)
def test_a_callable_that_returns_no_valid_key(
    manual_worker: ManualWorker, by: Any, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        tasks.noop.using(unique="until_finished", unique_by=by).enqueue(0)
    assert manual_worker.claim() == []


@task(unique="until_finished")
def with_odd_default(x: int, marker: Any = object()) -> None:  # noqa: B008
    """Its default cannot be part of a key."""


def test_a_default_that_no_key_can_hold(manual_worker: ManualWorker) -> None:
    with pytest.raises(InvalidArguments, match=r"the unique key of .*with_odd_default: 'marker'"):
        with_odd_default.enqueue(1)
    assert (
        not with_odd_default.using(unique="until_finished", unique_by="x").enqueue(1).is_duplicate
    )


@task(unique="until_finished", unique_by="customer")
@transaction.atomic
def refresh(customer: int) -> None: ...


def test_a_positional_argument_of_a_decorated_function_has_no_name(
    manual_worker: ManualWorker,
) -> None:
    with pytest.raises(InvalidArguments, match="'customer', which must be a keyword argument"):
        refresh.enqueue(1)
    jobs = [refresh.enqueue(customer=customer) for customer in (1, 2, 1)]
    assert [job.is_duplicate for job in jobs] == [False, False, True]
    by_all = refresh.using(unique="until_finished")
    jobs = [by_all.enqueue(1), by_all.enqueue(customer=1), by_all.enqueue(1)]
    assert [job.is_duplicate for job in jobs] == [False, False, True]


# -- transactions and the outbox


@in_transactions
def test_an_id_given_out_before_the_commit_stays_valid(manual_worker: ManualWorker) -> None:
    first = once.enqueue(1)
    with transaction.atomic():
        second = once.enqueue(1)
        assert (second.is_deferred, second.is_duplicate) == (True, False)
        assert second.id != first.id
    assert second.is_duplicate
    assert get_job(second.id).data.id == first.id
    assert second.status == "queued"
    assert get_job(second.id).cancel()
    assert get_job(first.id).status == "cancelled"
    get_job(second.id).requeue()
    assert manual_worker.complete_one("7") == first.id
    assert second.wait(timeout=5) == 7
    second.refresh()
    assert second.result == 7


@in_transactions
def test_the_id_leads_to_the_record_once_redis_has_pruned_the_job(
    redis: Redis, manual_worker: ManualWorker, settings: Any, queue_settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}
    first = once.enqueue(1)
    with transaction.atomic():
        second = once.enqueue(1)
    manual_worker.complete_one("7")
    mirror()
    redis.delete(keys_with(first.id).job(first.id))
    assert get_job(second.id).data.id == first.id
    assert get_job(second.id).result == 7


@in_transactions
def test_two_in_one_transaction(manual_worker: ManualWorker) -> None:
    with transaction.atomic():
        jobs = [once.enqueue(1), once.enqueue(1)]
    assert [job.is_duplicate for job in jobs] == [False, True]
    assert [job.data.id for job in jobs] == [jobs[0].id] * 2


@in_transactions
@pytest.mark.parametrize("mirrored", [True, False])
def test_a_row_of_a_duplicate_is_handled(
    manual_worker: ManualWorker,
    settings: Any,
    queue_settings: Any,
    monkeypatch: Any,
    mirrored: bool,
) -> None:
    """The process dies after the commit. The relay sends the row, and needs no record of it."""
    settings.REDISQUEUE = {**queue_settings, "MIRROR": mirrored}
    first = once.enqueue(1)
    monkeypatch.setattr(RedisTransport, "enqueue", lambda *_: 1 / 0)
    with suppress(ZeroDivisionError), transaction.atomic():
        second = once.using(outbox=True).enqueue(1)
    monkeypatch.undo()
    age()
    monkeypatch.setattr("django_redisqueue.broker.durability.FSYNCED_MS", 0)
    monkeypatch.setattr("django_redisqueue.broker.durability.LEFT_TO_THE_SYSTEM_MS", 0)
    for _ in range(3):
        relay()
    assert not OutboxJob.objects.exists()
    assert get_job(second.id).data.id == first.id
    assert [job.id for job in JobQueue().get_jobs("queued")] == [first.id]


@in_transactions
def test_cancelling_a_row_leaves_the_other_job_alone(
    manual_worker: ManualWorker, monkeypatch: Any
) -> None:
    first = once.enqueue(1)
    monkeypatch.setattr(RedisTransport, "enqueue", lambda *_: 1 / 0)
    with suppress(ZeroDivisionError), transaction.atomic():
        second = once.using(outbox=True).enqueue(1)
    monkeypatch.undo()
    assert second.cancel()
    assert (get_job(first.id).status, second.status) == ("queued", "cancelled")


# -- workflows


@pytest.mark.one_shard("workflows of several shards share no call")
def test_a_refused_workflow_does_not_block_the_rest_of_its_call(
    manual_worker: ManualWorker,
) -> None:
    workflows = [Workflow() for _ in range(5)]
    for workflow in workflows:
        workflow.add(tasks.noop, 0)
    workflows[0].add(once, 1)
    workflows[3].add(once, 1)
    with pytest.raises(UniqueConflict) as caught:
        push_many(workflows)
    assert caught.value.__notes__ == ["3 workflows were pushed before the error"]
    assert [workflow._is_pushed for workflow in workflows] == [True] * 3 + [False] * 2
    assert push_many(workflows[4:]) == 1
    assert workflows[4].data.total == 1


def test_a_workflow_is_refused_as_a_whole(manual_worker: ManualWorker) -> None:
    held = once.enqueue(1)
    workflow = Workflow("nightly")
    load = workflow.add(tasks.noop, 0)
    workflow.add(once, 1, after=load)
    node = workflow.jobs()[1].id
    with pytest.raises(UniqueConflict) as caught:
        workflow.push()
    assert str(caught.value) == (
        f"workflow {workflow.id} was not pushed: job {held.id} has the unique key "
        f"{unique_keys()[0].key}, which its job {node} needs; cancel job {held.id}, or push the "
        "workflow again once it has ended"
    )
    assert manual_worker.complete_one() == held.id
    workflow.push()
    assert once.enqueue(1).id == node


def test_the_jobs_with_keys_are_in_the_first_call(manual_worker: ManualWorker) -> None:
    """So that a large workflow is also refused before anything is written."""
    once.enqueue(1)
    workflow = Workflow()
    for n in range(150):
        workflow.add(tasks.noop, n)
    workflow.add(once, 1)
    with pytest.raises(UniqueConflict, match=r"\.150 needs"):
        workflow.push()
    assert (
        Commands(producer_connection(shard_of_id(workflow.id))).control_workflow(
            workflow.id, "cancel"
        )
        == -1
    )


@pytest.mark.one_shard("several shards refuse the second key before they count")
def test_a_workflow_that_could_never_have_its_keys() -> None:
    workflow = Workflow("twice")
    workflow.add(once, 1)
    workflow.add(tasks.noop, 1)
    workflow.add(once, 1)
    with pytest.raises(WorkflowError, match=r"jobs \.0 and \.2 .*noop.* have the same unique key"):
        workflow.push()
    many = Workflow("many")
    for n in range(101):
        many.add(once, n)
    with pytest.raises(WorkflowError, match=r"'many' has 101 jobs with unique keys, .*at most 100"):
        many.push()


def test_a_key_that_needs_the_result_of_a_parent(manual_worker: ManualWorker) -> None:
    with pytest.raises(InvalidOption, match="names 'x', whose value is not yet known"):
        chain(tasks.noop.s(1), once.using(unique="until_finished", unique_by="x").s())
    chain(tasks.noop.s(1), tasks.add.using(unique="until_finished").s(2))
    with pytest.raises(UniqueConflict):
        chain(tasks.noop.s(1), tasks.add.using(unique="until_finished").s(2))


@in_transactions
def test_a_workflow_after_a_commit_waits_in_the_outbox(
    manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller is left to handle the error, and nothing is lost."""
    held = once.enqueue(1)
    with transaction.atomic():
        workflow = Workflow()
        workflow.add(once, 1)
        workflow.push()
    age()
    relay()
    row = OutboxJob.objects.get(pk=workflow.id)
    assert f"job {held.id} has the unique key" in row.problem
    assert manual_worker.complete_one() == held.id
    relay()
    assert manual_worker.complete_one() == workflow.jobs()[0].id


# -- requeue, reading, releasing


def test_requeue_names_the_job_that_has_the_key(manual_worker: ManualWorker) -> None:
    first = once.enqueue(1)
    first.cancel()
    second = once.enqueue(1)
    with pytest.raises(UniqueConflict) as caught:
        first.requeue()
    assert str(caught.value) == (
        f"job {first.id} cannot be requeued: job {second.id} has its unique key "
        f"{unique_keys()[0].key}; requeue it once that job has ended"
    )


def command(*options: str) -> str:
    return output_of("uniquekeys", *options)


def test_the_keys_are_listed_and_released(manual_worker: ManualWorker) -> None:
    assert command() == ""
    first = once.enqueue(1)
    second = tasks.add.using(unique=For("1h")).enqueue(1, 2)
    keys = {key.job_id: key for key in unique_keys()}
    assert keys.keys() == {first.id, second.id}
    assert (keys[first.id].status, keys[first.id].task) == ("queued", once.name)
    lines = command().splitlines()
    key = keys[first.id].key
    assert sum(line.startswith(f"{key}  {first.id} (queued)  since 20") for line in lines) == 1
    assert sum(", until 20" in line for line in lines) == 1
    assert command("--start", "1", "--count", "1").splitlines() == lines[1:]
    assert command("--release", key) == f"{key} is free; job {first.id} held it\n"
    with pytest.raises(CommandError, match="no job holds the unique key"):
        command("--release", key)
    assert not once.enqueue(1).is_duplicate
    assert release_unique_key(keys[second.id].key) == second.id
    assert len(unique_keys()) == 1


def test_redis_is_down(settings: Any, queue_settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "redis://127.0.0.1:1/0"}}
    with pytest.raises(RedisUnavailable):
        unique_keys()
    with pytest.raises(CommandError):
        command()
    with pytest.raises(RedisQueueError):
        once.enqueue(1)
