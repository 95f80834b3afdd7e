from tests.outbox.conftest import empty_sqlite, play
from tests.worker.conftest import migrated, stage

__all__ = ["empty_sqlite", "migrated", "play", "stage"]
