"""The maintenance process: work that must run once per shard, behind a leader lease."""
