from __future__ import annotations

from tests.api.conftest import hand, key_count
from tests.worker.conftest import database, migrated, stage

__all__ = ["database", "hand", "key_count", "migrated", "stage"]
