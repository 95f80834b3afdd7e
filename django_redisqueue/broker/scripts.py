"""Loads the Lua files: one per verb, with shared steps joined in by ``-- @include "name"`` lines;
and rewrites each script so that calling it is cheap.

An include is a file in ``lua/include``, or in another folder if its name contains one:
``-- @include "fast_path/claim"``. The code after a line ``-- @first_use`` is created when one of
its functions is first called, along with the files that it includes, unless another file has
included them before.

A verb is a script of its own, or a branch of a script that several verbs share (``SHARED``).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..core.interrupts import interrupt_shield

BEGIN, END = "\1\n", "\0"  # around an include
BUILDER = "\2"  # starts an include whose functions are made on first use
EDGE = re.compile(f"{BEGIN}|{END}")
_BRANCH = "if verb == "  # starts the branch of a verb
_FUNCTION = re.compile(
    r"^local function (\w+)\((?:.* end(?: *--.*)?|.*\n(?:(?!end$).*\n)*end)\n", re.MULTILINE
)
_VARIABLE = re.compile(
    r"^local (\w+) = (?:base \.\. '[\w:]+'|\{\})(?: *--.*)?\n", re.MULTILINE
)  # the name of a key, or a table
_COMMENT = re.compile(r"--.*")
# The parts of a script that it creates only when it needs them, innermost first.
_SLOW_PATHS = (
    re.compile(
        r"^local function slow_path\(\)\n  if .*\n((?:.*\n)*?)  return slow_path_built\nend$",
        re.MULTILINE,
    ),
    re.compile(r"^if not is_usual then\n((?:.*\n)*)  return \w+\(\)\nend$", re.MULTILINE),
)
_VALUE = r"(?:\d+(?: \^ \d+)?|\d+e\d+|'[^'\n]*')"
_CONSTANTS = re.compile(
    rf"^local ([A-Z_]+(?:, [A-Z_]+)*) = ({_VALUE}(?:, {_VALUE})*)(?= *(?:--.*)?$)", re.MULTILINE
)
_CONSTANT = re.compile(r"(?<!')\b[A-Z_]+\b")
_DECLARED = re.compile(r"^ *local ([\w, ]+)", re.MULTILINE)
_LOCAL = re.compile(r"^local (?:function (\w+)|([\w, ]+\w)(?=\s*(?:=|--|$)))( *=)?", re.MULTILINE)
_OPENS = re.compile(
    r"^(?:local function|function|for|if|while|do|\w+ = function)\b(?!.* end\b)", re.MULTILINE
)
_CLOSES = re.compile(r"^end\b", re.MULTILINE)


class Group(NamedTuple):
    """Verbs that share a script, and the includes that it has for all of them."""

    includes: tuple[str, ...]
    verbs: tuple[str, ...]


# Redis keeps every script compiled, its garbage collector walks through all of them, and most verbs
# consist mostly of the same steps. So the verbs that are called neither for every job nor all the
# time share scripts that contain these steps once. Each call creates everything that its script
# includes for all verbs; whatever else a verb includes is in its branch.
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
    """One verb's complete source, and the digest that Redis has for it."""

    name: str
    source: str
    sha: str
    selector: tuple[str, ...] = ()  #: the first argument: the verb, if others share the source


_loaded: dict[str, Script] = {}
_assembling = threading.Lock()  # threads of several shards may load the same scripts at once
os.register_at_fork(
    before=_assembling.acquire,
    after_in_parent=_assembling.release,
    after_in_child=_assembling.release,
)


def load(name: str) -> Script:
    """The script of one verb, which each process assembles once. Raises ScriptError."""
    script = _loaded.get(name)  # without the lock, because most calls find it
    if script is None:
        with interrupt_shield.get()(), _assembling:
            script = _load(name)
    return script


def _load(name: str) -> Script:
    """Assemble a script, unless another thread has done so. The caller holds the lock."""
    if name not in _loaded:
        if name in _SHARED_BY:
            script = replace(_load(_SHARED_BY[name]), name=name, selector=(name,))
        else:
            source = in_blocks(_assemble(name))
            sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            script = Script(name, source, sha)
        _loaded[name] = script
    return _loaded[name]


def names() -> list[str]:
    return sorted(path.stem for path in LUA.glob("*.lua"))


def assemble(name: str) -> str:
    """The text of ``<name>.lua``, or of a script that verbs share, with each of its includes once,
    and without unused functions."""
    return EDGE.sub("", _assemble(name)).replace(BUILDER, "")


def _assemble(name: str) -> str:
    text = _join(name) if name in SHARED else _expand(_read(name), (name,), set())
    return with_slow_path(trimmed(text))


def _join(name: str) -> str:
    """The text that several verbs share: the includes for all of them, then their branches with
    their other includes. The first argument of a call is the verb."""
    includes, verbs = SHARED[name]
    done: set[str] = set()
    common = _expand("".join(f'-- @include "{one}"\n' for one in includes), (name,), done)
    text = f"-- {name}: {', '.join(verbs)}\nlocal verb = table.remove(ARGV, 1)\n{common}"
    for verb in verbs:
        branch = trimmed(_expand(_read(verb), (verb,), set(done)))
        # The markers separate a branch from the previous one.
        text += f"{BEGIN}{_BRANCH}'{verb}' then\n{END}{branch}end\n"
    return text


def _read(*stack: str) -> str:
    """The file of a verb, or of the last of a chain of includes that starts with a verb."""
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


