"""The example's numbers equal those of a plain loop over the same files, in each function and in
the demo's output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.core.management.base import CommandError

from example_project.catalogues.coverage import (
    Language,
    Measurement,
    best_covered,
    by_language,
    least_covered,
    translations,
)
from example_project.catalogues.demo.display import Display
from example_project.catalogues.demo.run import Run
from example_project.catalogues.demo.worker import Worker
from example_project.catalogues.discovery import component, find_catalogues
from example_project.catalogues.management.commands.demo import watch
from example_project.catalogues.tasks import count, measure
from tests.support.embedded import stop_server

from .plain_count import plain_count
from .site import copy_tables

DJANGO = Path(django.__file__).parent
MANAGE = Path(__file__).parents[2] / "example_project" / "manage.py"
SECONDS = 600  # longer than any demo takes, however busy the machine is
WAITING = "import signal; signal.pause()"


@pytest.fixture(scope="module")
def counted() -> dict[str, Counter[str]]:
    """Every catalogue of Django with its numbers, found and counted by a plain loop."""
    return {file.relative_to(DJANGO).as_posix(): plain_count(file) for file in DJANGO.rglob("*.po")}


# --- tasks and discovery --------------------------------------------------------------------------


def test_every_catalogue_is_found(counted: dict[str, Counter[str]]) -> None:
    assert len(counted) > 1000
    assert find_catalogues() == sorted(counted)


@pytest.mark.slow
def test_measure_agrees_with_a_plain_loop(counted: dict[str, Counter[str]]) -> None:
    for path, numbers in counted.items():
        result = measure(path)
        assert {name: result[name] for name in numbers} == numbers, path
        assert (result["path"], result["language"]) == (path, path.split("/")[-3])


def test_count_tells_the_states_apart(tmp_path: Path) -> None:
    file = tmp_path / "django.po"
    file.write_text(
        'msgid ""\nmsgstr "Language: xx\\n"\n\n'
        'msgid "yes"\nmsgstr "oui"\n\n'
        '#, fuzzy\nmsgid "no"\nmsgstr "nom"\n\n'
        'msgid "never"\nmsgstr ""\n\n'
        'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] "%d jour"\nmsgstr[1] ""\n\n'
        '#~ msgid "gone"\n#~ msgstr "parti"\n',
        encoding="utf-8",
    )
    assert count(file) == plain_count(file) == {"translated": 1, "fuzzy": 1, "untranslated": 2}


@pytest.mark.parametrize(
    "path",
    [
        "/conf/locale/de/LC_MESSAGES/django.po",
        "../other/locale/de/LC_MESSAGES/django.po",
        "conf/locale/../../../../other/locale/de/LC_MESSAGES/django.po",
        "conf/global_settings.py",
        "",
    ],
)
def test_measure_refuses_files_outside_django(path: str) -> None:
    with pytest.raises(ValueError, match="not the path of a catalogue inside the django package"):
        measure(path)


def test_measure_names_the_catalogue_that_does_not_exist() -> None:
    with pytest.raises(FileNotFoundError, match=r"'conf/locale/tlh/LC_MESSAGES/django\.po'"):
        measure("conf/locale/tlh/LC_MESSAGES/django.po")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("conf/locale/de/LC_MESSAGES/django.po", "core"),
        ("contrib/admin/locale/de/LC_MESSAGES/django.po", "admin"),
        ("contrib/admin/locale/de/LC_MESSAGES/djangojs.po", "admin-js"),
    ],
)
def test_component(path: str, name: str) -> None:
    assert component(path) == name


# --- coverage -------------------------------------------------------------------------------------


def measurement(language: str, translated: int, fuzzy: int, untranslated: int) -> Measurement:
    return {
        "path": "",
        "language": language,
        "component": "core",
        "translated": translated,
        "fuzzy": fuzzy,
        "untranslated": untranslated,
    }


def test_by_language_sums() -> None:
    german, frisian = by_language(
        [measurement("fy", 0, 1, 2), measurement("de", 5, 1, 2), measurement("de", 7, 1, 0)]
    )
    assert german == Language(code="de", catalogues=2, translated=12, fuzzy=2, untranslated=2)
    assert german.share == 0.75
    assert (frisian.code, frisian.share) == ("fy", 0)
    assert by_language([]) == []


def test_a_language_without_entries_is_not_covered() -> None:
    assert by_language([measurement("xx", 0, 0, 0)])[0].share == 0


def test_ranking() -> None:
    languages = by_language(
        [
            measurement("a", 1, 0, 1),
            measurement("b", 2, 0, 2),
            measurement("c", 4, 0, 0),
            measurement("d", 0, 4, 0),
            measurement("en", 0, 0, 4),
        ]
    )
    ranked = translations(languages)
    assert [one.code for one in least_covered(ranked, 3)] == ["d", "a", "b"]
    assert [one.code for one in best_covered(ranked, 3)] == ["c", "b", "a"]
    assert len(best_covered(ranked, 9)) == 4


# --- watching -------------------------------------------------------------------------------------


def fake_job(*statuses: str) -> Any:
    """A job that has the next of ``statuses`` after each refresh, and keeps the last."""
    job = SimpleNamespace(id="job_1_a_0", status="queued", attempts=1)
    rest = list(statuses)

    def refresh() -> None:
        job.status = rest.pop(0) if len(rest) > 1 else rest[0]

    job.refresh = refresh
    return job


def watch_beside(program: str, timeout: float, *jobs: Any) -> str:
    """Watch ``jobs`` while ``program`` runs in place of the worker; returns the output."""
    out = StringIO()
    queue: Any = SimpleNamespace(get_stats=lambda: Counter(queued=1))
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-c", program]
        worker = Worker(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), log)
        try:
            watch(Run(jobs), queue, worker, Display(out), timeout)
        finally:
            worker.stop()
    return out.getvalue()


def test_watching_ends_when_every_job_has_finished() -> None:
    jobs = [fake_job("queued", "completed"), fake_job("processing", "retrying", "failed")]
    printed = watch_beside(WAITING, 60, *jobs)
    assert [line.split("  ")[-2].strip() for line in printed.splitlines()] == [
        "0 of 2",
        "1 of 2",
        "2 of 2",
    ]


def test_a_worker_that_dies_is_reported_with_its_output() -> None:
    with pytest.raises(CommandError, match=r"(?s)exit status 3\. 1 of 1 .* 1 queued .*boom"):
        watch_beside("print('boom'); raise SystemExit(3)", 60, fake_job("queued"))


def test_jobs_that_do_not_finish_in_time_are_named() -> None:
    message = r"Time is up.* 1 of 2 jobs have not finished: 1 processing .*job_1_a_0"
    with pytest.raises(CommandError, match=message):
        watch_beside(WAITING, 0.2, fake_job("completed"), fake_job("processing"))


def test_retries_are_the_repeated_attempts() -> None:
    jobs = [fake_job("completed"), fake_job("completed"), fake_job("failed"), fake_job("failed")]
    for job, attempts in zip(jobs, (0, 1, 3, 0), strict=True):
        job.refresh()
        job.attempts = attempts  # spent attempts are those that raised
    assert Run(jobs).retries() == 3


# --- the whole demo -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_environment(
    tmp_path_factory: pytest.TempPathFactory, migrated: Path
) -> Iterator[dict[str, str]]:
    """The environment of a demo with its own Redis and database."""
    folder = tmp_path_factory.mktemp("demo")
    copy_tables(migrated, folder)
    yield {
        **{name: value for name, value in os.environ.items() if name != "MAKELEVEL"},
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "REDISQUEUE_URL": f"embedded://{folder}/redis",
        "EXAMPLE_DATABASE": str(folder / "db.sqlite3"),
    }
    stop_server(folder / "redis")


def start_demo(environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            str(MANAGE),
            "demo",
            "--plain",
            "--processes",
            "2",
            "--timeout",
            str(SECONDS),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_demo(environment: dict[str, str]) -> str:
    with start_demo(environment) as demo:
        out, errors = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, f"{out}\n{errors}"
    return out


def expected_rows(counted: dict[str, Counter[str]]) -> tuple[list[str], list[str]]:
    """The rows of both tables, with single spaces, from the plain loop's numbers."""
    sums: dict[str, Counter[str]] = {}
    for path, numbers in counted.items():
        language = path.split("/")[-3]
        if language != "en":
            sums.setdefault(language, Counter()).update(numbers, catalogues=1)

    def share(code: str) -> float:
        one = sums[code]
        return one["translated"] / (one["translated"] + one["fuzzy"] + one["untranslated"])

    def row(code: str) -> str:
        names = ("catalogues", "translated", "fuzzy", "untranslated")
        return " ".join([code, *(f"{sums[code][name]:,}" for name in names), f"{share(code):.1%}"])

    least = sorted(sums, key=lambda code: (share(code), sums[code]["translated"], code))
    best = sorted(sums, key=lambda code: (-share(code), -sums[code]["translated"], code))
    return [row(code) for code in least[:8]], [row(code) for code in best[:8]]


