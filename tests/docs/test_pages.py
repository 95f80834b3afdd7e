"""What the pages say exists: modules, names, options, settings, commands, flags, links."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from django_redisqueue import signals
from django_redisqueue.client.options import TaskOptions
from django_redisqueue.conf import DEFAULTS
from django_redisqueue.models import JobRecord
from tests.support.imports import OWN, ROOT

from .pages import ALL_TEXT, PAGES, Block, anchors, blocks, links

PYTHON = blocks("python")
CONSOLE = blocks("console")
TASK_OPTIONS = {field.name for field in fields(TaskOptions)} - {"timeout_ms"}
TASK_OPTIONS |= {"timeout", "name", "aliases"}
COMMANDS = {name for name, app in get_commands().items() if app == OWN}


def syntax(block: Block) -> ast.Module:
    """A block may be a part of a function, with an ``await``."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(dedent(block.text), str(block), "exec", flags)


def test_python_can_be_parsed_and_imports_what_exists() -> None:
    for block, node in [(one, node) for one in PYTHON for node in ast.walk(syntax(one))]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == OWN:
            try:
                module = import_module(str(node.module))
            except ModuleNotFoundError as error:  # the library of an extra
                if str(error.name).startswith(OWN) or "CI" in os.environ:
                    raise
                continue
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not missing, f"{block}: {node.module} has no {missing}"


def test_options_of_tasks_exist() -> None:
    for block in PYTHON:
        for call in calls(block, "task"):
            given = {keyword.arg for keyword in call.keywords if keyword.arg}
            assert given <= TASK_OPTIONS, f"{block}: @task has no option {given - TASK_OPTIONS}"


def test_every_option_of_tasks_is_documented() -> None:
    assert not {name for name in TASK_OPTIONS if not re.search(rf"\b{name}\b", ALL_TEXT)}


def calls(block: Block, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(syntax(block)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
            yield node


def test_settings_exist() -> None:
    for block in PYTHON:
        for node in syntax(block).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "REDISQUEUE":
                assert isinstance(node.value, ast.Dict), block
                keys = {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
                assert keys <= set(DEFAULTS), f"{block}: no setting {keys - set(DEFAULTS)}"


def flags(command: BaseCommand) -> set[str]:
    parser = command.create_parser("manage.py", "")
    return {flag for action in parser._actions for flag in action.option_strings}


def own_flags(name: str) -> set[str]:
    return flags(load_command_class(OWN, name)) - flags(BaseCommand())


def test_commands_and_their_flags_exist() -> None:
    for line in "".join(block.text for block in CONSOLE).splitlines():
        _, is_command, rest = line.partition("manage.py ")
        if not is_command:
            continue
        name, *arguments = shlex.split(rest, comments=True)
        assert name in get_commands() or name == "demo", line
        if name in COMMANDS:
            known = flags(load_command_class(OWN, name))
            given = {word.split("=")[0] for word in arguments if word.startswith("--")}
            assert given <= known, f"{line}: no {given - known}"


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert not broken
