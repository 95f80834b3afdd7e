"""Open streams stay open whatever Redis contains: they show what cannot be read as unreadable, and
everything around it as usual."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from math import ceil
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_redisqueue import Workflow, get_job
from django_redisqueue.broker.entries import JOB, parse_entry
from django_redisqueue.broker.queries import OUTLINE
from django_redisqueue.dashboard import pages
from django_redisqueue.exceptions import CorruptJob
from tests.app import tasks
from tests.support.asgi_server import OpenStream, event_stream, page_stream, serving
from tests.support.hostile import BYTES, TEXTS, nested
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_of, keys_with

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

generated = settings(max_examples=8)
POLL = 0.02  # s between two polls of a stream
Pairs = Sequence[tuple[bytes, bytes]]


@pytest.fixture
def port(threads_db: None, queue_settings: dict[str, Any]) -> Iterator[int]:
    """A server's port on loopback; shared by all examples of a test."""
    with serving() as port:
        yield port


# -- events

ALIKE = st.tuples(st.sampled_from(["task", "queue", "seq", "progress", "options"]), TEXTS).map(
    lambda pair: f'{{"status":"failed","{pair[0]}":{pair[1]}}}'.encode("utf-8", "surrogatepass")
)
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just(b":alike"), ALIKE | BYTES),
        st.tuples(st.sampled_from([b"job_1_x_0", b"job_1_x_0 job_2_x_0"]), BYTES),
        st.tuples(st.sampled_from([b":n", b":workflow", b":name"]) | BYTES, BYTES),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.fixture
def events(port: int, token: str) -> Iterator[OpenStream]:
    """A stream that has started."""
    with closing(event_stream(port, token)) as stream:
        stream.line("id: ")
        yield stream


def jobs_in(pairs: Pairs) -> list[str]:
    """The events of jobs in that entry, as JSON or whatever is stored in its place."""
    texts = [text.decode("utf-8", "surrogateescape") for pair in pairs for text in pair]
    return [
        f'{text[:-1]},"error":{value}}}' if name == "error" else text
        for field, text, name, value in parse_entry(texts)
        if field == JOB
    ]


def is_readable(text: str) -> bool:
    """Whether a client can parse it, and pass it on."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def alike(rest: bytes) -> tuple[bytes, bytes]:
    return b":alike", b'{"status":"failed",%b}' % rest


@pytest.mark.slow
@generated
@given(pairs=ENTRIES)
@example(pairs=[alike(b'"seq":NaN'), (b"job_1_x_0", b"")])
@example(pairs=[alike(b'"seq":1e999'), (b"job_1_x_0", b"")])
@example(pairs=[alike(b'"task":"\\ud800"'), (b"job_1_x_0", b"")])
@example(pairs=[alike(b'"task":"\xff\x1b\r\n"'), (b"job_1_x_0", b"")])
@example(pairs=[alike(b'"task":\r\n"a"\n\n'), (b"job_1_x_0", b"")])
@example(pairs=[alike(b'"seq":1'), (b"job_1_x_0", nested(1100).encode())])
@example(pairs=[alike(b'"seq":1'), (b"job_1_x_0 job_2_x_0", b"5}\n\ndata: {}")])
@example(pairs=[(b":alike", b"5"), (b"job_1_x_0", b"5")])
@example(pairs=[(b":alike", b""), (b"\xff\n", b"\x00")])
def test_corrupt_events(events: OpenStream, redis: Redis, pairs: Pairs) -> None:
    key = keys_of().events
    first = tasks.noop.enqueue()
    redis.execute_command("XADD", key, "*", *[text for pair in pairs for text in pair])
    last = tasks.noop.enqueue()
    assert events.data()["jobId"] == first.id
    for text in jobs_in(pairs):
        found = events.data()
        assert type(found) is dict
        if not is_readable(text):
            assert found.keys() == {"unreadable"}
            assert found["unreadable"]
        elif "unreadable" not in found:
            assert found == json.loads(text)
    assert events.data()["jobId"] == last.id


# -- pages

# What a list shows of a job; a job that is "deleted" no longer counts as one.
FIELDS = st.sampled_from([name for name in OUTLINE if name != "deleted"])


def opened(port: int, name: str, *args: object) -> OpenStream:
    """The stream of a page, for a user who may see everything."""
    ada = User.objects.create_superuser("ada", password="secret")
    return page_stream(port, ada, reverse(f"admin:django_redisqueue_{name}", args=args))


def looked(stream: OpenStream) -> dict[str, str]:
    """The words of each part of the page, from a reading that began after this call."""
    unread = (time.monotonic() - stream.read_at) / POLL  # events that may have arrived before
    for _ in range(2 + ceil(unread)):  # and one that may have begun before
        stream.data()
    parts = stream.data()["fragments"]
    return {
        name: " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
        for name, text in parts.items()
    }


@pytest.fixture
def workflow(port: int) -> Workflow:
    """Three jobs, of which the middle one will be corrupted."""
    with Workflow() as workflow:
        for name in ("first", "corrupt", "last"):
            workflow.add(tasks.noop, name)
    return workflow


@pytest.fixture
def flow_page(port: int, workflow: Workflow, quick: None) -> Iterator[OpenStream]:
    with closing(opened(port, "workflow_stream", workflow.id)) as stream:
        assert stream.answer.status == 200
        yield stream


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pages refresh at once."""
    monkeypatch.setattr(pages, "POLL", POLL * 1000)


