"""Gathers with real workers use the stage of the worker tests."""

from tests.worker.conftest import database, stage

__all__ = ["database", "stage"]
