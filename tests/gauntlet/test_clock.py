"""Only the server's clock jumps."""

from __future__ import annotations

import shutil
import sys
import time

import pytest

from tests.worker.processes import eventually

from .clock import MovedClockServer, missing


@pytest.mark.parametrize(
    ("platform", "compiler", "said"),
    [
        ("linux", "/usr/bin/cc", ""),
        ("linux", None, "there is no C compiler (cc), which builds what moves it"),
        ("darwin", "/usr/bin/cc", "only on Linux can a library be preloaded that moves the clock"),
    ],
)
def test_missing_says_why_no_clock_can_jump(
    monkeypatch: pytest.MonkeyPatch, platform: str, compiler: str | None, said: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(shutil, "which", lambda _: compiler)
    assert missing() == said


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_servers_clock_jumps_and_keeps_its_offset_after_a_restart() -> None:
    with MovedClockServer() as server:
        client = server.client()
        eventually(server.shows)
        client.set("key", "value", px=60_000)
        for ahead in (50.0, -50.0):
            server.clock.jump(ahead)
            eventually(server.shows)
            assert abs(client.time()[0] - time.time() - ahead) < 2
            assert server.clock.moves(server.pid)
            expected = 60_000 - ahead * 1000
            assert expected - 10_000 < client.pttl("key") <= expected
        server.restart()
        eventually(server.shows)
        server.clock.jump(0)
        eventually(server.shows)
        server.clock.jump(3600)
        assert client.get("key") is None