@pytest.mark.slow
@generated
@given(fields=st.dictionaries(FIELDS, BYTES, min_size=1, max_size=3))
@example(fields={"payload": b"[[" + nested(500).encode() + b"],{}]"})
@example(fields={"payload": b"[[NaN],{}]", "progress": b'{"done":1e999,"total":1}'})
@example(fields={"task": b"\xff\x1b\r\n\r\n", "queue": b"\xfe\n\n"})
@example(fields={"status": b"dancing"})
@example(fields={"error": b"5", "status": b"failed"})
def test_a_corrupt_job_of_a_workflow(
    flow_page: OpenStream, workflow: Workflow, redis: Redis, fields: Mapping[str, bytes]
) -> None:
    first, corrupt, last = (f"{workflow.id}.{number}" for number in range(3))
    key = keys_with(corrupt).job(corrupt)
    before = redis.hgetall(key)
    redis.hset(key, mapping=dict(fields))
    try:
        words = looked(flow_page)["drq-workflowjobs"]
        for job_id, argument in ((first, '"first"'), (last, '"last"')):
            assert f"{tasks.noop.name} {job_id}" in words
            assert argument in words
        assert corrupt in words
        assert ("unreadable" in words) == is_corrupt(corrupt)
    finally:
        redis.delete(key)
        redis.hset(key, mapping=before)


def is_corrupt(job_id: str) -> bool:
    try:
        get_job(job_id)
    except CorruptJob:
        return True
    return False


@pytest.fixture
def overview(port: int, quick: None) -> Iterator[OpenStream]:
    with closing(opened(port, "overview_stream")) as stream:
        assert stream.answer.status == 200
        yield stream


@generated
@given(
    meta=st.dictionaries(st.sampled_from(["paused", "enqueued_total", "failed_total"]), BYTES),
    job=st.dictionaries(FIELDS, BYTES, min_size=1, max_size=3),
    child=BYTES,
    score=st.floats(allow_nan=False),
)
@example(meta={"enqueued_total": b"9" * 400}, job={"task": b"\xff\r\n"}, child=b"", score=1e300)
@example(meta={}, job={"started_ms": b"9" * 400}, child=b"a.b.\xc2\xb2.1.\xc2\xb2", score=1)
@example(meta={}, job={"payload": b"[" * 5000}, child=b"\xff/\n\n", score=float("inf"))
def test_an_overview_of_corrupt_data(
    overview: OpenStream, redis: Redis, meta: Mapping[str, bytes], job: Mapping[str, bytes],
    child: bytes, score: float,
) -> None:  # fmt: skip
    redis.flushdb()
    with closing(ManualWorker()) as manual_worker:
        keys = manual_worker.store.keys
        running, _ = tasks.noop.enqueue_many([(), ()])
        manual_worker.claim_one()
        redis.hset(keys.job(running.id), mapping=dict(job))
        if meta:
            redis.hset(keys.queue("default").meta, mapping=dict(meta))
        redis.zadd(keys.workers, {child: score})
        redis.rpush(keys.child_processing("x").encode()[:-1] + child, running.id)
        parts = looked(overview)
    assert re.fullmatch(r"The mirror is off [^.]*\.", parts["drq-notices"])
    queues = parts["drq-queues"]
    # One waits, one runs.
    assert re.search(
        r"\bdefault (paused [\w ]*)?\d+ workers? (Pause|Resume) default 1 1 0", queues
    ), queues
    assert "Alive" in parts["drq-workers"]
