"""Computes the coverage of languages from the measurements of catalogues. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

SOURCE_LANGUAGE = "en"  # the language of the source strings; its catalogues are empty on purpose


class Measurement(TypedDict):
    """What one job returns: how many entries of a catalogue are in each state."""

    path: str
    language: str
    component: str
    translated: int
    fuzzy: int
    untranslated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The totals of all catalogues of one language."""

    code: str
    catalogues: int
    translated: int
    fuzzy: int
    untranslated: int

    @property
    def share(self) -> float:
        """The share of translated entries, from 0 to 1; 0 if there are no entries."""
        return self.translated / max(self.translated + self.fuzzy + self.untranslated, 1)


def by_language(measurements: Iterable[Measurement]) -> list[Language]:
    """One Language for each code, sorted by code."""
    groups: defaultdict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement["language"]].append(measurement)
    return [_sum(code, groups[code]) for code in sorted(groups)]


def translations(languages: Iterable[Language]) -> list[Language]:
    """The languages except the source language."""
    return [language for language in languages if language.code != SOURCE_LANGUAGE]


def least_covered(languages: Iterable[Language], count: int) -> list[Language]:
    """The ``count`` languages with the smallest share; among equals, the smaller one first."""
    return sorted(languages, key=lambda one: (one.share, one.translated, one.code))[:count]


def best_covered(languages: Iterable[Language], count: int) -> list[Language]:
    """The ``count`` languages with the largest share; among equals, the larger one first."""
    return sorted(languages, key=lambda one: (-one.share, -one.translated, one.code))[:count]


def _sum(code: str, measurements: list[Measurement]) -> Language:
    return Language(
        code=code,
        catalogues=len(measurements),
        translated=sum(one["translated"] for one in measurements),
        fuzzy=sum(one["fuzzy"] for one in measurements),
        untranslated=sum(one["untranslated"] for one in measurements),
    )
