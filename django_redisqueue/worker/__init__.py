"""The worker: one supervisor, its children, and the upkeep of a shard. See docs/worker.md."""
