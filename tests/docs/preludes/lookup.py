from contextlib import ExitStack

from django_redisqueue import Workflow, task

REDISQUEUE = {"MIRROR": True, "INDEXED": ["tags.tenant"], "QUEUES": {"default": {}, "low": {}}}
day, name = "2026-11-23", "users"


@task
def export(day): ...


@task
def load(name): ...


flow = Workflow("imports")
