"""Retrying while Redis is unavailable."""

from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest

from django_redisqueue.broker import failures
from django_redisqueue.broker.failures import LASTING, Outage, retry_until_answered
from django_redisqueue.exceptions import (
    RedisRefused,
    RedisUnavailable,
)


def test_a_call_is_sent_again_until_it_is_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "Outage", lambda: Outage(since=100.0))
    monkeypatch.setattr(failures, "time", Mock(monotonic=lambda: 102.5))  # and no pauses
    asked: list[bool] = []

    def ask(resent: bool) -> str:
        asked.append(resent)
        if len(asked) < 6:
            raise (RedisUnavailable("gone"), RedisRefused("may not"))[len(asked) % 2]
        return "answer"

    with caplog.at_level(logging.WARNING, "django_redisqueue"):
        assert retry_until_answered(ask, who="child") == "answer"
        assert retry_until_answered(lambda _: "at once", who="child") == "at once"
    assert asked == [False, True, True, True, True, True]
    assert [record.getMessage() for record in caplog.records] == [
        "child: may not; trying again until it answers",
        "child: gone; trying again until it answers",
        "child: Redis answers again after 2.5 s",
    ]


def test_the_reason_why_an_outage_lasts_is_logged_once() -> None:
    """The first error often only says that the connection was cut."""
    error, outage = RedisUnavailable(), Outage()
    assert [outage.is_news(error, text) for text in ("cut", "expired")] == [True, False]
    outage.since -= LASTING
    asked = ("cut", "expired", "expired", "refused")
    assert [outage.is_news(error, text) for text in asked] == [False, True, False, False]


def test_a_call_may_be_given_up() -> None:
    def ask(resent: bool) -> None:
        raise RedisUnavailable("gone")

    with pytest.raises(RedisUnavailable):
        retry_until_answered(ask, who="child", give_up=lambda _: True)
