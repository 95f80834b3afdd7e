"""Only registered tasks run: how they are found, the names they keep, and which calls they
accept."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import AppConfig

from django_redisqueue import JobQueue, Workflow, chain, task
from django_redisqueue.client import registry
from django_redisqueue.client.registry import accepted_parameters
from django_redisqueue.exceptions import (
    ConfigurationError,
    InvalidArguments,
    InvalidTask,
    UnknownTask,
)
from tests.app import tasks

pytestmark = pytest.mark.usefixtures("queue_settings")


@pytest.fixture(autouse=True)
def same_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that a test registers are removed afterwards."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with one task, ``found_here``, that belongs to no app."""
    (tmp_path / "strange_place.py").write_text(
        "from django_redisqueue import task\n\n@task\ndef found_here():\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "strange_place"
    sys.modules.pop("strange_place", None)


def test_a_task_can_be_a_key() -> None:
    assert {tasks.noop: 1, tasks.add: 2}[tasks.noop] == 1
    assert len({tasks.noop, tasks.noop.using(), tasks.noop.using(tags={"a": "b"})}) == 2


def test_tasks_modules_of_apps_are_found() -> None:
    assert registry.get_task("tests.app.tasks.noop") is tasks.noop
    assert "tests.app.tasks.noop" in registry.task_names()
    assert registry.task_names() == sorted(registry.task_names())


def test_the_package_has_its_own_tasks_but_its_modules_are_not_searched_for_others() -> None:
    own = [name for name in registry.task_names() if name.startswith("django_redisqueue.")]
    assert own == [
        f"django_redisqueue.{name}"
        for name in ("bulk", "send_event", "send_workflow", "start_gather")
    ]


def test_task_modules_are_imported(settings: Any, module: str) -> None:
    assert registry.lookup("strange_place.found_here") is None
    settings.REDISQUEUE = {"TASK_MODULES": [module]}
    registry.discover()
    assert registry.get_task("strange_place.found_here")() == 1


def test_an_app_that_is_one_module_has_no_tasks_module(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(registry.apps, "get_app_configs", lambda: [AppConfig.create(module)])
    assert registry.discover() == []


def test_a_broken_tasks_module_is_not_skipped(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_place.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings.REDISQUEUE = {"TASK_MODULES": ["broken_place"]}
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        registry.discover()


def test_the_tasks_of_an_app_need_a_package_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tasks for Celery do, without Celery: the error has the remedy, which works."""
    (tmp_path / "foreign_app").mkdir()
    (tmp_path / "foreign_app" / "__init__.py").touch()
    (tmp_path / "foreign_app" / "tasks.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry.apps, "get_app_configs", lambda: [AppConfig.create("foreign_app")])
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module") as caught:
        registry.discover()
    (note,) = caught.value.__notes__
    assert note.endswith('sys.modules["foreign_app.tasks"] = None')
    monkeypatch.setitem(sys.modules, "foreign_app.tasks", None)
    assert registry.discover() == []


@pytest.mark.parametrize(
    ("name", "missing"),
    [("tests.client.no_jobs", "tests.client.no_jobs"), ("no_app.jobs", "no_app")],
)
def test_a_missing_module(settings: Any, name: str, missing: str) -> None:
    settings.REDISQUEUE = {"TASK_MODULES": [name]}
    with pytest.raises(ConfigurationError) as caught:
        registry.discover()
    assert str(caught.value) == (
        f"REDISQUEUE[\"TASK_MODULES\"] names '{name}', but no module '{missing}' exists: "
        "correct the dotted path"
    )


def test_aliases_lead_to_the_task() -> None:
    assert tasks.renamed.name == "tests.renamed"
    assert registry.get_task("tests.old_name") is tasks.renamed
    assert registry.get_task("tests.renamed") is tasks.renamed
    assert registry.lookup("tests.app.tasks.renamed") is None


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UnknownTask, match=r"'tests.app.tasks.nopo' is registered \(did you"):
        registry.get_task("tests.app.tasks.nopo")
    with pytest.raises(UnknownTask, match=r"is registered; decorate the function with @task"):
        registry.get_task("zzz")


def test_the_name_of_a_function_is_never_imported(module: str) -> None:
    with pytest.raises(UnknownTask):
        registry.get_task("os.remove")
    assert registry.lookup(f"{module}.found_here") is None
    assert module not in sys.modules


def other() -> None:
    pass


def test_a_name_belongs_to_one_function() -> None:
    with pytest.raises(
        InvalidTask, match=r"'tests.renamed' is already taken by tests.app.tasks.renamed"
    ):
        task(name="tests.renamed")(other)
    with pytest.raises(InvalidTask, match=r"give one of the two another name with @task\(name="):
        task(name="tests.other", aliases=["tests.old_name"])(other)
    assert registry.lookup("tests.other") is None  # nothing is half registered


def test_the_same_function_defined_again_replaces_its_predecessor() -> None:
    first = task(other)
    second = task(priority=3)(other)
    assert first.name == second.name
    assert registry.get_task(first.name) is second


def _adding_one(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func("added", *args, **kwargs)

    return wrapper


@task
@_adding_one
def decorated(added: str, n: int) -> int:
    return n


@task(takes_context=True)
def with_context(context: Any, n: int, *, shift: int = 0) -> int:
    return n + shift


def queued() -> int:
    return JobQueue().get_stats()["queued"]


@pytest.mark.parametrize(
    ("enqueue", "message"),
    [
        (lambda: tasks.add.enqueue(1), "missing a required argument: 'b'; it takes (a, b"),
        (lambda: tasks.add.enqueue(1, c=2), "tests.app.tasks.add cannot be called like this: "),
        (lambda: tasks.add.enqueue(*range(9)), "too many positional arguments"),
        (with_context.enqueue, "missing a required argument: 'n'; it takes (n, *, shift"),
        (lambda: with_context.enqueue(1, 2), "too many positional arguments"),
        (lambda: tasks.add.enqueue_many([(1, 2), (1,)]), "missing a required argument: 'b'"),
        (lambda: tasks.add.using(priority=3).enqueue(1), "missing a required argument: 'b'"),
        (lambda: JobQueue().add_job("tests.app.tasks.add", 1), "missing a required argument: 'b'"),
        (lambda: chain(tasks.add.s(1, 2), tasks.add.s()), "the first is its parent's result"),
        (lambda: Workflow().add(tasks.add, 1), "missing a required argument: 'b'"),
    ],
)
def test_the_task_and_its_arguments_are_named_and_nothing_is_queued(
    enqueue: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        enqueue()
    assert message in str(caught.value)
    assert queued() == 0


def test_the_message_shows_no_value() -> None:
    with pytest.raises(InvalidArguments) as caught:
        tasks.add.enqueue("secret", 2, oops="secret")
    assert "oops" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_fitting_arguments_are_accepted() -> None:
    with_context.enqueue(1)
    with_context.enqueue(n=1, shift=2)
    tasks.add.enqueue(1, b=2)
    chain(tasks.add.s(1, 2), tasks.add.s(3))
    assert queued() == 4


def test_an_annotation_may_name_what_only_type_checkers_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.14 evaluates annotations when they are read; earlier versions cannot defer it
    without the import that this module has there."""
    future = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    (tmp_path / "annotated.py").write_text(
        f"{future}"
        "from django_redisqueue import Chunk, task\n\n"
        '@task(takes_context=True, redact=("card",))\n'
        "def charge(context: JobContext, card: Card) -> Receipt:\n    return card\n\n"
        "@task(takes_context=True, chunk=Chunk(2))\n"
        "def index(context: ChunkContext, items: Items) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = import_module("annotated")
    monkeypatch.delitem(sys.modules, "annotated")
    assert module.charge(None, "1") == "1"
    with pytest.raises(InvalidArguments, match=r"it takes \(card\)"):
        module.charge.enqueue()


def test_a_decorator_may_add_arguments() -> None:
    decorated.enqueue(5)
    assert queued() == 1


def _needs_names(x: int, *, k: int) -> None: ...
def _takes_all(*args: int, **kwargs: int) -> None: ...
def _takes_more(x: int, /, *rest: int) -> None: ...


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "fits"),
    [
        (_needs_names, (1,), {}, False),
        (_needs_names, (1,), {"k": 2}, True),
        (_takes_all, (1, 2, 3), {"k": 2}, True),
        (_takes_more, (), {}, False),
        (_takes_more, (1, 2, 3), {}, True),
        (_takes_more, (), {"x": 1}, False),
    ],
)
def test_arguments_are_checked_as_python_does(
    func: Callable[..., None], args: tuple[int, ...], kwargs: dict[str, int], fits: bool
) -> None:
    parameters = accepted_parameters(func)
    if fits:
        func(*args, **kwargs)
        parameters.check("t", args, kwargs)
        return
    with pytest.raises(TypeError):
        func(*args, **kwargs)
    with pytest.raises(InvalidArguments):
        parameters.check("t", args, kwargs)
