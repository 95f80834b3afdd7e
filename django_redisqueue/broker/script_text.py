"""Rewrites the text of a script so that a call of it is cheap.

Redis runs the whole text at every call, and making a function costs as much as a short command:
some 500 instructions, and 300 for each name that it takes from outside. The text comes from the
loader (scripts.py), which marks where each include begins and ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

BEGIN, END = "\1\n", "\0"  # around an include
BUILDER = "\2"  # how an include begins whose functions are made on first use
EDGE = re.compile(f"{BEGIN}|{END}")
_BRANCH = "if verb == "  # how the branch of a verb begins
_FUNCTION = re.compile(
    r"^local function (\w+)\((?:.* end(?: *--.*)?|.*\n(?:(?!end$).*\n)*end)\n", re.MULTILINE
)
_VARIABLE = re.compile(
    r"^local (\w+) = (?:base \.\. '[\w:]+'|\{\})(?: *--.*)?\n", re.MULTILINE
)  # the name of a key, or a table
_COMMENT = re.compile(r"--.*")
# What a script makes only when it needs it, the inner one first.
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


class ScriptError(Exception):
    """A Lua file includes itself or a missing file (the message has the include stack), or others
    need what it makes only on first use."""


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", _COMMENT.sub("", text)))


def trimmed(text: str) -> str:
    """Write constants where they are used, and leave out what is not used."""
    return without_unused(with_constants(text))


def with_branches(header: str, common: str, texts: Mapping[str, str]) -> str:
    """One text for several verbs; the first argument of a call is the verb. Edges keep a branch
    apart from the one before."""
    branches = (
        f"{BEGIN}{_BRANCH}'{verb}' then\n{END}{trimmed(text)}end\n" for verb, text in texts.items()
    )
    return f"{header}local verb = table.remove(ARGV, 1)\n{common}{''.join(branches)}"


def with_constants(text: str) -> str:
    """Write the values of constants where they are used."""
    declared = Counter(re.findall(r"\w+", " ".join(_DECLARED.findall(text))))
    values: dict[str, str] = {}

    def take(match: re.Match[str]) -> str:
        names = match[1].split(", ")
        if any(declared[name] > 1 for name in names):  # another part means something else
            return match[0]
        values.update(zip(names, match[2].split(", "), strict=True))
        return ""

    text = _CONSTANTS.sub(take, text)

    def write(match: re.Match[str]) -> str:
        return f"({values[match[0]]})" if match[0] in values else match[0]

    return _CONSTANT.sub(write, text)


def without_unused(text: str) -> str:
    """Leave out functions, names of keys and tables that nothing uses."""
    return _split_unused(text)[0]


def with_slow_path(text: str) -> str:
    """Move what only ``slow_path()``, or the block ``if not is_usual``, uses into it."""
    for pattern in _SLOW_PATHS:
        found = pattern.search(text)
        if found is not None:
            before, moved = _split_unused(text[: found.start()], text[found.end() :])
            at, inside = found.start(1) - found.start(), found[0]
            after = text[found.end() :]
            text = f"{before}{inside[:at]}{BEGIN}{moved}{END}{inside[at:]}{after}"
    return text


def _split_unused(text: str, rest: str = "") -> tuple[str, str]:
    """``text`` without the functions, names of keys and tables that neither it nor ``rest`` uses,
    and these, in their order."""
    words = _words(text + rest)
    found = (*_VARIABLE.finditer(text), *_FUNCTION.finditer(text))
    declared = {match: _words(match[0]) for match in sorted(found, key=re.Match.start)}
    unused: set[re.Match[str]] = set()
    while more := [match for match, own in declared.items() if words[match[1]] == own[match[1]]]:
        unused.update(more)
        for match in more:
            words.subtract(declared[match])  # what only those used goes, too
    taken = ""
    for match in reversed(declared):
        if match in unused:
            taken = match[0] + taken
            text = text[: match.start()] + text[match.end() :]
    return text, taken


def in_blocks(text: str) -> str:
    """Put what only one include uses into a block of its own, because a Lua function has at most
    200 local variables at a time; and make functions on first use, of a branch in this branch only.
    Raises ScriptError."""
    *parts, main = EDGE.split(text)
    words = [_words(part) for part in (*parts, main)]
    total = Counter[str]()
    for own in words:
        total.update(own)  # sum() would copy it each time
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
    """A part with only those names visible to the others that they use."""
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
    """What makes the functions of a part when the first of them is called, and the names of those
    that others call."""
    part = part.removeprefix(BUILDER)
    names: dict[str, str] = {}
    for match in _LOCAL.finditer(part):
        shared = [one for one in re.findall(r"\w+", match[1] or match[2]) if total[one] > own[one]]
        if shared and match[3]:
            raise ScriptError(
                f"others use {', '.join(shared)}, which is made on first use of a function"
            )
        names |= dict.fromkeys(shared if match[1] else (), builder)
    table = ", ".join(f"{name} = {name}" for name in names)
    return (
        f"local {builder}_once\nlocal function {builder}()\n"
        f"if {builder}_once then return {builder}_once end\n{part}\n"
        f"{builder}_once = {{ {table} }}\nreturn {builder}_once\nend\n"
    ), names


def _with_calls(text: str, made: dict[str, str]) -> str:
    """Call functions that are made on first use by way of what makes them; as a value each is a
    function that does so."""
    if not made:
        return text
    names = "|".join(made)
    code = _COMMENT.sub("", text)
    hidden = re.search(rf"(?:\blocal |\bfunction[^(\n]*\()[\w, ]*\b({names})\b", code)
    if hidden:
        raise ScriptError(f"{hidden[1]}, which is made on first use, is a name of something else")
    text = re.sub(rf"(?<![\w.'])({names})\(", lambda m: f"{made[m[1]]}().{m[1]}(", text)
    return re.sub(
        rf"(?<![\w.'])({names})\b(?! *[(=]|')",
        lambda m: f"function(...) return {made[m[1]]}().{m[1]}(...) end",
        text,
    )
