"""Durations have the same format wherever they are accepted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Backoff, RateLimited, Retry, Workflow, task
from django_redisqueue.client.options import CALL_CHECKS, TASK_CHECKS
from django_redisqueue.conf import get_settings
from django_redisqueue.core.clock import to_ms
from django_redisqueue.core.policies import to_backoff
from django_redisqueue.exceptions import InvalidOption
from django_redisqueue.management.base import seconds


def of_settings(value: object, settings: Any) -> int:
    settings.REDISQUEUE = {"TIMEOUT": value}
    return get_settings().timeout_ms


PLACES: dict[str, tuple[Callable[[Any], object], object]] = {
    "@task(timeout=...)": (TASK_CHECKS["timeout"], 90_000),
    "@task(expires=...)": (TASK_CHECKS["expires"], 90_000),
    "using(timeout=...)": (CALL_CHECKS["timeout"], 90_000),
    "using(run_after=...)": (CALL_CHECKS["run_after"], "+90000"),
    "using(expires=...)": (CALL_CHECKS["expires"], "+90000"),
    "backoff": (lambda value: to_backoff(value).delay_ms(1), 90_000),
    "a list of backoffs": (lambda value: to_backoff([1, value]).delay_ms(2), 90_000),
    "Backoff": (lambda value: Backoff(value, jitter=0).delay_ms(1), 90_000),
    "Workflow": (lambda value: Workflow(ttl=value)._ttl_ms, 90_000),
}


@pytest.mark.parametrize("value", [90, 90.0, timedelta(seconds=90), "90s", "1m30s"], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_every_form_is_accepted_everywhere(place: str, value: object) -> None:
    read, expected = PLACES[place]
    assert read(value) == expected


@pytest.mark.parametrize("value", [90, timedelta(seconds=90), "90s"], ids=repr)
def test_settings_accept_every_form(value: object, settings: Any) -> None:
    assert of_settings(value, settings) == 90_000


def test_commands_accept_seconds_and_text() -> None:
    assert [seconds(text) for text in ("90", "90.0", "90s", "1m30s", "0s")] == [90, 90, 90, 90, 0]


def test_an_error_with_a_delay_shows_it_as_written() -> None:
    assert str(RateLimited(retry_after="90s")) == "refused; retry after 90s"
    assert str(RateLimited(retry_after=90)) == "refused; retry after 90 s"
    assert str(RateLimited(retry_after=timedelta(seconds=90))) == "refused; retry after 0:01:30"
    assert to_ms(Retry(delay="90s").delay, "delay") == 90_000


@pytest.mark.parametrize(
    "value",
    ["", "5", "5 m", "m", "-5m", "1.5h", "5M", "5m\n", "٥m", "5y", "1h 30m"],
)
def test_text_that_is_not_a_duration(value: str) -> None:
    with pytest.raises(InvalidOption, match='such as "90s", "5m" or "1h30m", not '):
        to_ms(value, "timeout")
    with pytest.raises(InvalidOption, match="timeout"):
        task(timeout=value)(test_text_that_is_not_a_duration)


def test_bounds() -> None:
    assert to_ms("0s", "timeout") == 0
    assert to_ms("5200w", "timeout") == 5200 * 7 * 86_400_000
    with pytest.raises(InvalidOption, match="of at most a hundred years, not '5300w'"):
        to_ms("5300w", "timeout")
