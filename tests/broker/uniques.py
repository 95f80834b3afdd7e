"""The laws of unique keys, over the whole keyspace, after every step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .harness import FINISHED, BrokerHarness

# Modes by the names of keys, which numbers may follow
MODES = {
    "started": "until_started - -",
    "finished": "until_finished - -",
    "replace": "replace 1000 3000",
    "last": "keep_last - -",
    "lasting": "for 5000 -",
}


def check_uniques(
    broker: BrokerHarness, dump: dict[str, Any], released: Collection[str] = ()
) -> None:
    """Each key is held by a living job, and no two jobs exist that it rules out, apart from those
    whose key was ``released`` by hand."""
    prefix, jobs_at = broker.keys.unique(""), broker.keys.job("")
    owners = {key.removeprefix(prefix): dump[key][1] for key in dump if key.startswith(prefix)}
    listed = {key for key, _ in dump.get(broker.keys.uniques, ("", []))[1]}
    assert owners.keys() <= listed
    # Redis expires lasting keys by its own clock.
    assert {key.rstrip("0123456789") for key in listed - owners.keys()} <= {"lasting"}
    living: dict[str, list[dict[str, str]]] = {key: [] for key in owners}
    for key, (kind, job) in dump.items():
        is_job = kind == "hash" and key.startswith(jobs_at)
        if is_job and "unique" in job and job.get("status", "completed") not in FINISHED:
            found = {**job, "id": key.removeprefix(jobs_at)}
            living.setdefault(job["unique"].split()[0], []).append(found)
    for key, jobs in living.items():
        mode, owner = key.rstrip("0123456789"), owners.get(key)
        if mode != "lasting":
            assert owner is None or owner in [job["id"] for job in jobs]
            rivals = [job for job in jobs if job["id"] == owner or job["id"] not in released]
            _check_rivals(mode, rivals, owner)


def _check_rivals(mode: str, jobs: list[dict[str, str]], owner: str | None) -> None:
    """Checks what one key rules out."""
    waiting = [job for job in jobs if job["status"] == "waiting"]
    # A job that has begun and is parked may have a successor, like one that runs.
    idle = [
        job for job in jobs if job["status"] != "processing" and "s" not in job.get("watched", "")
    ]
    if mode == "finished":
        assert [job["id"] for job in jobs] == ([owner] if owner else [])
    elif mode == "last":
        assert max(len(waiting), len(jobs) - len(waiting)) <= 1
        assert owner == ((waiting or jobs)[0]["id"] if jobs else None)
    elif mode == "replace":
        assert len(idle) <= 1 or owner is None
