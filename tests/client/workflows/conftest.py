"""Workflows with real workers play where the worker's tests do."""

from tests.worker.conftest import database, stage

__all__ = ["database", "stage"]
