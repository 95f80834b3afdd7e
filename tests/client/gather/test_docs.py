"""Compares the pages on gathers with the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from django_redisqueue import Gather
from django_redisqueue.broker.keys import Keys
from django_redisqueue.core.statuses import GatherReason, GatherStatus

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "gather.md").read_text(encoding="utf-8")
INTERNALS = (DOCS / "internals" / "workflows.md").read_text(encoding="utf-8")


def test_every_status_and_reason_is_named() -> None:
    for word in (*GatherStatus, *filter(None, GatherReason)):
        assert f"`{word.value}`" in TEXT


def test_every_key_is_in_the_table() -> None:
    keys = Keys()
    for key in (keys.gather("<key>"), keys.gather_plan("<key>"), keys.gathers, keys.closed_gathers):
        assert f"| `…:{key.removeprefix(keys.base)}` |" in INTERNALS


def test_the_defaults_are_those_of_start() -> None:
    parameters = inspect.signature(Gather.start).parameters
    for name, value in re.findall(r"^    (ttl|polls|poll_delay)=(\d+),", TEXT, re.MULTILINE):
        assert parameters[name].default == int(value)


def test_the_documented_attributes_of_a_handle_exist() -> None:
    named = re.findall(r"`gather\.(\w+)", TEXT)
    assert {"reason", "missing"} <= set(named)
    assert all(hasattr(Gather, name) for name in named)
