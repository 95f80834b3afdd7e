import pytest

from example_project.reports import seeding
from tests.outbox.conftest import empty_sqlite, outbox_harness
from tests.worker.conftest import harness

__all__ = ["empty_sqlite", "harness", "outbox_harness"]


@pytest.fixture(autouse=True)
def prices_of_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prices of a year take up most of the time that makereportdata needs for a test."""
    monkeypatch.setattr(seeding, "TRADING_DAYS", seeding.TRADING_DAYS[-21:])
