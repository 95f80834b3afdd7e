"""Errors of jobs as text: which frames of a traceback are the application's own code, and what
identifies similar errors: the exception, the message without its values, and the last own frame.
Line numbers and the folders above a module are left out, because a deployment changes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from .parsing import object_or_none, storable

_PACKAGE = f"{Path(__file__).parent.parent}/"

_FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line \d+')
_FOREIGN = re.compile(
    r"^<"  # such as <frozen importlib._bootstrap> and <string>
    r"|[/\\](?:site|dist)-packages[/\\]"
    r"|[/\\]lib(?:64)?[/\\](?:python|pypy)\d[\d.]*[/\\]",  # the standard library
    re.IGNORECASE,
)
MAX_TYPE, MAX_TEXT = 200, 300  # characters
LOOK = 600  # characters of a message that are read
_NAMED_FRAME = re.compile(r'^[ |]*File "(.+)", line \d+, in (.+)$', re.MULTILINE)
_BEGIN = "Traceback (most recent call last):"
_VALUE = re.compile(
    r"""(?<!\w)'(?:[^'\\\n]|\\.)*'(?!\w)|(?<!\w)"(?:[^"\\\n]|\\.)*"(?!\w)|(?<!\w)[^\W\d]*\d[\w-]*"""
)
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ID = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # a UUID
    r"|0[xX][0-9a-fA-F]+"
    r"|(?=\d*[a-fA-F])(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}"
    r"|(?=[a-zA-Z_]*\d+[a-zA-Z_]+\d)\w{12,}"  # such as a job's id
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class TracebackPart:
    """Consecutive lines: one frame with its source, or the text between frames."""

    text: str
    is_own: bool = False


def is_own_path(path: str) -> bool:
    """Whether a frame's file is neither installed nor part of the standard library or this
    package."""
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


@dataclass(frozen=True, slots=True)
class ErrorKey:
    """Equal for errors that belong to the same group."""

    task: str
    exception: str = ""
    message: str = ""
    frame: str = ""

    @property
    def fingerprint(self) -> str:
        text = f"{self.task}\0{self.exception}\0{self.message}\0{self.frame}"
        return blake2b(text.encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=256)
def error_key(task: str, error: str) -> ErrorKey:
    """The key of a stored error (JSON). An unreadable error has a key without an exception."""
    raw = object_or_none(error) or {}
    return key_of(task, *(str(raw.get(name, "")) for name in ("type", "message", "traceback")))


def key_of(task: str, kind: str, message: str, traceback: str) -> ErrorKey:
    parts = (kind[:MAX_TYPE], normalized(message), own_frame(traceback))
    return ErrorKey(task, *map(storable, parts))


def normalized(message: str) -> str:
    """The message with its values replaced, on one line."""
    return _without_values(" ".join(message[:LOOK].split()))


def _without_values(text: str) -> str:
    if "@" in text:
        text = _ADDRESS.sub("<address>", text)
    return _NUMBER.sub("<n>", _VALUE.sub(_placeholder, text))[:MAX_TEXT]


def _placeholder(found: re.Match[str]) -> str:
    value = found[0]
    if value[0] in "'\"":
        return "'…'"
    return "<id>" if _ID.fullmatch(value) else value


def own_frame(traceback: str) -> str:
    """``shop/orders/tasks.py in charge``: the last frame outside installed packages, else the last
    one; '' if there is no frame."""
    frames = _NAMED_FRAME.findall(traceback.rpartition(_BEGIN)[2])
    if not frames:
        return ""
    path, name = next((each for each in reversed(frames) if is_own_path(each[0])), frames[-1])
    return _without_values(f"{'/'.join(path.replace(chr(92), '/').split('/')[-3:])} in {name}")
