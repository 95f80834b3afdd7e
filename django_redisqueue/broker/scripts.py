"""Loads the Lua files: one a verb, with shared steps joined in by ``-- @include "name"`` lines.

An include is a file of ``lua/include``, or of another folder when its name has one:
``-- @include "fast_path/claim"``. What follows a line ``-- @first_use`` is made when one of its
functions is called, with the files that it includes, unless another file has included them before.

A verb is a script of its own, or a branch of a script that several verbs share (``SHARED``).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import script_text
from .script_text import BEGIN, BUILDER, EDGE, END, ScriptError

__all__ = ["LUA", "SHARED", "Script", "ScriptError", "assemble", "load", "names"]


class Group(NamedTuple):
    """Verbs that share a script, and what it includes for all of them."""

    includes: tuple[str, ...]
    verbs: tuple[str, ...]


# Redis keeps every script compiled, and its garbage collector walks through all of them; and most
# verbs consist mostly of the same steps. So verbs that are not called for every job, nor all the
# time, share scripts that have these steps once. Each call creates what its script includes for
# all; what else a verb includes is in its branch.
SHARED = {
    "endings": Group(
        ("context", "emit", "gather_plan", "place", "end_job"),
        (
            "advance", "cancel", "clear", "control_workflow", "delete", "fire", "prune", "reap",
            "recover_orphans", "release", "release_unknown", "requeue", "send_event",
        ),
    ),
    "lanes": Group(
        ("context", "emit", "place", "lanes"),
        ("pause_lanes", "promote", "run_now", "set_limit", "start_gather"),
    ),
    "small": Group(
        ("context",),
        (
            "announce_schedules", "compact", "define_schedules", "delete_gather",
            "forget_result_files", "forget_steps", "order_worker", "pause", "pause_schedule",
            "record_result_file", "release_unique", "remove_schedules", "set_aging",
        ),
    ),
}  # fmt: skip
_SHARED_BY = {verb: name for name, group in SHARED.items() for verb in group.verbs}

LUA = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r'^-- @include "([a-z_]+(?:/[a-z_]+)?)"$', re.MULTILINE)
_FIRST_USE = re.compile(r"^-- @first_use$\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One verb's complete source, and the digest by which Redis knows it."""

    name: str
    source: str
    sha: str
    selector: tuple[str, ...] = ()  #: the first argument: the verb, if others share the source


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
    if name in _SHARED_BY:
        return replace(_load(_SHARED_BY[name]), name=name, selector=(name,))
    source = script_text.in_blocks(_assemble(name))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """All verbs, sorted."""
    return sorted(path.stem for path in LUA.glob("*.lua"))


def assemble(name: str) -> str:
    """The text of ``<name>.lua``, or of a script that verbs share: with its includes, each once,
    and without unused functions. What only slow_path() uses is in it."""
    return EDGE.sub("", _assemble(name)).replace(BUILDER, "")


def _assemble(name: str) -> str:
    text = _join(name) if name in SHARED else _expand(_read(name), (name,), set())
    return script_text.with_slow_path(script_text.trimmed(text))


def _join(name: str) -> str:
    """The text that several verbs share: what it includes for all of them, then their branches,
    which have what else they include."""
    includes, verbs = SHARED[name]
    done: set[str] = set()
    common = _expand("".join(f'-- @include "{one}"\n' for one in includes), (name,), done)
    texts = {verb: _expand(_read(verb), (verb,), set(done)) for verb in verbs}
    return script_text.with_branches(f"-- {name}: {', '.join(verbs)}\n", common, texts)


def _read(*stack: str) -> str:
    """The file of a verb, or of the last of several that include each other, behind their verb."""
    is_include = len(stack) > 1 and "/" not in stack[-1]
    path = (LUA / "include" if is_include else LUA) / f"{stack[-1]}.lua"
    if not path.is_file():
        raise ScriptError(f"no such Lua file: {path.name} (included by {' > '.join(stack)})")
    return path.read_text(encoding="utf-8")


def _expand(text: str, stack: tuple[str, ...], done: set[str]) -> str:
    def expanded(match: re.Match[str]) -> str:
        name = match[1]
        inner = (*stack, name)
        if name in stack[1:]:
            raise ScriptError(f"Lua files include each other: {' > '.join(inner)}")
        if name in done:
            return ""
        included = _expand(_read(*inner), inner, done)
        done.add(name)
        return f"{BEGIN}{included}{END}"

    head, *rest = _FIRST_USE.split(_INCLUDE.sub(expanded, text), maxsplit=1)
    if not rest:
        return head
    return f"{head}{BEGIN}{BUILDER}{EDGE.sub('', rest[0]).replace(BUILDER, '')}{END}"
