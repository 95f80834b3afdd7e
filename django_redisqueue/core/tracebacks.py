"""Tracebacks as text: which of their frames are the application's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = f"{Path(__file__).parent.parent}/"

_FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line \d+')
_FOREIGN = re.compile(
    r"^<"  # such as <frozen importlib._bootstrap> and <string>
    r"|[/\\](?:site|dist)-packages[/\\]"
    r"|[/\\]lib(?:64)?[/\\](?:python|pypy)\d[\d.]*[/\\]",  # the standard library
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class TracebackPart:
    """Consecutive lines: one frame with its source, or what stands between frames."""

    text: str
    is_own: bool = False


def is_own_path(path: str) -> bool:
    """Whether a frame's file is neither installed nor of the standard library or this package."""
    return _FOREIGN.search(path) is None and not path.startswith(_PACKAGE)


def traceback_parts(text: str) -> Iterator[TracebackPart]:
    """The parts of a traceback; their texts joined are ``text``."""
    lines, is_own, indent = list[str](), False, 0
    for line in text.splitlines(keepends=True):
        frame = _FRAME.match(line)
        depth = len(line) - len(line.lstrip(" |"))
        if frame is None and depth > indent and lines:
            lines.append(line)  # the source of the frame, and markers below it
            continue
        if lines:
            yield TracebackPart("".join(lines), is_own)
        lines, indent = [line], depth
        is_own = frame is not None and is_own_path(frame[1])
    if lines:
        yield TracebackPart("".join(lines), is_own)
