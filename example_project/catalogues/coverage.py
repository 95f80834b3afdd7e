"""From the measurements of catalogues to the coverage of languages. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

SOURCE_LANGUAGE = "en"  # what is translated from; its catalogues are empty on purpose


class Measurement(TypedDict):
    """What one job returns: how many entries of one catalogue are in which state."""

    path: str
    language: str
    component: str
    translated: int
    fuzzy: int
    untranslated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The sums over all catalogues of one language."""

    code: str
    catalogues: int
    translated: int
    fuzzy: int
    untranslated: int

    @property
    def share(self) -> float:
        """Translated entries of all entries, 0 to 1; 0 without any entry."""
        return self.translated / max(self.translated + self.fuzzy + self.untranslated, 1)


def by_language(measurements: Iterable[Measurement]) -> list[Language]:
    """One Language for each code, sorted by code."""
    groups: defaultdict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement["language"]].append(measurement)
    return [_sum(code, groups[code]) for code in sorted(groups)]


def translations(languages: Iterable[Language]) -> list[Language]:
    """The languages without the source language."""
    return [language for language in languages if language.code != SOURCE_LANGUAGE]


def least_covered(languages: Iterable[Language], count: int) -> list[Language]:
    """The ``count`` languages with the smallest share; with equal shares the smaller one first."""
    return sorted(languages, key=lambda one: (one.share, one.translated, one.code))[:count]


def best_covered(languages: Iterable[Language], count: int) -> list[Language]:
    """The ``count`` languages with the largest share; with equal shares the larger one first."""
    return sorted(languages, key=lambda one: (-one.share, -one.translated, one.code))[:count]


def _sum(code: str, measurements: list[Measurement]) -> Language:
    return Language(
        code=code,
        catalogues=len(measurements),
        translated=sum(one["translated"] for one in measurements),
        fuzzy=sum(one["fuzzy"] for one in measurements),
        untranslated=sum(one["untranslated"] for one in measurements),
    )
