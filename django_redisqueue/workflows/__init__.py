"""Workflows: jobs that depend on jobs (docs/workflows.md)."""

from .workflow import Workflow, chain, get_workflow, push_many

__all__ = ["Workflow", "chain", "get_workflow", "push_many"]
