"""The example's background jobs: measuring one translation catalogue, or all of a language."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypedDict

import polib

from django_redisqueue import Backoff, task

from .coverage import Measurement
from .discovery import catalogues_of, component, language, locate


class Counts(TypedDict):
    """How many entries of a catalogue are in each state; obsolete ones are not counted."""

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


@task(takes_context=True, timeout=120, api=True)
def measure_language(context: Any, code: str, pace: float = 0.0) -> list[Measurement]:
    """Measure every catalogue of a language, with a pause of ``pace`` seconds after each, so that
    people can watch.
    """
    paths = catalogues_of(code)
    measured = []
    for number, path in enumerate(paths, start=1):
        measured.append(measure(path))
        context.progress(number, len(paths), component(path))
        time.sleep(pace)
    return measured


def count(file: Path) -> Counts:
    """Count the entries of a .po file."""
    catalogue = polib.pofile(str(file), encoding="utf-8")
    return {
        "translated": len(catalogue.translated_entries()),
        "fuzzy": len(catalogue.fuzzy_entries()),
        "untranslated": len(catalogue.untranslated_entries()),
    }
