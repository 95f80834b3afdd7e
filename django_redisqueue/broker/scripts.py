"""Loads the Lua files: one a verb, with shared steps joined in by ``-- @include "name"`` lines.

An include is a file of ``lua/include``, or of another folder when its name has one:
``-- @include "fast_path/claim"``.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LUA = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r'^-- @include "([a-z_]+(?:/[a-z_]+)?)"$', re.MULTILINE)
_FUNCTION = re.compile(
    r"^local function (\w+)\((?:.* end(?: *--.*)?|.*\n(?:(?!end$).*\n)*end)\n", re.MULTILINE
)
_COMMENT = re.compile(r"--.*")


class ScriptError(Exception):
    """A Lua file includes itself or a missing file; the message has the include stack."""


@dataclass(frozen=True, slots=True)
class Script:
    """One verb's complete source, and the digest by which Redis knows it."""

    name: str
    source: str
    sha: str


@cache
def load(name: str) -> Script:
    """The script of one verb. Raises ScriptError."""
    source = assemble(name)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """All verbs, sorted."""
    return sorted(path.stem for path in LUA.glob("*.lua"))


def assemble(name: str) -> str:
    """The text of ``<name>.lua`` with its includes, each once, and without unused functions."""
    return _without_unused(_expand(LUA / f"{name}.lua", (name,), set()))


def _expand(path: Path, stack: tuple[str, ...], done: set[str]) -> str:
    if not path.is_file():
        raise ScriptError(f"no such Lua file: {path.name} (included by {' > '.join(stack)})")

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name in stack[1:]:
            raise ScriptError(f"Lua files include each other: {' > '.join((*stack, name))}")
        if name in done:
            return ""
        folder = LUA if "/" in name else LUA / "include"
        text = _expand(folder / f"{name}.lua", (*stack, name), done)
        done.add(name)
        return text

    return _INCLUDE.sub(replace, path.read_text(encoding="utf-8"))


def _without_unused(text: str) -> str:
    """Leave out functions that nothing calls: Redis creates all functions on every call."""
    words = Counter(re.findall(r"\w+", _COMMENT.sub("", text)))
    shorter = _FUNCTION.sub(lambda match: "" if words[match[1]] == 1 else match[0], text)
    return text if shorter == text else _without_unused(shorter)  # what only those used goes, too
