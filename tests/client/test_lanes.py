"""Limits and shares as they are written, and the lanes of jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_redisqueue import Limit, Rate, Task, task
from django_redisqueue.client import registry
from django_redisqueue.conf import load
from django_redisqueue.core.policies import decode_lane, encode_value, shown_value
from django_redisqueue.exceptions import ConfigurationError, InvalidArguments, InvalidOption
from django_redisqueue.testing import capture_jobs

Register = Callable[..., Task]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Registers tasks for one test; there are no others."""
    monkeypatch.setattr(registry, "_tasks", {})
    return lambda func, **options: task(**options)(func)


def pay(tenant_id: int, amount: int = 1, *, card: str = "") -> None: ...


NAME = f"{pay.__module__}.pay"


def lane_of(made: Task, *args: Any, **kwargs: Any) -> str:
    with capture_jobs():
        return made.s(*args, **kwargs).new_job().lane


@pytest.mark.parametrize(
    ("options", "lane"),
    [
        ({"concurrency": Limit(5)}, f"|c:{NAME}: c:{NAME}=5"),
        ({"concurrency": Limit(5, key="tenant_id")}, f"|c:{NAME}:42 c:{NAME}=5"),
        ({"concurrency": Limit(5, key="amount")}, f"|c:{NAME}:1 c:{NAME}=5"),
        ({"concurrency": Limit(1, key=("tenant_id", "card"))}, f"|c:{NAME}:42,~ c:{NAME}=1"),
        (
            {"concurrency": Limit(1, key=lambda tenant_id, *_, **__: tenant_id % 10)},
            f"|c:{NAME}:2 c:{NAME}=1",
        ),
        ({"rate": Rate(100, "1m")}, f"|r:{NAME}: r:{NAME}=100/60000000/1"),
        (
            {"rate": Rate(100, timedelta(minutes=1), key="tenant_id", burst=10)},
            f"|r:{NAME}:42 r:{NAME}=100/60000000/10",
        ),
        ({"fair_by": "tenant_id"}, "42"),
        (
            {"fair_by": "tenant_id", "concurrency": Limit(5), "on_conflict": "discard"},
            f"42|c:{NAME}: c:{NAME}=5 !discard",
        ),
    ],
)
def test_the_lane_of_a_job(register: Register, options: dict[str, Any], lane: str) -> None:
    made = register(pay, **options)
    assert lane_of(made, 42) == lane
    assert lane_of(made, tenant_id=42) == lane


@pytest.mark.one_shard("its limits have different keys, which several shards refuse")
def test_named_limits_are_shared(register: Register, settings: Any) -> None:
    settings.REDISQUEUE = {
        "LIMITS": {"stripe": {"concurrency": 5, "rate": (100, "1s"), "burst": 10}},
        "WEIGHTS": {"42": 3},
    }
    made = register(
        pay,
        concurrency=(Limit("stripe"), Limit(2, key="tenant_id")),
        rate=Rate("stripe"),
        fair_by="tenant_id",
    )
    assert lane_of(made, 42) == (
        f"42|c:stripe:|c:{NAME}:42|r:stripe: c:stripe=5 c:{NAME}=2 r:stripe=100/1000000/10 s:42=3"
    )
    assert lane_of(made, 7).endswith(" s:7=1")


def test_a_call_may_choose_what_a_conflict_means(register: Register) -> None:
    made = register(pay, concurrency=Limit(5))
    assert lane_of(made.using(on_conflict="cancel_oldest"), 1).endswith(" !cancel_oldest")


def test_a_task_without_limits_has_no_lane(register: Register) -> None:
    assert lane_of(register(pay), 1) == ""


def test_values_are_safe_in_keys() -> None:
    nasty = "a b|c:d!%~\n\u00e9"
    encoded = encode_value(nasty)
    assert not set(encoded) & set(" |:!\n")
    assert shown_value(encoded) == nasty
    assert encode_value("") != encode_value("~")
    long = encode_value("x" * 500)
    assert len(long) < 64
    assert long != encode_value("x" * 501)
    assert encode_value(42) == encode_value("42")


def test_a_redacted_value_is_readable_nowhere(register: Register) -> None:
    made = register(pay, concurrency=Limit(1, key="card"), redact=("card",))
    lane = lane_of(made, 1, card="4000-1234")
    assert "4000" not in lane
    assert lane == lane_of(made, 2, card="4000-1234") != lane_of(made, 2, card="4000-1235")


def test_a_redacted_value_cannot_be_guessed(register: Register, settings: Any) -> None:
    """Its hash is shown on pages; an attacker who tries all card numbers must not find it."""
    made = register(pay, concurrency=Limit(1, key="card"), redact=("card",))
    lane = lane_of(made, 1, card="4711")
    assert lane == lane_of(made, 2, card="4711")
    settings.SECRET_KEY = "another"
    assert lane != lane_of(made, 1, card="4711")