def check_report(out: str, counted: dict[str, Counter[str]]) -> None:
    lines = [" ".join(line.split()) for line in out.splitlines()]
    least = lines.index("The least covered languages") + 2
    best = lines.index("The best covered languages") + 2
    assert (lines[least : least + 8], lines[best : best + 8]) == expected_rows(counted)
    total = len(counted)
    assert f"{total + 1:,} jobs: {total:,} completed, 1 failed, 2 retries." in lines
    assert re.search(r"^[\d,]+ jobs/s: [\d.]+ s with 2 processes\.$", out, re.MULTILINE)
    assert "Failed after 3 attempts: job_" in out
    assert "Traceback (most recent call last)" in out
    assert re.search(r"^FileNotFoundError: .*conf/locale/tlh/", out, re.MULTILINE)
    assert re.search(rf"^ +{total + 1:,} of {total + 1:,} ", out, re.MULTILINE)
    about, command = out.splitlines()[-2:]
    assert "The site, its reports and its admin; it prints how to log in" in about
    assert re.fullmatch(r" +\S*python\S* \S*manage\.py site", command)


@pytest.fixture(scope="module")
def interrupted(demo_environment: dict[str, str]) -> tuple[int, str, int]:
    """A demo that received Ctrl-C during its jobs: its exit status, its errors, and the worker's
    pid."""
    with start_demo(demo_environment) as demo:
        assert demo.stdout is not None
        found = re.search(r"pid (\d+)", demo.stdout.readline())
        assert "Enqueued" in demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        out, errors = demo.communicate(timeout=SECONDS)
    assert found is not None, f"{out}\n{errors}"
    return demo.returncode, errors, int(found[1])


@pytest.mark.slow
def test_an_interrupted_demo_stops_its_worker(interrupted: tuple[int, str, int]) -> None:
    status, errors, worker = interrupted
    assert (status, "Interrupted" in errors) == (130, True), errors
    with pytest.raises(ProcessLookupError):
        os.killpg(worker, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupted")
def test_the_next_demo_prints_the_numbers_of_a_plain_loop_and_counts_its_own_jobs(
    demo_environment: dict[str, str], counted: dict[str, Counter[str]]
) -> None:
    """The interrupted demo completed jobs too, and left jobs in the queue."""
    check_report(run_demo(demo_environment), counted)
