from __future__ import annotations

from tests.broker.conftest import broker  # noqa: F401