def test_a_lane_is_read_back() -> None:
    lane = decode_lane("42|c:a:|r:b:7 c:a=5 r:b=100/60000000/1 s:42=3 !discard")
    assert (lane.share, lane.limits) == ("42", ("c:a:", "r:b:7"))
    assert lane.numbers == {"c:a": "5", "r:b": "100/60000000/1", "s:42": "3"}
    assert lane.on_conflict == "discard"
    assert decode_lane("").limits == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Limit(0), "whole number from 1 to 1000000 or the name of a limit, not 0"),
        (lambda: Limit(True), "not True"),
        (lambda: Limit(5, key=3), "key of Limit must be a parameter's name, .*, not 3"),  # type: ignore[arg-type]
        (lambda: Rate(100), r'needs a window with a unit, such as Rate\(100, "1m"\), not None'),
        (lambda: Rate(100, 60), r"needs a window with a unit, .*, not 60"),  # type: ignore[arg-type]
        (lambda: Rate(100, "60"), 'the window of Rate must be .* such as "90s"'),
        (lambda: Rate(100, "1ms"), 'must be from "10ms" to "366d"'),
        (lambda: Rate(0, "1m"), "Rate takes a whole number from 1"),
        (lambda: Rate(5, "1m", burst=6), "burst must be a whole number from 1 to the 5 jobs"),
        (lambda: Rate("stripe", "1m"), "takes its window and burst from REDISQUEUE"),
    ],
)
def test_limits_refuse_invalid_values(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 5}, r"concurrency must be a limit such as Limit\(5\), not 5"),
        ({"rate": Limit(5)}, r'rate must be a limit such as Rate\(100, "1m"\)'),
        ({"concurrency": []}, "takes 1 to 4 limits, not 0"),
        (
            {"concurrency": Limit(5, key="tenant")},
            r"key of Limit of .*pay is 'tenant', which is not a parameter of the task \(did you "
            r"mean 'tenant_id'\?\)",
        ),
        ({"fair_by": "nobody"}, "fair_by of .* is 'nobody', which is not a parameter"),
        ({"fair_by": 5}, "fair_by must be a parameter's name"),
        ({"on_conflict": "drop"}, "on_conflict must be one of wait, discard, cancel_oldest"),
        ({"on_conflict": "discard"}, "has on_conflict='discard', but no concurrency="),
        ({"concurrency": (Limit(1), Limit(2))}, "has the same limit twice"),
    ],
)
def test_tasks_refuse_invalid_limits(
    register: Register, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        register(pay, **options)


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"concurrency": Limit("strip")}, InvalidOption, r"no limit 'strip' \(did you mean"),
        ({"rate": Rate("stripe")}, InvalidOption, "the limit 'stripe' .* has no 'rate'"),
        ({"fair_by": fails}, InvalidArguments, "fair_by of .*pay raised KeyError"),
        (
            {"fair_by": lambda *_, **__: object()},
            InvalidArguments,
            "a JSON value, not of type object",
        ),
    ],
)
def test_an_enqueue_refuses_invalid_keys(
    register: Register, settings: Any, options: dict[str, Any], error: Any, message: str
) -> None:
    settings.REDISQUEUE = {"LIMITS": {"stripe": {"concurrency": 5}}}
    made = register(pay, **options)
    with pytest.raises(error, match=message):
        made.s(1).new_job()


def test_the_result_of_a_parent_cannot_be_a_key(register: Register) -> None:
    made = register(pay, fair_by="tenant_id")
    with pytest.raises(InvalidOption, match="result of its parent, which is not known until"):
        made.s().taking_result().new_job()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ([], r'"LIMITS"\] must be a dict of name to limit'),
        ({"a b": {}}, "has a limit 'a b'"),
        ({"a": 5}, 'must be a dict such as {"concurrency": 5}, not 5'),
        ({"a": {}}, 'needs "concurrency", "rate" or both'),
        ({"a": {"concurrency": 0}}, "Limit takes a whole number from 1"),
        ({"a": {"concurency": 5}}, r"a limit has no 'concurency' \(did you mean 'concurrency'"),
        ({"a": {"rate": 100}}, r"rate must be \(jobs, window\)"),
        ({"a": {"rate": 10**5000}}, "a value of int that cannot be shown"),
        ({"a": {10**5000: 1}}, "a limit has no a value of int that cannot be shown"),
        ({"a": {"rate": (100, 60)}}, "needs a window with a unit"),
        ({"a": {"concurrency": 5, "burst": 2}}, "burst belongs to a rate"),
    ],
)
def test_the_setting_refuses_invalid_limits(limits: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load({"LIMITS": limits})


@pytest.mark.parametrize("weight", [0, 101, 1.5, "3"])
def test_weights_refuse_invalid_values(weight: object) -> None:
    with pytest.raises(ConfigurationError, match=r'"WEIGHTS"\]\[.gold.\] must be a whole number'):
        load({"WEIGHTS": {"gold": weight}})


@pytest.mark.parametrize("share", [b"gold", ("a", b"x"), float("nan"), "\ud800"])
def test_a_share_that_json_cannot_carry_has_no_weight(share: object) -> None:
    with pytest.raises(ConfigurationError, match=r'"WEIGHTS"\]: a share must be a JSON value'):
        load({"WEIGHTS": {share: 3}})
