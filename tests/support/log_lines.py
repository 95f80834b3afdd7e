"""The log lines of the package, as docs/log-lines.md lists them: ``make log-lines`` writes them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from .imports import OWN, ROOT

PAGE = ROOT / "docs" / "log-lines.md"
LINES = re.compile(r"(?<=<!-- lines -->\n).*?(?=<!-- end -->)", re.S)
LEVELS = {
    "debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR",
    "exception": "ERROR", "critical": "CRITICAL",
}  # fmt: skip
_FIELD = re.compile(r"'?%(\([a-z]+\))?[.0-9]*[a-z]'?|\{[^}]*\}")


def log_calls() -> Iterator[tuple[str, str, str]]:
    """The package, the level and the text of each call of a logger."""
    for path in sorted((ROOT / OWN).rglob("*.py")):
        part = path.relative_to(ROOT / OWN).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.func.attr in LEVELS
                and node.args
            ):
                for text in _texts(node.args[0]):
                    yield part, LEVELS[node.func.attr], text


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an argument may be; none if it is a variable."""
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def listing() -> str:
    """The tables of the page."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for part, level, text in log_calls():
        shown = " ".join(_FIELD.sub("…", text).split()).replace("|", "\\|").replace("`", "'")
        if re.search(r"\w", shown):
            found[part].add((shown, level))
    sections = []
    for part, lines in sorted(found.items()):
        rows = [f"| `{text}` | {level} |" for text, level in sorted(lines)]
        sections.append("\n".join([f"## {part}", "", "| line | level |", "|---|---|", *rows, ""]))
    return "\n" + "\n".join(sections) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(LINES.sub(lambda _: listing(), page), encoding="utf-8")
