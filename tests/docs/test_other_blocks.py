"""Blocks in languages other than Python and console: parsed, and compared with the code."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth import get_user_model
from django.core.management import load_command_class
from redis import Redis

from django_redisqueue import Workflow
from django_redisqueue.broker.keys import DEFAULT_PREFIX
from tests.api import tasks as api_tasks
from tests.app import tasks
from tests.support.burst import work
from tests.support.imports import OWN, PAGE, ROOT
from tests.support.logins import logged_in

from .pages import PAGES, Block, all_blocks, blocks

# Each language, and the test that runs or parses its blocks.
LANGUAGES = {
    "python": "tests/docs/test_python_blocks.py",
    "console": "tests/docs/test_console_blocks.py",
    "dockerfile": "tests/docs/test_other_blocks.py",
    "ini": "tests/docs/test_other_blocks.py",
    "js": "tests/browser/test_stream.py",
    "json": "tests/docs/test_other_blocks.py",
    "log": "tests/docs/preludes/operations.py",
    "mermaid": "tests/support/imports.py",
    "redis": "tests/docs/test_other_blocks.py",
    "text": "tests/docs/test_other_blocks.py",
    "yaml": "tests/docs/test_other_blocks.py",
}
PROBE = "django_redisqueue.worker.probe"
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "CMD", "HEALTHCHECK"}
# The page that shows a few entries, with … in place of long values.
STREAM = "docs/internals/mirror.md"


def test_every_block_is_run_or_parsed() -> None:
    for page in PAGES:
        found = list(all_blocks(page))
        fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.M)
        assert len(fences) == 2 * len(found), f"{page}: a fence is not closed, or is no ```"
        for block in found:
            assert block.language in LANGUAGES, (
                f"{block}: no test runs or parses blocks in {block.language!r}; write one, and "
                "name it in LANGUAGES"
            )


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_the_test_for_each_language_exists(language: str) -> None:
    assert blocks(language)
    assert language in (ROOT / LANGUAGES[language]).read_text(encoding="utf-8")


def command_lines(block: Block) -> Iterator[list[str]]:
    """What the block makes a shell, an init system or an orchestrator run."""
    match block.language:
        case "yaml":
            for document in yaml.safe_load_all(block.text):
                yield from _commands(document)
        case "ini":
            yield shlex.split(_ini(block)["Service"]["ExecStart"])
        case "dockerfile":
            for line in block.text.splitlines():
                instruction, _, rest = line.partition(" ")
                assert instruction in INSTRUCTIONS, f"{block}: {line}"
                if "CMD" in line:
                    yield json.loads(rest[rest.index("[") :])


def _commands(node: Any) -> Iterator[list[str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "command":
                yield value if isinstance(value, list) else shlex.split(value)
            else:
                yield from _commands(value)
    elif isinstance(node, list):
        for value in node:
            yield from _commands(value)


def _ini(block: Block) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(block.text)
    return parser


@pytest.mark.parametrize("language", ["dockerfile", "ini", "yaml"])
def test_deployments_run_what_exists(language: str, tmp_path: Path) -> None:
    parser = load_command_class(OWN, "runworker").create_parser("manage.py", "runworker")
    for block in blocks(language):
        heartbeats, probed = set(), set()
        for words in command_lines(block):
            if "runworker" in words:
                at = words.index("--heartbeat-file") + 1
                heartbeats.add(words[at])
                words[at] = str(tmp_path / "worker.json")  # its folder must exist
                parser.parse_args(words[words.index("runworker") + 1 :])
            elif PROBE in " ".join(words):
                probed |= set(re.findall(rf"{PROBE} (\S+)", " ".join(words)))
            else:
                assert words[0] == "valkey-server", f"{block}: {words}"
                assert words[1:] == ["--appendonly", "yes", "--maxmemory-policy", "noeviction"]
        if heartbeats:
            assert probed <= heartbeats, f"{block}: the probe reads another file"


def test_a_worker_has_more_time_to_stop_than_it_gives_its_jobs() -> None:
    parser = load_command_class(OWN, "runworker").create_parser("manage.py", "runworker")
    grace = parser.get_default("grace")
    text = "".join(block.text for language in ("yaml", "ini") for block in blocks(language))
    names = ("TimeoutStopSec=", "stop_grace_period: ", "terminationGracePeriodSeconds: ")
    found = [int(number) for name in names for number in re.findall(rf"{name}(\d+)", text)]
    assert len(found) == 3
    assert min(found) > grace
    for block in blocks("ini"):
        assert _ini(block)["Service"]["KillMode"] == "mixed", (
            block
        )  # children are ended by their supervisor


def _json(page: str) -> tuple[Block, dict[str, Any]]:
    (block,) = blocks("json", ROOT / "docs" / page)
    return block, json.loads(block.text)


@pytest.mark.django_db
def test_the_error_of_the_api_is_as_documented(queue_settings: dict[str, Any]) -> None:
    client = logged_in(get_user_model().objects.create_superuser("ada"))
    body = {"task": api_tasks.open_task.name, "priority": 1000}
    answer = client.post("/jobs", body, content_type="application/json").json()["error"]
    block, body = _json("http-api.md")
    told = body["error"]
    assert answer.pop("message").startswith(told.pop("message").removesuffix("...")), block
    assert answer == told, block


@pytest.mark.one_shard("one connection hears of its workflow")
@pytest.mark.one_server("on a cluster the channel has another name")
def test_the_message_of_a_workflow_is_as_documented(
    redis: Redis, queue_settings: dict[str, Any], settings: Any
) -> None:
    settings.REDISQUEUE = {**queue_settings, "PREFIX": DEFAULT_PREFIX}  # is in no channel's name
    listener = redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("job_status:workflows")
    listener.get_message(timeout=5)  # the reply to its subscription
    with Workflow("nightly") as flow:
        flow.add(tasks.noop)
    work()
    messages = []
    while message := listener.get_message(timeout=1):
        messages.append(json.loads(message["data"]))
    listener.close()
    block, told = _json("workflows.md")
    (completed,) = [one for one in messages if one["status"] == told["status"]]
    assert {name: type(value) for name, value in completed.items()} == {
        name: type(value) for name, value in told.items()
    }, block


def test_redis_accepts_the_commands(redis: Redis) -> None:
    for block in blocks("redis"):
        for line in block.text.splitlines():
            words = shlex.split(line)
            assert words[:3] == ["ACL", "SETUSER", "queue"], f"{block}: would this harm others?"
            assert redis.execute_command(*words) in (True, "OK", b"OK")
    redis.acl_deluser("queue")


def test_the_only_flowchart_is_drawn_from_the_code() -> None:
    """tests/test_layers.py compares it."""
    assert [block.page for block in blocks("mermaid")] == [PAGE]


def test_text_is_a_drawing_or_a_timeline() -> None:
    """tests/broker/test_limits_page.py compares the timelines."""
    for block in blocks("text"):
        above = block.page.read_text(encoding="utf-8").splitlines()[block.line - 2]
        is_drawing = bool(set("─│") & set(block.text))
        is_stream = block.page.relative_to(ROOT).as_posix() == STREAM
        assert is_drawing or is_stream or above.startswith("<!-- timeline:"), (
            f"{block}: name its language, so that a test runs or parses it"
        )
