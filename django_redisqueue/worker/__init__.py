"""The worker: one supervisor, its children, and what keeps a shard in order. See docs/worker.md."""
