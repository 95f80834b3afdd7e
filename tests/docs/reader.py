"""Runs the Python blocks of a page as its reader would: one after another, in one namespace.

What a page takes for granted (a model, a task of the shop) comes from its prelude, a file of
``preludes/`` that runs first in the same namespace. Its function ``check``, if it has one, runs
last and gets everything that the page has defined.

- A block is in ``shop/tasks.py``, so tasks have the names that the pages give them.
- ``x  # 3`` on a page claims that ``x`` is 3.
- Capitalized names are settings and take effect. ``...`` in a list or dict is what was there.
- A worker runs what is queued before a statement that waits for it, and at the end of the page.
- A block that uses ``context`` without defining it is a part of a job; a test case is run.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging.config
import unittest
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

from django.core.checks import run_checks
from django.db.utils import ConnectionHandler

import django_redisqueue
from django_redisqueue import Job, JobQueue, exceptions, task
from django_redisqueue.conf import get_settings, load
from tests.support.burst import work
from tests.support.imports import ROOT

from .pages import Block, blocks

PRELUDES = Path(__file__).parent / "preludes"
NAMES = {name: getattr(django_redisqueue, name) for name in django_redisqueue.__all__} | {
    name: value for name, value in vars(exceptions).items() if inspect.isclass(value)
}
LOGGERS = ("", "django_redisqueue", "django_redisqueue.jobs")


def prelude_of(page: Path) -> Path:
    name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
    return PRELUDES / f"{name.lower().removeprefix('docs_').replace('-', '_')}.py"


class Reader:
    """Reads one page. ``settings`` is pytest-django's, with ``REDISQUEUE`` for the tests' Redis."""

    def __init__(self, page: Path, settings: Any) -> None:
        self.page = page
        self.settings = settings
        self.cleanup = ExitStack()
        self.space: dict[str, Any] = {
            **NAMES,
            "__name__": "shop.tasks",
            "_assert_claim": assert_claim,
            "settings": settings,
            "cleanup": self.cleanup,  # of what a prelude changed
        }
        self.space["parts"] = self._parts = list[Job]()  # jobs that run parts of the page
        self._runner = asyncio.Runner()
        self._own = dict(settings.REDISQUEUE)
        self._problems = run_checks()  # of what other tests left in this process

    def read(self) -> None:
        with kept_logging(), self._runner, self.cleanup:
            self._read_all()
        assert not _failures(), f"{self.page.relative_to(ROOT)}: {_failures()}"

    def _read_all(self) -> None:
        prelude = prelude_of(self.page)
        if prelude.exists():
            exec(compile(prelude.read_text(), str(prelude), "exec"), self.space)
            for name in ("REDISQUEUE", "urlpatterns"):
                if name in self.space:
                    self._apply(name, self.space[name])
        check = self.space.pop("check", None)
        for block in blocks("python", self.page):
            self._read(block)
        if check is not None:
            check(SimpleNamespace(**self.space))
        work()

    def _read(self, block: Block) -> None:
        tree = Claims(block).visit(ast.parse(dedent(block.text), str(block)))
        ast.increment_lineno(ast.fix_missing_locations(tree), block.line)
        code = compile_part(tree, block)
        if "context" in code.co_names and "context" not in self.space:
            self._run_in_a_job(block, code)
            return
        for statement in tree.body:
            if _waits(statement):
                work()
            self._run(compile_part(ast.Module([statement], []), block))
        for name in _assigned(tree):
            if name.isupper() or name == "urlpatterns":
                self._apply(name, self.space[name])
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                run_test_case(self.space[statement.name])

    def _run(self, code: CodeType) -> None:
        value = eval(code, self.space)
        if inspect.iscoroutine(value):
            self._runner.run(value)

    def _run_in_a_job(self, block: Block, code: CodeType) -> None:
        def part(context: Any) -> None:
            exec(code, {**self.space, "context": context})

        part.__module__, part.__qualname__ = "shop.tasks", part.__name__
        self._parts.append(task(takes_context=True)(part).enqueue())
        work()

    def _apply(self, name: str, value: Any) -> None:
        """Apply what the page assigned to a setting."""
        if name == "REDISQUEUE":
            self._own |= {**value, "CONNECTION": self._own["CONNECTION"]}
            load({**self._own, **value})
            value = dict(self._own)
        elif name == "urlpatterns":
            name, value = "ROOT_URLCONF", ModuleType("shop.urls")
            value.urlpatterns = self.space["urlpatterns"]
        elif name == "LOGGING":
            logging.config.dictConfig(value)
        elif name == "DATABASES":
            ConnectionHandler(value)["default"].ensure_connection()
            return
        before = getattr(self.settings, name, None)
        value = filled(value, before)
        if value != before:
            setattr(self.settings, name, value)
        problems = [one for one in run_checks() if one not in self._problems]
        assert not problems, f"{self.page.relative_to(ROOT)}: {name}: {problems}"


def compile_part(tree: ast.Module, block: Block) -> CodeType:
    # The file is the page: a traceback shows its lines.
    return compile(tree, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


class Claims(ast.NodeTransformer):
    """Makes each expression whose line ends with ``# value`` assert that it has this value."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._lines = block.text.splitlines()

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        for claim in claims(self._lines[(node.end_lineno or 1) - 1]):
            place = f"{self._block.page.relative_to(ROOT)}:{self._block.line + node.lineno}"
            arguments: list[ast.expr] = [node.value, ast.Constant(repr(claim)), ast.Constant(place)]
            node.value = ast.Call(ast.Name("_assert_claim", ast.Load()), arguments, [])
        return node


def assert_claim(value: object, claim: str, place: str) -> None:
    assert value == ast.literal_eval(claim), f"{place} says {claim}, but it is {value!r}"


def filled(value: Any, before: Any) -> Any:
    """``value`` with the previous contents in place of its ``...``."""
    if isinstance(value, list) and ... in value:
        at, rest = value.index(...), [one for one in before if one not in value]
        return [*value[:at], *rest, *value[at + 1 :]]
    if isinstance(value, dict):
        known = before if isinstance(before, Mapping) else {}
        return {key: filled(one, known.get(key)) for key, one in value.items()}
    return before if value == {...} else value


def claims(line: str) -> Iterator[Any]:
    """The value in the comment at the end of this line, if it is one."""
    comment = line.partition("  # ")[2]
    for text in (comment, comment.partition(":")[0]):
        with suppress(SyntaxError, ValueError):
            yield ast.literal_eval(text)
            return


def _waits(tree: ast.AST) -> bool:
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return bool(called & {"wait", "await_result"})


def _assigned(tree: ast.Module) -> Iterator[str]:
    """The names that a block assigns, including those whose items it changes."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            while isinstance(target, ast.Subscript):
                target = target.value  # type: ignore[assignment]
            if isinstance(target, ast.Name):
                yield target.id


def run_test_case(case: Any) -> None:
    if isinstance(case, type) and issubclass(case, unittest.TestCase):
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
        result = suite.run(unittest.TestResult())
        assert result.testsRun
        assert result.wasSuccessful(), result.failures + result.errors


def _failures() -> list[str]:
    failed = [job for name in get_settings().queues for job in JobQueue(name).get_jobs("failed")]
    return [f"{job.task_name} failed: {job.error}" for job in failed]


@contextmanager
def kept_logging() -> Iterator[None]:
    """A page's configuration of logging is undone at the end of the block."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(one.handlers[:], one.filters[:], one.level, one.propagate) for one in loggers]
    try:
        yield
    finally:
        for one, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
            one.handlers[:], one.filters[:], one.propagate = handlers, filters, propagate
            one.setLevel(level)
