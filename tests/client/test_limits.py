"""Limits and weights that are overridden by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_redisqueue import JobQueue, Limit, Rate, Task, set_limit, set_weight, task
from django_redisqueue.client import registry
from django_redisqueue.client.policies import encode_secret
from django_redisqueue.core.policies import encode_value
from django_redisqueue.exceptions import InvalidOption
from django_redisqueue.testing import InMemoryQueue, capture_jobs, run_inline

SEEN: list[str] = []


def pay(tenant: str, card: str = "") -> None:
    SEEN.append(f"{tenant}{card}")


@pytest.fixture
def make(settings: Any) -> Iterator[Callable[..., Task]]:
    """Registers a task that no other test sees."""
    SEEN.clear()
    limits = {"stripe": {"concurrency": 5, "rate": (10, "1s")}}
    settings.REDISQUEUE = {**settings.REDISQUEUE, "LIMITS": limits}
    known = dict(registry._tasks)
    yield lambda **options: task(name="app.pay", **options)(pay)
    registry._tasks.clear()
    registry._tasks.update(known)


@pytest.mark.parametrize(
    ("options", "name", "number", "key", "sent"),
    [
        ({"concurrency": Limit(5)}, "app.pay", 3, None, ("c:app.pay:", "3")),
        ({"concurrency": Limit(5)}, "app.pay", Limit(3), None, ("c:app.pay:", "3")),
        ({"concurrency": Limit(5, key="tenant")}, "app.pay", 3, "a b", ("c:app.pay:a%20b", "3")),
        ({"concurrency": Limit("stripe", key="tenant")}, "stripe", 3, 42, ("c:stripe:42", "3")),
        ({"rate": Rate("stripe")}, "stripe", Rate(7, "1s"), None, ("r:stripe:", "7/1000000/1")),
        ({"rate": Rate("stripe")}, "stripe", None, None, ("r:stripe:", "")),
        (
            {"rate": Rate(5, "1s", key=("tenant", "card"))},
            "app.pay", Rate(7, "1s", burst=2), ("a", "b"), ("r:app.pay:a,b", "7/1000000/2"),
        ),
        ({"concurrency": Limit(5, key=lambda *_: 1)}, "app.pay", 3, 1, ("c:app.pay:1", "3")),
    ],
)  # fmt: skip
def test_the_limit_key(
    make: Callable[..., Task],
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    name: str,
    number: Any,
    key: Any,
    sent: tuple[str, str],
) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(InMemoryQueue, "set_limit", lambda _, *call: not found.append(call))
    made = make(**options)
    with capture_jobs():
        chosen = {} if key is None else {"key": key}
        assert set_limit(made if name == "app.pay" else name, number, **chosen)
    assert found == [sent]


def test_the_value_of_a_redacted_parameter(make: Callable[..., Task]) -> None:
    made = make(concurrency=Limit(1, key="card"), redact=["card"], on_conflict="discard")
    with capture_jobs() as jobs:
        assert set_limit("app.pay", 2, key="4711")
        made.enqueue_many([("a", "4711"), ("b", "4711"), ("c", "4711")])
        jobs.drain()
    assert SEEN == ["a4711", "b4711"]


@pytest.mark.parametrize(
    ("number", "chosen", "words"),
    [
        (0, {}, "Limit takes a whole number from 1"),
        ("stripe", {}, "without a name or a key, not 'stripe'"),
        (Limit(3, key="tenant"), {}, "pass the value of the key as key="),
        (3, {}, "the limit 'app.pay' has a number for each value of its key; pass one as key="),
        (3, {"key": "a"}, r"key of Limit of app.pay is \(tenant, card\); pass key= a tuple of 2"),
        (Rate(3, "1s"), {"key": "a"}, "the limit 'app.pay' has no key; leave key= out"),
    ],
)
def test_a_number_or_a_key_that_does_not_fit(
    make: Callable[..., Task], number: Any, chosen: Any, words: str
) -> None:
    make(concurrency=Limit(5, key=("tenant", "card")), rate=Rate(5, "1s"))
    with capture_jobs(), pytest.raises(InvalidOption, match=words):
        set_limit("app.pay", number, **chosen)


def test_a_limit_that_no_task_has(make: Callable[..., Task]) -> None:
    make(concurrency=Limit("stripe"))
    with capture_jobs():
        with pytest.raises(InvalidOption, match=r"no task has a Limit 'strip' \(did you mean"):
            set_limit("strip", 3)
        with pytest.raises(InvalidOption, match="no task has a Rate 'stripe'; name a task"):
            set_limit("stripe", Rate(3, "1s"))


@pytest.mark.parametrize("weight", [0, 101, True, "3"])
def test_a_weight_that_does_not_fit(weight: Any) -> None:
    with pytest.raises(InvalidOption, match="a weight must be a whole number from 1 to 100"):
        set_weight("gold", weight)


def test_a_share_that_is_not_a_json_value() -> None:
    with pytest.raises(InvalidOption, match="a share must be a JSON value, not"):
        set_weight(object(), 2)


COMPOSITE = ("tenant", "card")


@pytest.mark.parametrize(
    ("options", "share", "fields"),
    [
        ({"fair_by": "tenant"}, "a b", ["a%20b"]),
        ({"fair_by": "tenant"}, 42, ["42"]),
        ({"fair_by": COMPOSITE}, ("a", "b,c"), ["a,b%2Cc"]),
        ({"fair_by": COMPOSITE}, "a,b", ["a,b"]),  # as it is shown
        ({"fair_by": COMPOSITE}, "a", ["a"]),
        ({"fair_by": lambda *_: ("a", "b")}, ["a", "b"], [encode_value(["a", "b"])]),
        (
            {"fair_by": "card", "redact": ["card"]}, "4711",
            [encode_secret("4711")],
        ),
        (
            {"fair_by": COMPOSITE, "redact": ["card"]}, ("a b", "4711"),
            [f"a%20b,{encode_secret('4711')}"],
        ),
        ({"fair_by": "tenant"}, f"~{'0a' * 16}", [f"~{'0a' * 16}"]),
        ({"fair_by": COMPOSITE}, f"a b,~{'0a' * 16}", [f"a%20b,~{'0a' * 16}"]),
    ],
)  # fmt: skip
def test_the_name_of_a_share(
    make: Callable[..., Task],
    monkeypatch: pytest.MonkeyPatch,
    options: Any,
    share: Any,
    fields: list[str],
) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(InMemoryQueue, "set_limit", lambda _, *call: not found.append(call))
    registry._tasks.clear()
    make(**options)
    with capture_jobs():
        assert set_weight(share, 2)
    assert sorted(found) == sorted((f"s:{field}", "2") for field in fields)


@pytest.mark.parametrize(
    ("fair_by", "redact", "call"),
    [
        ("tenant", ["tenant"], ("4711",)),
        ("tenant", [], ("a long value, with a comma " * 9,)),
        (COMPOSITE, [], ("a b", "c,d")),
        (COMPOSITE, ["card"], ("a b", "4711")),
        (COMPOSITE, [], ("a" * 50, "b" * 50)),
    ],
)
def test_a_share_is_paused_by_its_values_or_as_it_is_shown(
    make: Callable[..., Task],
    fair_by: Any,
    redact: list[str],
    call: tuple[str, ...],
) -> None:
    registry._tasks.clear()
    made = make(fair_by=fair_by, redact=redact)
    queue, values = JobQueue(), call if fair_by is COMPOSITE else call[0]
    with run_inline():
        assert queue.pause(share=values)
        made.enqueue(*call)
        assert SEEN == []
        shown = [text.removeprefix("share ") for text in queue.get_pauses()]
        assert "4711" not in "".join(shown)
        for text in shown:
            queue.resume(share=text)
        queue.resume(share=values)
        assert len(SEEN) == 1


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (
            ("a", "b", "c"),
            r"no task has a fair_by with 3 parameters, one for each value of \('a', 'b', 'c'\)",
        ),
        (("a", object()), "a share must be a JSON value, not"),
        (f"50%~{'0a' * 16}", "was cut at an unknown place; pass the value itself"),
    ],
)
def test_an_impossible_share(make: Callable[..., Task], share: Any, words: str) -> None:
    registry._tasks.clear()
    make(fair_by=COMPOSITE)
    with capture_jobs():
        with pytest.raises(InvalidOption, match=words):
            set_weight(share, 2)
        with pytest.raises(InvalidOption, match=words):
            JobQueue().pause(share=share)


def test_the_setting_names_a_share_of_several_parameters(
    make: Callable[..., Task], settings: Any
) -> None:
    settings.REDISQUEUE = {**settings.REDISQUEUE, "WEIGHTS": {("a", "b"): 3, "c": 2}}
    made = make(fair_by=COMPOSITE)
    with capture_jobs():
        assert made.s("a", "b").new_job().lane == "a,b s:a,b=3"
        assert made.s("c").new_job().lane == "c,~ s:c,~=1"


def test_in_memory_a_weight(make: Callable[..., Task]) -> None:
    made = make(fair_by="tenant")
    with capture_jobs() as jobs:
        assert (set_weight("a", 2), set_weight("a", 2)) == (True, False)
        made.enqueue_many([*[("a",)] * 4, *[("b",)] * 2])
        jobs.drain()
        assert set_weight("a", None)
    assert SEEN == ["a", "b", "a", "a", "b", "a"]


def test_in_memory_a_raised_rate_starts_jobs(make: Callable[..., Task]) -> None:
    made = make(rate=Rate(1, "1h"))
    with run_inline() as jobs:
        made.enqueue_many([("a",), ("b",)])
        assert SEEN == ["a"]
        set_limit(made, Rate(60, "1m", burst=60))
        jobs.travel(hours=2)
    assert SEEN == ["a", "b"]
