"""The laws of jobs with lanes, over the whole keyspace, after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

BAND = 2**45


def name_of(job: dict[str, str]) -> str:
    return job["lane"].split(" ")[0]


def slot_keys(lane: str) -> list[str]:
    return [key for key in lane.split("|")[1:] if key.startswith("c:")]


def numbers(dump: dict[str, Any], base: str) -> dict[str, str]:
    found: dict[str, str] = dump.get(f"{base}limits", ("hash", {}))[1]
    return found


def limit_of(given: dict[str, str], key: str) -> float:
    number = given.get(f"={key}", given.get(key.rpartition(":")[0], ""))
    return int(number) if number else float("inf")


def check_limits(dump: dict[str, Any], base: str, before: dict[str, Any] | None = None) -> None:
    """No limit on concurrency is exceeded, unless it was before, because it has been lowered."""
    given, earlier = numbers(dump, base), _used(before or {}, base)
    for key, count in _used(dump, base).items():
        assert count <= max(limit_of(given, key), earlier[key]), key


def _used(dump: dict[str, Any], base: str) -> Counter[str]:
    slots = dump.get(f"{base}slots", ("zset", []))[1]
    return Counter(slot.split(" ")[0] for slot, _ in slots)


def check_lanes(dump: dict[str, Any], jobs: dict[str, dict[str, str]], base: str) -> None:
    slots = {member for member, _ in dump.get(f"{base}slots", ("zset", []))[1]}
    assert slots == {
        f"{key} {job_id}"
        for job_id, job in jobs.items()
        if job.get("status") == "processing" and "lane" in job
        for key in slot_keys(name_of(job))
    }
    queues = {key.split(":q:")[1].split(":")[0] for key in dump if key.startswith(f"{base}q:")}
    waiting = set()
    for kind in ("limits", "chunks"):
        found = {member for member, _ in dump.get(f"{base}{kind}:waiting", ("zset", []))[1]}
        assert {member.startswith(("k:", "p:")) for member in found} <= {kind == "chunks"}
        waiting |= found
    assert waiting == {place for queue in queues for place in _check_queue(dump, jobs, base, queue)}
    used = _used(dump, base)
    for place in waiting:
        key, queue = place.split(" ")
        if key.startswith("c:") and used[key] < limit_of(numbers(dump, base), key):
            ready = _ready(dump, f"{base}q:{queue}")
            assert any(key in lane.split("|") for lane in ready), f"{place} waits for nothing"


def _ready(dump: dict[str, Any], base: str) -> dict[str, float]:
    return {
        lane: score
        for key, (_, value) in dump.items()
        if key.startswith(f"{base}:lanes:")
        for lane, score in value
    }


def _check_queue(
    dump: dict[str, Any], jobs: dict[str, dict[str, str]], base: str, queue: str
) -> Iterator[str]:
    """Returns the limits at which lanes of the queue are parked."""
    start = f"{base}q:{queue}"
    keyed = dict(dump.get(f"{start}:keyed", ("zset", []))[1])
    lanes: dict[str, dict[str, float]] = {}
    for job_id, job in jobs.items():
        if (job.get("status"), job.get("queue", "default")) == ("queued", queue) and "lane" in job:
            lanes.setdefault(name_of(job), {})[job_id] = keyed[job_id]
    assert sum(map(len, lanes.values())) == len(keyed)
    stored = {key: dict(dump[key][1]) for key in dump if key.startswith(f"{start}:lane:")}
    assert stored == {f"{start}:lane:{name}": ids for name, ids in lanes.items()}
    ready, parked = _ready(dump, start), dump.get(f"{start}:parked", ("hash", {}))[1]
    assert ready.keys().isdisjoint(parked)
    assert ready | dict.fromkeys(parked) == {
        name: None if name in parked else min(ids.values()) for name, ids in lanes.items()
    }
    shares: dict[str, float] = {}
    for name, score in ready.items():
        assert name in dict(dump[f"{start}:lanes:{name.split('|')[0]}"][1])
        share = name.split("|")[0]
        shares[share] = min(shares.get(share, score), score)
    bands = {share: score // BAND for share, score in dump.get(f"{start}:shares", ("", []))[1]}
    assert bands == {share: score // BAND for share, score in shares.items()}
    assert not keyed or "keyed" in dump[f"{start}:meta"][1]
    sets = {key.split(":parked:")[1]: dump[key][1] for key in dump if f"{start}:parked:" in key}
    assert {lane: at for at, found in sets.items() for lane, _ in found} == parked
    for at, found in sets.items():
        for lane, score in found:
            assert score // BAND == min(lanes[lane].values()) // BAND
            share, *limits = lane.split("|")
            assert at.removeprefix("p:") in [*limits, f"s:{share}"]
        yield f"{at} {queue}"
