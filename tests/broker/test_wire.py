"""Manually encoded commands have the same bytes as hiredis makes of them."""

from __future__ import annotations

import pytest

from django_redisqueue.broker.wire import bulk, known_bulk, packed, packed_head

from ..support.commands import Script
from ..support.servers import RedisServer

INTERRUPTED = """
import signal, time
from contextlib import suppress
from django_redisqueue.broker.connection import producer_connection
from django_redisqueue.broker.wire import packed
from django_redisqueue.exceptions import JobTimeout

def time_out(*_):
    raise JobTimeout

connection = producer_connection(0).open()
command = ("RPUSH", "key", *range(200_000))
signal.signal(signal.SIGALRM, time_out)
for ms in range(1, 40, 2):
    with suppress(JobTimeout):
        signal.setitimer(signal.ITIMER_REAL, ms / 1000)
        {encode}
        time.sleep(1)  # not pause(), which would never return if the signal came just before it
"""


@pytest.mark.parametrize("text", ["", "a", "é", "\U0001f600", "a\r\nb", "\udcff", "x" * 70_000])
def test_a_head_and_its_bulk_strings_are_one_command(text: str) -> None:
    head = packed_head(("EVALSHA", "a" * 40, 1, "key", "", 500_000), 2)
    assert head + bulk(text) + known_bulk("b") == packed(
        ("EVALSHA", "a" * 40, 1, "key", "", 500_000, text, "b")
    )


def test_a_count_may_gain_a_digit() -> None:
    assert packed_head(("A", "b"), 8).startswith(b"*10\r\n$1\r\nA\r\n")


@pytest.mark.parametrize("encode", ["packed(command)", "connection.pack_command(*command)"])
def test_a_timeout_while_numbers_are_encoded_does_not_crash(
    encode: str, redis_server: RedisServer
) -> None:
    script = Script(INTERRUPTED.format(encode=encode), REDISQUEUE_TEST_URL=redis_server.url)
    assert (script.wait(), script.output) == (0, "")


def test_numbers_are_encoded_as_their_texts() -> None:
    assert packed(("A", 1, -2, 0.5, 2**63)) == packed(("A", "1", "-2", "0.5", str(2**63)))
