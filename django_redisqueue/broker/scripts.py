"""Loads the Lua files: one a verb, with shared steps joined in by ``-- @include "name"`` lines.

An include is a file of ``lua/include``, or of another folder when its name has one:
``-- @include "fast_path/claim"``. What follows a line ``-- @first_use`` is made when one of its
functions is called, with the files that it includes, unless another file has included them before.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import script_text
from .script_text import BEGIN, BUILDER, EDGE, END, ScriptError

__all__ = ["LUA", "Script", "ScriptError", "assemble", "load", "names"]

LUA = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r'^-- @include "([a-z_]+(?:/[a-z_]+)?)"$', re.MULTILINE)
_FIRST_USE = re.compile(r"^-- @first_use$\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One verb's complete source, and the digest by which Redis knows it."""

    name: str
    source: str
    sha: str


_assembling = threading.Lock()  # threads of several shards ask for the same scripts at once
os.register_at_fork(
    before=_assembling.acquire,
    after_in_parent=_assembling.release,
    after_in_child=_assembling.release,
)


def load(name: str) -> Script:
    """The script of one verb, which a process assembles once. Raises ScriptError."""
    with _assembling:
        return _load(name)


@cache
def _load(name: str) -> Script:
    source = script_text.in_blocks(_assemble(name))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """All verbs, sorted."""
    return sorted(path.stem for path in LUA.glob("*.lua"))


def assemble(name: str) -> str:
    """The text of ``<name>.lua`` with its includes, each once, and without unused functions. What
    only slow_path() uses is in it."""
    return EDGE.sub("", _assemble(name)).replace(BUILDER, "")


def _assemble(name: str) -> str:
    text = script_text.with_constants(_expand(LUA / f"{name}.lua", (name,), set()))
    return script_text.with_slow_path(script_text.without_unused(text))


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
        return f"{BEGIN}{text}{END}"

    text = _INCLUDE.sub(replace, path.read_text(encoding="utf-8"))
    head, *rest = _FIRST_USE.split(text, maxsplit=1)
    if not rest:
        return head
    return f"{head}{BEGIN}{BUILDER}{EDGE.sub('', rest[0]).replace(BUILDER, '')}{END}"
