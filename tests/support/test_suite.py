"""What the processes of xdist tell the one that prints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from .suite import send_less


def report(when: str, outcome: str) -> dict[str, Any]:
    return {"when": when, "outcome": outcome, "keywords": {"a": 1}}


@pytest.mark.parametrize("durations", [None, 10])
def test_a_failure_is_always_sent(durations: int | None) -> None:
    sent: list[tuple[str, dict[str, Any]]] = []
    worker = SimpleNamespace(sendevent=lambda name, **content: sent.append((name, content)))
    plugins = SimpleNamespace(get_plugins=lambda: [object(), worker])
    option = SimpleNamespace(durations=durations, xmlpath=None)
    send_less(SimpleNamespace(option=option, pluginmanager=plugins))  # type: ignore[arg-type]

    phases = [(when, how) for when in ("setup", "call", "teardown") for how in ("passed", "failed")]
    worker.sendevent("logstart", nodeid="a")
    for when, how in phases:
        worker.sendevent("testreport", data=report(when, how))
    worker.sendevent("runtest_protocol_complete", item_index=0)

    *reports, last = sent
    assert last == ("runtest_protocol_complete", {"item_index": 0})
    found = [(content["data"]["when"], content["data"]["outcome"]) for _, content in reports]
    timed = {("setup", "passed"), ("teardown", "passed")}
    assert found == [each for each in phases if durations or each not in timed]
    assert not any(content["data"]["keywords"] for _, content in reports)
