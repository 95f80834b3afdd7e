"""Every line of the console blocks runs here, or belongs to a program that another test runs."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command, get_commands, load_command_class
from django.core.management.base import CommandError
from django.test import Client

from django_redisqueue import task, unique_keys
from django_redisqueue.models import ApiToken
from tests.gauntlet import __main__ as gauntlet
from tests.simulator import __main__ as simulator
from tests.support.imports import OWN, ROOT

from .pages import blocks
from .test_python_blocks import TUTORIAL, restored_registries

__all__ = ["restored_registries"]

# Commands that run until they are stopped, unless they have one of these options, and commands of
# the example project, with the tests that run them.
ELSEWHERE = {
    "runworker": (set[str](), "tests/worker/test_commands.py"),
    "queuemonitor": ({"--once"}, "tests/monitor/test_live.py"),
    "reapqueue": ({"--once", "--dry-run", "--accept-redis"}, "tests/worker/test_commands.py"),
    "makereportdata": (set[str](), "tests/example/test_report_data.py"),
    "comparereports": (set[str](), "tests/example/test_compare_reports.py"),
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
VARIABLES = set(re.findall(r"^([A-Z]+) \?=", MAKEFILE, re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass(frozen=True, slots=True)
class Line:
    place: str
    words: list[str]

    def __str__(self) -> str:
        return f"{self.place} {shlex.join(self.words)}"


def lines() -> Iterator[Line]:
    """All lines except the tutorial's, which tests/example/test_tutorial.py follows."""
    for block in blocks("console"):
        if block.page != TUTORIAL:
            text = re.sub(r"\\\n", lambda _: "  ", block.text)
            for number, line in enumerate(text.splitlines(), block.line + 1):
                words = shlex.split(line.removeprefix("$ "), comments=True)
                yield Line(f"{block.page.relative_to(ROOT)}:{number}", words)


@task(unique="until_finished")
def send_invoice(invoice: int) -> None: ...


class Console:
    """Runs lines, each in the way its program needs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(self, line: Line) -> None:
        words = line.words
        if words[0] == "python":
            words = words[1:]
        match words:
            case [path, name, *arguments] if path.endswith("manage.py"):
                self._manage(name, arguments)
            case ["make", *rest]:
                self._make(rest)
            case ["-m", "tests.simulator", *arguments]:
                self._simulate(arguments)
            case ["pip", "install", requirement]:
                self._install(requirement)
            case ["curl", *arguments]:
                self._curl(arguments)
            case [program]:
                assert (ROOT / program).stat().st_mode & 0o100
            case _:
                raise AssertionError("how is this run?")

    def _manage(self, name: str, arguments: list[str]) -> None:
        if name in ELSEWHERE and ELSEWHERE[name][0].isdisjoint(arguments):
            if get_commands().get(name) == OWN:
                load_command_class(OWN, name).create_parser("manage.py", name).parse_args(arguments)
            return
        if "KEY" in arguments:
            send_invoice.enqueue(42)
            arguments = [unique_keys()[0].key if one == "KEY" else one for one in arguments]
        out, code = StringIO(), 0
        try:
            call_command(name, *arguments, stdout=out, stderr=out)
        except CommandError as error:
            code = error.returncode
            out.write(str(error))
        # The doctor warns about the tests' Redis, which does not write to disk.
        assert code == (name == "redisqueue_doctor" and "WARNING" in arguments), out.getvalue()
        if "--json" in arguments:
            json.loads(out.getvalue())

    def _make(self, words: list[str]) -> None:
        given = dict(word.split("=", 1) for word in words if "=" in word)
        targets = [word for word in words if "=" not in word]
        assert set(targets) <= TARGETS
        assert set(given) <= VARIABLES
        arguments = shlex.split(given.get("ARGS", ""))
        match targets:
            case ["simulate"]:
                self._simulate(arguments)
            case ["gauntlet"]:
                gauntlet.make_parser().parse_args(arguments)
            case ["test"]:
                assert all((ROOT / one).exists() for one in arguments if one[0] != "-")
            case _:
                assert not arguments

    def _simulate(self, arguments: list[str]) -> None:
        self._monkeypatch.setattr(sys, "argv", ["simulator", *arguments])
        simulator._options()

    def _install(self, requirement: str) -> None:
        name, _, extras = requirement.rstrip("]").partition("[")
        assert name == PROJECT["name"]
        assert set(filter(None, extras.split(","))) <= set(PROJECT["optional-dependencies"])

    def _curl(self, arguments: list[str]) -> None:
        user = get_user_model().objects.create_superuser("ada")
        token = ApiToken.create(user, "curl")[1]
        options = list(zip(arguments[:-1:2], arguments[1:-1:2], strict=True))
        headers = dict(value.split(": ") for name, value in options if name == "-H")
        headers["Authorization"] = headers["Authorization"].replace("$TOKEN", str(token))
        response = Client(headers=headers).post(
            urlsplit(arguments[-1]).path, dict(options)["-d"], content_type=headers["Content-Type"]
        )
        assert response.status_code == 201, response.content


@pytest.fixture
def shop(restored_registries: None) -> None:
    task(api=True, name="shop.tasks.send_invoice")(_send_invoice)
    task(unique="until_finished", name=send_invoice.name)(send_invoice.func)


def _send_invoice(invoice: int) -> None: ...


@pytest.mark.one_shard("the projects of the pages have one")
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_lines_of_a_console_run(
    queue_settings: dict[str, Any], settings: Any, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = {"default": {}, "mail": {}, "reports": {}}  # of docs/queues.md
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True, "QUEUES": queues}
    console = Console(monkeypatch)
    for line in lines():
        try:
            console.run(line)
        except BaseException as error:
            error.add_note(str(line))
            raise


def test_no_command_is_missing() -> None:
    """Every test that runs what this one does not exists."""
    for name, (_, where) in ELSEWHERE.items():
        assert name in Path(ROOT / where).read_text(encoding="utf-8"), where
