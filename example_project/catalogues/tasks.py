"""The example's background job: measure one translation catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import polib

from django_redisqueue import Backoff, task

from .coverage import Measurement
from .discovery import component, language, locate


class Counts(TypedDict):
    """How many entries of a catalogue are in which state; obsolete ones are not counted."""

    translated: int
    fuzzy: int
    untranslated: int


@task(
    queue_name="default",
    max_attempts=3,
    retry_on=(OSError,),
    backoff=Backoff(base=0.2, factor=2, maximum=1, jitter=0.2),
)
def measure(path: str) -> Measurement:
    """Measure the catalogue at ``path``, relative to the django package."""
    file = locate(path)
    return {"path": path, "language": language(path), "component": component(path), **count(file)}


def count(file: Path) -> Counts:
    """Count the entries of a .po file."""
    catalogue = polib.pofile(str(file), encoding="utf-8")
    return {
        "translated": len(catalogue.translated_entries()),
        "fuzzy": len(catalogue.fuzzy_entries()),
        "untranslated": len(catalogue.untranslated_entries()),
    }
