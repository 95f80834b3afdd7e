"""Whatever Redis contains, the mirror continues, and all other records are correct."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import Error, OperationalError, connection, connections
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from django_redisqueue.conf import get_settings
from django_redisqueue.mirror import writer as writer_module
from django_redisqueue.mirror.bridge import make_bridge
from django_redisqueue.mirror.database_errors import ErrorCause, error_cause
from django_redisqueue.models import JobEvent, JobRecord, MirrorState, Rollup, WorkflowRecord
from tests.broker.harness import outcome
from tests.broker.workflows import BrokerWorkflow
from tests.core.test_parsing import ANYTHING

from .mirrored_shard import MirroredShard, refusing

EVENT = {
    "status": "queued", "queue": "default", "task": "app.task", "workerId": "", "attempt": 0,
    "seq": 1, "timestamp": 1_700_000_000_000,
}  # fmt: skip
NAMES = [*EVENT, "dueMs", "reason", "progress", "recoveries", "priority", "requeues", "options"]
FLOW_EVENT = {
    "status": "running", "generation": 0, "total": 1, "completed": 0, "failed": 0, "cancelled": 0,
    "madeMs": 1_700_000_000_000, "timestamp": 1_700_000_000_000,
}  # fmt: skip
HASH = [
    "status", "queue", "task", "seq", "audit", "child", "attempts", "priority", "generation",
    "reason", "enqueued_ms", "started_ms", "finished_ms", "due_ms", "payload", "result", "error",
    "options",
]  # fmt: skip
DEEP: Any = json.loads("[" * 200 + "]" * 200)
few = settings(
    max_examples=12, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


def encoded(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


def add_entry(shard: MirroredShard, *fields: object) -> None:
    """An entry of the stream as another producer would write it."""
    shard.broker.redis.execute_command("XADD", shard.broker.keys.events, "*", *map(encoded, fields))


def add_job_event(
    shard: MirroredShard, job_id: str, said: dict[str, Any], beside: str = ""
) -> None:
    add_entry(shard, ":alike", json.dumps(said, separators=(",", ":")), job_id, beside)


def state() -> MirrorState:
    return MirrorState.objects.get()


UNREADABLE: list[tuple[str, Any]] = [
    ("attempt", -1), ("seq", -1), ("requeues", -1), ("task", None), ("dueMs", "soon"),
    ("queue", ["a"]), ("queue", "a\0b"), ("queue", "q" * 65), ("workerId", {"a": 1}),
    ("attempt", float("inf")), ("attempt", 2**31), ("timestamp", 10**30), ("timestamp", "now"),
    ("seq", float("nan")), ("priority", 10**6), ("reason", "r" * 17), ("reason", 5),
    ("options", {"tags": ["a", {}]}), ("options", 7), ("task", "\ud800"), ("recoveries", "x"),
    ("progress", {"done": float("nan"), "total": 1}), ("progress", DEEP),
]  # fmt: skip


def test_an_unreadable_value_affects_neither_its_event_nor_others(
    shard: MirroredShard, caplog: pytest.LogCaptureFixture
) -> None:
    for at, (name, value) in enumerate(UNREADABLE):
        add_job_event(shard, f"odd{at}", {**EVENT, name: value}, "[[1],{}]")
        shard.broker.add(f"good{at}")
    shard.mirror()
    shard.mirror()
    for at, (name, _) in enumerate(UNREADABLE):
        assert shard.record(f"good{at}").status == "queued"
        odd = shard.record(f"odd{at}")
        assert (odd.status, odd.payload) == ("queued", "[[1],{}]")
        assert name in caplog.messages[at]
    assert len(caplog.messages) == len(UNREADABLE)
    assert (state().left_out, state().incomplete) == (0, len(UNREADABLE))
    assert "progress is" in state().fault


@pytest.mark.parametrize(
    "said", ["[]", "{", '{"a":' * 5000, '{"status":["queued"]', '{"status":"queued"' * 2, "\0"]
)
def test_an_event_without_a_status_is_left_out(shard: MirroredShard, said: str) -> None:
    add_entry(shard, ":alike", said, "odd", "")
    add_entry(shard, ":workflow", said, ":name", "odd")
    shard.broker.add("behind")
    shard.mirror()
    assert JobRecord.objects.get().pk == "behind"
    assert not WorkflowRecord.objects.exists()
    assert (state().left_out, state().incomplete) == (2, 0)


def test_a_hash_changed_by_hand(shard: MirroredShard) -> None:
    """Its numbers return in events, and what an event lacks is read from the hash."""
    broker = shard.broker
    broker.add("odd")
    broker.finish(outcome(broker.take(), "queued"))
    broker.redis.hset(broker.keys.job("odd"), mapping={"attempts": -3, "generation": "x" * 9})
    job = broker.take()
    broker.redis.delete(broker.keys.events)
    error = json.dumps({"type": "E", "message": "no", "traceback": "t" * 3000})
    broker.finish(outcome(job, "failed", error))
    broker.add("behind")
    shard.mirror()
    record = shard.record("odd")
    assert (record.status, record.attempts, record.requeues) == ("failed", 0, 0)
    assert (record.error, record.error_type) == (error, "E")
    assert shard.record("behind").status == "queued"
    assert state().incomplete == 2  # the event, and the hash


@few
@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4), ANYTHING),
        max_size=6,
    ),
    st.dictionaries(st.sampled_from(list(FLOW_EVENT)), ANYTHING, max_size=3),
)
def test_events_with_generated_content(
    shard: MirroredShard, told: Sequence[tuple[dict[str, Any], Any]], workflow: dict[str, Any]
) -> None:
    workflow_id = BrokerWorkflow(shard.broker, {0: ()}).id
    shard.broker.redis.flushdb()
    for model in (JobEvent, JobRecord, MirrorState, WorkflowRecord):
        model._base_manager.all().delete()
    shard.bridge.close()
    for at, (changed, beside) in enumerate(told):
        try:
            add_job_event(shard, f"odd{at}", {**EVENT, **changed}, beside)
        except TypeError:  # bytes: not JSON
            add_entry(shard, ":alike", f"{{{changed}", f"odd{at}", beside)
        shard.broker.add(f"good{at}")
    add_entry(
        shard, ":workflow", repr({"workflowId": workflow_id, **FLOW_EVENT, **workflow}), ":name", ""
    )
    shard.broker.add("last")
    shard.mirror()
    good = JobRecord.objects.filter(pk__startswith="good", status="queued", task="app.task")
    assert good.count() == len(told)
    assert shard.record("last").status == "queued"
    odd = JobRecord.objects.filter(pk__startswith="odd").count()
    assert odd + state().left_out >= len(told)


@few
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(HASH), ANYTHING.filter(lambda value: value is not None), min_size=1
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_a_reconcile_with_generated_hashes(
    shard: MirroredShard, changed: Sequence[dict[str, Any]]
) -> None:
    shard.broker.redis.flushdb()
    for model in (JobEvent, JobRecord, MirrorState):
        model._base_manager.all().delete()
    shard.broker.store.now_ms = None
    bridge = make_bridge(get_settings())
    for at, values in enumerate(changed):
        shard.broker.add(f"odd{at}", f"good{at}")
        key = shard.broker.keys.job(f"odd{at}")
        parts = [part for pair in values.items() for part in map(encoded, pair)]
        shard.broker.redis.execute_command("HSET", key, *parts)
    no_unicode = shard.broker.keys.job("").encode() + b"\xff"
    shard.broker.redis.execute_command("HSET", no_unicode, "status", "queued")
    shard.broker.redis.hset(shard.broker.keys.workflow("flow_odd"), "status", "running")
    shard.broker.redis.hset(shard.broker.keys.workflow("flow_odd"), "total", "1e5")
    shard.broker.redis.delete(shard.broker.keys.events)
    for _ in range(100):
        bridge.run_once()
        if MirrorState.objects.filter(unreconciled=False).exists():
            break
    bridge.connection.close()
    assert not state().unreconciled
    assert state().fault
    good = JobRecord.objects.filter(pk__startswith="good", status="queued", task="app.task")
    assert good.count() == len(changed)
    assert WorkflowRecord.objects.get().total == 0


@pytest.mark.parametrize("name", [b"x" * 1000, b"a\0b", b"\xff"])
def test_the_mirror_accepts_any_id_of_the_data(shard: MirroredShard, name: bytes) -> None:
    shard.broker.redis.execute_command("HSET", shard.broker.keys.meta, "incarnation", name)
    for job_id in ("a", "b"):
        shard.broker.add(job_id)
        bridge = make_bridge(get_settings())
        shard.mirror(bridge)
        bridge.connection.close()
        assert shard.record(job_id).status == "queued"


def test_one_wrong_time_does_not_read_all_rollups_in_between(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_job_event(shard, "odd", {**EVENT, "timestamp": -60_000_000_000_000})
    add_job_event(shard, "good", EVENT)
    between = datetime(2000, 1, 1, tzinfo=UTC)
    Rollup.objects.create(minute=between, queue="default", task="app.task", wait="spoilt")
    read: list[Any] = []
    make = Rollup.from_db.__func__  # type: ignore[attr-defined]

    def spy(model: type[Rollup], *args: Any, **options: Any) -> Rollup:
        read.append(args)
        made: Rollup = make(model, *args, **options)
        return made

    monkeypatch.setattr(Rollup, "from_db", classmethod(spy))
    shard.mirror()
    assert read == []
    assert Rollup.objects.filter(enqueued=1).count() == 2


def test_a_corrupt_rollup_costs_no_events(shard: MirroredShard) -> None:
    for job_id in ("a", "b"):
        add_job_event(shard, job_id, EVENT)
        shard.mirror()
        Rollup.objects.update(wait="spoilt", run="[-1]")
    assert set(JobRecord.objects.values_list("pk", flat=True)) == {"a", "b"}
    assert MirrorState.objects.get().left_out == 0
    assert Rollup.objects.get().enqueued == 2


# -- the limits of a transaction


def test_a_page_is_bounded_by_the_bytes_that_it_reads_from_hashes(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for a reconcile."""
    monkeypatch.setattr(writer_module, "MAX_BODY_BYTES", 10_000)
    read: list[int] = []
    shard.use_full_bridge()
    spy_on(shard.bridge.events, read, monkeypatch)
    ids = [f"j{n}" for n in range(40)]
    shard.broker.end(*ids, body=json.dumps("r" * 3000))
    shard.mirror()
    assert [record.result_value for record in JobRecord.objects.all()] == ["r" * 3000] * 40
    assert sum(read) > 40 * 3000
    assert max(read) <= 10_000
    shard.assert_complete()


