"""Everything that exists is documented: options, flags, signals, permissions. And links lead
somewhere."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from pkgutil import resolve_name

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from django_redisqueue import signals
from django_redisqueue.client.options import TaskOptions
from django_redisqueue.models import JobRecord
from tests.support.imports import OWN, ROOT

from .pages import ALL_TEXT, PAGES, anchors, links

TASK_OPTIONS = {field.name.removesuffix("_ms") for field in fields(TaskOptions)}
TASK_OPTIONS |= {"name", "aliases"}
COMMANDS = {name for name, app in get_commands().items() if app == OWN}


def test_every_option_of_tasks_is_documented() -> None:
    assert not {name for name in TASK_OPTIONS if not re.search(rf"\b{name}\b", ALL_TEXT)}


def flags(command: BaseCommand) -> set[str]:
    parser = command.create_parser("manage.py", "")
    return {flag for action in parser._actions for flag in action.option_strings}


def own_flags(name: str) -> set[str]:
    return flags(load_command_class(OWN, name)) - flags(BaseCommand())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_flag_is_documented(name: str) -> None:
    missing = {flag for flag in own_flags(name) if not re.search(rf"{flag}\b", ALL_TEXT)}
    assert not missing


def test_every_signal_is_documented() -> None:
    names = {name for name, value in vars(signals).items() if isinstance(value, signals.Signal)}
    missing = {name for name in names if not re.search(rf"\b{name}\b", ALL_TEXT)}
    assert not missing


def test_every_permission_is_documented() -> None:
    missing = {name for name, _ in JobRecord._meta.permissions if f"`{name}`" not in ALL_TEXT}
    assert not missing


def test_the_readme_has_the_rates_of_the_comparison() -> None:
    """Rounded to two digits: the rates of no-op jobs, with an append-only file."""
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    table = page.partition("\nAppend-only file:\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    rates = {row.split()[1]: row.split("|")[3].strip(" *") for row in table}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = "process|Huey|BullMQ|taskiq|Dramatiq|Celery|RQ"
    said = re.findall(rf"\b({names}) (?:runs )?(\d[\d,]*\d)", text)
    assert len(said) == 7
    for name, rate in said:
        measured = int(rates[OWN if name == "process" else name.lower()].replace(",", ""))
        assert rate == f"{float(format(measured, '.2g')):,.0f}", name


def test_every_path_of_the_package_exists() -> None:
    """Paths of modules: a logger or a task has the package's name and one more component."""
    paths = {*re.findall(rf"\b{OWN}(?:\.\w+){{2,}}", ALL_TEXT)}
    assert paths
    missing = []
    for path in sorted(paths):
        try:
            resolve_name(path)
        except (AttributeError, ImportError):
            missing.append(path)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert not broken
