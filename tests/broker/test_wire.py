"""Commands that are encoded by hand are the bytes that hiredis makes of them."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.wire import bulk, known_bulk, packed, packed_head


@pytest.mark.parametrize("text", ["", "a", "é", "\U0001f600", "a\r\nb", "\udcff", "x" * 70_000])
def test_a_head_and_its_bulks_are_one_command(text: str) -> None:
    head = packed_head(("EVALSHA", "a" * 40, 1, "key", "", 500_000), 2)
    assert head + bulk(text) + known_bulk("b") == packed(
        ("EVALSHA", "a" * 40, 1, "key", "", 500_000, text, "b")
    )


def test_a_count_may_get_another_digit() -> None:
    assert packed_head(("A", "b"), 8).startswith(b"*10\r\n$1\r\nA\r\n")
