"""Planted bugs: a model test that finds them has really checked something."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from django_redisqueue.broker import base, scripts


def plant_bug(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    """Replace ``right`` with ``wrong`` in all scripts as sent to Redis; at least one must contain
    it."""
    found = {verb: scripts.load(verb) for verb in scripts.names()}
    broken = {}
    for verb, script in found.items():
        if right in script.source:
            source = script.source.replace(right, wrong)
            digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            broken[verb] = replace(script, source=source, sha=digest)
    assert any(script.sha != found[verb].sha for verb, script in broken.items())
    monkeypatch.setattr(base, "load", {**found, **broken}.__getitem__)
