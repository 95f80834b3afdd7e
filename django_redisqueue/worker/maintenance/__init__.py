"""The maintenance process: what must run once per shard, behind a leader lease."""
