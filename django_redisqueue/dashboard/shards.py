"""What the pages read from several shards."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.placement import shard_of_id


def ids_by_shard(ids: Iterable[str]) -> dict[int, list[str]]:
    """The ids of each shard, in their order."""
    found: dict[int, list[str]] = {}
    for some_id in ids:
        found.setdefault(shard_of_id(some_id), []).append(some_id)
    return found
