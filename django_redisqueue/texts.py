"""Text from elsewhere (a job, Redis, another producer) as a terminal, a log, a page or a database
can take it."""

from __future__ import annotations

LONGEST = 200  # characters of one piece of foreign text


def printable(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates, which also stand for bytes that were not UTF-8,
    are shown as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def harmless(text: object, longest: int = LONGEST) -> str:
    """One line of text without anything a terminal would act on: control characters, line breaks,
    escape sequences and marks that turn the direction of writing are shown as escapes."""
    plain = str(text)
    cut = plain[:longest]
    shown = cut if cut.isprintable() else "".join(map(_escaped, cut))
    return shown + "…" if len(plain) > longest else shown


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
