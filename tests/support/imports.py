"""Reads the imports of the package, and draws its packages for ``docs/architecture.md``.

``make architecture`` runs this module; ``tests/test_layers.py`` fails while the drawing is stale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = "django_redisqueue"
PAGE = ROOT / "docs" / "architecture.md"
DRAWING = re.compile(r"```mermaid\nflowchart.*?```\n", re.S)


@dataclass(frozen=True)
class Import:
    """One import: the full name it reaches, its line, and whether it is inside a function."""

    target: str
    line: int
    in_function: bool


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Dotted name -> file, for every module of the package under ``root``."""
    found = {}
    for path in sorted((root / OWN).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Set[str]) -> tuple[Import, ...]:
    """Every import of a module, including those by ``import_module`` with a literal name."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return _imports(path.read_text(encoding="utf-8"), package, frozenset(known))


@cache  # every test asks for the same files, and parsing them all is slow
def _imports(text: str, package: str, known: frozenset[str]) -> tuple[Import, ...]:
    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for target in _targets(node, package, known):
            yield Import(target, getattr(node, "lineno", 0), in_function)
        function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function or isinstance(node, function))

    return tuple(visit(ast.parse(text), False))


def _targets(node: ast.AST, package: str, known: Set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
        for alias in node.names:  # "from package import module" reaches the module
            full = f"{base}.{alias.name}"
            yield full if full in known else base
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = node.func
        called = getattr(function, "attr", None) or getattr(function, "id", None)
        if called in {"import_module", "__import__", "import_string"}:
            text = str(node.args[0].value)
            yield f"{package}{text}" if text.startswith(".") else text


def module_graph(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports."""
    names = frozenset(known)
    return {
        name: {found.target for found in imports(name, path, names) if found.target in names}
        for name, path in known.items()
    }


def package_of(name: str) -> str:
    """The package or top-level module that a dotted name belongs to; "" for the facade."""
    return name.split(".")[1] if "." in name else ""


def package_graph() -> dict[str, set[str]]:
    """Package -> the packages it imports, without those that it also reaches indirectly."""
    graph: dict[str, set[str]] = {}
    for name, targets in module_graph(modules()).items():
        here = graph.setdefault(package_of(name), set())
        here.update(package_of(target) for target in targets)
        here.discard(package_of(name))
    return {
        here: {
            there
            for there in direct
            if not any(there in _reachable(graph, other) for other in direct - {there})
        }
        for here, direct in graph.items()
    }


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def drawing() -> str:
    """The packages as a Mermaid flowchart, in which an arrow means "imports"."""
    lines = ["```mermaid", "flowchart TD"]
    for here, direct in sorted(package_graph().items()):
        if here != "migrations":
            lines += [f"    {here or OWN} --> {there}" for there in sorted(direct)]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(DRAWING.sub(lambda _: drawing(), PAGE.read_text(encoding="utf-8")))
