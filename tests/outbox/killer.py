"""Makes a worker's child die by SIGKILL between the commit of an exactly_once job and its report:
once a job, which it notes in the folder of the ledger."""

from __future__ import annotations

import os
from collections.abc import Callable

from django_redisqueue.worker import executor

from .tasks import die_once

run_once = executor.run_once


def run_once_and_die(job_id: str, alias: str, work: Callable[[], str]) -> str:
    result = run_once(job_id, alias, work)
    die_once(os.environ["REDISQUEUE_TEST_GRAVES"], job_id)
    return result


executor.run_once = run_once_and_die
