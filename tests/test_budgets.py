"""Files, functions and scripts stay short enough to be read in one go."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_redisqueue"

FILE_LINES = 500
FUNCTION_LINES = 60
LUA_LINES, LUA_COLUMNS = 120, 120  # ruff checks Python's columns
TEST_FILE_LINES = 700


def sources(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if "migrations" not in path.parts)


def long_files(paths: list[Path], limit: int) -> Iterator[str]:
    for path in paths:
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > limit:
            yield f"{path}: {count} lines, {limit} at most: split it by what it does"


def long_lines(paths: list[Path], limit: int) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > limit:
                yield f"{path}:{number}: {len(line)} columns, {limit} at most"


def long_functions(paths: list[Path], limit: int) -> Iterator[str]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > limit:
                    yield f"{path}:{node.lineno}: {node.name} has {count} lines, {limit} at most"


def assert_none(found: Iterator[str]) -> None:
    faults = list(found)
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("folder", ["django_redisqueue", "example_project", "benchmarks"])
def test_python_files_and_functions_stay_short(folder: str) -> None:
    paths = sources(ROOT / folder, "*.py")
    assert_none(long_files(paths, FILE_LINES))
    assert_none(long_functions(paths, FUNCTION_LINES))


def test_lua_scripts_stay_short() -> None:
    assert_none(long_files(sources(PACKAGE, "*.lua"), LUA_LINES))


def test_lines_of_lua_scripts_stay_short() -> None:
    assert_none(long_lines(sources(PACKAGE, "*.lua"), LUA_COLUMNS))


def test_test_files_stay_short() -> None:
    assert_none(long_files(sources(ROOT / "tests", "*.py"), TEST_FILE_LINES))


def test_the_counts_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(
        "def two():\n    pass\n\n\nclass A:\n    async def four(self):\n        a\n\n        b\n"
    )
    assert list(long_functions([path], 4)) == []
    assert list(long_functions([path], 3)) == [f"{path}:6: four has 4 lines, 3 at most"]
    assert list(long_lines([path], 25)) == []
    assert list(long_lines([path], 24)) == [f"{path}:6: 25 columns, 24 at most"]
    assert list(long_files([path], 9)) == []
    assert list(long_files([path], 8)) == [f"{path}: 9 lines, 8 at most: split it by what it does"]


def test_there_is_something_to_count() -> None:
    assert len(sources(PACKAGE, "*.py")) > 1
