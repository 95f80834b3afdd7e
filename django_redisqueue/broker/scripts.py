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
_EDGE = re.compile("\1\n|\0")  # where an include begins and ends
_LOCAL = re.compile(r"^local (?:function (\w+)|([\w, ]+\w)(?=\s*(?:=|--|$)))( *=)?", re.MULTILINE)
_OPENS = re.compile(
    r"^(?:local function|function|for|if|while|do|\w+ = function)\b(?!.* end\b)", re.M
)
_CLOSES = re.compile(r"^end\b", re.MULTILINE)


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
    source = in_blocks(_assemble(name))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """All verbs, sorted."""
    return sorted(path.stem for path in LUA.glob("*.lua"))


def assemble(name: str) -> str:
    """The text of ``<name>.lua`` with its includes, each once, and without unused functions."""
    return _EDGE.sub("", _assemble(name))


def _assemble(name: str) -> str:
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
        return f"\1\n{text}\0"

    return _INCLUDE.sub(replace, path.read_text(encoding="utf-8"))


def _without_unused(text: str) -> str:
    """Leave out functions that nothing calls: Redis creates all functions on every call."""
    words = Counter(re.findall(r"\w+", _COMMENT.sub("", text)))
    shorter = _FUNCTION.sub(lambda match: "" if words[match[1]] == 1 else match[0], text)
    return text if shorter == text else _without_unused(shorter)  # what only those used goes, too


def in_blocks(text: str) -> str:
    """Put what only one include uses into a block of its own: a Lua function has at most 200 local
    variables at a time. The includes are between edges."""
    *parts, main = _EDGE.split(text)
    words = [Counter(re.findall(r"\w+", _COMMENT.sub("", part))) for part in (*parts, main)]
    total = sum(words, Counter())
    blocks = [_block(part, own, total) for part, own in zip(parts, words, strict=False)]
    return "".join((*blocks, main))


def _block(part: str, own: Counter[str], total: Counter[str]) -> str:
    """A part with only those names visible to the others that they use."""
    declared = [match[1] or match[2] for match in _LOCAL.finditer(part)]
    groups = [re.findall(r"\w+", names) for names in declared]
    shared = [group for group in groups if any(total[name] > own[name] for name in group)]
    is_whole = len(_OPENS.findall(part)) == len(_CLOSES.findall(part))
    if len(shared) == len(groups) or not is_whole:
        return part
    names = [name for group in shared for name in group]

    def declare(match: re.Match[str]) -> str:
        if match[1]:
            return f"function {match[1]}" if match[1] in names else match[0]
        if re.findall(r"\w+", match[2])[0] not in names:
            return match[0]
        return f"{match[2]} =" if match[3] else ""

    visible = f"local {', '.join(names)}\n" if names else ""
    return f"{visible}do\n{_LOCAL.sub(declare, part)}\nend\n"
