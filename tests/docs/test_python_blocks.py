"""Every Python block of the documentation runs, against a real Redis and a real database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_redisqueue import signals
from django_redisqueue.client import gather as gathers
from django_redisqueue.client import registry
from django_redisqueue.core import instruments
from tests.support.imports import OWN, ROOT

from .pages import PAGES, blocks
from .reader import PRELUDES, Reader, prelude_of

# Readers of the tutorial create a project: tests/example/test_tutorial.py does what they do.
TUTORIAL = ROOT / "docs" / "tutorial.md"
READ = [page for page in PAGES if blocks("python", page) and page != TUTORIAL]


@pytest.fixture
def restored_registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tasks, listeners and receivers of a page are removed after the test."""
    known = dict(registry._tasks)
    for name in known:
        if not name.startswith(f"{OWN}."):
            del registry._tasks[name]
    monkeypatch.setattr(registry, "_discovered", {"shop.tasks"})
    monkeypatch.setattr(gathers, "_topics", {})
    monkeypatch.setattr(instruments, "_instruments", [])
    for signal in vars(signals).values():
        if isinstance(signal, signals.Signal):
            monkeypatch.setattr(signal, "receivers", [])
    yield
    for name, made in list(registry._tasks.items()):
        if name.startswith("shop.") or made.func.__module__ == "shop.tasks":
            del registry._tasks[name]
    registry._tasks.update(known)  # as well as those of modules first imported meanwhile


@pytest.mark.slow
@pytest.mark.one_shard("the projects of the pages have one, or say how many they have")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.parametrize("page", READ, ids=lambda page: prelude_of(page).stem)
def test_python_blocks_run(
    page: Path, queue_settings: dict[str, Any], restored_registries: None, settings: Any
) -> None:
    Reader(page, settings).read()


def test_every_prelude_has_a_page() -> None:
    assert set(PRELUDES.glob("*.py")) <= {prelude_of(page) for page in READ}
