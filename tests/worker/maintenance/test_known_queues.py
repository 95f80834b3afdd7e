"""The queues that the passes of a worker look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_redisqueue.worker.maintenance import upkeep
from django_redisqueue.worker.maintenance.upkeep import KNOWN_FOR, KnownQueues
from tests.broker.lab import Lab
from tests.support.servers import RedisServer


@pytest.fixture
def lab(queue_settings: dict[str, Any], redis_server: RedisServer) -> Iterator[Lab]:
    made = Lab(redis_server)
    yield made
    made.close()


@pytest.mark.one_server("looks at its server's clients and commands")
def test_redis_is_asked_once_a_minute(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 1000.0
    monkeypatch.setattr(upkeep.time, "monotonic", lambda: clock)
    known = KnownQueues(lab.store, ["default", "mail"])
    lab.add("j1", queue="former")
    lab.add("j2", queue="mail")
    assert known.names() == ["default", "mail", "former"]  # the project's first, each once
    lab.add("j3", queue="another")
    lab.redis.config_resetstat()
    clock += KNOWN_FOR - 1
    assert known.names() == ["default", "mail", "former"]
    assert "cmdstat_smembers" not in lab.redis.info("commandstats")
    clock += 1
    assert known.names() == ["default", "mail", "another", "former"]


def test_the_projects_own_are_known_whatever_redis_says(lab: Lab) -> None:
    lab.redis.set(lab.keys.queues, "theirs")
    assert KnownQueues(lab.store, ["default"]).names() == ["default"]
