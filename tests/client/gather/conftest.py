"""Gathers with real workers use the harness of the worker tests."""

from tests.worker.conftest import database, harness

__all__ = ["database", "harness"]
