"""The tasks of `django_redisqueue_peer`, which `TASK_MODULES` names."""

from work import work, work_async

from django_redisqueue import task

job = task(work)
async_job = task(work_async)
