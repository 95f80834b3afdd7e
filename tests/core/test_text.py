"""No name, text or error from outside produces more than one plain line in the log."""

from __future__ import annotations

import ast
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import django_redisqueue
from django_redisqueue.broker.replies import OutcomeKind
from django_redisqueue.conf import get_settings
from django_redisqueue.core.text import LOGGERS, SanitizingFilter
from django_redisqueue.worker.child import retry_policy
from django_redisqueue.worker.child.job_log import log_outcome
from django_redisqueue.worker.child.retry_policy import Resolution

from ..support.hostile import TEXTS
from ..worker.parts import claimed

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of hostile texts

generated = settings(max_examples=60)
#: `` key=value``, with the value unchanged or as ``repr`` shows it.
PAIR = re.compile(r""" (\w+)=(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^ ='"]*)""")
BAD = "ok\n2026-01-01 INFO forged \x1b[2J\r\u2028\u202e\udcff\x00"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The output of a plain handler: each record begins with ``> ``."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("> %(message)s"))
    logger = logging.getLogger(LOGGERS[0])
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield out
    logger.removeHandler(handler)
    logger.setLevel(before)


def lines(out: io.StringIO) -> list[str]:
    """The output since the last call; it must be safe for every terminal."""
    found = out.getvalue().removesuffix("\n").split("\n")
    out.seek(0)
    out.truncate()
    assert all(line.isprintable() for line in found), found
    return found


@generated
@given(text=TEXTS, number=st.integers(min_value=0, max_value=99))
@example(text=BAD, number=1)
def test_whatever_is_logged_is_one_line(written: io.StringIO, text: str, number: int) -> None:
    logger = logging.getLogger(LOGGERS[0])
    logger.error("%s: %r has %d of %5.1f", text, ValueError(text), number, 2.5)
    (line,) = lines(written)
    assert line.endswith(f" has {number} of   2.5")


@pytest.mark.parametrize("name", LOGGERS)
def test_a_traceback_cannot_be_mistaken_for_a_record(written: io.StringIO, name: str) -> None:
    try:
        raise ValueError(BAD)
    except ValueError:
        logging.getLogger(name).exception("it broke: %s", BAD)
    first, *others = lines(written)
    assert first.startswith("> it broke: ok\\n2026")
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in others)


@generated
@given(task=TEXTS, queue=TEXTS, message=TEXTS)
@example(task=BAD, queue="q outcome=completed", message=BAD)
def test_the_line_of_a_job_that_failed(
    written: io.StringIO, queue_settings: Any, task: str, queue: str, message: str
) -> None:
    job = claimed()._replace(task=task, queue=queue)
    resolution = Resolution(
        OutcomeKind.FAILED, retry_policy.describe(ValueError(message), 4000), "reason"
    )
    log_outcome(job, resolution)
    line, *traceback = lines(written)
    assert all(each.startswith("  ") for each in traceback)
    keys = ["id", "task", "queue", "attempt", "ms", "outcome", "error", "reason"]
    assert PAIR.findall(f" {line[2:]}") == keys, line
    assert PAIR.sub("", f" {line[2:]}") == "", line
    log_outcome(job, retry_policy.unknown_task(task, 99, get_settings()))
    assert len([each for each in lines(written) if each.startswith("> ")]) == 1


def test_harmless_text_is_unchanged() -> None:
    error, record = ValueError("plain"), logging.makeLogRecord({})
    record.args = (error, 5, "text", 10**30)
    SanitizingFilter().filter(record)
    assert record.args == (error, 5, "text", 10**30)


def test_every_logger_of_the_package_is_guarded() -> None:
    folder = Path(django_redisqueue.__file__).parent
    names = set()
    for path in folder.rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        if "getLogger" not in code and "logger" not in code:
            continue  # parsing it would take a hundred times as long
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "getLogger":
                (name,) = node.args
                names.add(name.value if isinstance(name, ast.Constant) else path.name)
            # Anything in the text itself would bypass the filter.
            if isinstance(node, ast.Call) and getattr(node.func, "value", None) is not None:
                owner = getattr(node.func.value, "id", "")  # type: ignore[attr-defined]
                if owner == "logger" and node.args and isinstance(node.args[0], ast.JoinedStr):
                    values = [one.value for one in node.args[0].values]  # type: ignore[attr-defined]
                    names_in = [one for one in values if not isinstance(one, str)]
                    assert all(getattr(one, "id", "").isupper() for one in names_in), path
    assert names == {*LOGGERS, "text.py"}
    for name in LOGGERS:
        assert any(isinstance(f, SanitizingFilter) for f in logging.getLogger(name).filters)
