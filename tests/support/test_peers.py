"""The adapters of the benchmark `peers` have what its driver asks of them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .servers import RedisServer

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
ADAPTERS = sorted(PEERS.glob("*_peer.py"))


def test_there_are_adapters() -> None:
    assert {path.stem for path in ADAPTERS} >= {"huey_peer", "rq_peer", "celery_peer"}


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_says_its_settings_and_has_enqueue_and_worker(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert ":" in (ast.get_docstring(module) or "")
    names = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    for node in module.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    assert {"enqueue", "WORKER"} <= names


@pytest.mark.skipif(find_spec("huey") is None, reason="huey is not installed")
def test_one_peer_is_filled(tmp_path: Path) -> None:
    server = RedisServer()
    environ = {**os.environ, "PEER_URL": server.url, "PEER_TIMES": str(tmp_path / "times")}
    command = [sys.executable, str(PEERS / "fill.py"), "huey_peer", "5"]
    try:
        done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
        assert float(done.stdout) > 0
        assert server.client().llen("huey.redis.peer") == 6  # the first opens the connection
    finally:
        server.close()
