"""The log lines of the package, as docs/log-lines.md lists them: ``make log-lines`` writes them.

What a line means and what to do is the ``#:`` comment above the call that logs it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from .imports import OWN, ROOT

PAGE = ROOT / "docs" / "log-lines.md"
LINES = re.compile(r"(?<=<!-- lines -->\n).*?(?=<!-- end -->)", re.S)
LEVELS = {
    "debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR",
    "exception": "ERROR", "critical": "CRITICAL", "log": "varies",
}  # fmt: skip
_FIELD = re.compile(r"'?%(\([a-z]+\))?[.0-9]*[a-z]'?|\{[^}]*\}")


class LogCall(NamedTuple):
    """A call of a logger: the part of the package, the texts that it may log, its level, and the
    content of the comment above it."""

    part: str
    texts: tuple[str, ...]
    level: str
    meaning: str
    place: str


def log_calls() -> Iterator[LogCall]:
    for path in sorted((ROOT / OWN).rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        if "logger" not in code:
            continue  # parsing it would take a hundred times as long
        name = path.relative_to(ROOT / OWN)
        part = name.parts[0].removesuffix(".py")
        module = ast.parse(code)
        constants = _constants(module)
        for node in ast.walk(module):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.func.attr in LEVELS
            ):
                texts = tuple(_texts(node.args[node.func.attr == "log"], constants))
                meaning = _comment_above(code.splitlines(), node.lineno)
                place = f"{name}:{node.lineno}"
                yield LogCall(part, texts, LEVELS[node.func.attr], meaning, place)


def _comment_above(lines: Sequence[str], number: int) -> str:
    """The ``#:`` comment that ends just above this line, joined into one line."""
    above = [line.strip() for line in reversed(lines[: number - 1])]
    comment = list(takewhile(lambda line: line.startswith("#:"), above))
    return " ".join(line.removeprefix("#:").strip() for line in reversed(comment))


def _texts(node: ast.expr, constants: Mapping[str, str]) -> Iterator[str]:
    """The texts that an argument may have; a variable stands for a field."""
    match node:
        case ast.IfExp(body=body, orelse=other):
            yield from (*_texts(body, constants), *_texts(other, constants))
        case ast.JoinedStr(values=parts):
            yield "".join(text for part in parts for text in _texts(part, constants))
        case ast.FormattedValue(value=value):
            yield from _texts(value, constants)
        case ast.Constant(value=str(text)):
            yield text
        case _:
            yield constants.get(ast.unparse(node), "%s")


def _constants(module: ast.Module) -> dict[str, str]:
    """The named string constants of a module."""
    return {
        ast.unparse(node.targets[0]): node.value.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def listing() -> str:
    """The tables of the page; lines with the same meaning share a row."""
    found: dict[str, dict[tuple[str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
    for call in log_calls():
        found[call.part][call.meaning, call.level].update(map(_shown, call.texts))
    sections = []
    for part, meanings in sorted(found.items()):
        rows = sorted(
            f"| {'<br>'.join(f'`{line}`' for line in sorted(lines))} | {level} | {meaning} |"
            for (meaning, level), lines in meanings.items()
        )
        head = [f"## {part}", "", "| line | level | it means |", "|---|---|---|"]
        sections.append("\n".join([*head, *rows, ""]))
    return "\n" + "\n".join(sections) + "\n"


def _shown(text: str) -> str:
    return " ".join(_FIELD.sub("…", text).split()).replace("|", "\\|").replace("`", "'")


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(LINES.sub(lambda _: listing(), page), encoding="utf-8")
