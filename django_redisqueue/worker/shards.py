"""What the parts of a worker share that serve several shards."""

from __future__ import annotations

from ..conf import Settings


def shard_label(name: str, shard: int, settings: Settings) -> str:
    """How the part of a worker that serves a shard is called in the log."""
    return f"{name} of shard {shard}" if settings.shards > 1 else name
