"""Finds the translation catalogues of the installed Django, and interprets their paths."""

from __future__ import annotations

from functools import cache
from pathlib import Path, PurePosixPath

import django

DJANGO = Path(django.__file__).resolve().parent
PATTERNS = ("conf/locale/*/LC_MESSAGES/django.po", "contrib/*/locale/*/LC_MESSAGES/*.po")
SHAPE = "*/locale/*/LC_MESSAGES/*.po"


def find_catalogues() -> list[str]:
    """The path of every catalogue, relative to the django package, sorted."""
    found = (file for pattern in PATTERNS for file in DJANGO.glob(pattern))
    return sorted(file.relative_to(DJANGO).as_posix() for file in found)


@cache
def languages() -> tuple[str, ...]:
    """The code of every language that has a catalogue, sorted."""
    return tuple(sorted({language(path) for path in find_catalogues()}))


def catalogues_of(code: str) -> list[str]:
    """The paths of a language's catalogues, sorted. Raises ValueError if it has none."""
    found = [path for path in find_catalogues() if language(path) == code]
    if not found:
        raise ValueError(f"Django has no catalogue for {code!r}")
    return found


def locate(path: str) -> Path:
    """The file at ``path``, relative to the django package.

    Raises ValueError unless it is the path of a catalogue inside the package, and FileNotFoundError
    if no file is there.
    """
    file = (DJANGO / path).resolve()
    if not PurePosixPath(path).match(SHAPE) or not file.is_relative_to(DJANGO):
        raise ValueError(f"{path!r} is not the path of a catalogue inside the django package")
    if not file.is_file():
        raise FileNotFoundError(f"Django has no catalogue {path!r}")
    return file


def language(path: str) -> str:
    """``"pt_BR"`` for ``"conf/locale/pt_BR/LC_MESSAGES/django.po"``."""
    return PurePosixPath(path).parts[-3]


def component(path: str) -> str:
    """``"core"``, the name of a contrib app, or that with ``-js`` for its JavaScript catalogue."""
    parts = PurePosixPath(path).parts
    app = parts[1] if parts[0] == "contrib" else "core"
    return f"{app}-js" if parts[-1] == "djangojs.po" else app
