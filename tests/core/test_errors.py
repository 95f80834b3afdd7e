"""Errors that differ only in values and line numbers have one fingerprint."""

from __future__ import annotations

import json

import pytest

import django_redisqueue
from django_redisqueue.core.errors import ErrorKey, error_key, normalized, own_frame


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("order 17 of 3,5 costs 10.25", "order <n> of <n> costs <n>"),
        ("no such key: 'a b'", "no such key: '…'"),
        ('"x \\" y" isn\'t valid, don\'t', "'…' isn't valid, don't"),
        ("<Thing object at 0x7f32a1b2c3d4>", "<Thing object at <id>>"),
        ("id 550E8400-e29b-41d4-a716-446655440000!", "id <id>!"),
        ("commit deadbeef01 of 20261123", "commit <id> of <n>"),
        ("no job job_1763900000000_ab3k9x2q1z_0 in Redis", "no job <id> in Redis"),
        ("jane.doe@mail.example.org refused", "<address> refused"),
        ("10.0.0.7:6379 is away\n  since 4 s", "<n>:<n> is away since <n> s"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_values_are_replaced(message: str, expected: str) -> None:
    assert normalized(message) == expected


def trace(*frames: tuple[str, str], lines: int = 1) -> str:
    text = "".join(f'  File "{path}", line {lines}, in {name}\n    code\n' for path, name in frames)
    return f"Traceback (most recent call last):\n{text}ValueError: no\n"


OWN = "/srv/releases/20261123/shop/orders/tasks.py"
PACKAGE = f"{django_redisqueue.__path__[0]}/client/tasks.py"


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([(OWN, "charge")], "shop/orders/tasks.py in charge"),
        (
            [
                (OWN, "charge"),
                ("/venv/lib/python3.12/site-packages/stripe/api.py", "post"),
                ("/usr/lib/python3.12/json/decoder.py", "decode"),
                ("<frozen importlib._bootstrap>", "load"),
                (PACKAGE, "enqueue"),
            ],
            "shop/orders/tasks.py in charge",
        ),
        ([("/usr/lib/python3.12/json/a.py", "decode")], "python<n>/json/a.py in decode"),
        ([("C:\\app\\shop\\tasks.py", "charge")], "app/shop/tasks.py in charge"),
        ([], ""),
    ],
)
def test_the_frame_is_the_last_one_in_the_applications_code(
    frames: list[tuple[str, str]], expected: str
) -> None:
    assert own_frame(trace(*frames)) == expected


def test_of_chained_exceptions_the_last_counts() -> None:
    first = trace((OWN, "charge"), ("/srv/shop/db.py", "connect"))
    text = f"{first}\nDuring handling of the above exception, another exception occurred:\n\n"
    assert own_frame(text + trace((OWN, "pay"))) == "shop/orders/tasks.py in pay"


def error(message: str, traceback: str = "") -> str:
    return json.dumps({"type": "ValueError", "message": message, "traceback": traceback})


def test_a_fingerprint_tells_task_exception_message_and_frame_apart() -> None:
    here = trace((OWN, "charge"))
    first = error_key("a.b", error("no 1", here))
    assert first == ErrorKey("a.b", "ValueError", "no <n>", "shop/orders/tasks.py in charge")
    assert first == error_key("a.b", error("no 2", trace((OWN, "charge"), lines=9)))
    others = [
        error_key("a.c", error("no 1", here)),
        error_key("a.b", error("yes 1", here)),
        error_key("a.b", error("no 1", trace((OWN, "pay")))),
        error_key("a.b", "not JSON"),
    ]
    assert len({key.fingerprint for key in [first, *others]}) == 5
    assert others[3] == ErrorKey("a.b")


@pytest.mark.parametrize("text", ["\udcff", "\x00", "'" * 3000, "1a" * 2000, "a@" * 2000, 7, None])
def test_anything_has_a_key_that_a_database_can_store(text: object) -> None:
    key = error_key("a.b", json.dumps({"type": text, "message": text, "traceback": text}))
    assert len(key.fingerprint) == 32
    assert not {"\x00", "\udcff"} & set(key.exception + key.message)
