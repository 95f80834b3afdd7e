"""Changes limits, weights of shares and unique keys while workers run."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.codec import loads
from ..core.parsing import int_or_none, is_int
from ..core.policies import MAX_WEIGHT, Limit, Rate, UniqueKey, encode_share, encode_shown
from ..exceptions import InvalidOption, did_you_mean, short_repr
from .options import check_integer
from .policies import LaneRule
from .registry import get_task, task_names
from .tasks import Task
from .transport import transport

_NUMBER = re.compile(r"\s*(\d{1,9})(?:\s+in\s+(\w{1,20})(?:\s+burst\s+(\d{1,9}))?)?\s*", re.ASCII)
NO_KEY = object()  # where None is a value
PAGE = 100  # unique keys per page at most
Kinds = tuple[type[Limit] | type[Rate], ...]


def _all_rules() -> list[LaneRule]:
    rules = (get_task(name).lane_rule for name in task_names())
    return [rule for rule in rules if rule is not None]


def _all_limits() -> list[tuple[str, Limit | Rate, LaneRule]]:
    """The limits of all tasks, with their names."""
    return [(one.name or rule.task, one, rule) for rule in _all_rules() for one in rule.all_limits]


def _decoded(number: object) -> tuple[str, Kinds]:
    """A number as Redis stores it, and the kinds of limits that it fits."""
    if number is None:
        return "", (Limit, Rate)
    found = number if isinstance(number, Limit | Rate) else Limit(number)  # type: ignore[arg-type]
    if found.name or found.key is not None:
        raise InvalidOption(
            'the number must be a value such as 10, Limit(10), Rate(100, "1m") or None, without a '
            f"name or a key, not {short_repr(number)}; pass the value of the key as key="
        )
    return found.number, (type(found),)


def set_limit(
    limit: str | Task, number: int | Limit | Rate | None, *, key: object = NO_KEY
) -> bool:
    """Set the number of one limit from now on: ``set_limit("stripe", 10, key=42)``, or pass a
    ``Rate``. None removes what was set, so that the number in the code applies again.

    ``limit`` is a name in ``REDISQUEUE["LIMITS"]``, a task, or a task's name. ``key`` is the value
    of the limit's key, or a tuple of values if it has several parameters. Returns True if anything
    changed. Raises InvalidOption or InvalidArguments.
    """
    text, _ = _decoded(number)
    changed = [transport().set_limit(one, text) for one in keys_to_set(limit, number, key)]
    return any(changed)


def keys_to_set(limit: str | Task, number: int | Limit | Rate | None, key: object) -> list[str]:
    """The limit keys that ``set_limit`` would set. Raises InvalidOption or InvalidArguments."""
    return limit_keys(limit, key, _decoded(number)[1])


def limit_keys(limit: str | Task, key: object, kinds: Kinds = (Limit, Rate)) -> list[str]:
    """The keys of a limit for one value of its key. Raises InvalidOption or InvalidArguments."""
    name = limit.name if isinstance(limit, Task) else limit
    known = _all_limits()
    used = [(one, rule) for has, one, rule in known if has == name and isinstance(one, kinds)]
    if not used:
        raise InvalidOption(_no_limit(name, kinds, known))
    has_key = key is not NO_KEY
    matching = [(one, rule) for one, rule in used if has_key == (one.key is not None)]
    if not matching:
        raise InvalidOption(
            f"the limit {name!r} has a number for each value of its key; pass one as key="
            if not has_key
            else f"the limit {name!r} has no key; leave key= out"
        )
    return sorted(
        {
            f"{rule.field_of(one)}:{rule.encode_key_value(one, key) if has_key else ''}"
            for one, rule in matching
        }
    )


def _no_limit(name: str, kinds: Kinds, known: Sequence[tuple[str, Limit | Rate, LaneRule]]) -> str:
    """The message for a name that no limit of these kinds has."""
    what = " or ".join(kind.__name__ for kind in kinds)
    shared = sorted({has for has, _, rule in known if rule.task == name and has != name})
    if shared:
        return f"{name} has no {what} of its own; it shares {', '.join(shared)}"
    others = {has for has, *_ in known if has != name}
    return (
        f"no task has a {what} {short_repr(name)}{did_you_mean(name, others)}; name a task that "
        'has one, or a limit of REDISQUEUE["LIMITS"] that tasks use'
    )


def limit_names() -> list[str]:
    """The limits that tasks have: tasks by their names, and those of ``REDISQUEUE["LIMITS"]``."""
    return sorted({name for name, *_ in _all_limits()})


def parse_number(text: str) -> int | Rate | None:
    """Parse a number for ``set_limit``: ``10``, ``100 in 1m``, ``100 in 1m burst 10``, or ``none``
    to remove what was set. Raises InvalidOption."""
    if text.strip().lower() == "none":
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InvalidOption(
            'the number must be written as "10", "100 in 1m" or "100 in 1m burst 10", or "none" to '
            f"remove what was set, not {short_repr(text)}"
        )
    most, window, burst = match.groups()
    return Rate(int(most), window, burst=int(burst or 1)) if window else int(most)


def parse_weight(text: str) -> int | None:
    """Parse a weight for ``set_weight``: ``10`` or ``none``. Raises InvalidOption."""
    if text.strip().lower() == "none":
        return None
    weight = int_or_none(text.strip(), 1, MAX_WEIGHT)
    if weight is None:
        raise InvalidOption(
            f'a weight must be a whole number from 1 to {MAX_WEIGHT}, or "none" to remove what '
            f"was set, not {short_repr(text)}"
        )
    return weight


def parse_key(text: str) -> object:
    """Parse the value of a limit's key: a string, a JSON array for several parameters, or nothing
    for a limit without a key. Raises InvalidOption."""
    if not text.startswith("["):
        return text or NO_KEY
    try:
        return tuple(loads(text))
    except ValueError:
        raise InvalidOption(
            f"the key must be a string, or a JSON array of values, not {short_repr(text)}"
        ) from None


def share_fields(share: object) -> list[str]:
    """The shares with this value of ``fair_by``, including the differently named ones of tasks that
    redact it. Raises InvalidOption."""
    shown = encode_shown(share) if isinstance(share, str) else None
    if shown is not None:
        return [f"s:{shown}"]
    try:
        found = {rule.encode_given_share(share) for rule in _all_rules()} - {None}
        if not found and not isinstance(share, tuple):
            found = {encode_share(share)}
    except (TypeError, ValueError):
        raise InvalidOption(f"a share must be a JSON value, not {short_repr(share)}") from None
    if not found:
        raise InvalidOption(
            f"no task has a fair_by with {len(share)} parameters,"  # type: ignore[arg-type]
            f" one for each value of {short_repr(share)}; write a value that is an array as a list"
        )
    return sorted(f"s:{one}" for one in found)


def set_weight(share: object, weight: int | None) -> bool:
    """Set the weight of a share from now on. ``share`` is the value of ``fair_by`` as in
    ``WEIGHTS`` (a tuple for several parameters), or the name in the list of pauses. None removes
    what was set. Returns True if anything changed. Raises InvalidOption."""
    if weight is not None and not is_int(weight, 1, MAX_WEIGHT):
        raise InvalidOption(
            f"a weight must be a whole number from 1 to {MAX_WEIGHT}, or None to remove it, not "
            f"{short_repr(weight)}"
        )
    number = "" if weight is None else str(weight)
    changed = [transport().set_limit(field, number) for field in share_fields(share)]
    return any(changed)


def unique_keys(start: int = 0, count: int = PAGE) -> Sequence[UniqueKey]:
    """A page of at most 100 keys, oldest first. It may be shorter than ``count``, because keys that
    are free again are left out. Raises InvalidOption."""
    check_integer(start, "start", 0, 2**32)
    check_integer(count, "count", 1, 2**32)
    return transport().unique_keys(start, min(count, PAGE))


def release_unique_key(key: str) -> str:
    """Free a key so that a new job may take it. Returns the id of the job that had it, or ''. That
    job itself is not changed. Raises InvalidOption."""
    if not isinstance(key, str):
        raise InvalidOption(
            f"key must be a text, as unique_keys() returns it, not {short_repr(key)}"
        )
    return transport().release_unique(key)