def test_a_reconcile_is_bounded_by_the_same_bytes(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_BODY_BYTES", 10_000)
    read: list[int] = []
    spy_on(type(shard.bridge.events), read, monkeypatch)
    shard.broker.store.now_ms = None
    shard.broker.end(*(f"j{n}" for n in range(20)), body=json.dumps("r" * 3000))
    shard.broker.redis.delete(shard.broker.keys.events)
    bridge = make_bridge(get_settings())
    shard.mirror(bridge)
    bridge.connection.close()
    assert [record.result_value for record in JobRecord.objects.all()] == ["r" * 3000] * 20
    assert sum(read) > 20 * 3000
    assert max(read) <= 10_000


def spy_on(events: Any, read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = events.bodies

    def spy(*args: Any) -> Any:
        found = bodies(*args)
        read.append(sum(len(body.result or "") + len(body.payload or "") for body in found))
        return found

    monkeypatch.setattr(events, "bodies", spy)


def test_the_stream_is_read_in_bounded_parts(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other writers may add larger entries."""
    monkeypatch.setattr("django_redisqueue.broker.entries.BYTES", 20_000)
    for n in range(30):
        add_job_event(shard, f"j{n}", EVENT, json.dumps([["x" * 6000], {}]))
    sizes = []
    while True:
        page = shard.bridge.events.read(sizes[-1][0] if sizes else (0, 0))
        if not page.events:
            break
        sizes.append((page.last, sum(len(event.args or "") for event in page.events)))
    assert len(sizes) >= 8
    assert max(size for _, size in sizes) < 30_000
    shard.mirror()
    assert JobRecord.objects.count() == 30


# -- errors of the database


@contextmanager
def raising(state: str, job_id: str = "odd") -> Iterator[None]:
    """PostgreSQL answers with this SQLSTATE when the record of a job is written."""
    table = JobRecord._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.id = "
            f"'{job_id}' THEN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END IF; RETURN NEW; "
            f"END $$; CREATE TRIGGER spoil BEFORE INSERT ON {table} FOR EACH ROW "
            "EXECUTE FUNCTION spoil()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION spoil CASCADE")


def mirror_on(shard: MirroredShard, tries: int) -> int:
    """Retries after each error, like the role; returns the number of errors."""
    errors = 0
    while errors < tries:
        try:
            shard.mirror()
        except Error:
            errors += 1
            shard.bridge.close()
        else:
            break
    return errors


@on_postgresql
@pytest.mark.parametrize(("code", "errors"), [("54000", 0), ("22003", 0), ("XX000", 9)])
def test_an_event_that_exceeds_a_limit_is_left_out(
    shard: MirroredShard, code: str, errors: int
) -> None:
    """At once if the database blames its values, otherwise once it accepts another write."""
    shard.broker.add(*(f"a{n}" for n in range(25)), "odd", *(f"b{n}" for n in range(25)))
    with raising(code):
        assert mirror_on(shard, 30) == errors or errors
    assert JobRecord.objects.count() == 50
    assert (state().left_out, state().incomplete) == (1, 0)
    assert "the database refuses it" in state().fault


@on_postgresql
@pytest.mark.parametrize("code", ["53100", "40001", "55P03", "57014", "25006", "42501"])
def test_nothing_is_left_out_while_the_database_is_unwell(shard: MirroredShard, code: str) -> None:
    shard.broker.add("a", "odd", "b")
    with raising(code):
        assert mirror_on(shard, 12) == 12
        assert JobRecord.objects.count() == 1
    shard.mirror()
    assert JobRecord.objects.count() == 3
    assert state().left_out == 0


def test_nothing_is_left_out_while_the_database_does_not_answer(
    shard: MirroredShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.broker.add("a")

    def lost(*args: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(shard.bridge.writer, "write", lost)
    monkeypatch.setattr(shard.bridge.writer, "is_writable", lambda cursor: False)
    assert mirror_on(shard, 12) == 12
    monkeypatch.undo()
    shard.mirror()
    assert shard.record("a").status == "queued"
    assert state().left_out == 0


@on_postgresql
@pytest.mark.parametrize(
    ("sql", "cause"),
    [
        ("SELECT " + ", ".join("1" * 2000), ErrorCause.CONTENT),
        ("SELECT 'x'::integer", ErrorCause.CONTENT),
        ("SELECT pg_terminate_backend(pg_backend_pid())", ErrorCause.DATABASE),
        ("SET statement_timeout = 1; SELECT pg_sleep(5)", ErrorCause.DATABASE),
        ("SELECT 1 FROM nothing_here", ErrorCause.DATABASE),
    ],
)
def test_the_cause_of_an_error_of_postgresql(
    shard: MirroredShard, sql: str, cause: ErrorCause
) -> None:
    with pytest.raises(Error) as raised, connections["default"].cursor() as cursor:
        cursor.execute(sql)
    connections["default"].close()
    assert error_cause(raised.value, "default") is cause


def test_a_record_that_the_database_refuses_does_not_stop_a_reconcile(shard: MirroredShard) -> None:
    check_a_reconcile(shard, refusing("odd"))


@on_postgresql
def test_nor_does_one_whose_refusal_may_be_the_fault_of_the_database(shard: MirroredShard) -> None:
    check_a_reconcile(shard, raising("XX000"))


def check_a_reconcile(shard: MirroredShard, refused: AbstractContextManager[None]) -> None:
    shard.broker.store.now_ms = None
    shard.broker.add("a", "odd", "b")
    shard.broker.redis.delete(shard.broker.keys.events)
    bridge = make_bridge(get_settings())
    with refused:
        shard.mirror(bridge)
    bridge.connection.close()
    assert set(JobRecord.objects.values_list("pk", flat=True)) == {"a", "b"}
    assert not state().unreconciled
    assert state().incomplete == 1
    assert "job odd cannot be reconciled" in state().fault
