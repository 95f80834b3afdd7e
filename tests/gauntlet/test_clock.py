"""The clock of a server jumps, and everybody else's does not."""

from __future__ import annotations

import time

import pytest

from .clock import MovedClockServer, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def test_a_server_s_clock_jumps_and_stays_so_when_it_starts_again() -> None:
    with MovedClockServer() as server:
        client = server.client()
        assert server.shows()
        client.set("key", "value", px=60_000)
        for ahead in (50.0, -50.0):
            server.jump(ahead)
            assert server.shows()
            assert abs(client.time()[0] - time.time() - ahead) < 2
            expected = 60_000 - ahead * 1000
            assert expected - 10_000 < client.pttl("key") <= expected
        server.restart()
        assert server.shows()
        server.jump(0)
        assert server.shows()
        server.jump(3600)
        assert client.get("key") is None
