"""What users install is what the source tree contains."""

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "django_redisqueue"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]

# Runs in the fresh environment: every script is read as the package reads it.
USE_IT = """
import pathlib, django_redisqueue
from django_redisqueue.broker import scripts

package = pathlib.Path(django_redisqueue.__file__).parent
for path in sorted((package / "broker" / "lua").glob("*.lua")):
    assert scripts.assemble(path.stem).strip(), path
    print(path.stem)
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def source_files() -> set[str]:
    """Everything in the package's folder, except what Python itself leaves there."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_redis_py_5_is_too_old() -> None:
    """Its parser does not raise MovedError, early 5.0 releases ignore the timeouts of a unix
    socket, and 5.0 accepts a hiredis without ``pack_command``."""
    accepted = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
    assert [version in accepted["redis"] for version in ("5.3.1", "6.0.0")] == [False, True]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the sdist, so that both must be complete."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ".")
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_pypi_accepts_sdist_and_wheel(wheel: Path) -> None:
    files = sorted(wheel.parent.iterdir())
    assert [path.name.removeprefix(f"django_redisqueue-{VERSION}") for path in files] == [
        "-py3-none-any.whl",
        ".tar.gz",
    ]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_the_changelog_has_a_section_for_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{VERSION}] - 20" in changelog
    assert (ROOT / "docs/upgrading.md").read_text(encoding="utf-8").count(f"to {VERSION}\n") == 1


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    expected = source_files()
    assert f"{PACKAGE}/py.typed" in expected
    for kind in (".lua", ".html", ".js", ".css", "/uplot/LICENSE"):
        assert any(name.endswith(kind) for name in expected), kind
    assert expected - packed == set()


@pytest.mark.slow
def test_nothing_but_the_package_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert {top for top in tops if not top.endswith(".dist-info")} == {PACKAGE}
    assert licences


@pytest.mark.slow
def test_the_wheel_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", fresh)
    python = fresh / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    # Dependencies come from this environment. A .pth file in it is not followed, so that an
    # editable install of the source tree stays hidden.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    where = run(python, "-I", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(site)
    loaded = run(python, "-I", "-c", USE_IT, cwd=tmp_path).split()
    verbs = {path.stem for path in (ROOT / PACKAGE / "broker" / "lua").glob("*.lua")}
    assert set(loaded) == verbs
    assert verbs