class ScriptError(Exception):
    """A Lua file includes itself or a missing file (the message shows the include stack), or other
    files need something that it creates only on first use."""


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", _COMMENT.sub("", text)))


def trimmed(text: str) -> str:
    """Inline constants, and remove unused code."""
    return _split_unused(with_constants(text))[0]


def with_constants(text: str) -> str:
    declared = Counter(re.findall(r"\w+", " ".join(_DECLARED.findall(text))))
    values: dict[str, str] = {}

    def take(match: re.Match[str]) -> str:
        names = match[1].split(", ")
        if any(declared[name] > 1 for name in names):  # the name means something else elsewhere
            return match[0]
        values.update(zip(names, match[2].split(", "), strict=True))
        return ""

    text = _CONSTANTS.sub(take, text)

    def write(match: re.Match[str]) -> str:
        return f"({values[match[0]]})" if match[0] in values else match[0]

    return _CONSTANT.sub(write, text)


def with_slow_path(text: str) -> str:
    """Move code used only by ``slow_path()``, or by the block ``if not is_usual``, into it."""
    for pattern in _SLOW_PATHS:
        found = pattern.search(text)
        if found is not None:
            before, moved = _split_unused(text[: found.start()], text[found.end() :])
            at, inside = found.start(1) - found.start(), found[0]
            after = text[found.end() :]
            text = f"{before}{inside[:at]}{BEGIN}{moved}{END}{inside[at:]}{after}"
    return text


def _split_unused(text: str, rest: str = "") -> tuple[str, str]:
    """``text`` without the functions, key names and tables that neither it nor ``rest`` uses, and
    those, in their order."""
    words = _words(text + rest)
    found = (*_VARIABLE.finditer(text), *_FUNCTION.finditer(text))
    declared = {match: _words(match[0]) for match in sorted(found, key=re.Match.start)}
    unused: set[re.Match[str]] = set()
    while more := [match for match, own in declared.items() if words[match[1]] == own[match[1]]]:
        unused.update(more)
        for match in more:
            words.subtract(declared[match])  # what only those used is also unused
    taken = ""
    for match in reversed(declared):
        if match in unused:
            taken = match[0] + taken
            text = text[: match.start()] + text[match.end() :]
    return text, taken


def in_blocks(text: str) -> str:
    """Put code used by only one include into a block of its own, because a Lua function can have at
    most 200 local variables at a time; and create functions on first use, those of a branch in this
    branch only. Raises ScriptError."""
    *parts, main = EDGE.split(text)
    words = [_words(part) for part in (*parts, main)]
    total = Counter[str]()
    for own in words:
        total.update(own)  # sum() would copy it every time
    blocks = [
        _builder(part, own, total, f"made_{at}")
        if part.startswith(BUILDER)
        else (_block(part, own, total), {})
        for at, (part, own) in enumerate(zip(parts, words, strict=False))
    ]
    written = ""
    made = for_all = dict[str, str]()
    for (block, names), own in zip((*blocks, (main, {})), words, strict=True):
        if block.startswith(_BRANCH):
            made = for_all.copy()
        written += _with_calls(
            block, {name: made[name] for name in made if name in own and name not in names}
        )
        made |= names
    return written


def _block(part: str, own: Counter[str], total: Counter[str]) -> str:
    """A part in which only the names that other parts use are visible to them."""
    declared = list(_LOCAL.finditer(part))
    groups = [re.findall(r"\w+", match[1] or match[2]) for match in declared]
    shared = [group for group in groups if any(total[name] > own[name] for name in group)]
    is_whole = len(_OPENS.findall(part)) == len(_CLOSES.findall(part))
    if not is_whole or len(shared) == len(groups):
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


def _builder(
    part: str, own: Counter[str], total: Counter[str], builder: str
) -> tuple[str, dict[str, str]]:
    """The code that creates a part's functions when the first of them is called, and the names of
    those that other parts call."""
    part = part.removeprefix(BUILDER)
    names: dict[str, str] = {}
    for match in _LOCAL.finditer(part):
        shared = [one for one in re.findall(r"\w+", match[1] or match[2]) if total[one] > own[one]]
        if shared and match[3]:
            raise ScriptError(
                f"other files use {', '.join(shared)}, which is created on first use of a function"
            )
        names |= dict.fromkeys(shared if match[1] else (), builder)
    table = ", ".join(f"{name} = {name}" for name in names)
    return (
        f"local {builder}_once\nlocal function {builder}()\n"
        f"if {builder}_once then return {builder}_once end\n{part}\n"
        f"{builder}_once = {{ {table} }}\nreturn {builder}_once\nend\n"
    ), names


def _with_calls(text: str, made: dict[str, str]) -> str:
    """Call functions that are created on first use through their builder; used as a value, each
    becomes a function that does so."""
    if not made:
        return text
    names = "|".join(made)
    code = _COMMENT.sub("", text)
    hidden = re.search(rf"(?:\blocal |\bfunction[^(\n]*\()[\w, ]*\b({names})\b", code)
    if hidden:
        raise ScriptError(
            f"{hidden[1]}, which is created on first use, is also the name of something else"
        )
    text = re.sub(rf"(?<![\w.'])({names})\(", lambda m: f"{made[m[1]]}().{m[1]}(", text)
    return re.sub(
        rf"(?<![\w.'])({names})\b(?! *[(=]|')",
        lambda m: f"function(...) return {made[m[1]]}().{m[1]}(...) end",
        text,
    )
