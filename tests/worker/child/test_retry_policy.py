"""What an exception means for a job, and how it is described."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Backoff, Retry
from django_redisqueue.broker.replies import OutcomeKind
from django_redisqueue.client.options import TaskOptions
from django_redisqueue.conf import load
from django_redisqueue.exceptions import (
    JobAbandoned,
    JobCancelled,
    JobTimeout,
    RateLimited,
)
from django_redisqueue.worker.child import retry_policy

SETTINGS = load({})


def resolve_error(
    error: BaseException, attempts: int = 0, **options: Any
) -> retry_policy.Resolution:
    known = TaskOptions(**{"max_attempts": 3, "backoff": Backoff(base=2, jitter=0), **options})
    return retry_policy.resolve_error(error, known, attempts, known.max_attempts, SETTINGS)


@pytest.mark.parametrize(
    ("error", "options", "attempts", "expected"),
    [
        (ValueError(), {}, 0, ("retrying", "2000")),
        (ValueError(), {}, 1, ("retrying", "4000")),
        (ValueError(), {}, 2, ("failed", "")),
        (ValueError(), {"max_attempts": 1}, 0, ("failed", "")),
        (ValueError(), {"retry_on": (OSError,)}, 0, ("failed", "")),
        (FileNotFoundError(), {"retry_on": (OSError,)}, 0, ("retrying", "2000")),
        (FileNotFoundError(), {"no_retry_on": (FileNotFoundError,)}, 0, ("failed", "")),
        (Retry(delay=7), {}, 0, ("retrying", "7000")),
        (Retry(delay=0), {}, 0, ("retrying", "0")),
        (Retry(), {}, 0, ("retrying", "2000")),
        (Retry(delay=7), {"retry_on": (OSError,)}, 0, ("retrying", "7000")),
        (Retry(delay=7), {}, 2, ("failed", "")),
        (Retry(delay=-1), {}, 0, ("failed", "")),
        (Retry(delay="soon"), {}, 0, ("failed", "")),
        (JobTimeout(), {}, 0, ("retrying", "2000")),
        (JobTimeout(), {}, 2, ("failed", "timeout")),
        (JobTimeout(), {"retry_on": (OSError,)}, 0, ("retrying", "2000")),
        (JobCancelled(), {}, 0, ("cancelled", "")),
        (JobAbandoned(), {}, 0, ("queued", "")),
        (BaseExceptionGroup("", [JobTimeout()]), {}, 0, ("retrying", "2000")),
        (BaseExceptionGroup("", [ValueError(), JobTimeout()]), {}, 2, ("failed", "timeout")),
        (
            BaseExceptionGroup("", [BaseExceptionGroup("", [JobCancelled()])]),
            {},
            0,
            ("cancelled", ""),
        ),
        (ExceptionGroup("", [Retry(delay=7)]), {}, 0, ("retrying", "7000")),
        (ExceptionGroup("", [ExceptionGroup("", [Retry(delay=7)])]), {}, 2, ("failed", "")),
        (ExceptionGroup("", [RateLimited(retry_after=7)]), {}, 2, ("limited", "7000")),
        (ExceptionGroup("", [ValueError(), Retry(delay=7)]), {}, 0, ("retrying", "2000")),
        (SystemExit(1), {}, 0, ("failed", "")),
        (KeyboardInterrupt(), {}, 0, ("failed", "")),
    ],
)
def test_what_an_error_means(
    error: BaseException, options: dict[str, Any], attempts: int, expected: tuple[str, str]
) -> None:
    resolution = resolve_error(error, attempts, **options)
    assert (resolution.kind, resolution.detail) == expected


@pytest.mark.parametrize("error", [Retry("later", delay=7), RateLimited("busy", retry_after=7)])
def test_an_error_from_a_process_pool(error: Exception) -> None:
    """The pool of a task pickles it; if that failed, the task would wait forever."""
    received = pickle.loads(pickle.dumps(error))
    assert resolve_error(received) == resolve_error(error)
    assert str(received) == str(error)


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
def test_an_error_whose_text_cannot_be_made(raised: type[BaseException]) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise raised

    error = json.loads(resolve_error(Broken(), 2).body)
    assert error["message"] == f"<Broken whose text cannot be made: {raised.__name__}>"


@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
def test_an_error_whose_traceback_cannot_be_made(raised: type[BaseException]) -> None:
    class Broken(SyntaxError):
        @property
        def text(self) -> str:
            raise raised

    try:
        raise Broken("no")
    except Broken as error:
        told = json.loads(resolve_error(error, 2).body)
    assert told["type"].endswith("Broken")
    assert "raise Broken" in told["traceback"]
    assert told["traceback"].endswith(f"(the rest cannot be shown: {raised.__name__})\n")


def raising(self: Any) -> Any:
    raise SystemExit("look elsewhere")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        return raising(cls) if name == "__qualname__" else super().__getattribute__(name)


class OfMeta(Exception, metaclass=Meta):
    pass


class WithoutTraceback(Exception):
    __traceback__ = property(raising)  # type: ignore[assignment]


class WithoutClass(Exception):
    __class__ = property(raising)  # type: ignore[assignment]


class WithoutDelay(Retry):
    delay = property(raising)  # type: ignore[assignment]

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("kind", [OfMeta, WithoutTraceback, WithoutClass, WithoutDelay])
def test_an_error_that_raises_on_any_access(kind: type[BaseException]) -> None:
    first, last = resolve_error(kind()), resolve_error(kind(), 2)
    assert first.kind in ("retrying", "failed")
    assert last.kind == "failed"
    assert json.loads(last.body)["type"]
    assert json.loads(retry_policy.describe(kind(), 4000))["type"]


def test_a_custom_retry_exception_without_a_delay() -> None:
    class Later(Retry):
        def __init__(self) -> None:
            pass

    assert resolve_error(Later()).detail == "2000"


@pytest.mark.parametrize("delay", [30, 0.5, timedelta(minutes=1)])
def test_a_delay_passed_as_the_message(delay: Any) -> None:
    with pytest.raises(TypeError, match=r"Retry: write delay=.*, after the message"):
        Retry(delay)


def test_a_retry_of_a_task_with_one_attempt() -> None:
    message = json.loads(resolve_error(Retry(delay=7), max_attempts=1).body)["message"]
    assert message.endswith("; no attempt is left, because max_attempts is 1")
    assert "max_attempts" not in resolve_error(Retry(delay=7), 2).body


def test_an_unknown_task_is_delayed_for_a_limited_time() -> None:
    resolutions = [retry_policy.unknown_task("a.b", delays, SETTINGS) for delays in range(13)]
    assert {resolution.kind for resolution in resolutions[:12]} == {OutcomeKind.DELAYED}
    delays = [int(resolution.detail) for resolution in resolutions[:12]]
    assert delays[:5] == [5000, 10_000, 20_000, 40_000, 60_000]
    assert 300_000 < sum(delays) < 900_000
    assert (resolutions[12].kind, resolutions[12].detail) == (OutcomeKind.FAILED, "unknown_task")
