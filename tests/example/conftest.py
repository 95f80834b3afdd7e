from tests.outbox.conftest import empty_sqlite, play
from tests.worker.conftest import stage

__all__ = ["empty_sqlite", "play", "stage"]
