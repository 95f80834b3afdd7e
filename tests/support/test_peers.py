"""The benchmark `peers`: the adapters provide what its driver expects, and the driver works."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import comparison, peer
from benchmarks.comparison import Comparison
from benchmarks.peer import OURS, Note, PeerFailed
from benchmarks.report import as_json, table
from benchmarks.suite import peers

ADAPTERS = sorted(peer.ADAPTERS.glob("*_peer.py"))
PEERS = ["huey", "rq", "celery", "dramatiq", "saq", "taskiq", "arq", "django_q2", "bullmq"]
MACHINE = {"cores": 2, "system": "Linux", "python": "3.11", "redis": "7.0", "load": 0.1}


def test_every_peer_has_an_adapter_and_ours_comes_first() -> None:
    assert peer.names() == [OURS, *sorted(PEERS)]
    for name in PEERS:
        assert peer.packages(name)[0].replace("-", "_").startswith(name)


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_states_its_settings_and_has_enqueue_and_worker(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert re.fullmatch(r"\w[\w-]*: .+\.", peer.settings(path.stem.removesuffix("_peer")))
    takes = {
        node.name: len(node.args.args)
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert takes["worker"] == 1
    assert takes.get("enqueue", 2) == 2
    assigned = {node for parent in module.body for node in ast.walk(parent)}
    names = {node.id for node in assigned if isinstance(node, ast.Name)} | set(takes)
    assert {"PACKAGES", "enqueue"} <= names


def test_the_node_adapter_states_its_settings_and_has_fill_and_work() -> None:
    text = peer.adapter("bullmq").read_text()
    assert peer.settings("bullmq").startswith("BullMQ: ")
    assert "const worker = (kind)" in text
    assert "async function fill(queue, { kind, first, jobs, seconds, pause })" in text


FAKE = '''"""Fake: a list of Redis; jobs of clients that are gone start again."""
import json, sys
from redis import Redis
from work import URL, work

PACKAGES = ("redis",)
redis = Redis.from_url(URL, decode_responses=True)
worker = lambda kind: None if kind == "async" else [sys.executable, __file__]

def enqueue(kind, number):
    redis.lpush("jobs", json.dumps([kind, number]))

while __name__ == "__main__":
    popped = redis.brpop("jobs", timeout=0.1)
    clients = {client["id"] for client in redis.client_list()}
    for client, job in redis.hgetall("active").items():
        if client not in clients and redis.hdel("active", client):
            redis.lpush("jobs", job)
    if popped:
        redis.hset("active", redis.client_id(), popped[1])
        work(*json.loads(popped[1]))
        redis.hdel("active", redis.client_id())
'''


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A peer that runs in the tests' environment, as ours does."""
    folder = tmp_path / "adapters"
    folder.mkdir()
    for name in ("fill.py", "work.py"):
        shutil.copy(peer.ADAPTERS / name, folder)
    (folder / "fake_peer.py").write_text(FAKE)
    monkeypatch.setattr(peer, "ADAPTERS", folder)
    monkeypatch.setattr(peer, "OURS", "fake")
    return "fake"


def test_the_driver_measures_a_peer(
    fake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "JOBS", {"noop": 201, "ten_ms": 20, "async": 10, "pickup": 5})
    monkeypatch.setattr(peers, "DRAIN_SECONDS", 25.0)
    found = Comparison()
    for measuring in peers.CASES:
        peers.case(found, fake, measuring, False, tmp_path, None)
    peers.recoveries(found, [fake], tmp_path)
    assert {(mode, key) for _, mode, key in found.found} == {
        (False, "enqueue"), (False, "noop"), (False, "ten_ms"), (False, "pickup_p50"),
        (False, "pickup_p99"), (True, "worker_killed"),
    }  # fmt: skip
    assert all(value > 0 for rounds in found.found.values() for value in rounds)
    assert found.failed == {
        (fake, False, "at_once"): "no coroutines",
        (fake, True, "child_killed"): "no child processes",
    }


def test_a_peer_that_does_not_start_is_reported(fake: str, tmp_path: Path) -> None:
    (peer.ADAPTERS / "fake_peer.py").write_text("import nothing_of_this_name\n")
    found = Comparison()
    peers.case(found, fake, peers.noop, True, tmp_path, None)
    said = set(found.failed.values())
    assert said == {"cannot enqueue: ModuleNotFoundError: No module named 'nothing_of_this_name'"}


def test_a_rate_leaves_the_first_tenth_out() -> None:
    notes = [Note(number, 100 + number / 10, 1, 1) for number in range(1, 20)]
    assert peers.rate([Note(0, 0, 1, 1), *notes], 5) == pytest.approx(50)
    with pytest.raises(PeerFailed, match="too few jobs"):
        peers.rate(notes[:1], 5)


def test_the_page_has_tables_a_chart_and_the_cases_where_ours_is_not_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, chart = tmp_path / "comparison.md", tmp_path / "images" / "peers.svg"
    page.write_text(f"before\n{comparison.BEGIN}old\n{comparison.END}after\n")
    monkeypatch.setattr(comparison, "PAGE", page)
    monkeypatch.setattr(comparison, "CHART", chart)
    found = Comparison({OURS: "1.0", "huey": "3.5"})
    found.add(OURS, True, enqueue=100, noop=500, pickup_p99=1, worker_killed=20)
    found.add("huey", True, enqueue=150, noop=60, pickup_p99=2)
    found.fail("huey", "not within 90 s", True, "worker_killed")
    comparison.write(found, MACHINE)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "\nold\n" not in text
    assert "\n- Huey: Redis without acknowledgement" in text
    assert "| huey 3.5 | **150** | 60 |" in text
    assert "| django_redisqueue 1.0 | 100 | **500** |" in text
    assert "| django_redisqueue 1.0 | **20** |" in text
    assert "| huey 3.5 | not within 90 s |" in text
    assert "\n- enqueue, append-only file: huey 150, ours 100 calls/s.\n" in text
    assert "pick-up p99, append-only file:" not in text
    bars = ElementTree.fromstring(chart.read_text()).iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(bars)) == 1 + 7
    rows = list(found.rows())
    assert "recovery, worker killed: huey (append-only file)" in table("peers", rows)
    assert {"value": None, "unit": "not within 90 s"}.items() <= as_json(rows)[13].items()
