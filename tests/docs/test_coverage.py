"""The settings, metrics, checks and log lines in the code are all documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from django_redisqueue import prometheus
from django_redisqueue.client.options import CALL_CHECKS, TASK_CHECKS
from django_redisqueue.conf import DEFAULTS
from tests.support.imports import OWN, ROOT
from tests.support.log_lines import LINES, PAGE, listing, log_calls

from .pages import ALL_TEXT, assert_lists

METRICS = set(re.findall(r"\bredisqueue_[a-z_]+\b", (ROOT / "docs" / "metrics.md").read_text()))
LITERAL = re.compile(r'"django_redisqueue\.([EW]\d{3})"')
MADE = re.compile(r"\bmake_(error|warning)\(\s*(\d+)")


def metric_names() -> set[str]:
    totals = {f"jobs_{name}" for name in prometheus.TOTALS}
    totals |= {f"schedule_{name}" for name in prometheus.SCHEDULE_TOTALS}
    found = {f"redisqueue_{name}_total" for name in totals}
    for node in ast.walk(ast.parse(Path(prometheus.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            suffixes = {"_gauge": "", "_summary": "", "_counter": "_total"}
            if (kind := ast.unparse(node.func)) in suffixes:
                found.add(f"redisqueue_{node.args[0].value}{suffixes[kind]}")
    return found


def test_exactly_the_existing_metrics_are_documented() -> None:
    names = metric_names()
    assert len(names) > 20
    assert_lists("docs/metrics.md", METRICS & names, names)
    # docs/scale.md and others also name them
    named = set(re.findall(r"\bredisqueue_[a-z_]+(?:_total|_seconds|_events)\b", ALL_TEXT))
    assert_lists("the documentation", named | names, names)


def test_every_setting_is_in_the_table_of_settings() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    keys = re.findall(r"`([A-Z_]+)`", " ".join(re.findall(r"^\| (.+?) \|", section, re.M)[1:]))
    assert len(keys) == len(set(keys))
    assert_lists("docs/operations.md, section Settings,", keys, DEFAULTS)


def test_the_readme_has_every_option_of_a_task_and_of_a_call() -> None:
    section = (ROOT / "README.md").read_text().partition("### Tasks")[2].partition("### Queues")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.M)
    options = re.findall(r"\w+", " ".join(rows))
    assert_lists("README.md, section Tasks,", options, {*TASK_CHECKS, "name", "aliases"})
    call = section.partition("`using(...)` takes ")[2].partition("\n\n")[0]
    assert_lists("'`using(...)` takes' in README.md", re.findall(r"`(\w+)`", call), CALL_CHECKS)


def test_exactly_the_existing_checks_are_documented() -> None:
    code = [path.read_text(encoding="utf-8") for path in (ROOT / OWN).rglob("*.py")]
    made = [found for text in code for found in MADE.findall(text)]
    ids = {f"{kind.upper()[0]}{int(number):03}" for kind, number in made}
    ids |= {found for text in code for found in LITERAL.findall(text)}
    page = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    assert len(ids) > 20
    listed = re.findall(r"^\| `django_redisqueue\.([EW]\d{3})`", page, re.M)
    assert_lists("docs/checks.md", listed, ids)


def test_every_log_line_is_listed() -> None:
    found = LINES.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    assert found[0] == listing(), "docs/log-lines.md is out of date: run `make log-lines`"


def test_every_log_line_is_explained() -> None:
    calls = list(log_calls())
    assert len(calls) > 70
    mute = [call.place for call in calls if not re.fullmatch(r"[A-Z-].{30,}\.", call.meaning)]
    assert not mute, "above these calls a comment '#: what it means. What to do.' is missing"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r": (\S+\.md)$", text, re.M))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= named
