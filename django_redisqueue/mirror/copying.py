"""Rows as PostgreSQL takes them by COPY, in its text format.

https://www.postgresql.org/docs/current/sql-copy.html

NULL is a character that no value has; where one has it all the same, it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

NULL = "\x02"
OPTIONS = f"WITH (NULL '{NULL}')"
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", NULL: "\\x02"}
_ESCAPING = str.maketrans(_ESCAPES)


def copy_text(rows: Sequence[Sequence[Any]]) -> str:
    """One line a row: texts and integers as they are, None as NULL."""
    return "".join(_lines(rows))


def _lines(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    for row in rows:
        line = "\t".join(
            [cell if type(cell) is str else NULL if cell is None else str(cell) for cell in row]
        )
        # Most rows have nothing to escape, and looking for it in each of their values costs more.
        if (
            "\\" in line
            or "\n" in line
            or "\r" in line
            or line.count("\t") != len(row) - 1
            or line.count(NULL) != row.count(None)
        ):
            line = "\t".join([_escaped(value) for value in row])
        yield f"{line}\n"


def _escaped(value: Any) -> str:
    if type(value) is str:
        return value.translate(_ESCAPING)
    return NULL if value is None else str(value)
